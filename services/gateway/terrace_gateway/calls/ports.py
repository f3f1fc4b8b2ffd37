"""What one model call needs from the other rooms: types and ports, no logic.

Money is integer micro-USD. "Database time" is a UTC datetime estimated from the last heartbeat and
a clock that runs during suspend, so that a jump of the local clock moves nothing.
"""

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from terrace_common.governance.compiled import (
    CapMode,
    CapturePolicy,
    Dimension,
    EffectivePolicy,
    Hours,
    Scope,
    Window,
    WindowKind,
    WindowUnit,
)
from terrace_gateway.authentication.token import Token
from terrace_gateway.frozen import frozen

# Compiled governance is made in terrace_common; the rooms of the gateway take it from here.
__all__ = [
    "Amounts",
    "Authenticator",
    "AuthorityUnavailableError",
    "Caller",
    "Cap",
    "CapMode",
    "CapRefusal",
    "CapturePolicy",
    "Charge",
    "CloseRecord",
    "Decision",
    "Dimension",
    "EffectivePolicy",
    "EntryKind",
    "Hold",
    "Hours",
    "Journal",
    "MatchRequest",
    "Needs",
    "OpenRecord",
    "Outcome",
    "Presented",
    "Principal",
    "Scope",
    "Slices",
    "SpoolFullError",
    "TextFilter",
    "Usage",
    "UsageSource",
    "Verdict",
    "Window",
    "WindowKind",
    "WindowUnit",
]


class AuthorityUnavailableError(Exception):
    """Nothing may be sent upstream now: the policy or the slices cannot be relied on."""

    def __init__(self, message: str = "", *, ambiguous: bool = False) -> None:
        super().__init__(message)
        self.ambiguous = ambiguous
        """The statement may have taken effect although no answer came."""


@dataclass(frozen=True, slots=True)
class Cap:
    """One cap of one scope, as the database has it (``cap_id``)."""

    cap_id: int
    scope: Scope
    scope_id: str
    dimension: Dimension
    window: Window
    amount: int
    mode: CapMode = "block"
    thresholds: tuple[int, ...] = ()
    """Percent of ``amount`` at which an alert is raised."""


@frozen
class Usage:
    """What one attempt used. Cache tokens are not part of ``input_tokens``."""

    input_tokens: int
    output_tokens: int
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    """Of every lifetime."""
    cache_write_1h_tokens: int = 0
    """Those of ``cache_write_tokens`` that are kept for an hour."""

    @property
    def all_input_tokens(self) -> int:
        """Input of every kind."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens


@frozen
class Amounts:
    """An amount per dimension: a worst case before the call, the truth after it."""

    input_tokens: int
    output_tokens: int
    micro_usd: int
    requests: int = 1

    def of(self, dimension: Dimension) -> int:
        """The amount in one dimension. ``concurrency`` is 1 while the call runs."""
        if dimension == "total_tokens":
            return self.input_tokens + self.output_tokens
        if dimension == "concurrency":
            return 1
        return {
            "requests": self.requests,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "micro_usd": self.micro_usd,
        }[dimension]


# --- money ---------------------------------------------------------------------------------------


@frozen
class Charge:
    """What an attempt holds of one counter, or was charged to it."""

    counter_id: int
    dimension: Dimension
    amount: int


@frozen
class Hold:
    """A reservation that holds in every cap. ``incarnation`` is the identity it was made under."""

    attempt_id: str
    incarnation: int
    charges: tuple[Charge, ...]


@dataclass(frozen=True, slots=True)
class CapRefusal:
    """No cap moved. ``remaining`` is what is left beside settled and running calls."""

    cap: Cap
    needed: int
    remaining: int
    retry_after_seconds: int | None
    """Until the window ends; ``None`` for a lifetime."""


class Slices(Protocol):
    """Sub-allocates in memory what the database granted."""

    def reserve_now(self, attempt_id: str, caps: Sequence[Cap], amounts: Amounts) -> Hold | None:
        """All caps or none, out of warm slices, without waiting; ``None``: they do not suffice."""
        ...

    async def reserve(
        self, attempt_id: str, caps: Sequence[Cap], amounts: Amounts
    ) -> Hold | CapRefusal:
        """As above, and if need be one grant from the database (a refusal that other replicas'
        idle fragments could cure waits shortly for them).

        Raises ``AuthorityUnavailableError``.
        """
        ...

    def charges(self, hold: Hold, actual: Amounts | None) -> tuple[Charge, ...]:
        """What goes into an attempt's entry; ``None``: its reservation. Moves nothing."""
        ...

    def settle(self, hold: Hold, actual: Amounts) -> tuple[Charge, ...]:
        """The truth of an attempt, in memory; idempotent. Returns its charges.

        ``concurrency`` is given back here. The slice rows in the database move when the entry is
        shipped (``settle_slices`` in SQL).
        """
        ...

    def keep(self, hold: Hold) -> tuple[Charge, ...]:
        """An attempt whose cost is unknown: its whole reservation is its charge (concurrency is
        given back); idempotent."""
        ...


# --- journal -------------------------------------------------------------------------------------

EntryKind = Literal["attempt", "unknown", "correction", "decision", "rerating"]
UsageSource = Literal["response", "stream", "reservation", "provider_log", "none"]
Outcome = Literal["ok", "client_cancelled", "cut", "upstream_error", "unknown", "not_sent"]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who, as every entry names it. Names are the governance spec's; ``None`` where not known."""

    key_id: str
    team: str
    key_name: str | None = None
    org: str | None = None
    user: str | None = None
    app: str | None = None


@frozen
class OpenRecord:
    """Durable before the first byte goes upstream."""

    attempt_id: str
    request_id: str
    trace_id: str
    opened_at: datetime
    """Database time."""
    caller: Caller
    surface: str
    model: str
    deployment: str
    provider: str
    price_version: str
    policy_version: int
    reserved: Amounts
    hold: Hold
    hard_limit_seconds: int
    purpose: Literal["call", "fallback", "guardrail"] = "call"
    clamped: str | None = None
    """What the policy changed in the request, in words; ``None``: nothing."""
    images: int = 0
    """In the request: each call of the attempt is charged for all of them."""


@frozen
class CloseRecord:
    """Durable before the answer ends."""

    attempt_id: str
    kind: Literal["attempt", "unknown"]
    outcome: Outcome
    usage: Usage
    usage_source: UsageSource
    amount_micro_usd: int
    """0 for ``unknown``: the reservation counts."""
    charges: tuple[Charge, ...]
    latency_ms: int
    first_byte_ms: int | None = None
    upstream_request_id: str | None = None
    """The provider's own id, for reconciliation."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision that is no attempt: a refusal, a clamp, a fallback, a would-be refusal (audit)."""

    decision: Literal["deny", "would_deny", "clamp", "fallback", "mask", "flag", "alert", "cut"]
    reason: str
    """An error code or a rule's name."""
    detail: Mapping[str, object]
    """Plain data without secrets and without text of a prompt."""
    request_id: str
    trace_id: str
    caller: Caller | None
    surface: str | None = None
    model: str | None = None


class SpoolFullError(AuthorityUnavailableError):
    """The spool has no room for a record and its close: nothing is sent upstream."""


class Journal(Protocol):
    """The replica's durable record: a spool on its own volume, shipped to the ledger."""

    def open(self, record: OpenRecord) -> Awaitable[None]:
        """Begun when it returns, durable at the end, with room for its close.

        Raises ``SpoolFullError``.
        """
        ...

    def close(self, record: CloseRecord) -> Awaitable[None]:
        """Begun when it returns, whoever waits, and durable at the end.

        Raises nothing for a full disk: its room is preallocated.
        """
        ...

    def note(self, decision: Decision) -> None:
        """Recorded soon; refusals of one cause by one key are counted together per second."""
        ...


# --- policy --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller and what holds for it."""

    caller: Caller
    policy: EffectivePolicy
    caps: tuple[Cap, ...]
    """Of its org, team, user, app and key. Caps of a model or provider come with the candidate."""
    expires_at: datetime | None = None
    method: Literal["key", "oidc", "workload"] = "key"
    audit: EffectivePolicy | None = None
    """The caller's policies of mode ``audit``, merged: what they would refuse is recorded only."""
    surfaces: frozenset[str] | None = None
    """Surfaces that a key is for, named as in ``Needs.surface``; ``None``: all."""
    token: Token | None = field(default=None, repr=False, compare=False)
    """Of a caller without a key: what it is found again by when the policy changes."""


@frozen
class Presented:
    """What a request shows about its caller."""

    token: str | None
    """Of ``Authorization: Bearer``, ``x-api-key`` or ``api-key``."""
    address: str
    headers: Mapping[str, str]


class Authenticator(Protocol):
    """One way to authenticate."""

    async def authenticate(self, presented: Presented) -> Principal | None:
        """The principal; ``None``: not of this kind, ask the next.

        Raises ``ApiError`` (401, 403) for one of this kind that is refused.
        """
        ...


# --- matching ------------------------------------------------------------------------------------


@frozen
class Needs:
    """What a request needs from a model, read from its body."""

    surface: str
    input_bound_tokens: int
    """Upper bound of its input tokens."""
    output_tokens: int | None
    """As the client asked; ``None``: it did not say."""
    features: frozenset[str] = frozenset()
    """Of ``tools``, ``images``, ``streaming``, ``json_schema``, ``reasoning``, ``embeddings``."""


@frozen
class MatchRequest:
    """A request as the matcher sees it."""

    asked: str
    """A name, an alias, or ``auto`` with or without hints."""
    needs: Needs
    hints: Mapping[str, str] = field(default_factory=dict[str, str])
    session: str | None = None
    """What a conversation is known by, for stickiness."""
    bedrock_only: bool = False


# --- guardrails ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a guardrail says about texts, in their order."""

    action: Literal["allow", "mask", "block", "flag"]
    guardrail: str
    reasons: tuple[str, ...] = ()
    """Names of rules that matched, never the matched text."""
    texts: tuple[str, ...] | None = None
    """The masked texts, for ``mask``."""
    micro_usd: int = 0
    """What asking cost."""


class TextFilter(Protocol):
    """Guardrails on a stream of text in parts. It may hold text back, never the end."""

    def feed(self, text: str, part: object = None) -> str:
        """The text that may be shown now. ``part``: what it continues, also after others; ``None``:
        a text by itself. Another is fed after ``flush``. Raises ``ApiError`` to end the stream."""
        ...

    def flush(self) -> str:
        """What is held back of the part that was fed last. Raises ``ApiError``."""
        ...
