"""The port of a guardrail, and how a billed one is booked."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from terrace_common.governance.guardrails import Action, Phase
from terrace_gateway.calls.ports import Amounts, Verdict


class GuardrailFailedError(Exception):
    """The guardrail cannot say. The message is for the log: no text of a prompt."""


@dataclass(frozen=True, slots=True)
class BilledCall:
    """One asking of a guardrail that costs money."""

    guardrail: str
    provider: str
    """Name of the spec's provider."""
    model: str
    """As the ledger names it: ``guardrail/<name>``."""
    deployment: str
    worst_case: Amounts
    hard_limit_seconds: int
    of_answer: bool = False
    """About an answer, which its caller has paid for; else about a prompt."""


class Bill(Protocol):
    """What a billed asking cost. Told nothing, the reservation counts as its cost."""

    async def before_send(self) -> None:
        """Awaited with a connection at hand, right before the first byte; until it has returned,
        nothing was sent. Raises as ``Meter.attempt``."""
        ...

    def settled(self, micro_usd: int, *, units: int, upstream_request_id: str | None) -> None:
        """It answered; ``units`` are the text units that were charged."""
        ...

    def free(self, outcome: Literal["upstream_error", "not_sent"]) -> None:
        """The provider refused, or provably nothing was sent."""
        ...


class Meter(Protocol):
    """Books billed guardrails of one client request: each asking is an attempt of its own."""

    def attempt(self, call: BilledCall) -> AbstractAsyncContextManager[Bill]:
        """Around one asking: reserved and durable on entry, settled and durable on exit.

        Raises ``ApiError`` where a cap or the authority does not allow it, or the caller may call
        no more; ``GuardrailFailedError`` where a kill switch stops the guardrail's provider. A kill
        switch ends an asking that runs, with the same errors.
        """
        ...


class PartFilter(Protocol):
    """A ``TextFilter`` that tells the names of the rules it found."""

    @property
    def found(self) -> tuple[str, ...]:
        """Of all parts so far."""
        ...

    def feed(self, text: str) -> str:
        """The text that may be shown now. Raises ``GuardrailFailedError``, ``flush`` as well."""
        ...

    def flush(self) -> str:
        """What is left of this part; the next ``feed`` begins another."""
        ...

    def rest(self) -> str:
        """After ``GuardrailFailedError``: what was not shown of what was fed, as it is."""
        ...


class Guardrail(Protocol):
    """One guardrail of the spec. Its verdict says ``block``, ``mask`` or ``flag`` as it found; what
    is done is the chain's."""

    @property
    def name(self) -> str:
        """As the spec names it."""
        ...

    @property
    def action(self) -> Action:
        """What is to be done with what it finds."""
        ...

    @property
    def phases(self) -> frozenset[Phase]:
        """When it is asked."""
        ...

    @property
    def fails_open(self) -> bool:
        """Whether a call passes when it cannot say."""
        ...

    @property
    def timeout_seconds(self) -> float:
        """For one asking."""
        ...

    @property
    def local(self) -> bool:
        """Whether it is computed here, so that it can filter a stream."""
        ...

    async def before(self, texts: Sequence[str], meter: Meter | None) -> Verdict:
        """A prompt. Raises ``GuardrailFailedError``; ``ApiError`` of the meter."""
        ...

    async def after(self, texts: Sequence[str], meter: Meter | None) -> Verdict:
        """A whole answer. Raises as ``before``."""
        ...

    def stream(self) -> PartFilter | None:
        """A filter of one stream; ``None`` where it is not ``local``."""
        ...
