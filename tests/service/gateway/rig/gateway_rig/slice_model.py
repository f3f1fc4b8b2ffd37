"""The slice protocol's authority as a model: a page of Python with a clock that tests move."""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from terrace_gateway.calls.ports import Cap, Charge, Window
from terrace_gateway.money.grants import Answer, Need, SliceAuthority, SliceState, Verdict
from terrace_gateway.money.heartbeat import LEASE_MARGIN_SECONDS, Beat

T = TypeVar("T")
LEASE_SECONDS = 90
WANTED_SECONDS = 2.0
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class ModelSlice:
    granted: int = 0
    returned: int = 0
    settled: int = 0
    recalled_at: float = float("-inf")

    @property
    def unaccounted(self) -> int:
        return self.granted - self.returned - self.settled


@dataclass
class ModelCounter:
    cap_id: int
    ends_at: float | None
    settled: int = 0
    wanted_until: float = 0.0
    slices: dict[int, ModelSlice] = field(default_factory=dict[int, ModelSlice])

    @property
    def counted(self) -> int:
        return self.settled + sum(s.granted - s.returned for s in self.slices.values())


class ModelWorld(SliceAuthority):
    """Authority, clock and loop. ``seconds``: length of the caps' windows; 0 is a lifetime."""

    def __init__(self, amounts: Sequence[tuple[int, int]]) -> None:
        self.authority: SliceAuthority = self
        self._now = 1_000_000.0
        self._loop = asyncio.new_event_loop()
        self.caps = [
            Cap(n, "org", f"o{n}", "micro_usd",
                Window("fixed", seconds) if seconds else Window("lifetime"), amount)
            for n, (amount, seconds) in enumerate(amounts, 1)
        ]  # fmt: skip
        self._amounts = {cap.cap_id: cap.amount for cap in self.caps}
        self._counters: dict[int, ModelCounter] = {}
        self._current: dict[tuple[int, int], int] = {}
        self._leases: dict[int, float] = {}
        self._sequences: dict[int, int] = {}
        self._closed: set[int] = set()

    # The authority

    async def grant(
        self, incarnation: int, sequence: int, caps: Sequence[int], needs: Sequence[Need]
    ) -> Answer:
        if not self._is_live(incarnation):
            return Answer("ended")
        repeat = sequence <= self._sequences[incarnation]
        self._sequences[incarnation] = max(sequence, self._sequences[incarnation])
        verdicts = () if repeat else tuple(self._judge(incarnation, need) for need in needs)
        states: list[SliceState] = []
        for cap_id in caps:
            counter_id = self._counter_now(cap_id)
            counter = self._counters[counter_id]
            held = counter.slices.get(incarnation, ModelSlice())
            left = None if counter.ends_at is None else counter.ends_at - self._now
            states.append(SliceState(cap_id, counter_id, held.granted, held.returned, left))
        return Answer("repeat" if repeat else "done", verdicts, tuple(states))

    def _judge(self, incarnation: int, need: Need) -> Verdict:
        wants: list[tuple[ModelCounter, ModelSlice, int]] = []
        refusal: Verdict | None = None
        for ask in need.asks:
            counter_id = self._counter_now(ask.cap_id)
            counter = self._counters[counter_id]
            held = counter.slices.setdefault(incarnation, ModelSlice())
            same = ask.counter_id == counter_id
            want = ask.short if same else ask.short + ask.take
            room = self._amounts[ask.cap_id] - counter.counted
            if want > room:
                counter.wanted_until = self._now + WANTED_SECONDS
                since = self._now if need.since is None else need.since
                idle = any(
                    s.unaccounted > 0 and s.recalled_at <= since and self._is_live(i)
                    for i, s in counter.slices.items()
                    if i != incarnation
                )
                refusal = Verdict(
                    False, cap_id=ask.cap_id, remaining=max(0, room), idle_elsewhere=idle,
                    at=self._now,
                )  # fmt: skip
                break
            surplus = ask.wish if want and counter.wanted_until <= self._now else 0
            wants.append((counter, held, want + min(surplus, max(0, room - want) // 8)))
        if refusal is None:
            for _, held, amount in wants:
                held.granted += amount
            return Verdict(True)
        for ask in need.asks:
            if ask.short and ask.counter_id == self._counter_now(ask.cap_id):
                self._counters[ask.counter_id].slices[incarnation].returned += ask.take
        return refusal

    async def give_back(
        self,
        incarnation: int,
        counters: Sequence[int],
        returned: Sequence[int],
        as_of: datetime | None,
    ) -> None:
        for counter_id, total in zip(counters, returned, strict=True):
            held = self._counters[counter_id].slices.get(incarnation)
            if held is not None:
                held.returned = max(held.returned, total)
                if as_of is not None:
                    held.recalled_at = (as_of - EPOCH).total_seconds()

    async def declare(
        self,
        incarnation: int,
        counters: Sequence[int],
        granted: Sequence[int],
        returned: Sequence[int],
    ) -> bool:
        return self._is_live(incarnation)

    # The world

    def now(self) -> float:
        return self._now

    def pass_time(self, seconds: float) -> None:
        self._now += seconds

    def begin(self) -> int:
        incarnation = len(self._leases) + 1
        self._leases[incarnation] = self._now + LEASE_SECONDS
        self._sequences[incarnation] = 0
        return incarnation

    def heartbeat(self, incarnation: int, sent_at: float) -> Beat | None:
        if not self._is_live(incarnation):
            return None
        self._leases[incarnation] = self._now + LEASE_SECONDS
        wanted = tuple(
            counter_id
            for counter_id, counter in self._counters.items()
            if counter.wanted_until > self._now
            and counter.slices.get(incarnation, ModelSlice()).unaccounted > 0
        )
        return Beat(
            incarnation, sent_at, sent_at + LEASE_SECONDS - LEASE_MARGIN_SECONDS,
            EPOCH + timedelta(seconds=self._now),
            "1", False, True, 0, wanted,
        )  # fmt: skip

    def end_lease(self, incarnation: int) -> None:
        self._leases[incarnation] = self._now

    def settle(self, incarnation: int, charges: Sequence[Charge]) -> None:
        for charge in charges:
            counter = self._counters[charge.counter_id]
            held = counter.slices.get(incarnation)
            if held is None:
                counter.settled += charge.amount
            else:
                held.settled += charge.amount
                held.granted += max(0, -held.unaccounted)

    def close(self, incarnation: int) -> None:
        self._closed.add(incarnation)
        for counter in self._counters.values():
            held = counter.slices.pop(incarnation, None)
            if held is not None:
                counter.settled += held.settled

    def set_amount(self, cap: Cap, amount: int) -> None:
        self._amounts[cap.cap_id] = amount

    def counted(self) -> dict[int, int]:
        return {counter_id: counter.counted for counter_id, counter in self._counters.items()}

    def unaccounted(self, incarnation: int) -> dict[int, int]:
        return {
            counter_id: counter.slices[incarnation].unaccounted
            for counter_id, counter in self._counters.items()
            if incarnation in counter.slices
        }

    def cap_of(self, counter_id: int) -> int:
        return self._counters[counter_id].cap_id

    def is_current(self, counter_id: int) -> bool:
        return self._counter_now(self.cap_of(counter_id)) == counter_id

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(coroutine)

    def audit(self) -> None:
        for counter in self._counters.values():
            for held in counter.slices.values():
                assert held.unaccounted >= 0

    def end(self) -> None:
        self._loop.close()

    def _is_live(self, incarnation: int) -> bool:
        return incarnation not in self._closed and self._leases[incarnation] > self._now

    def _counter_now(self, cap_id: int) -> int:
        seconds = self.caps[cap_id - 1].window.seconds
        window = int(self._now // seconds) if seconds else 0
        found = self._current.get((cap_id, window))
        if found is None:
            found = len(self._counters) + 1
            self._current[cap_id, window] = found
            ends_at = (window + 1) * float(seconds) if seconds else None
            self._counters[found] = ModelCounter(cap_id, ends_at)
        return found
