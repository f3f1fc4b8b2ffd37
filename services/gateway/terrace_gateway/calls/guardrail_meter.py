"""Billed guardrails: asking one is an attempt of its own, reserved, recorded and settled.

Nothing is sent to a guardrail for a caller who may call no more, nor to a provider that a kill
switch stops.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Literal

from terrace_gateway.calls.attempt import Attempt, Attempts, CapRefusedError, Exchange, Target
from terrace_gateway.calls.ports import AuthorityUnavailableError, Outcome, Usage
from terrace_gateway.calls.running import RunningCall
from terrace_gateway.calls.still_allowed import StillAllowed
from terrace_gateway.edge.errors import AUTHORITY_UNAVAILABLE, KILLED, ApiError
from terrace_gateway.edge.refusals import cap_refusal_error
from terrace_gateway.guardrails.port import BilledCall, GuardrailFailedError
from terrace_gateway.policy.snapshot import Snapshot
from terrace_gateway.prices import FixedQuote
from terrace_gateway.runtime import Runtime


class GuardrailBill:
    """What one asking cost, as the guardrail learns it. Told nothing, it is unknown."""

    def __init__(self, allowed: Callable[[], Awaitable[object]]) -> None:
        self._allowed = allowed
        self.micro_usd: int | None = None
        self.outcome: Literal["ok", "upstream_error", "not_sent", "unknown"] = "unknown"
        self.upstream_request_id: str | None = None
        self.sent = False
        """Whether a byte may have left."""

    async def before_send(self) -> None:
        """Whether it may be sent; from then on it counts as sent."""
        await self._allowed()
        self.sent = True

    def settled(self, micro_usd: int, *, units: int, upstream_request_id: str | None) -> None:
        """It answered, for so many units."""
        del units  # the price is the guardrail's; the entry has the amount
        self.outcome, self.micro_usd = "ok", micro_usd
        self.upstream_request_id = upstream_request_id

    def free(self, outcome: Literal["upstream_error", "not_sent"]) -> None:
        """It refused, or nothing was sent: it costs nothing."""
        self.outcome, self.micro_usd = outcome, 0


class GuardrailMeter:
    """The meter of one client request."""

    def __init__(self, runtime: Runtime, attempts: Attempts, exchange: Exchange) -> None:
        self._runtime = runtime
        self._attempts = attempts
        self._exchange = exchange
        self._known: Snapshot | None = None

    @asynccontextmanager
    async def attempt(self, call: BilledCall) -> AsyncGenerator[GuardrailBill]:
        """Around one asking. Raises ``ApiError`` if a cap, the authority or the policy in force
        does not allow it; ``GuardrailFailedError`` if its provider is stopped."""
        attempt = await self._open(call, await self._allowed(call))
        bill = GuardrailBill(lambda: self._allowed(call))
        deadline = asyncio.timeout(None)  # a kill switch ends it; its time limit is its chain's
        entered = self._runtime.running.entered(
            self._exchange.principal, call.model, call.provider, deadline
        )
        running: RunningCall | None = None
        try:
            async with deadline:
                with entered as running:
                    yield bill
        except TimeoutError:
            if running is None or running.cut_reason is None:
                raise
            raise self._cut(call, running.cut_reason) from None
        finally:
            cut = running is not None and running.cut_reason is not None
            await self._close(attempt, bill, cut=cut)

    async def _allowed(self, call: BilledCall) -> Snapshot:
        """The policy in force, which allows it.

        An answer is paid for: of its caller only a kill switch stops it, as it stops a stream.
        """
        runtime, exchange = self._runtime, self._exchange
        if call.of_answer:
            snapshot = (await runtime.policy.confirm()).snapshot
            killed = snapshot.killed(exchange.principal.caller)
            if killed is not None:
                raise ApiError(KILLED, killed)
        else:
            allowed = StillAllowed(runtime.policy, runtime.matcher, runtime.clock)
            principal, snapshot = await allowed.caller(exchange.principal, self._known)
            if snapshot is not self._known:
                self._known = snapshot
                self._exchange = replace(
                    exchange, principal=principal, policy_version=snapshot.version
                )
        if snapshot.killed(None, provider=call.provider) is not None:
            raise _stopped(call)
        return snapshot

    async def _open(self, call: BilledCall, snapshot: Snapshot) -> Attempt:
        try:
            return await self._attempts.open(
                f"att_{secrets.token_hex(16)}",
                self._exchange,
                Target(
                    call.model, call.deployment, call.provider, FixedQuote(snapshot.price_version)
                ),
                caps=(
                    *self._exchange.principal.caps,
                    *snapshot.caps_of("provider", call.provider),
                ),
                reserved=call.worst_case,
                hard_limit_seconds=call.hard_limit_seconds,
                purpose="guardrail",
            )
        except CapRefusedError as refused:
            raise cap_refusal_error(
                refused.refusal, worst_case_micro_usd=call.worst_case.micro_usd
            ) from None
        except AuthorityUnavailableError as error:
            raise ApiError(
                AUTHORITY_UNAVAILABLE, "the budget authority is not available; nothing was sent"
            ) from error

    def _cut(self, call: BilledCall, reason: str) -> Exception:
        """The guardrail's failure where only its provider is stopped, else the call's end."""
        snapshot = self._runtime.policy.current().snapshot
        if snapshot.killed(self._exchange.principal.caller) is None and snapshot.killed(
            None, provider=call.provider
        ):
            return _stopped(call)
        return ApiError(KILLED, reason)

    async def _close(self, attempt: Attempt, bill: GuardrailBill, *, cut: bool) -> None:
        attempt.upstream_request_id = bill.upstream_request_id
        outcome: Outcome = bill.outcome
        amount = bill.micro_usd
        if amount is None and not bill.sent:
            outcome, amount = "not_sent", 0
        elif amount is None and cut:
            outcome = "cut"
        await self._attempts.close(
            attempt,
            outcome,
            None if amount is None else Usage(0, 0),
            "response" if outcome == "ok" else "none",
            amount_micro_usd=amount,
        )


def _stopped(call: BilledCall) -> GuardrailFailedError:
    return GuardrailFailedError(f"its provider {call.provider} is stopped by a kill switch")
