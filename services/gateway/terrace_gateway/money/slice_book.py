"""Caps in memory: what the database granted, sub-allocated to attempts. See docs/gateway/slices.md.

A decision out of warm slices is a few dictionary look-ups; else it is one round trip, shared with
everybody who waits.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from terrace_gateway.calls.ports import (
    Amounts,
    AuthorityUnavailableError,
    Cap,
    CapRefusal,
    Charge,
    Hold,
    Slices,
)
from terrace_gateway.clock import Clock
from terrace_gateway.money.grant_queue import GrantQueue
from terrace_gateway.money.grants import SliceAuthority
from terrace_gateway.money.heartbeat import Beat
from terrace_gateway.money.slice_events import LogEvents, SliceEvents
from terrace_gateway.money.slice_table import GAUGE, SliceTable

Sleep = Callable[[float], Awaitable[None]]

RECALL_WAIT_SECONDS = 0.6
"""How long a refused caller waits for what other holders may have idle: two beats and a bit."""
RECALL_PAUSE_SECONDS = 0.1
IDLE_SECONDS = 30.0
"""What nobody used for so long goes back."""
TIDY_SECONDS = 5.0


class SliceBook(Slices):
    """Usable once it has heard a beat; ``hear`` is a listener of ``Heartbeat``."""

    def __init__(
        self,
        authority: SliceAuthority,
        clock: Clock,
        *,
        events: SliceEvents | None = None,
        sleep: Sleep = asyncio.sleep,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._clock = clock
        self._events = LogEvents() if events is None else events
        self._sleep = sleep
        self._idle_seconds = idle_seconds
        self._tidied_at = clock.monotonic()
        self._wanted: frozenset[int] = frozenset()
        self._table = SliceTable()
        self._queue = GrantQueue(authority, self._table, clock)

    @property
    def incarnation(self) -> int:
        """The identity that reservations are made under; 0 before the first beat."""
        return self._table.incarnation

    @property
    def grants(self) -> int:
        """Grant messages that were answered so far."""
        return self._queue.messages

    def running(self, incarnation: int) -> int:
        """Attempts of an incarnation that are not settled in memory yet."""
        return self._table.running(incarnation)

    def is_live(self) -> bool:
        """The replica lease runs: what is in hand may be reserved."""
        return self._table.is_live(self._clock.monotonic())

    def hear(self, beat: Beat) -> None:
        """Renew, give back what others want and what nobody uses, declare after a failover."""
        if beat.incarnation != self._table.incarnation:
            self._table.begin(beat.incarnation)
            self._queue.begin()
        self._table.lease_ends_at = beat.lease_ends_at
        self._queue.heard = beat.database_time
        if not beat.declared:
            self._queue.declare()
        self._wanted = frozenset(beat.wanted)
        if beat.wanted:
            self._give_back(beat.wanted)
        now = self._clock.monotonic()
        if now - self._tidied_at >= TIDY_SECONDS:
            self._tidied_at = now
            self._give_back(self._table.idle_since(now - self._idle_seconds))
            self._table.forget_ended(now)
        self._queue.kick()

    def reserve_now(self, attempt_id: str, caps: Sequence[Cap], amounts: Amounts) -> Hold | None:
        """All caps or none, out of warm slices. Never waits, never asks."""
        hold = self._table.reserve(attempt_id, caps, amounts, self._clock.monotonic())
        if hold is not None:
            self._audit(attempt_id, caps, amounts)
        return hold

    async def reserve(
        self, attempt_id: str, caps: Sequence[Cap], amounts: Amounts
    ) -> Hold | CapRefusal:
        """All caps or none. A refusal that idle amounts of other holders could cure is tried again
        until they have been asked.

        Raises ``AuthorityUnavailableError`` if a grant is needed and cannot be had.
        """
        hold = self.reserve_now(attempt_id, caps, amounts)
        if hold is not None:
            return hold
        until = self._clock.monotonic() + RECALL_WAIT_SECONDS
        since: float | None = None
        while True:
            if not self.is_live():
                raise AuthorityUnavailableError("the lease of this guard has ended")
            outcome = await self._queue.ask(attempt_id, caps, amounts, since=since)
            if isinstance(outcome, Hold):
                self._audit(attempt_id, caps, amounts)
                return outcome
            if not outcome.known:
                raise AuthorityUnavailableError(f"the database does not know cap {outcome.cap_id}")
            if not outcome.idle_elsewhere or self._clock.monotonic() >= until:
                cap = next(cap for cap in caps if cap.cap_id == outcome.cap_id)
                return CapRefusal(
                    cap=cap,
                    needed=amounts.of(cap.dimension),
                    remaining=outcome.remaining,
                    retry_after_seconds=outcome.retry_after_seconds,
                )
            since = outcome.at if since is None else since
            await self._sleep(RECALL_PAUSE_SECONDS)

    def charges(self, hold: Hold, actual: Amounts | None) -> tuple[Charge, ...]:
        """What an entry of the attempt says; ``None``: its reservation. Moves nothing."""
        return _charges(
            hold, [c.amount if actual is None else actual.of(c.dimension) for c in hold.charges]
        )

    def settle(self, hold: Hold, actual: Amounts) -> tuple[Charge, ...]:
        """The truth of an attempt; idempotent. What it did not use can be reserved at once."""
        used = [actual.of(charge.dimension) for charge in hold.charges]
        if self._table.release(hold, used):
            for charge, amount in zip(hold.charges, used, strict=True):
                if amount > charge.amount:
                    self._events.overrun(hold, charge, amount)
            self._give_back_wanted(hold)
        return _charges(hold, used)

    def keep(self, hold: Hold) -> tuple[Charge, ...]:
        """The reservation is the charge; idempotent."""
        used = [charge.amount for charge in hold.charges]
        if self._table.release(hold, used):
            self._give_back_wanted(hold)
        return _charges(hold, used)

    async def give_back_all(self) -> None:
        """At the end of a process: give back whatever is idle, and wait until it was said."""
        self._give_back(self._table.counters())
        await self.settle_down()

    async def settle_down(self) -> None:
        """Wait until everything was said to the authority, or it is away."""
        await self._queue.settle_down()

    async def close(self) -> None:
        """End the conversation with the authority. Slices are not given back by this."""
        await self._queue.close()

    def _give_back(self, counters: Sequence[int]) -> None:
        given = self._table.give_back(counters)
        if given:
            self._events.idle_returned(given)
        if counters:
            self._queue.give_back(counters)

    def _give_back_wanted(self, hold: Hold) -> None:
        """What a settlement made idle goes back at once if others wait for it."""
        if self._wanted and hold.incarnation == self._table.incarnation:
            self._give_back([c.counter_id for c in hold.charges if c.counter_id in self._wanted])

    def _audit(self, attempt_id: str, caps: Sequence[Cap], amounts: Amounts) -> None:
        for cap in caps:
            if cap.mode == "audit" and self._table.is_over(cap):
                self._events.would_refuse(attempt_id, cap, amounts.of(cap.dimension))


def _charges(hold: Hold, amounts: Sequence[int]) -> tuple[Charge, ...]:
    """For the entry: gauges are given back in memory and are no part of it."""
    return tuple(
        Charge(charge.counter_id, charge.dimension, amount)
        for charge, amount in zip(hold.charges, amounts, strict=True)
        if charge.dimension != GAUGE
    )
