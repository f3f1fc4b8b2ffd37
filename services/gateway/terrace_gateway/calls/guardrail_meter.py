"""Guardrails that are asked over the network. Asking one that is billed is an attempt of its own,
reserved, recorded and settled.

Nothing is sent to a guardrail for a caller who may call no more, nor to a provider that a kill
switch stops, nor to a guardrail that the policy in force does not have, or has elsewhere.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Literal

from terrace_gateway.calls.attempt import Attempt, Attempts, CapRefusedError, Exchange, Target
from terrace_gateway.calls.found_anew import found_anew
from terrace_gateway.calls.kills import caller_kill
from terrace_gateway.calls.ports import AuthorityUnavailableError, Outcome, Principal, Usage
from terrace_gateway.calls.running import RunningCall
from terrace_gateway.calls.still_allowed import StillAllowed, policy_changed
from terrace_gateway.edge.errors import AUTHORITY_UNAVAILABLE, KILLED, ApiError
from terrace_gateway.edge.refusals import cap_refusal_error
from terrace_gateway.guardrails.port import Ask, Asking, BilledCall, GuardrailFailedError
from terrace_gateway.policy.snapshot import Snapshot
from terrace_gateway.prices import FixedQuote
from terrace_gateway.runtime import Runtime


class GuardrailBill:
    """What one asking cost, as the guardrail learns it. Told nothing, it is unknown."""

    def __init__(self, allowed: Ask) -> None:
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

    def __init__(
        self, runtime: Runtime, attempts: Attempts, exchange: Exchange, known: Snapshot
    ) -> None:
        """``known``: the policy that the caller was admitted by."""
        self._runtime = runtime
        self._attempts = attempts
        self._exchange = exchange
        self._known = known

    @asynccontextmanager
    async def asking(self, asking: Asking) -> AsyncGenerator[Ask]:
        """Around one asking that costs nothing. Raises as ``attempt``."""
        await self._allowed(asking)
        async with self._running(asking):
            yield lambda: self._allowed(asking)

    @asynccontextmanager
    async def attempt(self, call: BilledCall) -> AsyncGenerator[GuardrailBill]:
        """Around one asking. Raises ``ApiError`` if a cap, the authority or the policy in force
        does not allow it; ``GuardrailFailedError`` if its provider is stopped, or an answer has
        another guardrail now."""
        attempt = await self._open(call, await self._allowed(call))
        bill = GuardrailBill(lambda: self._allowed(call))
        running: RunningCall | None = None
        try:
            async with self._running(call) as running:
                yield bill
        finally:
            cut = running is not None and running.cut_reason is not None
            await self._close(attempt, bill, cut=cut)

    @asynccontextmanager
    async def _running(self, asking: Asking) -> AsyncGenerator[RunningCall]:
        """While it runs a kill switch ends it; its time limit is its chain's."""
        deadline = asyncio.timeout(None)
        entered = self._runtime.running.entered(
            self._exchange.principal, asking.model, asking.provider, deadline
        )
        running: RunningCall | None = None
        try:
            async with deadline:
                with entered as running:
                    yield running
        except TimeoutError:
            if running is None or running.cut_reason is None:
                raise
            raise self._cut(asking, running.cut_reason) from None

    async def _allowed(self, asking: Asking) -> Snapshot:
        """The policy in force, which allows it.

        An answer is paid for: of its caller only a kill switch stops it, as it stops a stream.
        """
        runtime, exchange = self._runtime, self._exchange
        principal = exchange.principal
        if asking.of_answer:
            snapshot = (await runtime.policy.confirm()).snapshot
            if snapshot is not self._known:
                with suppress(ApiError):  # who may call no more has paid under the policy of then
                    principal = found_anew(principal, snapshot, runtime.clock.database_now())
            killed = snapshot.killed(exchange.principal.caller) or snapshot.killed(principal.caller)
            if killed is not None:
                raise ApiError(KILLED, killed)
        else:
            allowed = StillAllowed(runtime.policy, runtime.matcher, runtime.clock)
            principal, snapshot = await allowed.caller(principal, self._known)
            if snapshot is not self._known:
                self._known = snapshot
                self._exchange = replace(
                    exchange, principal=principal, policy_version=snapshot.version
                )
        if asking.provider and snapshot.killed(None, provider=asking.provider) is not None:
            raise _stopped(asking)
        if not _guards(asking, principal, snapshot):
            if asking.of_answer:
                raise GuardrailFailedError("the policy in force has it no more, or has another")
            raise policy_changed()
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
                AUTHORITY_UNAVAILABLE,
                "the budget authority is not available; no guardrail was asked",
            ) from error

    def _cut(self, asking: Asking, reason: str) -> Exception:
        """The guardrail's failure where only its provider is stopped, else the call's end."""
        snapshot = self._runtime.policy.current().snapshot
        now = self._runtime.clock.database_now()
        if snapshot.killed(None, provider=asking.provider) and (
            caller_kill(self._exchange.principal, snapshot, now) is None
        ):
            return _stopped(asking)
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


def _guards(asking: Asking, principal: Principal, snapshot: Snapshot) -> bool:
    """Whether ``snapshot`` guards the caller's texts by just this guardrail."""
    name, audit, spec = asking.section.name, principal.audit, snapshot.governance
    named = name in principal.policy.guardrails or (audit is not None and name in audit.guardrails)
    provider = asking.signed_for
    return (
        named
        and asking.section in spec.guardrails
        and (provider is None or provider in spec.providers)
    )


def _stopped(asking: Asking) -> GuardrailFailedError:
    return GuardrailFailedError(f"its provider {asking.provider} is stopped by a kill switch")
