"""A guardrail of the user's own, asked over HTTP.

``POST`` of ``{"phase": "before"|"after", "guardrail": name, "texts": [...]}``; the answer is
``{"action": "allow"|"flag"|"mask"|"block", "rules"?: [names], "texts"?: [...]}``, with ``texts``
for ``mask``.
"""

import json
import re
from collections.abc import Sequence
from typing import Literal, cast

from terrace_common.governance.guardrails import Action, HttpGuardrail
from terrace_gateway.calls.ports import Verdict
from terrace_gateway.guardrails.http_client import GuardrailHttp
from terrace_gateway.guardrails.local import Named
from terrace_gateway.guardrails.port import Asking, GuardrailFailedError, Meter, PartFilter

MAX_RULES = 50
_RULE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
_SEVERITY = ("allow", "flag", "mask", "block")


class HttpGuard:
    """Asks one URL."""

    local = False

    def __init__(self, named: Named, section: HttpGuardrail, http: GuardrailHttp) -> None:
        self.name = named.name
        self.action: Action = named.action
        self.phases = named.phases
        self.fails_open = named.fails_open
        self.timeout_seconds = named.timeout_seconds
        self._section = section
        self._http = http

    async def before(self, texts: Sequence[str], meter: Meter | None) -> Verdict:
        """Its verdict on a prompt. Raises ``GuardrailFailedError``; ``ApiError`` of the meter."""
        return await self._ask("before", texts, meter)

    async def after(self, texts: Sequence[str], meter: Meter | None) -> Verdict:
        """Its verdict on an answer. Raises as ``before``."""
        return await self._ask("after", texts, meter)

    def stream(self) -> PartFilter | None:
        """It must see an answer whole."""
        return None

    async def _ask(
        self, phase: Literal["before", "after"], texts: Sequence[str], meter: Meter | None
    ) -> Verdict:
        if meter is None:
            raise GuardrailFailedError("nobody says here whether it may be asked")
        headers = {"content-type": "application/json", "accept": "application/json"}
        if self._section.token_env is not None:
            token = self._http.credential(self._section.token_env)
            if not token:
                raise GuardrailFailedError(f"{self._section.token_env} is not set")
            headers["authorization"] = f"Bearer {token}"
        question = {"phase": phase, "guardrail": self.name, "texts": list(texts)}
        body = json.dumps(question).encode()
        async with meter.asking(Asking(section=self._section, of_answer=phase == "after")) as ask:
            status, _, body = await self._http.post(
                self._section.url, headers=headers, body=body, before_send=ask
            )
        if status != 200:
            raise GuardrailFailedError(f"status {status}")
        return self._verdict(body, len(texts))

    def _verdict(self, body: bytes, count: int) -> Verdict:
        try:
            answer: object = json.loads(body)
        except (ValueError, RecursionError):
            raise GuardrailFailedError("its answer is no JSON") from None
        fields = cast("dict[str, object]", answer) if isinstance(answer, dict) else {}
        action = fields.get("action")
        if action not in _SEVERITY:
            raise GuardrailFailedError("its answer has no action that is known")
        if action == "allow":
            return Verdict("allow", self.name)
        rules = _names(fields.get("rules", []))
        texts = fields.get("texts")
        masked: tuple[str, ...] | None = None
        if isinstance(texts, list):
            items = cast("list[object]", texts)
            masked = tuple(item for item in items if isinstance(item, str))
            if len(masked) != count or len(items) != count:
                raise GuardrailFailedError("its answer has another count of texts")
        if action == "mask" and masked is None:
            raise GuardrailFailedError("its answer masks and has no texts")
        return Verdict(action, self.name, rules, texts=masked)


def _names(value: object) -> tuple[str, ...]:
    """Names only: what a service sends as a rule's name must not carry text of a prompt."""
    items = cast("list[object]", value) if isinstance(value, list) else []
    return tuple(
        item if isinstance(item, str) and _RULE_NAME.fullmatch(item) else "unnamed"
        for item in items[:MAX_RULES]
    )
