"""Export to Parquet: whole, idempotent, verifiable without the database, before any month goes."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from gateway_rig.journal_records import close_record, open_record
from gateway_rig.ledger_rig import LedgerRig, ledger_rig, open_database
from gateway_rig.postgres import Postgres

from terrace_gateway.clock import Clock
from terrace_gateway.ledger.anchors import AnchorStore
from terrace_gateway.ledger.books import BookStore
from terrace_gateway.ledger.export import LedgerExport, read_part
from terrace_gateway.ledger.keeper import LedgerKeeper
from terrace_gateway.ledger.object_store import DirectoryObjects
from terrace_gateway.ledger.offline import main, verify_export

YESTERDAY = datetime.now(UTC) - timedelta(days=1)


async def fill(rig: LedgerRig, count: int, **changes: Any) -> None:
    for _ in range(count):
        opened = open_record(incarnation=rig.incarnation, opened_at=YESTERDAY, **changes)
        await rig.journal.open(opened)
        await rig.journal.close(close_record(opened))
    await rig.drain()


async def test_days_are_exported_once_and_checked_offline(
    postgres: Postgres, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("terrace_gateway.ledger.export.PART_ROWS", 10)
    monkeypatch.setattr("terrace_gateway.ledger.export.PAGE_ROWS", 5)
    objects = DirectoryObjects(tmp_path / "export")
    anchors = AnchorStore(DirectoryObjects(tmp_path / "anchors"))
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        await fill(rig, 25)
        await LedgerKeeper(
            rig.database, rig.shipper, clock=Clock(), store=anchors, signer=None, every_seconds=9
        ).anchor()
        export = LedgerExport(rig.database, objects)
        now = datetime.now(UTC)
        done = await export.export(before=now)
        assert [(item.day, item.rows) for item in done] == [(YESTERDAY.date(), 25)]
        assert await export.export(before=now) == []
        assert await export.export(before=YESTERDAY) == []  # today's rows are not over
        result = verify_export(objects, anchors=anchors)
        assert (result.findings, result.entries) == ([], 25)
        # A late entry of that day: it is written again, whole, beside.
        await fill(rig, 1)
        assert [item.rows for item in await export.export(before=now)] == [26]
        assert verify_export(objects).entries == 26
        partition = done[0].partition
        assert (await rig.rows("SELECT drop_ledger_partition(%s)", partition)) == [(26,)]
    for part in (tmp_path / "export").rglob("part-00000.parquet"):
        part.chmod(0o640)
        data = bytearray(part.read_bytes())
        data[len(data) // 2] ^= 1
        part.write_bytes(bytes(data))
    assert main([str(tmp_path / "export")]) == 1


async def test_images_are_a_column_of_numbers(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    objects = DirectoryObjects(tmp_path / "export")
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        await fill(rig, 1)
        await fill(rig, 1, images=2)
        await LedgerExport(rig.database, objects).export(before=datetime.now(UTC))
    [part] = [key for key in objects.keys("") if key.endswith(".parquet")]
    assert [row["images"] for row in read_part(objects.get(part))] == [0, 2]
    result = verify_export(objects)
    assert (result.findings, result.entries) == ([], 2)


async def test_a_month_with_a_day_that_grew_since_is_not_dropped(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        await fill(rig, 3)
        export = LedgerExport(rig.database, DirectoryObjects(tmp_path / "export"))
        done = await export.export(before=datetime.now(UTC))
        await fill(rig, 1)
        with pytest.raises(psycopg.errors.CheckViolation):
            await rig.rows("SELECT drop_ledger_partition(%s)", done[0].partition)
        assert (await rig.rows("SELECT count(*) FROM ledger_entry"))[0][0] >= 4


MONTH = "ledger_entry_202401"


async def test_nobody_is_locked_out_while_a_month_is_looked_through(
    postgres: Postgres, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look lasts longer than a statement of the pool may: as long as we hold a gap of its."""
    monkeypatch.setattr("terrace_gateway.database.STATEMENT_SECONDS", 1)
    opened = datetime(2024, 1, 10, tzinfo=UTC)
    add = (
        "INSERT INTO ledger_entry (opened_at, kind, writer, seq, previous_hash, hash, canonical,"
        " replica, attempt_id) VALUES (%s, 'attempt', 'w-1', %s, sha256('a'), sha256('b'), '{}',"
        " 'r', %s)"
    )
    hold = "INSERT INTO chain_gap VALUES ('w-1', 0, 2, sha256('b'), 'held')"
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'transactionid'"
    async with open_database(postgres.url(database)) as pool:
        async with pool.connection() as connection:
            await connection.execute(
                f"CREATE TABLE {MONTH} PARTITION OF ledger_entry"
                " FOR VALUES FROM ('2024-01-01+00') TO ('2024-02-01+00')".encode()
            )
            await connection.execute(add.encode(), (opened, 1, "at_1"))
            await connection.execute(
                "INSERT INTO ledger_export SELECT tableoid::regclass::text, opened_at::date, 1,"
                " entry_id, 'x', 'd' FROM ledger_entry"
            )
        for late_row in (True, False):
            holder = psycopg.connect(postgres.url(database))
            with holder:
                holder.execute(hold.encode())
                drop = asyncio.create_task(BookStore(pool).drop_months(1))
                async with pool.connection() as connection:
                    while await (await connection.execute(waiting)).fetchone() == (0,):
                        await asyncio.sleep(0.02)
                    # A reader and a writer of that month get through meanwhile.
                    cursor = await connection.execute("SELECT count(*) FROM ledger_entry")
                    assert await cursor.fetchone() == (1,)
                    if late_row:
                        await connection.execute(add.encode(), (opened, 2, "at_2"))
                await asyncio.sleep(1.2)
                holder.rollback()
            if late_row:
                with pytest.raises(psycopg.errors.CheckViolation, match="1 rows, then 2"):
                    await drop
                with postgres.superuser(database) as sql:
                    sql.execute(f"ALTER TABLE {MONTH} DISABLE TRIGGER USER".encode())
                    sql.execute(f"DELETE FROM {MONTH} WHERE seq = 2".encode())
            else:
                assert await drop == {MONTH: 1}
