"""The port of a guardrail, and how one that is asked over the network is let and booked."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from terrace_common.governance.catalogue import BedrockProvider
from terrace_common.governance.guardrails import Action, BedrockGuardrail, HttpGuardrail, Phase
from terrace_gateway.calls.ports import Amounts, Verdict


class GuardrailFailedError(Exception):
    """The guardrail cannot say. The message is for the log: no text of a prompt."""


Ask = Callable[[], Awaitable[object]]
"""Awaited right before the first byte of an asking; what it raises ends it unsent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """One asking of a guardrail over the network."""

    section: BedrockGuardrail | HttpGuardrail
    """As it was built. It gets a text only while the policy in force declares it just so."""
    signed_for: BedrockProvider | None = None
    """The provider whose account it is of, likewise; ``None``: it has none."""
    of_answer: bool = False
    """About an answer, which its caller has paid for; else about a prompt."""

    @property
    def model(self) -> str:
        """As the ledger names it."""
        return f"guardrail/{self.section.name}"

    @property
    def provider(self) -> str:
        """Name of the spec's provider; empty: it has none."""
        return "" if self.signed_for is None else self.signed_for.name


@dataclass(frozen=True, slots=True, kw_only=True)
class BilledCall(Asking):
    """One that costs money."""

    deployment: str
    worst_case: Amounts
    hard_limit_seconds: int


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
    """Lets guardrails of one client request be asked over the network, and books those that are
    billed: each asking is an attempt of its own."""

    def asking(self, asking: Asking) -> AbstractAsyncContextManager[Ask]:
        """Around one asking that costs nothing; what it gives is to be awaited before it is sent.

        Raises, and is cut, as ``attempt``.
        """
        ...

    def attempt(self, call: BilledCall) -> AbstractAsyncContextManager[Bill]:
        """Around one asking: reserved and durable on entry, settled and durable on exit.

        Raises ``ApiError`` where a cap or the authority does not allow it, or the caller may call
        no more, or the policy in force guards its prompt by another guardrail;
        ``GuardrailFailedError`` where a kill switch stops the guardrail's provider, or that policy
        has another guardrail for an answer. A kill switch ends an asking that runs, with the same
        errors.
        """
        ...


class PartFilter(Protocol):
    """A filter of one part of an answer, which tells the names of the rules it found."""

    @property
    def found(self) -> tuple[str, ...]:
        """So far."""
        ...

    @property
    def late(self) -> bool:
        """Whether the beginning of what it found had been shown by ``flush``."""
        ...

    def feed(self, text: str) -> str:
        """The text that may be shown now. Raises ``GuardrailFailedError``, ``flush`` as well."""
        ...

    def flush(self) -> str:
        """What is held back. The part may go on with ``feed``."""
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
        """A filter of one part of a stream; ``None`` where it is not ``local``."""
        ...
