"""Guards of the release before and of this one share one cap: the old SQL beside the slices."""

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator

import pytest
from gateway_rig.postgres import Postgres
from gateway_rig.slices import Replica, SliceRig, slice_rig

from terrace_gateway.calls.ports import Cap, CapRefusal, Hold, Window

# Statements of the release before, to the letter.
REGISTER = "INSERT INTO incarnation (replica) VALUES (%s) RETURNING incarnation_id"
INSERT_KEY = (
    "INSERT INTO virtual_key (key_id, key_hash, team, name, models, expires_at)"
    " VALUES (%s, %s, %s, %s, %s, %s)"
)
INSERT_CAP = (
    "INSERT INTO cap (scope, scope_id, dimension, window_seconds, amount)"
    " VALUES ('key', %s, %s, %s, %s)"
)
RESERVE = (
    "SELECT verdict, key_id, team, cap_scope, cap_dimension, retry_after, remaining"
    " FROM reserve_attempt_v2(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
)
SETTLE = "SELECT settle_attempt(%s, %s, %s, %s, %s, %s, %s, %s)"
OLD_WINDOWS = (
    "DELETE FROM counter WHERE counter_id IN (SELECT counter_id FROM counter"
    " WHERE window_seconds > 0 AND outstanding = 0"
    " AND window_start < clock_timestamp() - make_interval(secs => window_seconds + 3600)"
    " LIMIT %s FOR UPDATE SKIP LOCKED)"
)
KEYS = (
    "SELECT k.key_id, m.amount FROM virtual_key k LEFT JOIN cap m ON (m.scope, m.scope_id,"
    " m.dimension, m.window_seconds) = ('key', k.key_id, 'micro_usd', 0)"
)
KEY_HASH = hashlib.sha256(b"key").digest()

pytestmark = pytest.mark.usefixtures("patience")


@pytest.fixture
async def rig(postgres: Postgres) -> AsyncIterator[SliceRig]:
    async with slice_rig(postgres) as rig:
        yield rig


class OldGuard:
    """The money path of the release before."""

    def __init__(self, rig: SliceRig, runner: Replica, cap: tuple[str, int, int | None]) -> None:
        self._runner = runner
        self._count = 0
        rig.sql(INSERT_KEY, "key_1", KEY_HASH, "search", None, None, None)
        rig.sql(INSERT_CAP, "key_1", *cap)
        ((self.incarnation,),) = rig.sql(REGISTER, "old")

    async def reserve(self, amount: int) -> str | None:
        """The attempt's id, or ``None`` for a refusal."""
        self._count += 1
        attempt = f"old_{self._count}"
        row = await self._runner.execute(
            RESERVE, KEY_HASH, attempt, "req", "0" * 32, self.incarnation, "old", "m", "d", "p",
            "chat", amount, "v", 60,
        )  # fmt: skip
        return attempt if row[0] == "granted" else None

    async def settle(self, attempt: str, amount: int) -> None:
        row = await self._runner.execute(
            SETTLE, attempt, "attempt", 1, 1, amount, "response", "ok", "old"
        )
        assert row == ("settled",)


def the_cap(rig: SliceRig) -> Cap:
    ((cap_id,),) = rig.sql("SELECT cap_id FROM cap WHERE scope = 'key'")
    return rig.read_cap(cap_id)


async def test_each_sees_what_the_other_holds(rig: SliceRig) -> None:
    new = await rig.replica()
    old = OldGuard(rig, new, ("micro_usd", 0, 100))
    cap = the_cap(rig)
    assert cap.window == Window("lifetime")
    attempt = await old.reserve(60)
    assert attempt is not None
    assert isinstance(await new.reserve([cap], money=41), CapRefusal)
    hold = await new.must_reserve([cap], money=40)
    assert await old.reserve(1) is None
    new.settle(hold, money=0)  # idle now, wanted by the old one: it comes back
    async with asyncio.timeout(60):
        while await old.reserve(40) is None:
            await asyncio.sleep(0.02)
    await old.settle(attempt, 10)
    assert isinstance(await new.reserve([cap], money=50), Hold)
    assert isinstance(await new.reserve([cap], money=1), CapRefusal)


async def test_together_they_never_pass_the_cap(rig: SliceRig) -> None:
    amount, largest = 6000, 100
    guards = [await rig.replica(), await rig.replica()]
    old = OldGuard(rig, guards[0], ("micro_usd", 0, amount))
    cap, chance = the_cap(rig), random.Random(11)
    possible = {"now": 0, "peak": 0, "billed": 0}

    def open_one(worst: int) -> None:
        possible["now"] += worst
        possible["peak"] = max(possible["peak"], possible["now"])

    def end_one(worst: int, cost: int) -> None:
        possible["now"] += cost - worst
        possible["billed"] += cost

    async def with_slices(guard: Replica) -> None:
        for _ in range(30):
            worst = chance.randint(1, largest)
            hold = await guard.reserve([cap], money=worst)
            if isinstance(hold, Hold):
                open_one(worst)
                await asyncio.sleep(chance.random() / 200)
                cost = chance.randint(0, worst)
                end_one(worst, cost)
                guard.settle(hold, money=cost)

    async def without() -> None:
        for _ in range(30):
            worst = chance.randint(1, largest)
            attempt = await old.reserve(worst)
            if attempt is not None:
                open_one(worst)
                await asyncio.sleep(chance.random() / 200)
                cost = chance.randint(0, worst)
                await old.settle(attempt, cost)
                end_one(worst, cost)

    await asyncio.gather(*(with_slices(guards[n % 2]) for n in range(8)), *(without(),) * 1)
    await asyncio.gather(*(without() for _ in range(6)))
    assert possible["peak"] <= amount
    for guard in guards:
        await guard.ship()
        await guard.book.give_back_all()
        await guard.heartbeat.close(guard.book.incarnation)
    assert rig.counted(cap) == possible["billed"]


async def test_fixed_windows_are_shared_and_kept_while_slices_count_there(rig: SliceRig) -> None:
    new = await rig.replica()
    old = OldGuard(rig, new, ("requests", 86_400, 3))
    cap = the_cap(rig)
    assert cap.window == Window("fixed", 86_400)
    hold = await new.must_reserve([cap])
    assert await old.reserve(0) is not None
    assert await old.reserve(0) is not None
    assert await old.reserve(0) is None
    assert isinstance(await new.reserve([cap]), CapRefusal)
    rig.sql("UPDATE counter SET window_start = window_start - interval '2 days', outstanding = 0,"
            " window_end = window_end - interval '1 day'")  # fmt: skip
    rig.sql(OLD_WINDOWS, 200)
    new.keep(hold)
    await new.ship()
    assert rig.sql("SELECT settled FROM slice") == [(1,)]
    rig.sql("UPDATE counter SET window_end = window_end - interval '2 days'")
    assert rig.sql("SELECT drop_ended_counters(200)") == [(1,)]
    assert rig.sql("SELECT count(*) FROM slice") == [(0,)]


async def test_the_release_before_meets_no_kind_of_cap_that_it_does_not_know(rig: SliceRig) -> None:
    new = await rig.replica()
    old = OldGuard(rig, new, ("micro_usd", 0, 100))
    key, month = {"scope": "key", "scope_id": "key_1"}, Window("calendar", 0, "month", "UTC")
    for scope in (key, {"scope": "team", "scope_id": "search"}):
        rig.cap(0, **scope, dimension="output_tokens")
        rig.cap(0, **scope, dimension="concurrency")
        rig.cap(0, **scope, window=month)
        rig.cap(0, **scope, window=Window("rolling", 60), dimension="requests")
        rig.cap(0, **scope, dimension="requests", mode="audit")
    rig.cap(0, scope="team", scope_id="search")
    rig.sql("UPDATE cap SET retired_at = clock_timestamp() WHERE scope = 'team'"
            " AND dimension = 'micro_usd' AND window_kind = 'lifetime'")  # fmt: skip
    assert await old.reserve(100) is not None
    assert await old.reserve(1) is None
    assert rig.sql(KEYS) == [("key_1", 100)]  # one row per key, as its admin API expects


async def test_an_old_reservation_waits_for_no_grant_in_another_order(rig: SliceRig) -> None:
    """Both lock counters in one order; a crossing would be a deadlock, told as an error."""
    new = [await rig.replica(), await rig.replica()]
    old = OldGuard(rig, new[0], ("micro_usd", 0, 10**9))
    rig.cap(10**9, scope="key", scope_id="key_1", dimension="requests")
    rig.cap(10**9, scope="team", scope_id="search")
    caps = [rig.read_cap(i) for (i,) in rig.sql("SELECT cap_id FROM cap ORDER BY cap_id DESC")]
    holds: list[Hold] = []

    async def grants(guard: Replica) -> None:
        for _ in range(40):
            holds.append(await guard.must_reserve(caps, money=10_000))

    async def reservations() -> None:
        for _ in range(40):
            assert await old.reserve(5) is not None

    await asyncio.gather(*(grants(guard) for guard in new), *(reservations() for _ in range(3)))
    assert rig.sql("SELECT sum(deadlocks) FROM pg_stat_database"
                   " WHERE datname = current_database()") == [(0,)]  # fmt: skip
