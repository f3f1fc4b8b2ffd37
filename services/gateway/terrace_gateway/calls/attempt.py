"""One upstream attempt: reserved in every cap, durable before it is sent, closed exactly once.

Whatever happens after ``Attempts.open`` has returned, ``Attempts.close`` must be called; it is
idempotent. In the order of knowledge an attempt costs what the provider reported; nothing, if the
provider refused or it was provably not sent; otherwise its whole reservation (``unknown``), until
the provider's own log is read.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

import structlog
from opentelemetry.trace import Span, set_span_in_context

from terrace_common.prices import Quote
from terrace_common.telemetry import semconv
from terrace_gateway.calls.ports import (
    Amounts,
    AuthorityUnavailableError,
    Cap,
    CapRefusal,
    CloseRecord,
    Decision,
    Hold,
    OpenRecord,
    Outcome,
    Principal,
    SpoolFullError,
    Usage,
    UsageSource,
)
from terrace_gateway.crash_points import reach
from terrace_gateway.frozen import frozen
from terrace_gateway.prices import units_of
from terrace_gateway.runtime import Runtime

log = structlog.get_logger()

NOTHING = Amounts(0, 0, 0, requests=0)
NO_USAGE = Usage(0, 0)
FREE: frozenset[Outcome] = frozenset({"upstream_error", "not_sent"})


_OPERATIONS = {
    "embeddings": semconv.OPERATION_EMBEDDINGS,
    "completions": semconv.OPERATION_TEXT_COMPLETION,
}


class CapRefusedError(Exception):
    """A cap would be passed; nothing was reserved."""

    def __init__(self, refusal: CapRefusal) -> None:
        super().__init__(refusal.cap.dimension)
        self.refusal = refusal


class UnrecordedError(Exception):
    """An attempt ended, and that could not be made durable: its reservation counts.

    ``sent``: a byte of it may have left, and its provider may bill it.
    """

    def __init__(self, *, sent: bool) -> None:
        super().__init__("the end of an attempt could not be recorded")
        self.sent = sent


@frozen
class Exchange:
    """What the attempts of one client request have in common."""

    request_id: str
    trace_id: str
    principal: Principal
    surface: str
    policy_version: int
    span: Span


@frozen
class Target:
    """What an attempt calls, and at which price."""

    model: str
    deployment: str
    provider: str
    quote: Quote
    images: int = 0
    """In the request: no provider reports how many it has charged."""
    free: bool = False
    """No provider bills it, whatever becomes of it and whatever the price is."""


@dataclass(slots=True)
class Attempt:
    """An open attempt, and how it was closed."""

    id: str
    exchange: Exchange
    target: Target
    hold: Hold
    reserved: Amounts
    opened: float
    first_byte_ms: int | None = None
    upstream_request_id: str | None = None
    outcome: Outcome | None = None
    amount_micro_usd: int = 0
    usage: Usage = NO_USAGE
    overran: bool = field(default=False)
    unpriced: frozenset[str] = frozenset()
    """What was used and has no price: it counts as input."""
    span: Span | None = None
    """Of its upstream call, once there is one."""


class Attempts:
    """Opens and closes attempts on the runtime's slices and journal."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._metrics = runtime.metrics
        self._unpriced: set[tuple[str, str]] = set()
        """Models and price versions of which that was told."""
        self._log = log.bind()  # a lazy logger is made anew for every line

    async def open(
        self,
        attempt_id: str,
        exchange: Exchange,
        target: Target,
        *,
        caps: Sequence[Cap],
        reserved: Amounts,
        hard_limit_seconds: int,
        purpose: Literal["call", "fallback", "guardrail"] = "call",
        clamped: str | None = None,
    ) -> Attempt:
        """Reserve in all ``caps`` or none, and make the open record durable.

        Raises ``CapRefusedError`` or ``AuthorityUnavailableError``; then nothing is held, unless
        the record may be on the disk all the same: what is found there counts its reservation.
        """
        runtime = self._runtime
        hold = await self._reserve(attempt_id, exchange, caps, reserved)
        record = OpenRecord(
            attempt_id=attempt_id,
            request_id=exchange.request_id,
            trace_id=exchange.trace_id,
            opened_at=runtime.clock.database_now(),
            caller=exchange.principal.caller,
            surface=exchange.surface,
            model=target.model,
            deployment=target.deployment,
            provider=target.provider,
            price_version=target.quote.version,
            policy_version=exchange.policy_version,
            reserved=reserved,
            hold=hold,
            hard_limit_seconds=hard_limit_seconds,
            purpose=purpose,
            clamped=clamped,
            images=target.images,
        )
        attempt = Attempt(
            attempt_id, exchange, target, hold, reserved, opened=runtime.clock.monotonic()
        )
        reach("calls.after-reserve")
        self._metrics.open_attempts.inc()
        try:
            await runtime.journal.open(record)
        except asyncio.CancelledError:
            # The record may be on its way to the disk: an open record has a close.
            with suppress(UnrecordedError):
                await asyncio.shield(self.close(attempt, "not_sent"))
            raise
        except SpoolFullError:  # refused before anything was written
            self._metrics.open_attempts.dec()
            runtime.slices.settle(hold, NOTHING)
            raise
        except BaseException:
            self._metrics.open_attempts.dec()
            runtime.slices.keep(hold)
            raise
        reach("calls.after-open")
        return attempt

    async def _reserve(
        self, attempt_id: str, exchange: Exchange, caps: Sequence[Cap], reserved: Amounts
    ) -> Hold:
        runtime = self._runtime
        began = runtime.clock.monotonic()
        try:
            decision = runtime.slices.reserve_now(attempt_id, caps, reserved)
            if decision is None:
                context = set_span_in_context(exchange.span)
                with runtime.telemetry.tracer.start_as_current_span(
                    semconv.SPAN_RESERVE, context=context
                ) as span:
                    span.set_attribute(semconv.TERRACE_RESERVED, reserved.micro_usd)
                    decision = await runtime.slices.reserve(attempt_id, caps, reserved)
        except AuthorityUnavailableError:
            self._metrics.reservations.labels("unavailable").inc()
            raise
        finally:
            self._metrics.reserve_seconds.observe(runtime.clock.monotonic() - began)
        if isinstance(decision, CapRefusal):
            self._metrics.reservations.labels("refused").inc()
            raise CapRefusedError(decision)
        self._metrics.granted.inc()
        return decision

    async def close(
        self,
        attempt: Attempt,
        outcome: Outcome,
        usage: Usage | None = None,
        source: UsageSource = "none",
        *,
        amount_micro_usd: int | None = None,
    ) -> None:
        """Make the close durable and settle, once, also if who called this is cancelled.

        What it did not use can be reserved when its close is durable: until then a crash counts
        its reservation.

        ``amount_micro_usd`` is for what is not priced by tokens; else the usage is priced. Without
        either, an attempt that may have been billed is ``unknown``.

        Raises ``UnrecordedError``.
        """
        if attempt.outcome is not None:
            return
        free = attempt.target.free
        known = free or usage is not None or amount_micro_usd is not None or outcome in FREE
        if not known and outcome != "cut":
            outcome = "unknown"
        attempt.outcome = outcome
        used = attempt.usage = usage or NO_USAGE
        runtime = self._runtime
        actual: Amounts | None = None
        if known:
            amount = amount_micro_usd
            if amount is None:
                amount, attempt.unpriced = _price(attempt.target, usage)
            actual = Amounts(
                used.all_input_tokens,
                used.output_tokens,
                amount,
                requests=0 if outcome == "not_sent" else attempt.reserved.requests,
            )
            attempt.amount_micro_usd = amount
            attempt.overran = amount > attempt.reserved.micro_usd
        else:
            amount, source = 0, "reservation"
            attempt.amount_micro_usd = attempt.reserved.micro_usd
        record = CloseRecord(
            attempt_id=attempt.id,
            kind="attempt" if known else "unknown",
            outcome=outcome,
            usage=used,
            usage_source=source,
            amount_micro_usd=amount,
            charges=runtime.slices.charges(attempt.hold, actual),
            latency_ms=round((runtime.clock.monotonic() - attempt.opened) * 1000),
            first_byte_ms=attempt.first_byte_ms,
            upstream_request_id=attempt.upstream_request_id,
        )
        reach("calls.before-close")
        settling = self._settling(attempt)
        closing = asyncio.ensure_future(runtime.journal.close(record))
        closing.add_done_callback(lambda done: self._closed(attempt, actual, settling, done))
        try:
            await asyncio.shield(closing)
        except AuthorityUnavailableError as error:
            raise UnrecordedError(sent=outcome != "not_sent") from error
        reach("calls.after-close")

    def _closed(
        self,
        attempt: Attempt,
        actual: Amounts | None,
        settling: Span | None,
        done: asyncio.Future[None],
    ) -> None:
        slices = self._runtime.slices
        lost = done.cancelled() or done.exception() is not None
        if actual is None or lost:
            slices.keep(attempt.hold)
        else:
            slices.settle(attempt.hold, actual)
        if lost:
            self._unrecorded(attempt)
        if settling is not None:
            settling.end()
        self._metrics.open_attempts.dec()
        self._told(attempt, attempt.usage)

    def _unrecorded(self, attempt: Attempt) -> None:
        """What the next start makes of an open record without a close. What is known of the
        attempt is in the log alone."""
        self._log.error(
            "attempt_not_recorded",
            attempt_id=attempt.id,
            outcome=attempt.outcome,
            input_tokens=attempt.usage.all_input_tokens,
            output_tokens=attempt.usage.output_tokens,
            amount_micro_usd=attempt.amount_micro_usd,
            reserved_micro_usd=attempt.reserved.micro_usd,
        )
        attempt.outcome, attempt.usage, attempt.overran = "unknown", NO_USAGE, False
        attempt.amount_micro_usd = attempt.reserved.micro_usd

    def _settling(self, attempt: Attempt) -> Span | None:
        parent = attempt.span or attempt.exchange.span
        if not parent.is_recording():
            return None  # not even the context of a span is free
        context = set_span_in_context(parent)
        return self._runtime.telemetry.tracer.start_span(semconv.SPAN_SETTLE, context=context)

    def first_byte(self, attempt: Attempt) -> None:
        """The first byte of the answer has come."""
        if attempt.first_byte_ms is None:
            waited = self._runtime.clock.monotonic() - attempt.opened
            attempt.first_byte_ms = round(waited * 1000)

    def _told(self, attempt: Attempt, used: Usage) -> None:
        name, surface = attempt.target.model, attempt.exchange.surface
        metrics = self._metrics
        metrics.attempt_closed(
            surface,
            name,
            attempt.outcome or "unknown",
            input_tokens=used.all_input_tokens,
            output_tokens=used.output_tokens,
            amount_micro_usd=attempt.amount_micro_usd,
        )
        if attempt.outcome in {"ok", "client_cancelled"} and attempt.usage is not NO_USAGE:
            first = attempt.first_byte_ms
            metrics.gen_ai.answered(
                operation=_OPERATIONS.get(surface, semconv.OPERATION_CHAT),
                provider=attempt.target.provider,
                model=name,
                usage=used,
                seconds=self._runtime.clock.monotonic() - attempt.opened,
                first_chunk_seconds=None if first is None else first / 1000,
            )
        if attempt.overran:
            metrics.overruns.labels(name).inc()
            self._alert("overrun", attempt)
        if attempt.unpriced and (name, attempt.target.quote.version) not in self._unpriced:
            self._unpriced.add((name, attempt.target.quote.version))  # not with every call
            self._alert("unpriced", attempt, features=sorted(attempt.unpriced))
        self._log.info(
            "attempt_closed",
            attempt_id=attempt.id,
            model=name,
            surface=surface,
            outcome=attempt.outcome,
            input_tokens=used.all_input_tokens,
            output_tokens=used.output_tokens,
            amount_micro_usd=attempt.amount_micro_usd,
            reserved_micro_usd=attempt.reserved.micro_usd,
        )

    def _alert(self, reason: str, attempt: Attempt, **more: object) -> None:
        detail = {
            "attempt_id": attempt.id,
            "reserved_micro_usd": attempt.reserved.micro_usd,
            "amount_micro_usd": attempt.amount_micro_usd,
            **more,
        }
        exchange, target = attempt.exchange, attempt.target
        told = exchange.request_id, exchange.trace_id, exchange.principal.caller
        decision = Decision("alert", reason, detail, *told, exchange.surface, target.model)
        self._runtime.journal.note(decision)


def _price(target: Target, usage: Usage | None) -> tuple[int, frozenset[str]]:
    """Micro-USD, and what was used that has no price."""
    if usage is None or target.free:
        return 0, frozenset()
    units = units_of(usage, images=target.images)
    written = units.cache_write_tokens or units.cache_write_1h_tokens
    return target.quote.cost(units), target.quote.unpriced(units) if written else frozenset()
