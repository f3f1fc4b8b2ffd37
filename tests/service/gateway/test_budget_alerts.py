"""Thresholds of budgets: raised exactly when they are passed, once, by whoever looks."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from gateway_rig.budgets import Budgets, Guard, budgets_on
from gateway_rig.postgres import Postgres
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from terrace_gateway.calls.ports import AuthorityUnavailableError, Window
from terrace_gateway.ending import end_tasks
from terrace_gateway.money import budget_store

MINUTE = Window("fixed", seconds=60)
CASES = st.lists(
    st.tuples(st.integers(0, 10**15), st.integers(1, 100), st.integers(-2, 10**15)),
    min_size=1, max_size=200,
)  # fmt: skip


@pytest.fixture
async def budgets(postgres: Postgres, database: str) -> AsyncIterator[Budgets]:
    async with budgets_on(postgres, database) as found:
        yield found


# --- arithmetic ----------------------------------------------------------------------------------


def test_a_threshold_is_reached_exactly_at_its_percentage(
    postgres: Postgres, database: str
) -> None:
    """used * 100 >= percent * amount, also right at the border."""
    with postgres.superuser(database) as connection:

        @settings(max_examples=60, deadline=None)
        @given(CASES)
        def check(cases: list[tuple[int, int, int]]) -> None:
            cases += [(a, p, a * p // 100 + near) for a, p, _ in cases for near in (-1, 0, 1)]
            amounts, percents, used = (list(column) for column in zip(*cases, strict=True))
            rows = connection.execute(
                "SELECT used >= alert_level(amount, percent) FROM unnest(%s::bigint[],"
                " %s::integer[], %s::bigint[]) WITH ORDINALITY q (amount, percent, used, n)"
                " ORDER BY n",
                (amounts, percents, used),
            ).fetchall()
            said = [row[0] for row in rows]
            assert said == [u * 100 >= p * a for a, p, u in cases]

        check()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("use"), st.integers(0, 300)),
        st.tuples(st.just("amount"), st.integers(0, 200)),
        st.tuples(st.just("look"), st.just(0)),
    ),
    max_size=14,
)


def test_any_history_raises_what_a_slow_model_raises(postgres: Postgres, database: str) -> None:
    """Against a model that reads everything at every look: what was raised, and what is armed."""
    budgets = Budgets(postgres, database)
    with postgres.superuser(database) as connection:
        connection.execute("SET ROLE gateway")

        def look() -> None:
            for _ in range(2):
                for (number,) in connection.execute(
                    "SELECT recheck_id FROM budget_recheck ORDER BY 1"
                ).fetchall():
                    connection.execute("SELECT recheck_budget(%s)", (number,))
            for (number,) in connection.execute("SELECT counter_id FROM budget_due").fetchall():
                connection.execute("SELECT raise_budget_alerts(%s)", (number,))

        @settings(max_examples=60, deadline=None)
        @given(STEPS, st.sets(st.integers(1, 100), max_size=4))
        def check(steps: list[tuple[str, int]], thresholds: set[int]) -> None:
            connection.execute("TRUNCATE cap, counter, budget_due, budget_recheck CASCADE")
            connection.execute("TRUNCATE budget_alert CASCADE")
            amount, used = 100, 0
            told: dict[int, int] = {}  # percent -> amount that it was told of
            expected: Counter[int] = Counter()
            cap = budgets.cap(amount, sorted(thresholds))
            budgets.use(cap, 0)
            for what, value in [*steps, ("look", 0)]:
                if what == "use":
                    used = value
                    connection.execute("UPDATE counter SET settled = %s", (value,))
                elif what == "amount":
                    connection.execute("UPDATE cap SET amount = %s", (value,))
                    amount = value
                    for percent, before in list(told.items()):
                        if value > before and used * 100 < percent * value:
                            del told[percent]
                    look()
                if what in {"look", "amount"}:
                    look()
                    for percent in thresholds - set(told):
                        if used * 100 >= percent * amount:
                            told[percent] = amount
                            expected[percent] += 1
            assert Counter(budgets.raised(cap)) == expected

        check()


# --- raised once ---------------------------------------------------------------------------------


async def test_thresholds_are_raised_in_turn_and_once(budgets: Budgets) -> None:
    guard = await budgets.guard()
    cap = budgets.cap(101, [50, 80, 100])
    budgets.use(cap, 50)
    assert await budgets.settled_look(guard) == []
    budgets.use(cap, 51)
    (alert,) = await budgets.settled_look(guard)
    assert (alert.percent, alert.used, alert.amount, alert.mode) == (50, 51, 101, "block")
    assert alert.window == "calendar month Europe/Berlin"
    budgets.use(cap, 40)
    budgets.use(cap, 79)
    assert await budgets.settled_look(guard) == []
    budgets.use(cap, 101)
    assert [one.percent for one in await budgets.settled_look(guard)] == [80, 100]
    budgets.use(cap, 5000)
    assert await budgets.settled_look(guard) == []
    assert [decision.reason for decision in guard.journal.decisions] == ["budget_threshold"] * 3
    assert guard.journal.decisions[0].detail["scope_id"] == "search"
    assert len(set(guard.journal.uids)) == 3


async def test_what_a_guard_of_the_release_before_moves_counts(budgets: Budgets) -> None:
    guard = await budgets.guard()
    cap = budgets.cap(100, [80], scope="user", scope_id="jo", window=Window("lifetime"))
    budgets.use(cap, 30)
    budgets.use(cap, 50, column="outstanding")
    (alert,) = await budgets.settled_look(guard)
    assert (alert.used, alert.window, alert.window_start) == (80, "lifetime", None)


async def test_a_jump_in_the_first_movement_is_seen(budgets: Budgets) -> None:
    guard = await budgets.guard()
    cap = budgets.cap(10, [50, 90], dimension="requests", window=MINUTE)
    budgets.use(cap, 10)
    assert [one.percent for one in await budgets.settled_look(guard)] == [50, 90]


async def test_an_audited_cap_is_told_when_it_is_passed(budgets: Budgets) -> None:
    guard = await budgets.guard()
    silent = budgets.cap(10, [], scope_id="blocked")
    audited = budgets.cap(10, [], scope_id="audited", mode="audit")
    budgets.use(silent, 10)
    budgets.use(audited, 9)
    assert await budgets.settled_look(guard) == []
    budgets.use(audited, 11)
    (alert,) = await budgets.settled_look(guard)
    assert (alert.scope_id, alert.mode, alert.percent) == ("audited", "audit", 100)


async def test_caps_without_an_amount_or_retired_raise_nothing(budgets: Budgets) -> None:
    guard = await budgets.guard()
    unlimited = budgets.cap(None, [50], scope_id="a")
    retired = budgets.cap(10, [50], scope_id="b")
    budgets.sql("UPDATE cap SET retired_at = now() WHERE cap_id = %s", retired)
    for cap in (unlimited, retired):
        budgets.use(cap, 10)
    assert await budgets.settled_look(guard) == []
    budgets.sql("UPDATE cap SET retired_at = NULL WHERE cap_id = %s", retired)
    assert [one.scope_id for one in await budgets.settled_look(guard)] == ["b"]


async def test_it_is_raised_again_in_the_next_window(budgets: Budgets) -> None:
    guard = await budgets.guard()
    cap = budgets.cap(10, [80], dimension="requests", window=MINUTE)
    budgets.use(cap, 9, seconds_ago=60)
    (first,) = await budgets.settled_look(guard)
    budgets.use(cap, 7)
    assert await budgets.settled_look(guard) == []
    budgets.use(cap, 8)
    (second,) = await budgets.settled_look(guard)
    assert first.window_ends == second.window_start
    assert first.uid != second.uid


async def test_windows_that_ended_long_ago_raise_nothing(budgets: Budgets) -> None:
    guard = await budgets.guard()
    cap = budgets.cap(10, [80], dimension="requests", window=MINUTE)
    budgets.use(cap, 10, seconds_ago=600)
    assert await budgets.settled_look(guard) == []


# --- changes of the cap --------------------------------------------------------------------------


async def test_a_raised_amount_arms_what_it_lifts_above_the_use(budgets: Budgets) -> None:
    guard = await budgets.guard()
    cap = budgets.cap(100, [50, 80, 100])
    budgets.use(cap, 100)
    assert len(await budgets.settled_look(guard)) == 3
    budgets.sql("UPDATE cap SET amount = 150 WHERE cap_id = %s", cap)  # 50: 75, 80: 120, 100: 150
    assert await budgets.settled_look(guard) == []
    budgets.use(cap, 119)
    assert await budgets.settled_look(guard) == []
    budgets.use(cap, 120)
    (again,) = await budgets.settled_look(guard)
    assert (again.percent, again.amount, again.used) == (80, 150, 120)
    budgets.use(cap, 160)
    assert [one.percent for one in await budgets.settled_look(guard)] == [100]
    assert budgets.raised(cap) == [50, 80, 100, 80, 100]


async def test_use_that_grows_before_the_look_is_told_again(budgets: Budgets) -> None:
    """What counts is the use at the moment of the change."""
    guard = await budgets.guard()
    cap = budgets.cap(100, [80])
    budgets.use(cap, 90)
    await budgets.settled_look(guard)
    budgets.sql("UPDATE cap SET amount = 200 WHERE cap_id = %s", cap)
    budgets.use(cap, 170)
    (again,) = await budgets.settled_look(guard)
    assert (again.amount, again.used) == (200, 170)


async def test_a_lowered_amount_and_new_thresholds_are_seen_at_once(budgets: Budgets) -> None:
    guard = await budgets.guard()
    cap = budgets.cap(1000, [80])
    budgets.use(cap, 500)
    assert await budgets.settled_look(guard) == []
    budgets.sql("UPDATE cap SET thresholds = '{50,80}' WHERE cap_id = %s", cap)
    assert [one.percent for one in await budgets.settled_look(guard)] == [50]
    budgets.sql("UPDATE cap SET amount = 600 WHERE cap_id = %s", cap)
    assert [one.percent for one in await budgets.settled_look(guard)] == [80]


async def test_a_counter_that_was_made_by_the_old_cap_is_looked_at(
    budgets: Budgets, postgres: Postgres
) -> None:
    """A grant that read the cap before its change, and commits after the first look."""
    guard = await budgets.guard()
    cap = budgets.cap(100, [], scope_id="slow")
    with postgres.superuser(budgets.name) as connection, connection.transaction():
        connection.execute(
            "INSERT INTO counter (scope, scope_id, dimension, window_seconds, window_key,"
            " window_start, window_end, settled) SELECT scope, scope_id, dimension,"
            " window_seconds, window_key, w.window_start, w.window_end, 99 FROM cap,"
            " cap_window('calendar', 0, 'month', window_zone, clock_timestamp()) w"
        )
        budgets.sql("UPDATE cap SET thresholds = '{90}' WHERE cap_id = %s", cap)
        assert await guard.watch.look() == []
        assert await guard.watch.look() == []
    assert [one.percent for one in await budgets.settled_look(guard)] == [90]


# --- no next window ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dimension", "window"),
    [("requests", Window("rolling", seconds=3600)), ("concurrency", Window("lifetime"))],
)
async def test_rolling_windows_and_gauges_arm_again_once_they_were_below(
    budgets: Budgets, dimension: str, window: Window
) -> None:
    guard = await budgets.guard()
    cap = budgets.cap(10, [80], dimension=dimension, window=window)
    budgets.use(cap, 8)
    assert len(await budgets.settled_look(guard)) == 1
    budgets.use(cap, 2)
    budgets.use(cap, 9)
    assert await budgets.settled_look(guard) == []  # not twice within a window's length
    budgets.sql("UPDATE budget_alert SET rearm_at = clock_timestamp()")
    assert await budgets.settled_look(guard) == []  # it never stayed below
    budgets.use(cap, 2)
    budgets.sql("UPDATE budget_alert SET rearm_at = clock_timestamp()")
    assert await budgets.settled_look(guard) == []
    budgets.use(cap, 9)
    assert len(await budgets.settled_look(guard)) == 1


async def test_what_has_left_a_rolling_window_does_not_count(budgets: Budgets) -> None:
    guard = await budgets.guard()
    cap = budgets.cap(
        10, [80], scope="org", dimension="requests", window=Window("rolling", seconds=60)
    )
    budgets.use(cap, 5)
    budgets.sql(
        "INSERT INTO rolling_bucket SELECT counter_id, clock_timestamp() - interval '1 hour', 1, 5"
        " FROM counter"
    )
    await guard.watch.read()
    assert [one.ratio for one in guard.metrics.ratios] == [0.0]
    budgets.use(cap, 9)
    assert await budgets.settled_look(guard) == []
    await guard.watch.read()
    assert [one.ratio for one in guard.metrics.ratios] == [0.4]


# --- several guards, failures --------------------------------------------------------------------


async def test_guards_that_race_raise_each_alert_once(budgets: Budgets) -> None:
    guards = [await budgets.guard() for _ in range(4)]
    caps = [budgets.cap(10, [50, 100], scope_id=f"team-{n}") for n in range(25)]
    running = [asyncio.create_task(guard.watch.run()) for guard in guards]
    for used in (4, 6, 12):
        for cap in caps:
            budgets.use(cap, used)
    async with asyncio.timeout(60):
        while budgets.sql("SELECT count(*) FROM budget_alert WHERE recorded_at IS NOT NULL") != [
            (50,)
        ]:
            await asyncio.sleep(0.02)

    def counted() -> float:
        return sum(
            guard.registry.get_sample_value(
                "terrace_budget_alerts_total",
                {"scope": "team", "dimension": "micro_usd", "mode": "block"},
            ) or 0
            for guard in guards
        )  # fmt: skip

    async with asyncio.timeout(60):
        while counted() < 50:  # who has written the last row counts it a moment later
            await asyncio.sleep(0.02)
    await end_tasks(running, every_seconds=1)
    assert all(sorted(budgets.raised(cap)) == [50, 100] for cap in caps)
    told = Counter(uid for guard in guards for uid in guard.journal.uids)
    assert len(told) == 50
    assert set(told.values()) == {1}
    assert counted() == 50


async def test_a_journal_without_room_leaves_the_alert_to_others(budgets: Budgets) -> None:
    full, other = await budgets.guard(), await budgets.guard()
    cap = budgets.cap(10, [50])
    budgets.use(cap, 5)
    full.journal.broken = True
    with pytest.raises(AuthorityUnavailableError):
        await full.watch.look()
    assert await other.watch.look() == []  # the claim of the first holds
    budgets.claims_lapse()
    (alert,) = await other.watch.look()
    assert other.journal.uids == [alert.uid]
    assert budgets.raised(cap) == [50]


async def test_a_guard_that_ends_records_nothing_more(budgets: Budgets) -> None:
    ending, other = await budgets.guard(), await budgets.guard()
    budgets.use(budgets.cap(10, [50]), 5)
    ending.watch.rest()
    assert await ending.watch.look() == []
    assert len(await other.watch.look()) == 1


async def test_a_locked_counter_holds_up_no_other(budgets: Budgets, postgres: Postgres) -> None:
    guard: Guard = await budgets.guard()
    locked, free = budgets.cap(10, [50], scope_id="a"), budgets.cap(10, [50], scope_id="b")
    for cap in (locked, free):
        budgets.use(cap, 5)
    with postgres.superuser(budgets.name) as connection, connection.transaction():
        connection.execute("SELECT FROM counter WHERE scope_id = 'a' FOR UPDATE")
        assert [one.scope_id for one in await guard.watch.look()] == ["b"]
    assert [one.scope_id for one in await budgets.settled_look(guard)] == ["a"]


async def test_an_outage_of_the_database_loses_no_alert(
    budgets: Budgets, postgres: Postgres
) -> None:
    guard = await budgets.guard()
    cap = budgets.cap(10, [50])
    budgets.use(cap, 9)
    postgres.stop()
    running = asyncio.create_task(guard.watch.run())
    with pytest.raises(AuthorityUnavailableError):
        await guard.watch.look()
    assert guard.metrics.ratios == ()
    postgres.start()
    async with asyncio.timeout(60):
        while not guard.journal.uids:
            await guard.database.probe()
            await asyncio.sleep(0.05)
    assert not running.done()
    await end_tasks([running], every_seconds=1)
    assert budgets.raised(cap) == [50]
    assert len(guard.journal.uids) == 1


# --- what it costs, what it tells ----------------------------------------------------------------


async def test_a_look_reads_no_cap_and_no_counter(budgets: Budgets) -> None:
    budgets.use(budgets.cap(10, [50]), 1)
    query = budget_store._WORK.replace("%(limit)s", "200")
    ((plan,),) = budgets.sql(f"EXPLAIN (FORMAT JSON) {query}")
    text = json.dumps(plan)
    assert '"budget_due"' in text
    assert '"Relation Name": "cap"' not in text
    assert '"Relation Name": "counter"' not in text


async def test_only_named_scopes_are_metrics(budgets: Budgets) -> None:
    guard = await budgets.guard()
    for scope in ("org", "team", "user", "app", "key", "model", "provider"):
        budgets.use(budgets.cap(200, [], scope=scope, scope_id=f"a-{scope}"), 50)
    await guard.watch.read()
    assert sorted(one.scope for one in guard.metrics.ratios) == ["model", "org", "provider", "team"]
    labels = {"scope": "org", "scope_id": "a-org", "dimension": "micro_usd",
              "window": "calendar month Europe/Berlin"}  # fmt: skip
    assert guard.registry.get_sample_value("terrace_budget_used_ratio", labels) == 0.25


async def test_the_log_names_the_budget(budgets: Budgets) -> None:
    guard = await budgets.guard()
    budgets.use(budgets.cap(10, [50]), 5)
    with capture_logs() as logs:
        await guard.watch.look()
    (line,) = [entry for entry in logs if entry["event"] == "budget_threshold"]
    assert (line["log_level"], line["scope_id"], line["percent"]) == ("warning", "search", 50)
