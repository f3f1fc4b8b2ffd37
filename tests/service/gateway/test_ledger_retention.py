"""Months go only when nobody needs them, one by one, each with its audit record."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from gateway_rig.guard import ADMIN_KEY, InProcessGuard
from gateway_rig.journal_records import close_record, open_record, unknown_close
from gateway_rig.ledger_rig import LedgerRig, begin_incarnation, ledger_rig, open_database
from gateway_rig.postgres import Postgres

from terrace_gateway.database import Database
from terrace_gateway.ledger.bills.bill_sources import Candidate
from terrace_gateway.ledger.bills.provider_bill import Billed
from terrace_gateway.ledger.bills.reconcile import Reconciler
from terrace_gateway.ledger.exports.export import LedgerExport
from terrace_gateway.ledger.exports.retention import Retention
from terrace_gateway.ledger.object_store import DirectoryObjects

MakeGuard = Callable[..., Awaitable[InProcessGuard]]
YESTERDAY = datetime.now(UTC) - timedelta(days=1)
LONG_AGO = datetime(2024, 1, 10, tzinfo=UTC)
JANUARY, FEBRUARY = "ledger_entry_202401", "ledger_entry_202402"
SPEND = "SELECT requests, amount_micro_usd FROM spend_daily"
AUDIT = "SELECT actor, action, subject, detail FROM audit WHERE action LIKE 'ledger%' ORDER BY 1"
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
APPEND = (
    "INSERT INTO ledger_entry (opened_at, kind, writer, seq, previous_hash, hash, canonical,"
    " replica, attempt_id) VALUES (%s, 'attempt', 'w-1', %s, sha256('a'), sha256('b'), '{}',"
    " 'r', %s)"
)


class Bill:
    """The provider's own log: each attempt cost 5 micro-USD."""

    async def billed(self, candidates: Sequence[Candidate]) -> dict[str, Billed]:
        bill = Billed(
            calls=1, input_tokens=10, output_tokens=20, cost_micro_usd=5, outcome="ok", in_flight=0
        )
        return {candidate.attempt_id: bill for candidate in candidates}


def reconciler(database: Database) -> Reconciler:
    return Reconciler(database, lambda: {"simulator": Bill()}, replica="r")


def two_months(sql: psycopg.Connection[Any]) -> None:
    """January and February of 2024, an entry each."""
    sql.execute("SET ROLE gateway")
    for number, (name, first, end) in enumerate(
        ((JANUARY, "2024-01-01", "2024-02-01"), (FEBRUARY, "2024-02-01", "2024-03-01"))
    ):
        sql.execute(
            f"CREATE TABLE {name} PARTITION OF ledger_entry"
            f" FOR VALUES FROM ('{first}+00') TO ('{end}+00')".encode()
        )
        opened = LONG_AGO + timedelta(days=31 * number)
        sql.execute(APPEND.encode(), (opened, number + 1, f"at_{number}"))


async def export(database: Database, tmp_path: Path) -> str:
    """All days that are over. Returns the table of the last one."""
    objects = DirectoryObjects(tmp_path / "export")
    done = await LedgerExport(database, objects).export(before=datetime.now(UTC))
    return done[-1].partition


async def order_export(guard: InProcessGuard, body: dict[str, Any]) -> httpx.Response:
    return await guard.http.post(
        f"{guard.admin_url}/admin/v1/ledger/export", json=body,
        headers={"authorization": f"Bearer {ADMIN_KEY}"},
    )  # fmt: skip


async def dropped(rig: LedgerRig, name: str) -> int:
    return (await rig.rows("SELECT drop_ledger_partition(%s)", name))[0][0]


async def test_a_month_stays_while_its_attempts_have_no_final_close(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        opened = open_record(incarnation=rig.incarnation, opened_at=YESTERDAY)
        await rig.journal.open(opened)
        await rig.drain()
        done = open_record(incarnation=rig.incarnation, opened_at=YESTERDAY)
        await rig.journal.open(done)
        await rig.journal.close(close_record(done))
        await rig.drain()
        month = await export(rig.database, tmp_path)
        with pytest.raises(psycopg.errors.CheckViolation, match="no final close: 1 open"):
            await dropped(rig, month)
        await rig.journal.close(unknown_close(opened))
        await rig.drain()
        await export(rig.database, tmp_path)
        with pytest.raises(psycopg.errors.CheckViolation, match="no final close: 1 unknown"):
            await dropped(rig, month)
        result = await reconciler(rig.database).reconcile()
        assert (result["trued_up"], result["still_open"]) == (1, 0)
        await export(rig.database, tmp_path)
        assert await dropped(rig, month) == 3
        assert await rig.rows(SPEND) == [(2, 305)]


async def test_a_month_stays_while_a_spool_may_have_closes_of_it(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    """The provider's log has decided meanwhile; the close would still be counted as another."""
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        opened = open_record(incarnation=rig.incarnation, opened_at=YESTERDAY)
        await rig.journal.open(opened)
        await rig.drain()
        await rig.rows("SELECT give_up_open_attempt(%s, 'reaper', 'r')", opened.attempt_id)
        assert (await reconciler(rig.database).reconcile())["trued_up"] == 1
        month = await export(rig.database, tmp_path)
        away = f"of the incarnations {rig.incarnation}"
        with pytest.raises(psycopg.errors.CheckViolation, match=away):
            await dropped(rig, month)
        await rig.journal.close(close_record(opened))
        await rig.drain()
        await rig.rows("SELECT close_incarnation(%s)", rig.incarnation)
        await export(rig.database, tmp_path)
        assert await dropped(rig, month) == 4  # given up, its log, its late close, what answers it
        assert await rig.rows(SPEND) == [(1, 5)]


async def test_unknown_attempts_are_settled_by_an_order_only(
    postgres: Postgres, database: str
) -> None:
    add = (
        "INSERT INTO open_attempt (attempt_id, state, opened_at, writer, incarnation_id, provider,"
        " hard_limit_seconds, record) VALUES (%s, %s, %s, 'w', %s, 'p', 600, '{}')"
    )
    async with open_database(postgres.url(database)) as pool:
        away, closed = [await begin_incarnation(pool, "r") for _ in range(2)]
        with postgres.superuser(database) as sql:
            two_months(sql)
            sql.execute("SELECT close_incarnation(%s)", (closed,))
            for name, state, at, incarnation in (
                ("at_unknown", "unknown", LONG_AGO, closed),
                ("at_reaped", "unknown", LONG_AGO, closed),
                ("at_away", "unknown", LONG_AGO, away),
                ("at_open", "open", LONG_AGO, closed),
                ("at_young", "unknown", YESTERDAY, closed),
            ):
                sql.execute(add.encode(), (name, state, at, incarnation))
            for seq, (name, incarnation) in enumerate((("at_reaped", closed), ("at_away", away))):
                sql.execute(
                    "INSERT INTO ledger_entry (opened_at, kind, writer, seq, previous_hash, hash,"
                    " canonical, replica, attempt_id, incarnation_id) VALUES (%s, 'unknown',"
                    " 'reaper', %s, sha256('a'), sha256('b'), '{}', 'r', %s, %s)",
                    (LONG_AGO, seq + 1, name, incarnation),
                )
            assert await Retention(pool).settle_unknown(1, actor="jo") == 2
            assert await Retention(pool).settle_unknown(1, actor="jo") == 0
            left = sql.execute("SELECT attempt_id FROM open_attempt ORDER BY 1").fetchall()
            assert left == [("at_away",), ("at_open",), ("at_young",)]
            detail = {
                "attempts": 2, "first": ["at_reaped", "at_unknown"], "keep_months": 1,
                "sha256": hashlib.sha256(b"at_reaped\nat_unknown").hexdigest(),
            }  # fmt: skip
            records = sql.execute(AUDIT.encode()).fetchall()
            assert records == [("jo", "ledger.settle_unknown", "ledger", detail)]


async def test_what_cannot_be_corrected_any_more_is_not_told_to_be(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    """The release before dropped months of unknown attempts."""
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        opened = open_record(incarnation=rig.incarnation, opened_at=YESTERDAY)
        await rig.journal.open(opened)
        await rig.journal.close(unknown_close(opened))
        await rig.drain()
        with postgres.superuser(database) as sql:
            query = "SELECT tableoid::regclass::text FROM ledger_entry WHERE attempt_id = %s"
            row = sql.execute(query, (opened.attempt_id,)).fetchone()
            assert row is not None
            sql.execute(f"DROP TABLE {row[0]}".encode())
        for _ in range(2):
            result = await reconciler(rig.database).reconcile()
            found = (result["trued_up"], result["not_billed"], result["still_open"])
            assert found == (0, 0, 1)


async def test_each_month_goes_with_its_own_record(
    make_guard: MakeGuard, tmp_path: Path, postgres: Postgres, database: str
) -> None:
    guard = await make_guard(export_location=str(tmp_path / "export"))
    order = {"keep_months": 1, "settle_unknown": True}
    answer = await order_export(guard, {"settle_unknown": True})
    assert (answer.status_code, "keep_months" in answer.text) == (400, True)
    with postgres.superuser(database) as sql:
        two_months(sql)
    with psycopg.connect(postgres.url(database)) as report:
        report.execute(f"SELECT count(*) FROM {FEBRUARY}".encode())
        done = await guard.admin("POST", "/ledger/export", json=order)
    assert len(done["exported"]) == 2
    assert done["dropped"] == {JANUARY: 1}
    assert "lock timeout" in done["kept"][FEBRUARY]
    done = await guard.admin("POST", "/ledger/export", json=order)
    assert (done["exported"], done["dropped"], done["kept"]) == ([], {FEBRUARY: 1}, {})
    changes = (await guard.admin("GET", "/audit"))["changes"]
    told = [(c["action"], c["subject"]) for c in changes if c["action"].startswith("ledger")]
    assert told == [
        ("ledger.export", "ledger"), ("ledger.drop", JANUARY), ("ledger.drop", FEBRUARY),
    ]  # fmt: skip


async def test_a_month_whose_export_was_lost_is_exported_again_before_it_goes(
    make_guard: MakeGuard, tmp_path: Path, postgres: Postgres, database: str
) -> None:
    guard = await make_guard(export_location=str(tmp_path / "export"))
    with postgres.superuser(database) as sql:
        two_months(sql)
    assert len((await guard.admin("POST", "/ledger/export", json={}))["exported"]) == 2
    for part in (tmp_path / "export").rglob("*.parquet"):
        part.unlink()
    done = await guard.admin("POST", "/ledger/export", json={"keep_months": 1})
    assert [day["rows"] for day in done["exported"]] == [1, 1]
    assert done["dropped"] == {JANUARY: 1, FEBRUARY: 1}
    assert len(list((tmp_path / "export").rglob("*.parquet"))) == 2


async def test_what_was_exported_is_recorded_also_if_the_place_fails_then(
    make_guard: MakeGuard, tmp_path: Path, postgres: Postgres, database: str
) -> None:
    guard = await make_guard(export_location=str(tmp_path / "export"))
    with postgres.superuser(database) as sql:
        two_months(sql)
    month = tmp_path / "export" / "ledger" / "month=2024-02"
    month.parent.mkdir(parents=True)
    month.write_text("no directory")
    answer = await order_export(guard, {})
    assert answer.status_code == 502
    assert "the place of exports" in answer.json()["error"]["message"]
    [change] = [
        c for c in (await guard.admin("GET", "/audit"))["changes"] if c["action"] == "ledger.export"
    ]
    assert [day["day"] for day in change["detail"]["exported"]] == ["2024-01-10"]


async def test_who_reads_a_month_that_is_to_go_is_waited_for_and_stops_nobody(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    async with open_database(postgres.url(database)) as pool:
        with postgres.superuser(database) as sql:
            two_months(sql)
        await export(pool, tmp_path)
        with psycopg.connect(postgres.url(database)) as report:
            report.execute(f"SELECT count(*) FROM {JANUARY}".encode())
            drop = asyncio.create_task(Retention(pool).drop([JANUARY], actor="jo"))
            async with pool.connection() as connection:
                for _ in range(2):  # it gives up, and comes again
                    while await (await connection.execute(WAITING)).fetchone() == (0,):
                        await asyncio.sleep(0.02)
                    while await (await connection.execute(WAITING)).fetchone() != (0,):
                        await asyncio.sleep(0.02)
                cursor = await connection.execute("SELECT count(*) FROM ledger_entry")
                assert await cursor.fetchone() == (2,)
            assert not drop.done()
        assert (await drop).dropped == {JANUARY: 1}
        # A guard that had listed it too.
        assert await Retention(pool).needed(JANUARY) is not None
        assert "no month" in (await Retention(pool).drop([JANUARY], actor="jo")).kept[JANUARY]


async def test_a_month_that_cannot_go_keeps_no_other(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    """Whatever the database has against it: here somebody's view of it."""
    async with open_database(postgres.url(database)) as pool:
        with postgres.superuser(database) as sql:
            two_months(sql)
            await export(pool, tmp_path)
            sql.execute(f"CREATE VIEW report AS SELECT * FROM {JANUARY}".encode())
        result = await Retention(pool).drop([JANUARY, FEBRUARY], actor="jo")
        assert result.dropped == {FEBRUARY: 1}
        assert "other objects depend on it" in result.kept[JANUARY]


async def test_nobody_is_locked_out_while_a_month_is_looked_through(
    postgres: Postgres, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look lasts longer than a statement of the pool may: as long as we hold a gap of its."""
    monkeypatch.setattr("terrace_gateway.database.STATEMENT_SECONDS", 1)
    hold = "INSERT INTO chain_gap VALUES ('w-1', 0, 2, sha256('b'), 'held')"
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'transactionid'"
    async with open_database(postgres.url(database)) as pool:
        with postgres.superuser(database) as sql:
            two_months(sql)
        await export(pool, tmp_path)
        for late_row in (True, False):
            with psycopg.connect(postgres.url(database)) as holder:
                holder.execute(hold.encode())
                drop = asyncio.create_task(Retention(pool).drop([JANUARY], actor="jo"))
                async with pool.connection() as connection:
                    while await (await connection.execute(waiting)).fetchone() == (0,):
                        await asyncio.sleep(0.02)
                    # A reader and a writer of that month get through meanwhile.
                    cursor = await connection.execute("SELECT count(*) FROM ledger_entry")
                    assert await cursor.fetchone() == (2,)
                    if late_row:
                        await connection.execute(APPEND.encode(), (LONG_AGO, 2, "at_2"))
                await asyncio.sleep(1.2)
                holder.rollback()
            result = await drop
            if late_row:
                assert "1 rows, then 2" in result.kept[JANUARY]
                with postgres.superuser(database) as sql:
                    sql.execute(f"ALTER TABLE {JANUARY} DISABLE TRIGGER USER".encode())
                    sql.execute(f"DELETE FROM {JANUARY} WHERE seq = 2".encode())
            else:
                assert result.dropped == {JANUARY: 1}


async def test_what_a_month_had_of_each_chain_is_kept_without_its_hashes_in_memory(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    """A chain is one per process start: it may have tens of millions of entries in a month."""
    append = APPEND.replace("sha256('b')", "sha256(%s)")
    islands = [1, 2, 3, 7, 8, 20]
    async with open_database(postgres.url(database)) as pool:
        with postgres.superuser(database) as sql:
            sql.execute("SET ROLE gateway")
            sql.execute(
                f"CREATE TABLE {JANUARY} PARTITION OF ledger_entry"
                " FOR VALUES FROM ('2024-01-01+00') TO ('2024-02-01+00')".encode()
            )
            for seq in islands:
                sql.execute(append.encode(), (LONG_AGO, seq, str(seq).encode(), f"at_{seq}"))
        await export(pool, tmp_path)
        assert (await Retention(pool).drop([JANUARY], actor="jo")).dropped == {JANUARY: 6}
    with postgres.superuser(database) as sql:
        gaps = sql.execute(
            "SELECT after_seq, before_seq, hash FROM chain_gap WHERE writer = 'w-1' ORDER BY 1"
        ).fetchall()
        [(body,)] = sql.execute(
            "SELECT prosrc FROM pg_proc WHERE proname = 'drop_ledger_partition'"
        ).fetchall()
    ends = [(0, 4), (6, 9), (19, 21)]
    assert gaps == [
        (after, before, hashlib.sha256(str(before - 1).encode()).digest()) for after, before in ends
    ]
    assert "array_agg" not in body
