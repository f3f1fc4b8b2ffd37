"""The ledger's months: there before what belongs to them, and healed where they were not."""

import asyncio
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from gateway_rig.journal_records import close_record, open_record
from gateway_rig.ledger_rig import LedgerRig, ledger_rig, open_database
from gateway_rig.postgres import Postgres

from terrace_gateway.clock import Clock
from terrace_gateway.ledger.chains.anchors import AnchorStore
from terrace_gateway.ledger.chains.verify import LedgerVerifier
from terrace_gateway.ledger.keeper import LedgerKeeper
from terrace_gateway.ledger.months import MONTHS_AHEAD
from terrace_gateway.ledger.object_store import DirectoryObjects

OTHER = "ledger_entry_other"
Sql = psycopg.Connection[Any]


def month(ahead: int = 0) -> date:
    today = datetime.now(UTC)
    count = today.year * 12 + today.month - 1 + ahead
    return date(count // 12, count % 12 + 1, 1)


def table(ahead: int = 0) -> str:
    return f"ledger_entry_{month(ahead):%Y%m}"


WANTED = [table(ahead) for ahead in range(-1, MONTHS_AHEAD + 1)]


def months(sql: Sql) -> list[str]:
    return [
        name
        for (name,) in sql.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits"
            " WHERE inhparent = 'ledger_entry'::regclass ORDER BY 1"
        )
        if name != OTHER
    ]


def rows(sql: Sql) -> dict[str, int]:
    found = sql.execute("SELECT tableoid::regclass::text, count(*) FROM ledger_entry GROUP BY 1")
    return dict(found.fetchall())


def forget(sql: Sql, *names: str) -> None:
    """As after a pause that was longer than the months were made ahead."""
    for name in names or months(sql):
        sql.execute(f"DROP TABLE {name}".encode())


async def fill(rig: LedgerRig, count: int = 3, **changes: Any) -> None:
    for _ in range(count):
        opened = open_record(incarnation=rig.incarnation, **changes)
        await rig.journal.open(opened)
        await rig.journal.close(close_record(opened))
    await rig.drain()


def keeper_of(rig: LedgerRig, folder: Path) -> LedgerKeeper:
    store = AnchorStore(DirectoryObjects(folder / "anchors"))
    return LedgerKeeper(
        rig.database, rig.shipper, clock=Clock(), store=store, signer=None, every_seconds=0.05
    )


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def test_months_are_there_before_the_database_counts_as_up(
    postgres: Postgres, database: str
) -> None:
    with postgres.superuser(database) as sql:
        forget(sql)
        async with open_database(postgres.url(database), up=False) as pool:
            await pool.prepare()
            assert not pool.up
            assert months(sql) == WANTED


async def test_rows_that_came_before_their_month_are_moved_into_it(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        with postgres.superuser(database) as sql:
            forget(sql)
            await fill(rig)
            assert rows(sql).keys() == {OTHER}
            entries = "SELECT * FROM ledger_entry ORDER BY entry_id"
            before = sql.execute(entries).fetchall()
            found = await keeper_of(rig, tmp_path).make_months()
            assert (list(found.made), found.moved_rows, found.missing) == (WANTED, 3, ())
            assert months(sql) == WANTED
            assert rows(sql) == {table(): 3}
            assert sql.execute(entries).fetchall() == before
            await fill(rig)
            assert rows(sql) == {table(): 6}
        result = await LedgerVerifier(rig.database, store=None, public_keys=()).verify()
        assert result.findings == []
        for name in (table(), OTHER, "ledger_entry"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await rig.rows(f"DELETE FROM {name}")
    with postgres.superuser(database) as sql:
        for name in (table(), OTHER):
            [(enabled,)] = sql.execute(
                "SELECT tgenabled FROM pg_trigger WHERE tgrelid = %s::regclass"
                " AND tgname = 'ledger_entry_append_only'", (name,),
            ).fetchall()  # fmt: skip
            assert enabled == "O"
        with pytest.raises(psycopg.errors.RestrictViolation, match="append-only"):
            sql.execute(f"DELETE FROM {table()}".encode())


async def test_months_between_are_healed_too(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    """A guard that was away for half a year, or a database that was set back, and old spools."""
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        with postgres.superuser(database) as sql:
            sql.execute(
                f"CREATE TABLE {table(-6)} PARTITION OF ledger_entry"
                f" FOR VALUES FROM ('{month(-6)} 00:00+00') TO ('{month(-5)} 00:00+00')".encode()
            )
            at = datetime(month(-4).year, month(-4).month, 15, tzinfo=UTC)
            before_all = datetime(month(-9).year, month(-9).month, 15, tzinfo=UTC)
            await fill(rig, 2, opened_at=at)
            await fill(rig, 1, opened_at=before_all)
            assert (await keeper_of(rig, tmp_path).make_months()).made == (table(-4),)
            assert rows(sql) == {table(-4): 2, OTHER: 1}


async def test_one_month_that_cannot_be_made_stops_no_other_and_no_anchor(
    postgres: Postgres, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("terrace_gateway.ledger.months.MOST_ROWS", 2)
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        with postgres.superuser(database) as sql:
            forget(sql)
            await fill(rig)
            keeper = keeper_of(rig, tmp_path)
            running = asyncio.create_task(keeper.run())
            await until(lambda: keeper.missing_months and keeper.anchored)
            assert months(sql) == [name for name in WANTED if name != table()]
            assert (keeper.missing_months, keeper.failures) == (1, 0)
            found = await keeper.make_months()
            [(name, why)] = found.missing
            assert name == table()
            assert "more than 2 rows" in why
            assert rows(sql) == {OTHER: 3}
            # As the page says, by hand; the keeper finds that it is there.
            by_hand = "SELECT make_ledger_month(%s, 1000000)"
            assert await rig.rows(by_hand, month()) == [(3,)]
            await until(lambda: not keeper.missing_months)
            assert rows(sql) == {table(): 3}
            assert await rig.rows(by_hand, month()) == [(None,)]
            running.cancel()


async def test_what_was_exported_is_not_made_again(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    """Neither a month that was dropped since, nor one whose rows were exported where they are."""
    exported = "INSERT INTO ledger_export VALUES (%s, %s, 1, 1, 'x', 'd')"
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        with postgres.superuser(database) as sql:
            forget(sql, table(-1), table())
            await fill(rig)
            sql.execute(exported.encode(), (table(-1), month(-1)))
            sql.execute(exported.encode(), (OTHER, month()))
            found = await keeper_of(rig, tmp_path).make_months()
            assert found.made == ()
            [(name, why)] = found.missing
            assert (name, "have been exported" in why) == (table(), True)
            with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
                sql.execute("SELECT make_ledger_month(%s, 10)", (month(-1),))
            assert rows(sql) == {OTHER: 3}


async def test_the_release_before_is_healed_by_its_own_call(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        with postgres.superuser(database) as sql:
            forget(sql)
            await fill(rig)
            sql.execute("INSERT INTO ledger_export VALUES (%s, %s, 1, 1, 'x', 'd')",
                        (OTHER, month()))  # fmt: skip
            left = [name for name in WANTED if name != table()]
            assert await rig.rows("SELECT ensure_ledger_partitions(2)") == [(left,)]
            sql.execute("DELETE FROM ledger_export")
            assert await rig.rows("SELECT ensure_ledger_partitions(2)") == [([table()],)]
            assert await rig.rows("SELECT ensure_ledger_partitions(2)") == [([],)]
            assert rows(sql) == {table(): 3}


async def test_a_row_that_waits_while_its_month_is_made_finds_it(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    """And no default partition that refuses it: a close, and an administrator's change."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    audit = "INSERT INTO audit (actor, action, subject) VALUES ('jo', 'key.create', 'key_1')"
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        await fill(rig)
        with postgres.superuser(database) as sql:
            forget(sql, table())
            await fill(rig, 1)
            with psycopg.connect(postgres.url(database)) as maker:
                maker.execute("SELECT make_ledger_month(%s, 10)", (month(),))
                shipping = asyncio.create_task(fill(rig, 1))
                change = asyncio.create_task(rig.rows(f"{audit} RETURNING actor"))
                await until(lambda: sql.execute(waiting).fetchone() == (2,))
            await asyncio.gather(shipping, change)
            assert rig.shipper.shipped.dead == 0
            assert rows(sql) == {table(): 3}


async def test_who_reads_the_ledger_is_not_queued_behind_for_long(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    """A dump holds the tables: the month waits for a moment, gives up, and is made later."""
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        with postgres.superuser(database) as sql:
            forget(sql, table())
            with psycopg.connect(postgres.url(database)) as dump:
                dump.execute("SELECT count(*) FROM ledger_entry")
                found = await keeper_of(rig, tmp_path).make_months()
                [(name, why)] = found.missing
                assert (name, why.partition(":")[0]) == (table(), "LockNotAvailable")
                await fill(rig)
            assert (await keeper_of(rig, tmp_path).make_months()).made == (table(),)
            assert rows(sql) == {table(): 3}


async def test_guards_that_start_at_once_make_each_month_once(
    postgres: Postgres, database: str
) -> None:
    with postgres.superuser(database) as sql:
        forget(sql)

        async def start() -> None:
            async with open_database(postgres.url(database)):
                pass

        await asyncio.gather(*(start() for _ in range(4)))
        assert months(sql) == WANTED


async def test_months_are_looked_at_again_when_the_database_comes_back(
    postgres: Postgres, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been set back to before this month."""
    monkeypatch.setattr("terrace_gateway.ledger.keeper.AWAY_SECONDS", 0.01)
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        keeper = keeper_of(rig, tmp_path)
        running = asyncio.create_task(keeper.run())
        await fill(rig)
        await until(lambda: keeper.anchored)
        with postgres.superuser(database) as sql:
            rig.database.up = False
            await until(lambda: keeper.failures)
            forget(sql, table(1), table(2))
            rig.database.up = True
            await until(lambda: months(sql) == WANTED)
        running.cancel()


async def test_each_month_has_its_own_time(
    postgres: Postgres, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("terrace_gateway.ledger.keeper.MONTH_SECONDS", 1)
    monkeypatch.setattr("terrace_gateway.ledger.months.MONTH_SECONDS", 1)
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        with postgres.superuser(database) as sql:
            forget(sql)
            with psycopg.connect(postgres.url(database)) as another:
                another.execute("SELECT pg_advisory_xact_lock(x'7E44ACE2'::bigint)")
                found = await keeper_of(rig, tmp_path).make_months()
            assert [name for name, _ in found.missing] == WANTED
            assert {why.partition(":")[0] for _, why in found.missing} == {"QueryCanceled"}


async def test_a_start_does_not_wait_for_ever_for_a_month(
    postgres: Postgres, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("terrace_gateway.ledger.months.MONTH_SECONDS", 1)
    with postgres.superuser(database) as sql:
        forget(sql, table(2))
        sql.execute("ALTER FUNCTION make_ledger_month(date, bigint) RENAME TO make_it")
        sql.execute(
            "CREATE FUNCTION make_ledger_month(date, bigint) RETURNS bigint LANGUAGE sql AS"
            " $$ SELECT pg_sleep(3600); SELECT 0::bigint $$"
        )
        async with open_database(postgres.url(database), up=False) as pool:
            async with asyncio.timeout(60):
                await pool.prepare()
            assert pool.prepared


async def test_a_large_default_partition_is_not_read_while_all_wait(
    postgres: Postgres, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by a guard; as the page says, by hand, months are attached without reading it."""
    monkeypatch.setattr("terrace_gateway.ledger.months.MOST_ROWS", 0)
    notices: list[str] = []
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        with postgres.superuser(database) as sql:
            forget(sql)
            await fill(rig, 12, opened_at=datetime(2020, 1, 15, tzinfo=UTC))
            forget(sql, *months(sql))
            found = await keeper_of(rig, tmp_path).make_months()
            assert found.made == ()
            assert {"too large" in why for _, why in found.missing} == {True}
            limit = f"CHECK (opened_at < '{month(1)} 00:00+00')"
            sql.execute("SET ROLE gateway")
            sql.execute(f"ALTER TABLE {OTHER} ADD CONSTRAINT past {limit} NOT VALID".encode())
            sql.execute(f"ALTER TABLE {OTHER} VALIDATE CONSTRAINT past".encode())
            sql.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
            sql.execute("SET client_min_messages = debug1")
            for ahead in (1, 2):
                made = sql.execute("SELECT make_ledger_month(%s, 100000000)", (month(ahead),))
                assert made.fetchone() == (0,)
            sql.execute(f"ALTER TABLE {OTHER} DROP CONSTRAINT past".encode())
            assert months(sql) == [table(1), table(2)]
    implied = [text for text in notices if "is implied by existing constraints" in text]
    assert sum(OTHER in text for text in implied) == 2
