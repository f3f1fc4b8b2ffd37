"""A volume that does not answer: nobody waits without end, and its late word is not heard."""

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from terrace_gateway.calls.ports import Decision
from terrace_gateway.clock import Clock
from terrace_gateway.spool import group_commit
from terrace_gateway.spool.group_commit import LAST_LOOKS, LATE_LOOKS, MakeSyncer, SpoolBrokenError
from terrace_gateway.spool.journal import SpoolJournal
from terrace_gateway.spool.segments import SpoolLockedError

from .spool_world import BOTH, Disk, Rig, close_record, open_record


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks follow each other."""
    monkeypatch.setattr(group_commit, "LOOK_SECONDS", 0.01)


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test looks."""
    monkeypatch.setattr(group_commit, "LOOK_SECONDS", 1e6)


def held_up(rig: Rig) -> Disk:
    assert rig.disk is not None
    rig.disk.held = []
    return rig.disk


def look(rig: Rig, times: int) -> None:
    commits = rig.journal._commits
    assert commits is not None
    for _ in range(times):
        commits._look()


async def until_held(disk: Disk) -> None:
    while not disk.held:
        await asyncio.sleep(0)


@pytest.mark.usefixtures("quick")
@BOTH
async def test_who_waits_for_a_volume_that_does_not_answer_is_told_so(
    make_syncer: MakeSyncer, tmp_path: Path
) -> None:
    rig = Rig(tmp_path, make_syncer)
    journal, first = rig.journal, open_record()
    await journal.open(first)
    disk = held_up(rig)
    async with asyncio.timeout(30):
        running = journal.open(open_record())
        await until_held(disk)
        queued = [journal.open(open_record()), journal.close(close_record(first))]
        seal = asyncio.ensure_future(journal.seal())
        waiting = [running, *queued, seal]
        for told in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(told, SpoolBrokenError)
            assert "the volume does not answer" in str(told)
        assert journal.broken is not None
        with pytest.raises(SpoolBrokenError):
            await journal.open(open_record())
        await journal.stop()


@pytest.mark.usefixtures("by_hand")
@BOTH
async def test_what_it_says_after_that_is_not_heard(
    make_syncer: MakeSyncer, tmp_path: Path
) -> None:
    rig = Rig(tmp_path, make_syncer)
    journal = rig.journal
    await journal.open(open_record())
    behind = journal.reader.behind_bytes
    disk = held_up(rig)
    waiting = journal.open(open_record())
    await until_held(disk)
    look(rig, LAST_LOOKS)
    assert isinstance(waiting.exception(), SpoolBrokenError)
    answered, held = disk.answered, disk.held
    assert held is not None
    held[0]()
    async with asyncio.timeout(30):
        while disk.answered == answered:
            await asyncio.sleep(0.001)
    assert journal.reader.behind_bytes == behind
    assert journal.broken is not None
    await journal.stop()


@pytest.mark.usefixtures("by_hand")
@BOTH
async def test_a_volume_that_is_late_makes_the_replica_unready_until_it_answers(
    make_syncer: MakeSyncer, tmp_path: Path
) -> None:
    rig = Rig(tmp_path, make_syncer)
    journal = rig.journal
    await journal.open(open_record())
    look(rig, LAST_LOOKS)  # nobody waits: it owes no answer
    assert journal.answers
    disk = held_up(rig)
    waiting = journal.open(open_record())
    await until_held(disk)
    look(rig, LATE_LOOKS - 1)
    assert journal.answers
    look(rig, LAST_LOOKS - LATE_LOOKS)
    assert not journal.answers
    held, disk.held = disk.held, None
    assert held is not None
    held[0]()
    async with asyncio.timeout(30):
        await waiting
    assert (journal.answers, journal.broken) == (True, None)
    for _ in range(3):  # each group is as old as itself
        await journal.open(open_record())
        look(rig, 1)
    assert journal.answers
    await journal.stop()


def spool_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("spool")]


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Making room on the volume waits for this."""
    free, real = threading.Event(), os.posix_fallocate

    def wait(fd: int, offset: int, length: int) -> None:
        free.wait(30)
        real(fd, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", wait)
    yield free
    free.set()


@pytest.mark.usefixtures("quick")
@BOTH
async def test_a_thread_that_is_stuck_keeps_the_files_and_writes_nothing_any_more(
    make_syncer: MakeSyncer, tmp_path: Path, stuck: threading.Event
) -> None:
    """The first record makes the file, in the thread."""
    rig, refused = Rig(tmp_path, make_syncer), open_record()
    rig.journal.note(Decision("deny", "policy_denied", {}, "req", "", None))
    rig.journal._queue_notes()
    async with asyncio.timeout(30):
        with pytest.raises(SpoolBrokenError, match="does not answer"):
            await rig.journal.open(refused)
        assert rig.lost == [1]
        await rig.journal.stop()
    assert spool_threads()
    other = SpoolJournal(tmp_path, replica="r", clock=Clock())
    with pytest.raises(SpoolLockedError):  # its descriptors may be used yet
        other.start()
    stuck.set()
    async with asyncio.timeout(30):
        while spool_threads():
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)  # its last word is on its way to the loop
    assert rig.lost == [1]
    assert not rig.on_disk(refused)
    assert rig.journal._directory is not None
    rig.journal._directory.close()  # as the end of the process does
    other.start()
    assert other.recovery.abandoned == 0
    await other.stop()
