"""Billed guardrails: asking one is an attempt of its own, reserved, recorded and settled."""

import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Literal

from terrace_gateway.calls.attempt import Attempt, Attempts, CapRefusedError, Exchange, Target
from terrace_gateway.calls.ports import AuthorityUnavailableError, Usage
from terrace_gateway.edge.errors import AUTHORITY_UNAVAILABLE, ApiError
from terrace_gateway.edge.refusals import cap_refusal_error
from terrace_gateway.guardrails.port import BilledCall
from terrace_gateway.prices import FixedQuote
from terrace_gateway.runtime import Runtime


class GuardrailBill:
    """What one asking cost, as the guardrail learns it. Told nothing, it is unknown."""

    def __init__(self) -> None:
        self.micro_usd: int | None = None
        self.outcome: Literal["ok", "upstream_error", "not_sent", "unknown"] = "unknown"
        self.upstream_request_id: str | None = None

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

    @asynccontextmanager
    async def attempt(self, call: BilledCall) -> AsyncGenerator[GuardrailBill]:
        """Around one asking. Raises ``ApiError`` if a cap or the authority does not allow it."""
        snapshot = self._runtime.policy.current().snapshot
        try:
            attempt = await self._attempts.open(
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
        bill = GuardrailBill()
        try:
            yield bill
        finally:
            await self._close(attempt, bill)

    async def _close(self, attempt: Attempt, bill: GuardrailBill) -> None:
        attempt.upstream_request_id = bill.upstream_request_id
        await self._attempts.close(
            attempt,
            bill.outcome,
            None if bill.micro_usd is None else Usage(0, 0),
            "response" if bill.outcome == "ok" else "none",
            amount_micro_usd=bill.micro_usd,
        )
