"""Windows of caps: the database stamps them, calendars know their zones, rolling ones roll."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from gateway_rig.postgres import Postgres
from gateway_rig.slices import SliceRig, amounts_of, slice_rig
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from terrace_gateway.calls.ports import CapRefusal, Hold, Window
from terrace_gateway.money.grants import Ask, Need, PostgresSlices

ZONES = [
    "UTC", "Europe/Berlin", "America/New_York", "America/Havana", "Asia/Kathmandu", "Asia/Beirut",
    "Australia/Lord_Howe", "Pacific/Apia", "America/Sao_Paulo",
]  # fmt: skip
WINDOW_SECONDS = 8  # enough for a dozen questions on a busy machine
WINDOW = "SELECT * FROM cap_window(%s, %s, %s, %s, %s)"

pytestmark = pytest.mark.usefixtures("patience")


@pytest.fixture
async def rig(postgres: Postgres) -> AsyncIterator[SliceRig]:
    async with slice_rig(postgres) as rig:
        yield rig


async def test_calendar_windows_follow_their_zone(rig: SliceRig) -> None:
    def window(unit: str, zone: str, moment: str) -> tuple[str, str]:
        ((begin, end),) = rig.sql(WINDOW, "calendar", 0, unit, zone, moment)
        return begin.astimezone(UTC).isoformat(" ", "minutes")[:16], end.astimezone(UTC).isoformat(
            " ", "minutes")[:16]  # fmt: skip

    assert window("month", "Europe/Berlin", "2026-03-31 23:30+00") == (
        "2026-03-31 22:00", "2026-04-30 22:00",
    )  # fmt: skip
    assert window("day", "Europe/Berlin", "2026-03-29 12:00+00") == (
        "2026-03-28 23:00", "2026-03-29 22:00",
    )  # fmt: skip  # a day of 23 hours
    assert window("week", "America/New_York", "2026-11-01 12:00+00") == (
        "2026-10-26 04:00", "2026-11-02 05:00",
    )  # fmt: skip  # Monday to Monday, one of them in winter time
    assert window("hour", "Asia/Kathmandu", "2026-01-01 00:30+00") == (
        "2026-01-01 00:15", "2026-01-01 01:15",
    )  # fmt: skip


async def test_at_every_moment_a_window_lies_before_its_end(
    rig: SliceRig, postgres: Postgres
) -> None:
    with postgres.superuser(rig.name) as connection:

        @settings(
            max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow],
        )  # fmt: skip
        @given(
            unit=st.sampled_from(["minute", "hour", "day", "week", "month"]),
            zone=st.sampled_from(ZONES),
            moment=st.datetimes(datetime(2010, 1, 1), datetime(2030, 1, 1)),
        )
        def check(unit: str, zone: str, moment: datetime) -> None:
            now = moment.replace(tzinfo=UTC)
            begin, end = window_at(connection, unit, zone, now)
            assert end > now
            # A midnight that a clock shows twice is stamped with its second time.
            assert begin <= now + timedelta(hours=1)
            local = now.astimezone(ZoneInfo(zone))
            again, _ = window_at(connection, unit, zone, end + timedelta(seconds=1))
            assert again != begin
            if unit == "day":
                inside = begin if begin > now else now
                assert inside.astimezone(ZoneInfo(zone)).date() == local.date()

        check()


def window_at(
    connection: psycopg.Connection[Any], unit: str, zone: str, now: datetime
) -> tuple[datetime, datetime]:
    row = connection.execute(WINDOW, ("calendar", 0, unit, zone, now)).fetchone()
    assert row is not None
    return row


async def test_an_unknown_zone_is_refused(rig: SliceRig) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="Nowhere"):
        rig.cap(1, window=Window("calendar", 0, "day", "Nowhere/City"))


async def test_a_window_that_ends_gives_a_new_count(rig: SliceRig) -> None:
    """Rule 7: and what runs over its end is settled in the old one."""
    cap = rig.cap(100, window=Window("fixed", WINDOW_SECONDS))
    a = await rig.replica(beat=False)
    await until_begin(rig, WINDOW_SECONDS)
    old = await a.must_reserve([cap], money=60)
    a.settle(await a.must_reserve([cap], money=40), money=0)
    refused = await a.reserve([cap], money=41)
    assert isinstance(refused, CapRefusal)
    assert refused.retry_after_seconds in range(1, WINDOW_SECONDS + 1)
    idle = a.book.reserve_now("att_idle", [cap], amounts_of(money=0))
    assert idle is not None
    a.book.keep(idle)
    await until_begin(rig, WINDOW_SECONDS)
    assert a.book.reserve_now("att_late", [cap], amounts_of(money=1)) is None
    new = await a.must_reserve([cap], money=100)
    assert new.charges[0].counter_id != old.charges[0].counter_id
    a.settle(old, money=55)
    await a.ship()
    assert rig.sql("SELECT counter_id FROM slice WHERE settled = 55") == [
        (old.charges[0].counter_id,)
    ]
    assert isinstance(await a.reserve([cap], money=1), CapRefusal)


async def test_a_window_ends_for_the_holder_no_later_than_for_the_database(rig: SliceRig) -> None:
    cap = rig.cap(10**6, window=Window("fixed", 1))
    a = await rig.replica()
    warm: set[int] = set()
    for _ in range(150):
        ((before,),) = rig.sql("SELECT clock_timestamp()")
        hold = a.book.reserve_now("att", [cap], amounts_of(money=10))
        if hold is None:
            hold = await a.must_reserve([cap], money=10)
        else:
            counter = hold.charges[0].counter_id
            warm.add(counter)
            query = "SELECT window_end > %s FROM counter WHERE counter_id = %s"
            assert rig.sql(query, before, counter) == [(True,)]
        a.book.keep(hold)
        await asyncio.sleep(0.01)
    assert len(warm) >= 2


async def test_a_rolling_window_counts_at_settlement_and_rolls(rig: SliceRig) -> None:
    cap = rig.cap(100, window=Window("rolling", 3))
    a, b = await rig.replica(), await rig.replica()
    running = await a.must_reserve([cap], money=50)
    a.keep(await a.must_reserve([cap], money=50))
    await a.ship()
    refused = await b.reserve([cap], money=1)
    assert isinstance(refused, CapRefusal)
    assert refused.retry_after_seconds == 1
    await asyncio.sleep(4.1)  # the window and a bucket
    assert isinstance(await b.reserve([cap], money=51), CapRefusal)  # the running call counts
    assert isinstance(await b.reserve([cap], money=50), Hold)
    a.settle(running, money=50)
    await a.ship()
    await asyncio.sleep(1)
    assert isinstance(await a.reserve([cap], money=1), CapRefusal)  # in the window since it ended
    await asyncio.sleep(3.2)
    assert isinstance(await a.reserve([cap], money=50), Hold)
    rig.check()


async def test_a_rolling_window_outlives_the_holder_that_filled_it(rig: SliceRig) -> None:
    cap = rig.cap(100, window=Window("rolling", 3))
    a, b = await rig.replica(), await rig.replica()
    a.keep(await a.must_reserve([cap], money=70))
    await a.ship()
    await a.freeze()
    await a.book.give_back_all()
    await b.heartbeat.close(a.book.incarnation)
    assert rig.counted(cap) == 70
    assert isinstance(await b.reserve([cap], money=31), CapRefusal)
    await asyncio.sleep(4.1)
    assert isinstance(await b.reserve([cap], money=100), Hold)


async def until_begin(rig: SliceRig, seconds: int) -> None:
    """Wait for the beginning of a fixed window, by the database's clock."""
    now = "extract(epoch FROM clock_timestamp())::float"
    ((left,),) = rig.sql(f"SELECT {seconds} - mod({now}::numeric, {seconds})::float")
    await asyncio.sleep(left + 0.03)


async def test_a_grant_that_waited_for_its_counter_goes_by_the_time_after(rig: SliceRig) -> None:
    """How long others are asked to give back, and since when a holder must have looked."""
    cap = rig.cap(10)
    a, b = await rig.replica(beat=False), await rig.replica(beat=False)
    a.keep(await a.must_reserve([cap], money=10))
    question = [Need([Ask(cap.cap_id, 0, 0, 0, 5, 0)])]
    with rig.postgres.superuser(rig.name) as blocker, blocker.transaction():
        blocker.execute("SELECT FROM counter FOR UPDATE")
        grant = PostgresSlices(b.database).grant(b.book.incarnation, 1, [cap.cap_id], question)
        asked = asyncio.create_task(grant)
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        while blocker.execute(waiting).fetchone() == (0,):
            await asyncio.sleep(0.01)
            blocker.execute("SELECT pg_stat_clear_snapshot()")
        [(free,)] = blocker.execute("SELECT extract(epoch FROM clock_timestamp())").fetchall()
    [verdict] = (await asked).verdicts
    assert not verdict.granted
    assert verdict.at > float(free)
    [(wanted,)] = rig.sql("SELECT extract(epoch FROM wanted_until) FROM counter")
    assert wanted > free + 2
