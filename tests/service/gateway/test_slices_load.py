"""Many callers, several guards, one cap: nothing is overspent and nearly all of it can be used."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
from gateway_rig.postgres import Postgres
from gateway_rig.slices import Replica, SliceRig, slice_rig

from terrace_gateway.calls.ports import Cap, Hold

CALLERS = 200
LARGEST = 1000

pytestmark = pytest.mark.usefixtures("patience")


@pytest.fixture
async def rig(postgres: Postgres) -> AsyncIterator[SliceRig]:
    async with slice_rig(postgres) as rig:
        yield rig


class Provider:
    """Keeps its own bill."""

    def __init__(self) -> None:
        self.billed = 0
        self.running = 0
        self.peak = 0  # of bill and running worst cases: what could be billed at that moment

    async def call(self, worst: int, cost: int) -> None:
        self.running += worst
        self.peak = max(self.peak, self.billed + self.running)
        await asyncio.sleep(random.random() / 200)
        self.running -= worst
        self.billed += cost


async def spend_all(replica: Replica, caps: list[Cap], provider: Provider, chance: random.Random,
                    state: dict[str, int]) -> None:  # fmt: skip
    """Call until a call is refused while nothing runs any more."""
    while True:
        worst = chance.randint(LARGEST // 4, LARGEST)
        epoch = state["ended"]
        outcome = await replica.reserve(caps, money=worst)
        if not isinstance(outcome, Hold):
            if state["open"] == 0 and state["ended"] == epoch:
                return
            await asyncio.sleep(0.01)
            continue
        state["open"] += 1
        cost = chance.randint(0, worst)
        await provider.call(worst, cost)
        replica.settle(outcome, money=cost)
        state["open"] -= 1
        state["ended"] += 1


@pytest.mark.parametrize("replicas", [2, 3])
async def test_two_hundred_callers_on_one_cap(rig: SliceRig, replicas: int) -> None:
    amount = 60 * LARGEST
    shared = rig.cap(amount, scope="org")
    caps = [
        [shared, rig.cap(10**12, scope="key", scope_id=f"key_{n}"),
         rig.cap(CALLERS, scope="team", scope_id="t", dimension="concurrency")]
        for n in range(5)
    ]  # fmt: skip
    guards = [await rig.replica() for _ in range(replicas)]
    provider, state = Provider(), {"open": 0, "ended": 0}
    chance = random.Random(7)
    await asyncio.gather(
        *(
            spend_all(guards[n % replicas], caps[n % 5], provider, chance, state)
            for n in range(CALLERS)
        )
    )
    assert provider.peak <= amount
    assert provider.billed > 0.95 * amount
    for guard in guards:
        await guard.ship()
        await guard.book.give_back_all()
    assert rig.counted(shared) == provider.billed


async def test_cold_callers_of_one_cap_share_few_grants(rig: SliceRig) -> None:
    caps = [rig.cap(10**9), rig.cap(10**9, scope="key", scope_id="key_1")]
    guard = await rig.replica(beat=False)
    holds = await asyncio.gather(*(guard.reserve(caps, money=100) for _ in range(CALLERS)))
    assert all(isinstance(hold, Hold) for hold in holds)
    assert guard.book.grants <= 3
    before = guard.book.grants
    for _ in range(2000):  # far from the cap one grant serves many calls
        guard.settle(await guard.must_reserve(caps, money=100), money=100)
    assert guard.book.grants - before <= 40
    await guard.ship()
    await guard.book.give_back_all()
    assert [rig.counted(cap) for cap in caps] == [200 * 100 + 2000 * 100] * 2


async def test_calls_that_cross_in_many_caps_do_not_lock_each_other_out(rig: SliceRig) -> None:
    """Grants, returns, ships and closes at once, in every order of caps: no deadlock, no error."""
    caps = [rig.cap(3000, scope="team", scope_id=f"t{n}") for n in range(8)]
    guards = [await rig.replica() for _ in range(3)]
    chance = random.Random(3)

    async def caller(guard: Replica) -> None:
        for _ in range(25):
            some = chance.sample(caps, 4)
            outcome = await guard.reserve(some, money=chance.randint(1, 400))
            if isinstance(outcome, Hold):
                await asyncio.sleep(0)
                guard.settle(outcome, money=min(c.amount for c in outcome.charges) // 50)
            if chance.random() < 0.2:
                await guard.ship()

    await asyncio.gather(*(caller(guards[n % 3]) for n in range(12)))
    await asyncio.gather(*(guard.ship() for guard in guards))
    for guard in guards:
        await guard.book.give_back_all()
        await guard.heartbeat.close(guard.book.incarnation)
    assert rig.sql("SELECT sum(sliced) FROM counter") == [(0,)]
