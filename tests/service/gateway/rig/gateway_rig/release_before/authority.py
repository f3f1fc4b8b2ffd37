"""The port of the money path: reserve the worst case, settle the truth once.

The guard knows no more of the authority than this; a slice-granting one replaces the present one
(a transaction per reservation) without a change to its callers. Money is micro-USD.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from terrace_gateway.calls.ports import AuthorityUnavailableError

__all__ = ["AuthorityUnavailableError"]
EntryKind = Literal["attempt", "unknown"]
UsageSource = Literal["response", "stream", "reservation", "provider_log", "none"]
Outcome = Literal["ok", "client_cancelled", "upstream_error", "unknown", "not_sent"]
RefusalCause = Literal["invalid_key", "model_not_allowed", "cap"]
SettleResult = Literal["settled", "corrected", "already", "no_attempt"]


@dataclass(frozen=True)
class Reservation:
    """What is asked for one attempt: its identity and its worst case."""

    attempt_id: str
    request_id: str
    trace_id: str
    key_hash: bytes
    model: str
    deployment: str
    provider: str
    surface: str
    reserved_micro_usd: int
    price_version: str
    hard_limit_seconds: int


@dataclass(frozen=True)
class Grant:
    """The reservation holds in every cap and the attempt's open record is durable."""

    attempt_id: str
    key_id: str
    team: str
    reserved_micro_usd: int


@dataclass(frozen=True)
class Refusal:
    """No cap moved. ``dimension`` and what follows tell about a cap.

    ``remaining`` is what a budget has left beside settled and running calls, in its dimension.
    """

    cause: RefusalCause
    key_id: str | None = None
    team: str | None = None
    scope: str | None = None
    dimension: str | None = None
    retry_after_seconds: int | None = None
    remaining: int | None = None


@dataclass(frozen=True)
class Settlement:
    """What an attempt cost. ``kind`` "unknown" counts as the reservation, whatever the amount."""

    attempt_id: str
    kind: EntryKind
    outcome: Outcome
    usage_source: UsageSource
    input_tokens: int
    output_tokens: int
    amount_micro_usd: int


@dataclass(frozen=True)
class Caller:
    """A valid key, without a reservation."""

    key_id: str
    team: str
    models: frozenset[str] | None
    """``None``: every model of the catalogue."""


class Authority(Protocol):
    """Decides on money. Implementations guarantee: settled + outstanding <= cap at every grant."""

    async def authenticate(self, key_hash: bytes) -> Caller | None:
        """The caller of a key that is valid now. Raises ``AuthorityUnavailableError``."""
        ...

    async def reserve(self, request: Reservation) -> Grant | Refusal:
        """All caps or none, with a durable open record. Raises ``AuthorityUnavailableError``."""
        ...

    async def settle(self, settlement: Settlement) -> SettleResult:
        """Idempotent on the attempt. Raises ``AuthorityUnavailableError``: try again."""
        ...
