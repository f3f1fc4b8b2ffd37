"""Export to Parquet: whole, idempotent, verifiable without the database, before any month goes."""

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from gateway_rig.fake_aws import FakeAws
from gateway_rig.journal_records import close_record, open_record
from gateway_rig.ledger_rig import LedgerRig, ledger_rig, open_database
from gateway_rig.postgres import Postgres

from terrace_gateway.calls.ports import AuthorityUnavailableError
from terrace_gateway.clock import Clock
from terrace_gateway.ledger.chains.anchors import AnchorStore
from terrace_gateway.ledger.exports.export import LedgerExport
from terrace_gateway.ledger.exports.parts import need_parquet, read_part
from terrace_gateway.ledger.keeper import LedgerKeeper
from terrace_gateway.ledger.object_store import (
    DirectoryObjects,
    ObjectStore,
    ObjectStoreError,
    open_objects,
)
from terrace_gateway.ledger.offline import main, verify_export

YESTERDAY = datetime.now(UTC) - timedelta(days=1)


async def fill(rig: LedgerRig, count: int, **changes: Any) -> None:
    for _ in range(count):
        opened = open_record(**{"incarnation": rig.incarnation, "opened_at": YESTERDAY} | changes)
        await rig.journal.open(opened)
        await rig.journal.close(close_record(opened))
    await rig.drain()


async def test_days_are_exported_once_and_checked_offline(
    postgres: Postgres, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("terrace_gateway.ledger.exports.export.PART_ROWS", 10)
    monkeypatch.setattr("terrace_gateway.ledger.exports.export.PAGE_ROWS", 5)
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
    for part in (tmp_path / "export").rglob("part-00000-*.parquet"):
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


APPEND = (
    "INSERT INTO ledger_entry (entry_id, opened_at, kind, writer, seq, previous_hash, hash,"
    " canonical, replica, attempt_id) VALUES (%s, %s, 'attempt', %s, 1, sha256('a'), sha256('b'),"
    " '{}', 'r', %s)"
)


def append(connection: psycopg.Connection[Any], entry_id: int, attempt_id: str) -> None:
    """An entry of yesterday as the shipper adds it: the transaction has its number first."""
    connection.execute("SELECT pg_current_xact_id()")
    connection.execute(APPEND.encode(), (entry_id, YESTERDAY, f"w-{attempt_id}", attempt_id))


def next_id(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT nextval('ledger_entry_id_seq')").fetchone()
    assert row is not None
    return int(row[0])


def stored(objects: ObjectStore) -> set[str]:
    keys = [key for key in objects.keys("") if key.endswith(".parquet")]
    return {row["attempt_id"] for key in keys for row in read_part(objects.get(key))}


async def test_an_entry_that_commits_behind_a_later_one_is_waited_for(
    postgres: Postgres, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = DirectoryObjects(tmp_path)
    now = datetime.now(UTC)
    async with open_database(postgres.url(database)) as pool:
        export = LedgerExport(pool, objects)
        with psycopg.connect(postgres.url(database)) as slow:
            append(slow, next_id(slow), "at_slow")
            with psycopg.connect(postgres.url(database)) as quick:
                append(quick, next_id(quick), "at_quick")
            with monkeypatch.context() as impatient:
                impatient.setattr("terrace_gateway.ledger.exports.export.SETTLING_SECONDS", 0.1)
                with pytest.raises(AuthorityUnavailableError, match="has not ended"):
                    await export.export(before=now)
            waiting = asyncio.create_task(export.export(before=now))
            await asyncio.wait([waiting], timeout=0.3)
            assert (waiting.done(), list(objects.keys(""))) == (False, [])
            slow.commit()
        assert [day.rows for day in await waiting] == [2]
    assert stored(objects) == {"at_slow", "at_quick"}


async def test_a_day_with_more_entries_below_its_last_one_is_written_beside(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    """However it came to that: what is recorded of an export is what is stored."""
    objects = DirectoryObjects(tmp_path)
    now = datetime.now(UTC)
    async with open_database(postgres.url(database)) as pool:
        export = LedgerExport(pool, objects)
        with psycopg.connect(postgres.url(database), autocommit=True) as sql:
            early, late = next_id(sql), next_id(sql)
            append(sql, late, "at_first")
            [first] = await export.export(before=now)
            append(sql, early, "at_second")
            [second] = await export.export(before=now)
            assert (first.rows, second.rows) == (1, 2)
            sql.execute("SELECT drop_ledger_partition(%s)", (second.partition,))
            locations = sql.execute("SELECT location FROM ledger_export").fetchall()
    assert locations == [(f"{tmp_path}/{second.manifest}",)]
    assert stored(objects) == {"at_first", "at_second"}
    assert verify_export(objects).entries == 2


async def test_what_is_there_under_a_name_must_be_the_same(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    objects = DirectoryObjects(tmp_path / "export")
    now = datetime.now(UTC)
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        await fill(rig, 2)
        export = LedgerExport(rig.database, objects)
        [day] = await export.export(before=now)
        with postgres.superuser(database) as sql:  # as if it had broken off before the record
            sql.execute("DELETE FROM ledger_export")
        assert [again.manifest for again in await export.export(before=now)] == [day.manifest]
        [part] = (tmp_path / "export").rglob("*.parquet")
        part.chmod(0o640)
        part.write_bytes(b"something else")
        with postgres.superuser(database) as sql:
            sql.execute("DELETE FROM ledger_export")
        with pytest.raises(ObjectStoreError, match="is there, and is something else"):
            await export.export(before=now)
        assert await rig.rows("SELECT count(*) FROM ledger_export") == [(0,)]


async def test_a_day_that_cannot_be_stored_keeps_no_other(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    objects = DirectoryObjects(tmp_path / "export")
    now = datetime.now(UTC)
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        await fill(rig, 1, opened_at=YESTERDAY - timedelta(days=1))
        export = LedgerExport(rig.database, objects)
        await export.export(before=now)
        [part] = (tmp_path / "export").rglob("*.parquet")
        whole = part.read_bytes()
        part.chmod(0o640)
        part.write_bytes(b"something else")
        with postgres.superuser(database) as sql:
            sql.execute("DELETE FROM ledger_export")
        await fill(rig, 2)
        with pytest.raises(ObjectStoreError, match="is there, and is something else"):
            await export.export(before=now)
        assert await rig.rows("SELECT day, rows FROM ledger_export") == [(YESTERDAY.date(), 2)]
        part.write_bytes(whole)
        assert [day.rows for day in await export.export(before=now)] == [1]


async def test_what_the_release_before_recorded_is_looked_at_once(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    """It recorded digests of manifests that it had not stored."""
    objects = DirectoryObjects(tmp_path / "export")
    now = datetime.now(UTC)
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        await fill(rig, 2)
        export = LedgerExport(rig.database, objects)
        [day] = await export.export(before=now)
        # One that is stored as it was recorded is taken over.
        with postgres.superuser(database) as sql:
            sql.execute("UPDATE ledger_export SET stored_digest = NULL")
        with pytest.raises(psycopg.errors.CheckViolation, match="not exported"):
            await rig.rows("SELECT drop_ledger_partition(%s)", day.partition)
        assert await export.export(before=now) == []
        taken = "SELECT stored_digest = digest FROM ledger_export"
        assert await rig.rows(taken) == [(True,)]
        # One that is not is written again.
        with postgres.superuser(database) as sql:
            sql.execute("UPDATE ledger_export SET digest = 'of nothing that is stored'")
        with pytest.raises(psycopg.errors.CheckViolation, match="not exported"):
            await rig.rows("SELECT drop_ledger_partition(%s)", day.partition)
        assert [again.rows for again in await export.export(before=now)] == [2]
        assert await rig.rows("SELECT drop_ledger_partition(%s)", day.partition) == [(2,)]


async def test_what_the_store_has_lost_is_not_exported_any_more(
    postgres: Postgres, database: str, tmp_path: Path, aws: FakeAws
) -> None:
    aws.objects["ledger"] = {}
    objects = open_objects("s3://ledger")
    now = datetime.now(UTC)
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        await fill(rig, 2)
        export = LedgerExport(rig.database, objects)
        [day] = await export.export(before=now)
        whole = dict(aws.objects["ledger"])
        assert len(whole) == 2
        assert await export.forget_lost(day.partition) == []
        aws.broken = True
        with pytest.raises(ObjectStoreError, match="InternalError"):
            await export.forget_lost(day.partition)  # which says nothing of what is stored
        aws.broken = False
        for lost in whole:
            del aws.objects["ledger"][lost]
            assert await export.forget_lost(day.partition) == [day.day.isoformat()]
            with pytest.raises(psycopg.errors.CheckViolation, match="not exported"):
                await rig.rows("SELECT drop_ledger_partition(%s)", day.partition)
            assert [again.rows for again in await export.export(before=now)] == [2]
            assert aws.objects["ledger"] == whole
        assert await rig.rows("SELECT drop_ledger_partition(%s)", day.partition) == [(2,)]


async def test_only_a_page_of_rows_is_held_at_a_time(
    postgres: Postgres, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("terrace_gateway.ledger.exports.export.PART_ROWS", 10)
    monkeypatch.setattr("terrace_gateway.ledger.exports.export.PAGE_ROWS", 5)
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        await fill(rig, 18)
        await LedgerExport(rig.database, DirectoryObjects(tmp_path / "export")).export(
            before=datetime.now(UTC)
        )
    groups: list[list[int]] = []
    for part in sorted((tmp_path / "export").rglob("*.parquet")):
        metadata = need_parquet().ParquetFile(part).metadata
        numbers = range(metadata.num_row_groups)
        groups.append([metadata.row_group(number).num_rows for number in numbers])
    assert groups == [[5, 5], [5, 3]]


def test_two_manifests_of_as_many_entries_have_the_same(tmp_path: Path) -> None:
    for number, digest in enumerate(("aa", "bb")):
        manifest = {
            "partition": "ledger_entry_202401", "day": "2024-01-10", "rows": 1,
            "last_entry_id": 1, "parts": [], "chains": {"w": {"ranges": [[1, 1, digest]]}},
        }  # fmt: skip
        DirectoryObjects(tmp_path).put(
            f"ledger/{number}/manifest.json", json.dumps(manifest).encode()
        )
    assert [finding.kind for finding in verify_export(DirectoryObjects(tmp_path)).findings] == [
        "changed"
    ]


class BetweenPuts(DirectoryObjects):
    """Does something before the first object of a kind is put."""

    def __init__(self, root: Path, suffix: str, work: Callable[[], object]) -> None:
        super().__init__(root)
        self._suffix, self._work = suffix, work

    def put(self, key: str, body: bytes, **options: Any) -> Any:
        if key.endswith(self._suffix) and self._suffix:
            self._suffix = ""
            self._work()
        return super().put(key, body, **options)


@pytest.mark.parametrize(("suffix", "moved"), [(".parquet", 3), ("manifest.json", 0)])
async def test_a_month_that_takes_rows_meanwhile_exports_them_once(
    postgres: Postgres, database: str, tmp_path: Path, suffix: str, moved: int
) -> None:
    """Either its rows are the month's, or the month is not made any more."""
    month = f"ledger_entry_{YESTERDAY:%Y%m}"
    made: list[int] = []
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        with postgres.superuser(database) as admin:
            admin.execute(f"DROP TABLE {month}".encode())
        await fill(rig, 3)

        def make_month() -> None:
            with psycopg.connect(postgres.url(database)) as maker:
                try:
                    row = maker.execute(
                        "SELECT make_ledger_month(%s, 100)", (YESTERDAY.date(),)
                    ).fetchone()
                except psycopg.errors.ObjectNotInPrerequisiteState:
                    row = (0,)
            assert row is not None
            made.append(row[0])

        objects = BetweenPuts(tmp_path / "export", suffix, make_month)
        export = LedgerExport(rig.database, objects)
        done = [await export.export(before=datetime.now(UTC)) for _ in range(3)]
        assert made == [moved]
        [day] = [day for days in done for day in days]
        assert (day.partition, day.rows) == (month if moved else "ledger_entry_other", 3)
        stored_digests = "SELECT partition_name, stored_digest = digest FROM ledger_export"
        assert await rig.rows(stored_digests) == [(day.partition, True)]
    result = verify_export(objects)
    assert (result.findings, result.entries) == ([], 3)


async def test_a_month_that_is_dropped_while_it_is_exported_is_passed_over(
    postgres: Postgres, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("terrace_gateway.ledger.exports.export.PART_ROWS", 1)
    monkeypatch.setattr("terrace_gateway.ledger.exports.export.PAGE_ROWS", 1)
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        await fill(rig, 3)

        def drop() -> None:
            with postgres.superuser(database) as admin:
                admin.execute(f"DROP TABLE ledger_entry_{YESTERDAY:%Y%m}".encode())

        objects = BetweenPuts(tmp_path / "export", ".parquet", drop)
        assert await LedgerExport(rig.database, objects).export(before=datetime.now(UTC)) == []
