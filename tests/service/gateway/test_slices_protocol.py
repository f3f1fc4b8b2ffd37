"""The lines of the slice protocol, one by one, on a real Postgres."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from gateway_rig.postgres import Postgres
from gateway_rig.slices import SliceRig, amounts_of, slice_rig

from terrace_gateway.calls.ports import AuthorityUnavailableError, Cap, CapRefusal, Charge, Hold
from terrace_gateway.database import Connection
from terrace_gateway.money.grants import Ask, Need, PostgresSlices
from terrace_gateway.money.slice_events import LogEvents
from terrace_gateway.money.slice_reaper import SliceReaper

# An entry of the ledger that is new, as its transaction settles it.
SETTLE_BATCH = """SELECT settle_entries(ARRAY[jsonb_populate_record(NULL::ledger_entry,
    jsonb_build_object('kind', 'attempt', 'late', false, 'incarnation_id', %s::bigint,
        'charges', jsonb_build_array(jsonb_build_array(%s::bigint, 'micro_usd', %s::bigint),
                                     jsonb_build_array(%s::bigint, 'micro_usd', %s::bigint))))])"""

pytestmark = pytest.mark.usefixtures("patience")


@pytest.fixture
async def rig(postgres: Postgres) -> AsyncIterator[SliceRig]:
    async with slice_rig(postgres) as rig:
        yield rig


async def test_a_cap_holds_what_is_settled_and_running(rig: SliceRig) -> None:
    cap = rig.cap(100)
    a = await rig.replica()
    first = await a.must_reserve([cap], money=60)
    refused = await a.reserve([cap], money=41)
    assert isinstance(refused, CapRefusal)
    assert (refused.needed, refused.remaining, refused.retry_after_seconds) == (41, 40, None)
    a.settle(first, money=10)
    second = await a.must_reserve([cap], money=90)
    a.keep(second)
    await a.ship()
    assert rig.counted(cap) == 100
    assert isinstance(await a.reserve([cap], money=1), CapRefusal)


async def test_an_idle_holder_starves_nobody(rig: SliceRig) -> None:
    cap = rig.cap(100)
    a, b = await rig.replica(), await rig.replica()
    a.settle(await a.must_reserve([cap], money=90), money=0)  # 90 are idle with a
    hold = await b.must_reserve([cap], money=95)
    b.keep(hold)
    assert isinstance(await a.reserve([cap], money=6), CapRefusal)
    await asyncio.gather(a.ship(), b.ship())
    assert rig.counted(cap) <= 100
    assert isinstance(await a.reserve([cap], money=5), Hold)


async def test_all_caps_or_none(rig: SliceRig) -> None:
    """Rule 9: every scope and dimension in one grant; a refusal moves no cap."""
    caps = [
        rig.cap(1000),
        rig.cap(10, scope="team", scope_id="search", dimension="requests"),
        rig.cap(500, scope="user", scope_id="jo", dimension="output_tokens"),
        rig.cap(1, scope="app", scope_id="bot", dimension="concurrency"),
        rig.cap(50, scope="key", scope_id="key_1"),
    ]
    a = await rig.replica()
    hold = await a.must_reserve(caps, money=50, output_tokens=300)
    refused = await a.reserve(caps[:4], money=400, output_tokens=100)
    assert isinstance(refused, CapRefusal)
    assert refused.cap == caps[3]
    assert [rig.counted(cap) for cap in caps] == [50, 2, 300, 1, 50]  # idle parts came back
    charges = a.book.settle(hold, amounts_of(money=7, output_tokens=3))
    assert [(c.dimension, c.amount) for c in charges] == [
        ("micro_usd", 7), ("requests", 1), ("output_tokens", 3), ("micro_usd", 7),
    ]  # fmt: skip
    assert a.book.settle(hold, amounts_of(money=7, output_tokens=3)) == charges
    assert isinstance(await a.reserve(caps, money=43, output_tokens=100), Hold)


async def test_no_two_replicas_sit_on_halves(rig: SliceRig) -> None:
    """Rule 9: fragments of refused replicas come back, so that one of them gets the whole."""
    cap = rig.cap(100)
    a, b = await rig.replica(), await rig.replica()
    for replica in (a, b):
        replica.settle(await replica.must_reserve([cap], money=50), money=0)
    outcomes = await asyncio.gather(a.reserve([cap], money=60), b.reserve([cap], money=60))
    assert sum(isinstance(outcome, Hold) for outcome in outcomes) == 1
    assert rig.counted(cap) <= 100


async def test_expiry_forfeits_and_replay_gives_credit(rig: SliceRig) -> None:
    """Rules 1 and 12."""
    cap = rig.cap(100)
    a, b = await rig.replica(), await rig.replica()
    used = await a.must_reserve([cap], money=30)
    idle = await a.must_reserve([cap], money=50)
    a.settle(idle, money=0)
    a.settle(used, money=20)
    await a.freeze()
    rig.end_lease(a)
    assert rig.counted(cap) == 80  # nothing comes back by itself
    assert isinstance(await b.reserve([cap], money=21), CapRefusal)
    await a.ship()  # the replay of its spool, into a forfeited slice
    assert rig.counted(cap) == 80
    assert await b.heartbeat.close(used.incarnation)
    assert rig.counted(cap) == 20
    assert not await b.heartbeat.close(used.incarnation)
    assert isinstance(await b.reserve([cap], money=80), Hold)


async def test_a_frozen_holder_that_wakes_up_cannot_reserve(rig: SliceRig) -> None:
    """Rules 1, 4 and 11: by its own clock; then it gets a new identity."""
    cap = rig.cap(100)
    a = await rig.replica(beat=False)
    before = await a.must_reserve([cap], money=10)
    a.settle(await a.must_reserve([cap], money=20), money=0)
    a.clock.ahead += 89.5
    assert a.book.reserve_now("att", [cap], amounts_of(money=1)) is None
    with pytest.raises(AuthorityUnavailableError, match="lease"):
        await a.reserve([cap], money=1)
    rig.sql("UPDATE incarnation SET lease_until = clock_timestamp() - interval '1 second'")
    await a.heartbeat.beat()
    assert a.heartbeat.ended == [before.incarnation]
    assert a.book.incarnation != before.incarnation
    assert a.book.running(before.incarnation) == 1
    a.settle(before, money=5)  # an old stream ends: its entry goes to the old identity
    assert a.book.running(before.incarnation) == 0
    await a.ship()
    assert rig.counted(cap) == 30
    await a.heartbeat.close(before.incarnation)
    assert rig.counted(cap) == 5


async def test_a_grant_for_an_ended_lease_is_refused_by_the_database(rig: SliceRig) -> None:
    """Rule 4: whatever the holder's clock says (it stands still here)."""
    cap = rig.cap(100)
    a = await rig.replica(beat=False)
    rig.sql("UPDATE incarnation SET lease_until = clock_timestamp() - interval '1 second'")
    with pytest.raises(AuthorityUnavailableError, match="lease"):
        await a.reserve([cap], money=1)
    assert rig.counted(cap) == 0
    assert not a.book.is_live()


async def test_a_clock_that_jumps_far_ahead_ends_the_lease_only(rig: SliceRig) -> None:
    cap = rig.cap(100)
    a = await rig.replica(beat=False)
    a.settle(await a.must_reserve([cap], money=10), money=10)
    a.clock.ahead += 1e6
    assert not a.book.is_live()
    await a.heartbeat.beat()  # the database's lease runs: the same identity goes on
    assert a.heartbeat.ended == []
    assert isinstance(await a.reserve([cap], money=90), Hold)


async def test_gauges_end_with_the_attempt_or_the_longest_stream(rig: SliceRig) -> None:
    """Rules 2 and 3."""
    cap = rig.cap(2, dimension="concurrency")
    a, b = await rig.replica(stream_limit_seconds=600), await rig.replica()
    reaper = SliceReaper(b.database)
    first, second = await a.must_reserve([cap]), await a.must_reserve([cap])
    assert isinstance(await b.reserve([cap]), CapRefusal)
    assert a.book.settle(first, amounts_of()) == ()
    third = await b.must_reserve([cap])
    b.keep(third)
    assert isinstance(await b.must_reserve([cap]), Hold)
    await a.freeze()
    await a.ship()
    await b.heartbeat.close(second.incarnation)  # its process is gone: the upstream call may run on
    await reaper.reap()
    assert isinstance(await b.reserve([cap]), CapRefusal)
    rig.sql("UPDATE incarnation SET closed_at = closed_at - interval '601 seconds'"
            " WHERE incarnation_id = %s", second.incarnation)  # fmt: skip
    assert await reaper.reap() == (1, 0)
    assert isinstance(await b.reserve([cap]), Hold)


async def test_a_repeated_or_late_message_grants_nothing(rig: SliceRig) -> None:
    """Rule 5."""
    cap = rig.cap(100)
    a = await rig.replica(beat=False)
    slices, incarnation = PostgresSlices(a.database), a.book.incarnation
    asks = [Need([Ask(cap.cap_id, 0, 0, 0, 30, 0)])]
    first = await slices.grant(incarnation, 1, [cap.cap_id], asks)
    again = await slices.grant(incarnation, 1, [cap.cap_id], asks)
    assert (first.state, again.state) == ("done", "repeat")
    assert first.slices[0].granted == again.slices[0].granted == rig.counted(cap) == 30
    await slices.grant(incarnation, 3, [cap.cap_id], [])  # a fence
    assert (await slices.grant(incarnation, 2, [cap.cap_id], asks)).state == "repeat"
    counter = first.slices[0].counter_id
    await slices.give_back(incarnation, [counter], [12], None)
    await slices.give_back(incarnation, [counter], [12], None)
    await slices.give_back(incarnation, [counter], [5], None)
    assert rig.counted(cap) == 18


@pytest.mark.parametrize("executed", [True, False])
async def test_a_lost_answer_is_found_again(rig: SliceRig, executed: bool) -> None:
    """Rules 5 and 6: the answer or the message is lost; what was granted is not."""
    cap = rig.cap(100)
    a = await rig.replica(beat=False)
    real = a.database.connection
    lose = [executed]

    @asynccontextmanager
    async def lossy() -> AsyncIterator[Connection]:
        async with real() as connection:
            if lose == [False]:
                lose.clear()
                raise AuthorityUnavailableError("lost", ambiguous=True)
            yield connection
        if lose:
            lose.clear()
            raise AuthorityUnavailableError("lost", ambiguous=True)

    a.database.connection = lossy
    hold = await a.must_reserve([cap], money=60)
    a.settle(hold, money=60)
    assert isinstance(await a.reserve([cap], money=40), Hold)
    assert isinstance(await a.reserve([cap], money=1), CapRefusal)
    assert rig.counted(cap) == 100


async def test_a_lowered_cap_stops_grants_and_recalls_what_is_idle(rig: SliceRig) -> None:
    """Rule 8."""
    cap = rig.cap(100)
    a, b = await rig.replica(), await rig.replica()
    running = await a.must_reserve([cap], money=40)
    a.settle(await a.must_reserve([cap], money=40), money=0)
    rig.sql("UPDATE cap SET amount = 50")
    await eventually(lambda: rig.counted(cap) == 40)
    assert isinstance(await b.reserve([cap], money=11), CapRefusal)
    b.keep(await b.must_reserve([cap], money=10))
    a.settle(running, money=40)
    assert isinstance(await a.reserve([cap], money=1), CapRefusal)
    rig.sql("UPDATE cap SET amount = 20")
    assert isinstance(await a.reserve([cap], money=1), CapRefusal)
    rig.sql("UPDATE cap SET retired_at = clock_timestamp()")
    assert isinstance(await a.reserve([cap], money=1000), Hold)


@pytest.mark.parametrize(
    ("loose", "stricter"),
    [
        ({"mode": "audit"}, "mode = 'block'"),
        ({"mode": "audit"}, "mode = 'block', amount = 900"),
        ({"mode": "audit"}, "mode = 'block', amount = 5000"),
        ({"retired": True}, "retired_at = NULL"),
        ({"unlimited": True}, "amount = 1000"),
    ],
)
async def test_a_cap_that_is_stricter_in_any_way_recalls_what_is_idle(
    rig: SliceRig, loose: dict[str, Any], stricter: str
) -> None:
    """Rule 8: what a holder was granted beyond a cap that refused nothing is not spent later."""
    cap = rig.cap(1000, mode=loose.get("mode", "block"))
    if loose.get("retired"):
        rig.sql("UPDATE cap SET retired_at = clock_timestamp()")
    if loose.get("unlimited"):
        rig.sql("UPDATE cap SET amount = NULL")
    a = await rig.replica()
    for _ in range(200):
        a.settle(await a.must_reserve([cap], money=100), money=100)
    await a.ship()
    idle = "SELECT granted - returned - settled FROM slice"
    assert rig.sql(idle) > [(100,)]
    rig.sql(f"UPDATE cap SET {stricter}")
    await eventually(lambda: rig.sql(idle) == [(0,)])
    assert a.book.reserve_now("late", [cap], amounts_of(money=100)) is None
    assert isinstance(await a.reserve([cap], money=100), CapRefusal)


async def test_a_cap_that_is_looser_recalls_nothing(rig: SliceRig) -> None:
    cap = rig.cap(1000)
    a = await rig.replica()
    a.settle(await a.must_reserve([cap], money=100), money=1)
    for looser in (
        "amount = 2000", "mode = 'audit'", "amount = 10", "mode = 'block', amount = NULL",
        "retired_at = clock_timestamp()", "amount = 5",
    ):  # fmt: skip
        rig.sql(f"UPDATE cap SET {looser}")
        assert rig.sql("SELECT wanted_until FROM counter") == [(None,)], looser


async def test_settlement_touches_no_counter_row(rig: SliceRig) -> None:
    """Rule 10: a ship goes on while somebody holds every counter's lock."""
    cap = rig.cap(100)
    a = await rig.replica(beat=False)
    a.settle(await a.must_reserve([cap], money=10), money=7)
    with rig.postgres.superuser(rig.name) as blocker, blocker.transaction():
        blocker.execute("SELECT FROM counter FOR UPDATE")
        await a.ship()
    assert rig.sql("SELECT settled FROM slice") == [(7,)]


async def test_an_overrun_is_counted_told_and_covered_first(rig: SliceRig) -> None:
    """Rule 13."""
    cap = rig.cap(100)
    a = await rig.replica(beat=False)
    told = OverrunEvents()
    a.book._events = told
    a.settle(await a.must_reserve([cap], money=30), money=45)
    assert told.overruns == [(30, 45)]
    await a.ship()
    assert rig.counted(cap) == 45
    assert isinstance(await a.reserve([cap], money=56), CapRefusal)
    hold = await a.must_reserve([cap], money=55)
    assert rig.counted(cap) == 100
    a.settle(hold, money=200)  # beyond the cap: the truth counts all the same
    await a.ship()
    assert rig.counted(cap) == 245
    assert isinstance(await a.reserve([cap], money=1), CapRefusal)


async def test_a_settlement_and_a_grant_meet_in_one_order(rig: SliceRig) -> None:
    """An overrun needs counters, a grant needs slices: counters come first in both."""
    caps = [rig.cap(1000, scope="team", scope_id=name) for name in ("a", "b")]
    a = await rig.replica(beat=False)
    hold = await a.must_reserve(caps, money=100)
    first, second = (charge.counter_id for charge in hold.charges)
    before = rig.postgres.log_text().count("deadlock detected")
    with rig.postgres.superuser(rig.name) as blocker, blocker.transaction():
        blocker.execute("SELECT FROM slice WHERE counter_id = %s FOR UPDATE", (second,))
        settling = asyncio.create_task(
            a.execute(SETTLE_BATCH, hold.incarnation, first, 50, second, 1500)
        )
        await eventually(lambda: waiting_for_locks(rig) == 1)  # in the middle of its batch
        granting = asyncio.create_task(a.reserve(caps, money=200))
        await eventually(lambda: waiting_for_locks(rig) == 2)
    await asyncio.gather(settling, granting)
    assert rig.postgres.log_text().count("deadlock detected") == before
    assert rig.sql("SELECT settled FROM slice ORDER BY counter_id") == [(50,), (1500,)]
    assert [rig.counted(cap) > 1000 for cap in caps] == [False, True]


async def test_an_overrun_that_is_not_shipped_yet_is_covered_by_the_next_grant(
    rig: SliceRig,
) -> None:
    cap = rig.cap(100)
    a = await rig.replica(beat=False)
    a.settle(await a.must_reserve([cap], money=30), money=45)
    assert isinstance(await a.reserve([cap], money=56), CapRefusal)
    assert isinstance(await a.reserve([cap], money=55), Hold)
    await a.ship()
    assert rig.counted(cap) == 100


async def test_late_facts_move_counters_in_both_directions(rig: SliceRig) -> None:
    cap = rig.cap(100)
    a = await rig.replica(beat=False)
    hold = await a.must_reserve([cap], money=50)
    a.keep(hold)
    await a.ship()
    counter = hold.charges[0].counter_id
    correct = "SELECT correct_counters(%s, %s, %s)"
    await a.execute(correct, hold.incarnation, [counter, counter], [-20, -10])
    assert rig.counted(cap) == 20
    await a.execute(correct, hold.incarnation, [counter], [5])
    assert rig.counted(cap) == 25
    assert isinstance(await a.reserve([cap], money=76), CapRefusal)
    await a.book.give_back_all()
    await a.heartbeat.close(hold.incarnation)
    assert rig.sql("SELECT settled, sliced FROM counter") == [(25, 0)]
    await a.execute(correct, hold.incarnation, [counter], [-5])
    await a.execute("SELECT settle_slices(%s, %s, %s)", hold.incarnation, [counter], [3])
    assert rig.sql("SELECT settled, sliced FROM counter") == [(23, 0)]


async def test_a_new_time_line_suspends_grants_until_holders_declared(rig: SliceRig) -> None:
    """Rule 16: and what the database lost of its last grants comes back with the declaration."""
    cap = rig.cap(100)
    a, b = await rig.replica(beat=False), await rig.replica(beat=False)
    a.settle(await a.must_reserve([cap], money=60), money=0)
    await b.must_reserve([cap], money=10)
    new_timeline(rig, "fake-2", lost="UPDATE slice SET granted = 20 WHERE granted = 60")
    with pytest.raises(AuthorityUnavailableError, match="failover"):
        await b.reserve([cap], money=15)
    beat = await b.heartbeat.beat()
    assert (beat.suspended, beat.declared) == (True, False)
    await b.book.settle_down()
    with pytest.raises(AuthorityUnavailableError, match="failover"):
        await b.reserve([cap], money=15)  # a has not declared yet
    assert isinstance(await a.reserve([cap], money=50), Hold)  # out of what it has in hand
    await a.heartbeat.beat()
    await a.book.settle_down()
    assert rig.counted(cap) == 70
    assert not (await b.heartbeat.beat()).suspended
    assert isinstance(await b.reserve([cap], money=30), Hold)
    assert isinstance(await b.reserve([cap], money=11), CapRefusal)


async def test_a_new_time_line_waits_for_the_leases_of_the_silent(rig: SliceRig) -> None:
    cap = rig.cap(100)
    a, b = await rig.replica(beat=False), await rig.replica(beat=False)
    await a.must_reserve([cap], money=60)
    new_timeline(rig, "fake-3")
    await b.heartbeat.beat()
    await b.book.settle_down()
    with pytest.raises(AuthorityUnavailableError, match="failover"):
        await b.reserve([cap], money=1)
    rig.end_lease(a)
    assert isinstance(await b.reserve([cap], money=40), Hold)
    assert isinstance(await b.reserve([cap], money=1), CapRefusal)


async def test_an_operator_closes_a_holder_whose_volume_is_lost(rig: SliceRig) -> None:
    cap = rig.cap(100)
    a, b = await rig.replica(beat=False), await rig.replica(beat=False)
    for replica in (a, b):
        replica.keep(await replica.must_reserve([cap], money=10))
        await replica.must_reserve([cap], money=20)
        await replica.ship()
    close = "SELECT close_lost_incarnation(%s, 'ops', 'disk broke', %s)"
    assert await b.execute(close, a.book.incarnation, False) == ("lease_running",)
    rig.sql("UPDATE incarnation SET lease_until = clock_timestamp() - interval '1 second'")
    assert await b.execute(close, a.book.incarnation, False) == ("closed",)
    assert await b.execute(close, a.book.incarnation, False) == ("already",)
    assert rig.counted(cap) == 60
    assert await b.execute(close, b.book.incarnation, True) == ("closed",)
    assert rig.counted(cap) == 40
    audits = rig.sql("SELECT subject, reason, detail->'gave_back' FROM audit ORDER BY audit_id")
    assert audits == [
        (str(a.book.incarnation), "disk broke", False),
        (str(b.book.incarnation), "disk broke", True),
    ]


async def test_with_the_database_away_what_is_in_hand_can_be_used(rig: SliceRig) -> None:
    cap, other = rig.cap(1000), rig.cap(1000, scope="team", scope_id="t")
    a = await rig.replica()
    a.settle(await a.must_reserve([cap], money=50), money=0)
    rig.postgres.stop()
    hold = await a.must_reserve([cap], money=30)
    with pytest.raises(AuthorityUnavailableError):
        await a.reserve([cap, other], money=1)
    with pytest.raises(AuthorityUnavailableError):
        await a.reserve([cap], money=900)
    assert isinstance(await a.reserve([cap], money=20), Hold)
    a.settle(hold, money=29)
    a.clock.ahead += 90
    assert a.book.reserve_now("att", [cap], amounts_of(money=1)) is None
    rig.postgres.start()
    while not await a.database.probe():
        await asyncio.sleep(0.05)
    await a.heartbeat.beat()
    await a.ship()
    assert isinstance(await a.reserve([cap, other], money=900), Hold)


async def test_audited_caps_never_refuse_and_say_so(rig: SliceRig) -> None:
    cap, hard = rig.cap(100, mode="audit"), rig.cap(1000, scope="team", scope_id="t")
    a = await rig.replica(beat=False)
    told = OverrunEvents()
    a.book._events = told
    await a.must_reserve([cap, hard], money=90)
    assert told.refused == []
    hold = await a.must_reserve([cap, hard], money=60)
    assert told.refused == [60]
    a.settle(hold, money=60)
    assert rig.counted(cap) >= 150
    assert isinstance(await a.reserve([cap, hard], money=911), CapRefusal)


async def test_a_cap_that_the_database_lacks_is_no_free_pass(rig: SliceRig) -> None:
    cap = rig.cap(100)
    a = await rig.replica(beat=False)
    ghost = dataclasses.replace(cap, cap_id=cap.cap_id + 1000)
    with pytest.raises(AuthorityUnavailableError, match="does not know cap"):
        await a.reserve([cap, ghost], money=1)
    assert rig.counted(cap) == 0


async def test_what_nobody_uses_goes_back(rig: SliceRig) -> None:
    cap = rig.cap(1000)
    a = await rig.replica(beat=False)
    a.settle(await a.must_reserve([cap], money=90), money=0)
    a.book._idle_seconds = 30
    a.clock.ahead += 31
    await a.heartbeat.beat()
    await a.book.settle_down()
    assert rig.counted(cap) == 0
    assert isinstance(await a.reserve([cap], money=1000), Hold)


async def test_a_caller_that_leaves_takes_nothing_along(rig: SliceRig) -> None:
    cap = rig.cap(100)
    a = await rig.replica(beat=False)
    for turns in range(12):
        call = asyncio.create_task(a.reserve([cap], money=70))
        for _ in range(turns * turns):
            await asyncio.sleep(0)
        if not call.cancel():
            a.settle(call.result(), money=0)
        await asyncio.wait([call])
        if not call.cancelled():
            a.settle(call.result(), money=0)
        await a.book.settle_down()
    assert a.book.running(a.book.incarnation) == 0
    assert isinstance(await a.reserve([cap], money=100), Hold)


class OverrunEvents(LogEvents):
    def __init__(self) -> None:
        self.overruns: list[tuple[int, int]] = []
        self.refused: list[int] = []

    def overrun(self, hold: Hold, charge: Charge, bill: int) -> None:
        self.overruns.append((charge.amount, bill))

    def would_refuse(self, attempt_id: str, cap: Cap, needed: int) -> None:
        self.refused.append(needed)


def new_timeline(rig: SliceRig, name: str, *, lost: str = "SELECT") -> None:
    """A failover to a server that lacks the last transactions."""
    rig.sql(
        "CREATE OR REPLACE FUNCTION database_timeline() RETURNS text LANGUAGE sql AS"
        f" $$ SELECT '{name}' $$"
    )
    rig.sql(lost)
    rig.sql("UPDATE counter c SET sliced = (SELECT coalesce(sum(granted - returned - released), 0)"
            " FROM slice s WHERE s.counter_id = c.counter_id)")  # fmt: skip


def waiting_for_locks(rig: SliceRig) -> int:
    ((waiting,),) = rig.sql(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    return int(waiting)


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait until it holds."""
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.02)
