"""The journal when the database, the disk or the process fails."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from gateway_rig.journal_records import close_record, open_record
from gateway_rig.ledger_rig import ledger_rig
from gateway_rig.postgres import Postgres

from terrace_gateway.calls.ports import OpenRecord, SpoolFullError
from terrace_gateway.clock import Clock
from terrace_gateway.spool.journal import SpoolJournal
from terrace_gateway.spool.segments import SpoolLockedError

SPOOLED = 4000


async def test_what_is_spooled_while_the_database_is_away_is_drained_without_loss(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    async with ledger_rig(postgres.url(database), tmp_path, segment_bytes=256 * 1024) as rig:
        postgres.stop(signal.SIGQUIT)
        sent: list[str] = []

        async def caller() -> None:
            for _ in range(SPOOLED // 40):
                opened = open_record(incarnation=rig.incarnation)
                await rig.journal.open(opened)
                await rig.journal.close(close_record(opened, amount_micro_usd=7))
                sent.append(opened.attempt_id)

        await asyncio.gather(*(caller() for _ in range(40)))
        assert rig.journal.reader.behind_bytes > 1_000_000
        postgres.start()
        await rig.drain(240)
        kept = await rig.rows("SELECT attempt_id FROM ledger_entry")
        assert sorted(row[0] for row in kept) == sorted(sent)
        assert await rig.rows("SELECT sum(requests), sum(amount_micro_usd) FROM spend_daily") == [
            (SPOOLED, 7 * SPOOLED)
        ]
        # The volume is free again but for the segment that is written.
        assert len(list((tmp_path / "spool").glob("*.spool"))) == 1


async def fill(journal: SpoolJournal) -> list[OpenRecord]:
    """Open attempts until the volume is full."""
    records: list[OpenRecord] = []
    while True:
        record = open_record()
        try:
            await journal.open(record)
        except SpoolFullError:
            return records
        records.append(record)


async def test_a_full_disk_refuses_opens_and_no_close(tmp_path: Path) -> None:
    journal = SpoolJournal(tmp_path, replica="r", clock=Clock(), limit_bytes=4 * 1024 * 1024)
    journal.start()
    records = await fill(journal)
    assert len(records) > 100
    for record in records:
        await journal.close(close_record(record))
    assert journal.open_attempts == 0
    assert journal.broken is None
    await journal.stop()


async def test_a_file_size_limit_is_a_full_disk_too(tmp_path: Path) -> None:
    """The kernel refuses, not we: posix_fallocate fails with EFBIG."""
    journal = SpoolJournal(tmp_path, replica="r", clock=Clock(), segment_bytes=64 * 1024 * 1024)
    journal.start()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 * 1024 * 1024, hard))
    try:
        records = await fill(journal)
        for record in records:
            await journal.close(close_record(record))
        assert journal.broken is None
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        await journal.stop()


async def test_a_second_journal_on_the_volume_is_refused(tmp_path: Path) -> None:
    first = SpoolJournal(tmp_path, replica="r", clock=Clock())
    first.start()
    second = SpoolJournal(tmp_path, replica="r", clock=Clock())
    with pytest.raises(SpoolLockedError):
        second.start()
    await first.stop()
    second.start()
    await second.stop()


WRITER = """
import asyncio, os, sys
from pathlib import Path
from gateway_rig.journal_records import close_record, open_record
from terrace_gateway.clock import Clock
from terrace_gateway.spool.journal import SpoolJournal
from terrace_gateway.spool.syncing import ThreadSyncer, best_syncer

def in_a_thread(loop, executor, probe):
    return ThreadSyncer(loop, executor)

async def main():
    make = {"kernel": best_syncer, "thread": in_a_thread}[sys.argv[2]]
    journal = SpoolJournal(
        Path(sys.argv[1]), replica="r", clock=Clock(), segment_bytes=65536, make_syncer=make
    )
    journal.start()
    def say(word, record):
        os.write(1, f"{word} {record.attempt_id}\\n".encode())  # whole: print may write it in parts

    async def caller():
        while True:
            record = open_record()
            await journal.open(record)
            say("open", record)
            await journal.close(close_record(record))
            say("closed", record)
    await asyncio.gather(*(caller() for _ in range(20)))

asyncio.run(main())
"""


@pytest.mark.parametrize("lines", [1, 200, 1500])
@pytest.mark.parametrize("synced_by", ["kernel", "thread"])
async def test_what_a_killed_writer_was_told_is_durable_is_there(
    synced_by: str, lines: int, tmp_path: Path
) -> None:
    rig = str(Path(__file__).parent / "rig")
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path), synced_by], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": rig},
    ) as child:  # fmt: skip
        assert child.stdout is not None
        said = [child.stdout.readline() for _ in range(lines)]
        child.kill()
        said += child.stdout.read().splitlines(keepends=True)
    told: dict[str, set[str]] = {"open": set(), "closed": set()}
    for word, attempt in (line.split() for line in said if line.endswith("\n")):
        told[word].add(attempt)
    assert told["open"]
    journal = SpoolJournal(tmp_path, replica="r", clock=Clock())
    journal.start()
    entries: dict[str, bytes] = {}
    while (batch := journal.reader.next_batch()) is not None:
        for frame in batch.frames:
            if frame.is_entry:
                assert frame.key not in entries
                entries[frame.key] = frame.body
        if not batch.finished:
            break
    assert told["open"] <= set(entries)
    assert all(b'"outcome":"ok"' in entries[name] for name in told["closed"])
    await journal.stop()


async def test_many_appends_share_a_sync(tmp_path: Path) -> None:
    groups: list[int] = []

    class Observer:
        def group(self, records: int, size: int, seconds: float) -> None:
            groups.append(records)

        def refused(self) -> None: ...

        def dropped(self, decisions: int) -> None: ...

    journal = SpoolJournal(tmp_path, replica="r", clock=Clock(), observer=Observer())
    journal.start()
    await asyncio.gather(*(journal.open(open_record()) for _ in range(500)))
    assert sum(groups) == 500
    assert len(groups) < 100
    await journal.stop()
