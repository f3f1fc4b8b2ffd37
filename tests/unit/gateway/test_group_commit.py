"""Group commits, and the two ways in which a volume is synced."""

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import pytest

from terrace_gateway.calls.ports import Decision
from terrace_gateway.spool import syncing
from terrace_gateway.spool.group_commit import MakeSyncer, SpoolBrokenError
from terrace_gateway.spool.segments import Segment
from terrace_gateway.spool.syncing import KernelSyncer, Syncer, ThreadSyncer, best_syncer

from .spool_world import BOTH, Rig, close_record, open_record


@pytest.fixture
def executor() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as made:
        yield made


async def synced_by(syncer: Syncer, fd: int) -> OSError | None:
    told: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
    try:
        syncer.sync(fd, told.set_result)
    except OSError as error:
        return error
    async with asyncio.timeout(30):
        return await told


@BOTH
async def test_a_sync_ends_and_names_what_the_kernel_answers(
    make_syncer: MakeSyncer, executor: Executor, tmp_path: Path
) -> None:
    with (tmp_path / "file").open("wb") as file:
        syncer = make_syncer(asyncio.get_running_loop(), executor, file.fileno())
        for _ in range(50):
            os.write(file.fileno(), b"x" * 100)
            assert await synced_by(syncer, file.fileno()) is None
        reading, writing = os.pipe()
        error = await synced_by(syncer, writing)  # a pipe cannot be synced
        assert error is not None
        assert error.errno == 22
        assert await synced_by(syncer, file.fileno()) is None
        syncer.close()
        os.close(reading)
        os.close(writing)


async def test_where_the_kernel_has_no_asynchronous_sync_a_thread_does_it(
    executor: Executor, tmp_path: Path
) -> None:
    loop = asyncio.get_running_loop()
    with (tmp_path / "file").open("wb") as file:
        best = best_syncer(loop, executor, file.fileno())
        assert isinstance(best, KernelSyncer)
        best.close()
        reading, writing = os.pipe()
        fallen_back = best_syncer(loop, executor, writing)
        os.close(reading)
        os.close(writing)
        assert isinstance(fallen_back, ThreadSyncer)
        assert await synced_by(fallen_back, file.fileno()) is None


async def test_where_no_context_can_be_had_a_thread_does_it(
    executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: int) -> None:
        raise SystemError("Resource temporarily unavailable")

    monkeypatch.setattr(syncing, "Context", refuse)
    with (tmp_path / "file").open("wb") as file:
        syncer = best_syncer(asyncio.get_running_loop(), executor, file.fileno())
        assert isinstance(syncer, ThreadSyncer)


@BOTH
async def test_a_volume_that_fails_a_sync_is_never_trusted_again(
    make_syncer: MakeSyncer, tmp_path: Path
) -> None:
    rig = Rig(tmp_path, make_syncer)
    journal, first = rig.journal, open_record()
    await journal.open(first)
    await journal.open(open_record())
    assert rig.disk is not None
    rig.disk.error = OSError(5, "Input/output error")
    with pytest.raises(SpoolBrokenError, match="restart this replica"):
        await journal.open(open_record())
    rig.disk.error = None
    with pytest.raises(SpoolBrokenError):
        await journal.close(close_record(first))
    assert journal.broken is not None
    await journal.stop()


def noted(rig: Rig, *details: str) -> None:
    for detail in details:
        rig.journal.note(Decision("deny", "policy_denied", {"why": detail}, "req", "", None))


@BOTH
async def test_decisions_of_a_group_that_broke_are_counted_as_dropped(
    make_syncer: MakeSyncer, tmp_path: Path
) -> None:
    rig = Rig(tmp_path, make_syncer)
    await rig.journal.open(open_record())
    noted(rig, "kept")
    rig.journal._queue_notes()
    await rig.journal.open(open_record())
    assert rig.lost == []
    assert rig.disk is not None
    rig.disk.error = OSError(5, "Input/output error")
    noted(rig, "a", "a", "a", "b")
    rig.journal._queue_notes()
    with pytest.raises(SpoolBrokenError):
        await rig.journal.open(open_record())
    assert rig.lost == [4]
    noted(rig, "late", "late")
    await rig.journal.stop()
    assert rig.lost == [4, 2]


@BOTH
async def test_decisions_that_were_applied_before_their_group_broke_are_counted_too(
    make_syncer: MakeSyncer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, make_syncer)

    def fail(self: Segment, data: bytes) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Segment, "write", fail)
    noted(rig, "a", "b", "b")
    with pytest.raises(SpoolBrokenError):
        await rig.journal.seal()
    assert rig.lost == [3]
    await rig.journal.stop()


@BOTH
async def test_decisions_without_room_are_counted_each(
    make_syncer: MakeSyncer, tmp_path: Path
) -> None:
    rig = Rig(tmp_path, make_syncer, limit_bytes=0)
    noted(rig, "a", "a", "b")
    await rig.journal.seal()
    assert (rig.lost, rig.refusals, rig.journal.broken) == ([3], 0, None)
    await rig.journal.stop()


@BOTH
async def test_the_thread_s_own_sync_may_fail_as_well(
    make_syncer: MakeSyncer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first record makes the file, and so it is committed in the thread."""

    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    rig = Rig(tmp_path, make_syncer)
    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(SpoolBrokenError, match="Input/output error"):
        await rig.journal.open(open_record())
    assert rig.journal.broken is not None
    await rig.journal.stop()


@pytest.mark.parametrize("count", [2, 30, 300])
@pytest.mark.parametrize("files", [False, True], ids=["open", "release"])
@BOTH
async def test_a_group_that_fails_in_its_middle_is_durable_for_nobody(
    make_syncer: MakeSyncer,
    files: bool,
    count: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A new segment is begun after the old one is synced: what was applied before that in the same
    group was answered as durable once, and had never left the process."""
    rig = Rig(tmp_path, make_syncer, segment_bytes=64 * 1024)
    journal = rig.journal
    for _ in range(40):
        record = open_record()
        await journal.open(record)
        await journal.close(close_record(record))

    def fail(self: Segment, data: bytes) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Segment, "write", fail)
    records = [open_record() for _ in range(count)]
    asked = [journal.open(record) for record in records]
    if files:
        asked.append(asyncio.ensure_future(journal.release((1,))))
    results = await asyncio.gather(*asked, return_exceptions=True)
    monkeypatch.undo()
    assert [type(result) for result in results[:count]] == [SpoolBrokenError] * count
    assert not any(rig.on_disk(record) for record in records)
    await journal.stop()


@BOTH
async def test_what_is_appended_during_a_sync_shares_the_next_one(
    make_syncer: MakeSyncer, tmp_path: Path
) -> None:
    rig = Rig(tmp_path, make_syncer)
    disk, journal = rig.disk, rig.journal
    assert disk is not None
    await journal.open(open_record())  # makes the file
    before, disk.held = disk.asked, []
    first = journal.open(open_record())
    while not disk.held:
        await asyncio.sleep(0)
    others = [journal.open(open_record()) for _ in range(50)]
    for _ in range(20):
        await asyncio.sleep(0)  # the loop goes on, and nobody is told before the disk is
    assert not first.done()
    assert not any(other.done() for other in others)
    held, disk.held = disk.held, None
    held[0]()
    await asyncio.gather(first, *others)
    assert disk.asked - before == 2
    await journal.stop()


@BOTH
async def test_who_leaves_does_not_take_a_record_along(
    make_syncer: MakeSyncer, tmp_path: Path
) -> None:
    rig = Rig(tmp_path, make_syncer)
    record = open_record()
    waiting = asyncio.ensure_future(rig.journal.open(record))
    await asyncio.sleep(0)
    waiting.cancel()
    await rig.journal.open(open_record())
    assert rig.on_disk(record)
    assert rig.journal.open_attempts == 2
    await rig.journal.stop()


@BOTH
async def test_what_was_appended_is_written_before_the_end_and_nothing_after_it(
    make_syncer: MakeSyncer, tmp_path: Path
) -> None:
    rig = Rig(tmp_path, make_syncer)
    records = [open_record() for _ in range(20)]
    appended = [rig.journal.open(record) for record in records]
    await rig.journal.stop()
    assert all(done.done() and done.exception() is None for done in appended)
    assert all(rig.on_disk(record) for record in records)
    with pytest.raises(SpoolBrokenError, match="not running"):
        await rig.journal.open(open_record())
    assert not [t for t in threading.enumerate() if t.name.startswith("spool")]


@BOTH
async def test_files_are_made_and_deleted_in_the_thread_only(
    make_syncer: MakeSyncer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for the disk, and the event loop has others to serve."""
    in_loop: list[str] = []
    loop_thread = threading.get_ident()

    def watch(name: str) -> None:
        real = getattr(os, name)

        def watched(*args: object, **more: object) -> object:
            if threading.get_ident() == loop_thread:
                in_loop.append(name)
            return real(*args, **more)

        monkeypatch.setattr(os, name, watched)

    rig = Rig(tmp_path, make_syncer, segment_bytes=256 * 1024)
    for name in ("fsync", "fdatasync", "posix_fallocate", "ftruncate", "unlink"):
        watch(name)

    async def caller() -> None:
        for _ in range(100):
            record = open_record()
            await rig.journal.open(record)
            await rig.journal.close(close_record(record))

    await asyncio.gather(*(caller() for _ in range(10)))
    segments = sorted(int(path.name[:12]) for path in tmp_path.glob("*.spool"))
    assert len(segments) > 3
    while (batch := rig.journal.reader.next_batch()) is not None and batch.frames:
        pass
    await rig.journal.release(tuple(segments[:-1]))
    assert len(list(tmp_path.glob("*.spool"))) == 1
    assert in_loop == []
    monkeypatch.undo()
    await rig.journal.stop()


@pytest.mark.parametrize("filled", [False, True], ids=["room", "full segment"])
@BOTH
async def test_a_broken_spool_is_not_written_again(
    make_syncer: MakeSyncer, filled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was refused must not become durable behind the back of who was told so."""
    rig = Rig(tmp_path, make_syncer, segment_bytes=64 * 1024)
    for _ in range(60 if filled else 1):
        record = open_record()
        await rig.journal.open(record)
        await rig.journal.close(close_record(record))

    def fail(self: Segment, data: bytes) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Segment, "write", fail)
        refused = open_record()
        with pytest.raises(SpoolBrokenError):
            await rig.journal.open(refused)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.spool")}
    for again in (
        lambda: rig.journal.release(()),
        lambda: rig.journal.open(open_record()),
        rig.journal.finish,
    ):
        with pytest.raises(SpoolBrokenError):
            await again()
    await rig.journal.stop()
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.spool")} == before
    assert not rig.on_disk(refused)


@BOTH
async def test_a_thread_that_cannot_be_started_breaks_the_spool_and_hangs_nobody(
    make_syncer: MakeSyncer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, make_syncer)

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(ThreadPoolExecutor, "submit", refuse)
        async with asyncio.timeout(30):
            with pytest.raises(SpoolBrokenError, match="can't start new thread"):
                await rig.journal.open(open_record())
    async with asyncio.timeout(30):
        await rig.journal.stop()
