"""Guardrails of a spec, a meter with books of its own, and policies that name them."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.resources import files

from botocore.credentials import ReadOnlyCredentials

from terrace_common.governance import load_governance
from terrace_gateway.calls.ports import EffectivePolicy
from terrace_gateway.edge.errors import BUDGET_EXHAUSTED, ApiError
from terrace_gateway.guardrails.chain import GuardrailRun, Guardrails
from terrace_gateway.guardrails.http_client import GuardrailHttp
from terrace_gateway.guardrails.port import Ask, Asking, BilledCall

EXAMPLE = (files("terrace_common") / "examples" / "governance.local.yaml").read_text("utf-8")


class FixedCredentials:
    """Keys that do not change."""

    def __init__(self, key_id: str = "AKID") -> None:
        self._key_id = key_id

    async def get(self) -> ReadOnlyCredentials:
        return ReadOnlyCredentials(self._key_id, "secret", None)


class Books:
    """A meter: what was reserved, what was booked. ``unknown`` attempts count as reserved."""

    def __init__(self, budget: int = 10**9) -> None:
        self.budget = budget
        self.asked: list[Asking] = []
        self.calls: list[BilledCall] = []
        self.booked: list[int] = []
        self.outcomes: list[str] = []

    @asynccontextmanager
    async def asking(self, asking: Asking) -> AsyncGenerator[Ask]:
        self.asked.append(asking)
        yield Booking().before_send

    @asynccontextmanager
    async def attempt(self, call: BilledCall) -> AsyncGenerator["Booking"]:
        if sum(self.booked) + call.worst_case.micro_usd > self.budget:
            raise ApiError(BUDGET_EXHAUSTED, "used up")
        self.calls.append(call)
        booking = Booking()
        try:
            yield booking
        finally:
            known = booking.micro_usd is not None
            self.booked.append(booking.micro_usd if known else call.worst_case.micro_usd)
            self.outcomes.append(booking.outcome)


class Booking:
    """One attempt."""

    def __init__(self) -> None:
        self.micro_usd: int | None = None
        self.outcome = "unknown"

    async def before_send(self) -> None:
        """Nothing stops it here."""

    def settled(self, micro_usd: int, *, units: int, upstream_request_id: str | None) -> None:
        assert upstream_request_id
        self.micro_usd, self.outcome = micro_usd, f"ok:{units}"

    def free(self, outcome: str) -> None:
        self.micro_usd, self.outcome = 0, outcome


def guardrails_of(
    sections: str,
    *,
    http: GuardrailHttp | None = None,
    endpoint: str | None = None,
    credentials: str = "ambient",
) -> Guardrails:
    """``sections``: the YAML list of guardrails; ``credentials``: of the Bedrock provider."""
    bedrock = "    kind: bedrock\n"
    text = EXAMPLE.replace(bedrock, f"{bedrock}    credentials: {credentials}\n")
    if endpoint is not None:
        text = text.replace('http://model-simulator.terrace-providers:8080"', f'{endpoint}"')
    governance = load_governance(f"{text}\nguardrails:\n{sections}", "g.yaml")
    return Guardrails.build(governance, http or GuardrailHttp(FixedCredentials()))


def start(
    guardrails: Guardrails,
    *names: str,
    audit: tuple[str, ...] | None = None,
    meter: Books | None = None,
) -> GuardrailRun:
    """A call under a policy that names these."""
    watching = None if audit is None else EffectivePolicy(guardrails=audit)
    return guardrails.start(EffectivePolicy(guardrails=names), watching, meter)
