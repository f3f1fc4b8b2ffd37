"""A state machine that attacks slice books: any order of calls, losses, freezes, ends and closes.

It drives the guard's own code (book, queue, table) over an authority that is either a model in
Python (quick, with a clock of its own) or the real SQL. Its books are its own: what was really
billed and what really runs.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from terrace_gateway.calls.ports import Amounts, AuthorityUnavailableError, Cap, Charge, Hold
from terrace_gateway.clock import Clock
from terrace_gateway.money.grants import Answer, MessageLostError, Need, SliceAuthority
from terrace_gateway.money.heartbeat import Beat
from terrace_gateway.money.slice_book import SliceBook

T = TypeVar("T")
REPLICAS = 3
LEASE_SECONDS = 90
FAULTS = st.sampled_from(["", "", "", "away", "lose message", "lose answer", "late", "twice"])


class World(Protocol):
    """The authority and its clock, as the machine needs them."""

    authority: SliceAuthority
    caps: Sequence[Cap]

    def now(self) -> float: ...
    def pass_time(self, seconds: float) -> None: ...
    def begin(self) -> int: ...
    def heartbeat(self, incarnation: int, sent_at: float) -> Beat | None: ...
    def end_lease(self, incarnation: int) -> None: ...
    def settle(self, incarnation: int, charges: Sequence[Charge]) -> None: ...
    def close(self, incarnation: int) -> None: ...
    def set_amount(self, cap: Cap, amount: int) -> None: ...
    def counted(self) -> dict[int, int]:
        """Per counter: what counts against its cap."""
        ...

    def unaccounted(self, incarnation: int) -> dict[int, int]:
        """Per counter: granted, not returned and not settled."""
        ...

    def cap_of(self, counter_id: int) -> int: ...
    def is_current(self, counter_id: int) -> bool: ...
    def run(self, coroutine: Coroutine[Any, Any, T]) -> T: ...
    def audit(self) -> None: ...


class WorldClock(Clock):
    """A replica's clock: the world's, and as far ahead as it jumped."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.ahead = 0.0
        super().__init__()

    def monotonic(self) -> float:
        return self._world.now() + self.ahead


class FlakyAuthority(SliceAuthority):
    """The way to the authority. One fault at a time."""

    def __init__(self, inner: SliceAuthority) -> None:
        self._inner = inner
        self.fault = ""
        self.late: list[Callable[[], Awaitable[object]]] = []

    async def _pass(self, message: Callable[[], Awaitable[T]]) -> T:
        fault, self.fault = self.fault, self.fault if self.fault == "away" else ""
        if fault == "away":
            raise MessageLostError("away", ambiguous=False)
        if fault == "late":
            self.late.append(message)
        if fault in {"late", "lose message"}:
            raise MessageLostError(fault, ambiguous=True)
        answer = await message()
        if fault == "twice":
            await message()
        if fault == "lose answer":
            raise MessageLostError(fault, ambiguous=True)
        return answer

    async def grant(
        self, incarnation: int, sequence: int, caps: Sequence[int], needs: Sequence[Need]
    ) -> Answer:
        return await self._pass(lambda: self._inner.grant(incarnation, sequence, caps, needs))

    async def give_back(
        self,
        incarnation: int,
        counters: Sequence[int],
        returned: Sequence[int],
        as_of: datetime | None,
    ) -> None:
        await self._pass(lambda: self._inner.give_back(incarnation, counters, returned, as_of))

    async def declare(
        self,
        incarnation: int,
        counters: Sequence[int],
        granted: Sequence[int],
        returned: Sequence[int],
    ) -> bool:
        return await self._pass(
            lambda: self._inner.declare(incarnation, counters, granted, returned)
        )


@dataclass
class Guard:
    """One replica: its process may crash; its spool is on a volume and survives."""

    way: FlakyAuthority
    clock: WorldClock
    book: SliceBook
    incarnation: int = 0
    ended: list[int] = field(default_factory=list[int])
    running: list[Hold] = field(default_factory=list[Hold])
    zombies: list[Hold] = field(default_factory=list[Hold])
    """Calls of a crashed process that may still be billed."""
    spool: list[tuple[int, tuple[Charge, ...]]] = field(
        default_factory=list[tuple[int, tuple[Charge, ...]]]
    )


def slice_machine(make_world: Callable[[], World]) -> type[RuleBasedStateMachine]:
    """The machine over worlds that ``make_world`` makes."""

    class SliceMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.world = make_world()
            self.attempts = itertools.count(1)
            self.billed: dict[int, int] = {}  # by counter
            self.ceiling = {cap.cap_id: cap.amount for cap in self.world.caps}
            self.amount = dict(self.ceiling)
            self.guards: list[Guard] = []

        @initialize()
        def start(self) -> None:
            for _ in range(REPLICAS):
                way, clock = FlakyAuthority(self.world.authority), WorldClock(self.world)
                book = SliceBook(way, clock, sleep=self.beat_all, idle_seconds=1e12)
                self.guards.append(Guard(way, clock, book))
                self.beat(self.guards[-1])

        def teardown(self) -> None:
            for guard in self.guards:
                self.world.run(guard.book.close())

        # What guards do

        def beat(self, guard: Guard) -> None:
            while True:
                if guard.incarnation == 0:
                    guard.incarnation = self.world.begin()
                beat = self.world.heartbeat(guard.incarnation, guard.clock.monotonic())
                if beat is not None:
                    break
                guard.ended.append(guard.incarnation)
                guard.incarnation = 0

            async def hear() -> None:
                guard.book.hear(beat)
                await guard.book.settle_down()

            self.world.run(hear()) if not _in_loop() else guard.book.hear(beat)

        async def beat_all(self, seconds: float) -> None:
            self.world.pass_time(seconds)
            for guard in self.guards:
                if guard.way.fault != "away":
                    self.beat(guard)
            for guard in self.guards:
                if guard.way.fault != "away":
                    await guard.book.settle_down()

        @rule(n=st.integers(0, REPLICAS - 1))
        def beats(self, n: int) -> None:
            self.beat(self.guards[n])

        @rule(n=st.integers(0, REPLICAS - 1), amount=st.integers(0, 60), fault=FAULTS)
        def reserve(self, n: int, amount: int, fault: str) -> None:
            guard = self.guards[n]
            guard.way.fault = fault
            amounts = Amounts(0, 0, amount)
            name = f"att_{next(self.attempts)}"
            try:
                outcome = self.world.run(guard.book.reserve(name, self.world.caps, amounts))
            except AuthorityUnavailableError:
                return
            finally:
                guard.way.fault = ""
            if isinstance(outcome, Hold):
                guard.running.append(outcome)

        @rule(n=st.integers(0, REPLICAS - 1), which=st.integers(0), cost=st.integers(0, 60))
        def settle(self, n: int, which: int, cost: int) -> None:
            guard = self.guards[n]
            if guard.running:
                hold = guard.running.pop(which % len(guard.running))
                worst = max(c.amount for c in hold.charges)
                actual = Amounts(0, 0, min(cost, worst))
                self.bill(guard, hold, self.in_loop(lambda: guard.book.settle(hold, actual)))
                again = self.in_loop(lambda: guard.book.settle(hold, actual))
                assert again == guard.spool[-1][1]

        @rule(n=st.integers(0, REPLICAS - 1))
        def keep(self, n: int) -> None:
            guard = self.guards[n]
            if guard.running:
                hold = guard.running.pop()
                self.bill(guard, hold, self.in_loop(lambda: guard.book.keep(hold)))

        def in_loop(self, step: Callable[[], T]) -> T:
            async def one() -> T:
                return step()

            return self.world.run(one())

        def bill(self, guard: Guard, hold: Hold, charges: tuple[Charge, ...]) -> None:
            for charge in charges:
                counter = charge.counter_id
                self.billed[counter] = self.billed.get(counter, 0) + charge.amount
            guard.spool.append((hold.incarnation, charges))

        @rule(n=st.integers(0, REPLICAS - 1))
        def ship(self, n: int) -> None:
            guard = self.guards[n]
            for incarnation, charges in guard.spool:
                self.world.settle(incarnation, charges)
            guard.spool.clear()

        @rule(n=st.integers(0, REPLICAS - 1))
        def tidy(self, n: int) -> None:
            self.world.run(self.guards[n].book.give_back_all())

        # What happens to them

        @rule(n=st.integers(0, REPLICAS - 1))
        def crash(self, n: int) -> None:
            """Its calls may be billed yet; nobody knows. A new process replays the spool later."""
            guard = self.guards[n]
            self.world.run(guard.book.close())
            guard.zombies += guard.running
            guard.running.clear()
            if guard.incarnation:
                guard.ended.append(guard.incarnation)
            guard.incarnation = 0
            guard.book = SliceBook(guard.way, guard.clock, sleep=self.beat_all, idle_seconds=1e12)
            self.beat(guard)

        @rule(n=st.integers(0, REPLICAS - 1))
        def replay_and_close(self, n: int) -> None:
            """Open records without an end are charged their reservation, then it is closed."""
            guard = self.guards[n]
            for hold in guard.zombies:
                self.bill(guard, hold, tuple(c for c in hold.charges))
            guard.zombies.clear()
            self.ship(n)
            busy = {hold.incarnation for hold in guard.running}
            for incarnation in [i for i in guard.ended if i not in busy]:
                self.world.close(incarnation)
                guard.ended.remove(incarnation)

        @rule(n=st.integers(0, REPLICAS - 1))
        def late_messages_arrive(self, n: int) -> None:
            way = self.guards[n].way
            messages, way.late = way.late, []
            for message in messages:
                self.world.run(_awaited(message))

        @rule(n=st.integers(0, REPLICAS - 1))
        def lease_ends(self, n: int) -> None:
            """By the database's clock; the holder's is at least as far (it is conservative)."""
            guard = self.guards[n]
            if guard.incarnation:
                self.world.end_lease(guard.incarnation)
                guard.clock.ahead += LEASE_SECONDS

        @rule(n=st.integers(0, REPLICAS - 1), seconds=st.floats(0, 200))
        def clock_jumps(self, n: int, seconds: float) -> None:
            self.guards[n].clock.ahead += seconds

        @rule(seconds=st.sampled_from([0.3, 5.0, 45.0, 100.0]))
        def time_passes(self, seconds: float) -> None:
            self.world.pass_time(seconds)

        @rule(which=st.integers(0), amount=st.integers(20, 150))
        def cap_changes(self, which: int, amount: int) -> None:
            cap = self.world.caps[which % len(self.world.caps)]
            counted = [
                v for k, v in self.world.counted().items() if self.world.cap_of(k) == cap.cap_id
            ]
            # What was granted before stays granted.
            self.ceiling[cap.cap_id] = max([amount, *counted])
            self.amount[cap.cap_id] = amount
            self.world.set_amount(cap, amount)

        @precondition(lambda self: all(g.way.fault == "" for g in self.guards))
        @rule(n=st.integers(0, REPLICAS - 1), part=st.floats(0.1, 1))
        def what_fits_is_granted(self, n: int, part: float) -> None:
            """No starvation: idle amounts of live holders are as good as free."""
            self.beat_everyone()
            free = []
            for cap in self.world.caps:
                taken = 0
                for counter, counted in self.world.counted().items():
                    if self.world.cap_of(counter) == cap.cap_id and self.world.is_current(counter):
                        taken = counted - self.idle(counter)
                free.append(self.amount[cap.cap_id] - taken)
            need = int(min(free) * part)
            if need <= 0:
                return
            guard = self.guards[n]
            name = f"att_{next(self.attempts)}"
            amounts = Amounts(0, 0, need)
            outcome = self.world.run(guard.book.reserve(name, self.world.caps, amounts))
            assert isinstance(outcome, Hold), (free, outcome)
            guard.running.append(outcome)

        def beat_everyone(self) -> None:
            for guard in self.guards:
                self.beat(guard)

        def idle(self, counter: int) -> int:
            """With live holders, by the machine's own books."""
            idle = 0
            for guard in self.guards:
                held = self.world.unaccounted(guard.incarnation).get(counter, 0)
                for hold in guard.running:
                    if hold.incarnation == guard.incarnation:
                        held -= sum(c.amount for c in hold.charges if c.counter_id == counter)
                for incarnation, charges in guard.spool:
                    if incarnation == guard.incarnation:
                        held -= sum(c.amount for c in charges if c.counter_id == counter)
                idle += held
            return idle

        # What must hold

        @invariant()
        def never_above_the_cap_and_never_below_the_bill(self) -> None:
            possible = dict(self.billed)
            for guard in self.guards:
                for hold in (*guard.running, *guard.zombies):
                    for charge in hold.charges:
                        counter = charge.counter_id
                        possible[counter] = possible.get(counter, 0) + charge.amount
            counted = self.world.counted()
            for counter, amount in possible.items():
                assert amount <= counted.get(counter, 0)
            for counter, amount in counted.items():
                assert amount <= self.ceiling[self.world.cap_of(counter)]
            self.world.audit()

    return SliceMachine


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _awaited(message: Callable[[], Awaitable[object]]) -> None:
    await message()
