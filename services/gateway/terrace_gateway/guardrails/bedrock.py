"""Amazon Bedrock Guardrails by ``ApplyGuardrail``: each asking is booked as an attempt of its own.

No retries. An error status is free, as AWS says; a call of which nothing came back counts as its
reservation.
"""

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal
from urllib.parse import quote

from terrace_common.governance.catalogue import BedrockProvider
from terrace_common.governance.guardrails import Action, BedrockGuardrail, UnitPrices
from terrace_gateway.calls.ports import Amounts, Verdict
from terrace_gateway.guardrails.aws_signing import KeyCredentials, signed_headers
from terrace_gateway.guardrails.bedrock_assessment import Assessment, read_assessments
from terrace_gateway.guardrails.http_client import GuardrailHttp, NotConnectedError
from terrace_gateway.guardrails.local import Named
from terrace_gateway.guardrails.port import BilledCall, GuardrailFailedError, Meter, PartFilter
from terrace_gateway.upstream.refusals import is_json, is_own_word

UNIT_CHARACTERS = 1000
MAX_UNITS = 25
"""Of one request: AWS's limit for a guardrail's text. Longer prompts are asked in several."""

Source = Literal["INPUT", "OUTPUT"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a text that goes into one request."""

    index: int
    text: str


class BedrockGuard:
    """Asks one version of one guardrail."""

    local = False

    def __init__(
        self,
        named: Named,
        section: BedrockGuardrail,
        provider: BedrockProvider,
        http: GuardrailHttp,
    ) -> None:
        self.name = named.name
        self.action: Action = named.action
        self.phases = named.phases
        self.fails_open = named.fails_open
        self.timeout_seconds = named.timeout_seconds
        self._section = section
        self._provider = provider
        self._http = http
        self._credentials = (
            http.ambient if provider.credentials == "ambient" else KeyCredentials(http.credential)
        )
        endpoint = provider.endpoint or f"https://bedrock-runtime.{provider.region}.amazonaws.com"
        identifier = quote(section.guardrail_id, safe="-._~")
        version = section.guardrail_version
        self._url = f"{endpoint.rstrip('/')}/guardrail/{identifier}/version/{version}/apply"

    async def before(self, texts: Sequence[str], meter: Meter | None) -> Verdict:
        """Its verdict on a prompt. Raises ``GuardrailFailedError``; ``ApiError`` of the meter."""
        return await self._ask("INPUT", texts, meter)

    async def after(self, texts: Sequence[str], meter: Meter | None) -> Verdict:
        """Its verdict on an answer. Raises as ``before``."""
        return await self._ask("OUTPUT", texts, meter)

    def stream(self) -> PartFilter | None:
        """It must see an answer whole."""
        return None

    async def _ask(self, source: Source, texts: Sequence[str], meter: Meter | None) -> Verdict:
        if meter is None:
            raise GuardrailFailedError("it is billed, and nothing books it here")
        rules: dict[str, None] = {}
        masked = [""] * len(texts)
        worst: Literal["allow", "flag", "mask", "block"] = "allow"
        micro_usd = 0
        for pieces in batches(texts):
            assessment = await self._request(source, pieces, meter)
            micro_usd += cost_micro_usd(assessment.units, self._section.price) or 0
            rules.update(dict.fromkeys(assessment.rules))
            if assessment.action == "block":
                return Verdict("block", self.name, tuple(rules), micro_usd=micro_usd)
            outputs = assessment.outputs if assessment.action == "mask" else None
            if outputs is not None and len(outputs) != len(pieces):
                reasons = (*rules, "masked-unaligned")
                return Verdict("block", self.name, reasons, micro_usd=micro_usd)
            for place, piece in enumerate(pieces):
                masked[piece.index] += piece.text if outputs is None else outputs[place]
            if assessment.action == "mask" or worst == "allow":
                worst = assessment.action
        return Verdict(
            worst,
            self.name,
            tuple(rules),
            texts=tuple(masked) if worst == "mask" else None,
            micro_usd=micro_usd,
        )

    async def _request(self, source: Source, pieces: Sequence[Piece], meter: Meter) -> Assessment:
        content = [{"text": {"text": piece.text}} for piece in pieces]
        body = json.dumps({"source": source, "content": content}).encode()
        signed = await self._signed(body)
        call = BilledCall(
            section=self._section,
            signed_for=self._provider,
            deployment=f"{self._section.guardrail_id}:{self._section.guardrail_version}",
            worst_case=Amounts(
                input_tokens=0,
                output_tokens=0,
                micro_usd=text_units(pieces) * self._section.price.total(),
            ),
            hard_limit_seconds=ceil(self.timeout_seconds) + 1,
            of_answer=source == "OUTPUT",
        )
        async with meter.attempt(call) as bill:
            try:
                status, headers, answer = await self._http.post(
                    self._url, headers=signed, body=body, before_send=bill.before_send
                )
            except NotConnectedError:
                bill.free("not_sent")
                raise
            if status != 200:
                if _refused(status, headers):
                    bill.free("upstream_error")
                raise GuardrailFailedError(f"Bedrock answered with status {status}")
            assessment = read_assessments(answer)
            cost = cost_micro_usd(assessment.units, self._section.price)
            if cost is not None:
                bill.settled(
                    cost,
                    units=sum(assessment.units.values()),
                    upstream_request_id=headers.get("x-amzn-requestid"),
                )
            return assessment

    async def _signed(self, body: bytes) -> dict[str, str]:
        credentials = await self._credentials.get()
        return signed_headers(credentials, self._url, body, region=self._provider.region)


def _refused(status: int, headers: Mapping[str, str]) -> bool:
    """Whether AWS itself refused it, which is free. What something on the way answers may hide an
    asking that goes on, and is paid for."""
    if status >= 500 and (status not in _OWN_WORD_5XX or "x-amzn-requestid" not in headers):
        return False
    return is_own_word(status, json=is_json(headers.get("content-type", "")))


def text_units(pieces: Sequence[Piece]) -> int:
    """The most text units that a request can be charged for: each text is rounded up."""
    return sum(max(1, -(-len(piece.text) // UNIT_CHARACTERS)) for piece in pieces)


def batches(texts: Sequence[str]) -> Generator[list[Piece]]:
    """The texts in requests of at most ``MAX_UNITS``, in order; empty texts are left out."""
    batch: list[Piece] = []
    size = MAX_UNITS * UNIT_CHARACTERS
    for index, text in enumerate(texts):
        for start in range(0, len(text), size):
            piece = Piece(index, text[start : start + size])
            if batch and text_units([*batch, piece]) > MAX_UNITS:
                yield batch
                batch = []
            batch.append(piece)
    if batch:
        yield batch


def cost_micro_usd(units: Mapping[str, int], price: UnitPrices) -> int | None:
    """What the units of an answer cost; ``None`` where one was charged that has no price."""
    prices = {
        "topicPolicyUnits": price.topic,
        "contentPolicyUnits": price.content,
        "wordPolicyUnits": price.word,
        "sensitiveInformationPolicyUnits": price.sensitive_information,
        "contextualGroundingPolicyUnits": price.contextual_grounding,
        "automatedReasoningPolicyUnits": price.automated_reasoning,
    }
    total = 0
    for kind, count in units.items():
        if count == 0 or kind in _FREE:
            continue
        if not prices.get(kind) and kind not in _MAY_BE_FREE:
            return None
        total += count * prices.get(kind, 0)
    return total


_OWN_WORD_5XX = frozenset([500, 503])
_FREE = frozenset(["sensitiveInformationPolicyFreeUnits"])
_MAY_BE_FREE = frozenset(
    ["wordPolicyUnits", "topicPolicyUnits", "contentPolicyUnits", "sensitiveInformationPolicyUnits"]
)
"""Their prices are required by the spec, so a zero was meant."""
