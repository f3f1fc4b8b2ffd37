"""The bill's file: torn tails, garbage, a second writer, a full disk, shared syncs."""

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from terrace_model_simulator.append_log import (
    AppendLog,
    LogCorruptError,
    LogLockedError,
    LogUnavailableError,
    Record,
)


def record(number: int) -> Record:
    return {"record": "open", "seq": number}


async def write(path: Path, *numbers: int) -> None:
    log = AppendLog(path, ignore, reserve_bytes=0)
    log.start()
    try:
        for number in numbers:
            await log.append(record(number))
    finally:
        log.close()


def read(path: Path) -> list[Record]:
    records: list[Record] = []
    AppendLog(path, records.append, reserve_bytes=0).close()
    return records


def ignore(record: Record) -> None:
    """For logs whose records do not matter."""


async def test_what_was_appended_is_read_again_in_order(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "bill.jsonl"
    await write(path, 1, 2)
    await write(path, 3)
    assert [item["seq"] for item in read(path)] == [1, 2, 3]


async def test_a_file_cut_at_any_byte_keeps_every_whole_record(tmp_path: Path) -> None:
    path = tmp_path / "bill.jsonl"
    await write(path, 1, 2, 3)
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        kept = [item["seq"] for item in read(path)]
        assert kept == [1, 2, 3][: whole[:cut].count(b"\n")]
        await write(path, 9)
        assert [item["seq"] for item in read(path)] == [*kept, 9]


@pytest.mark.parametrize("tail", [b"\0" * 300, b"\0\n\0\n", b'{"record":"op', b"{}\n", b"\xff\n"])
async def test_an_unreadable_tail_is_cut_off(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "bill.jsonl"
    await write(path, 1)
    good = path.read_bytes()
    path.write_bytes(good + tail)
    records: list[Record] = []
    log = AppendLog(path, records.append, reserve_bytes=0)
    log.close()
    assert (records, log.torn_bytes) == ([record(1)], len(tail))
    assert path.read_bytes() == good


async def test_garbage_before_a_record_is_not_cut_off_but_named(tmp_path: Path) -> None:
    path = tmp_path / "bill.jsonl"
    await write(path, 1, 2, 3)
    lines = path.read_bytes().splitlines(keepends=True)
    content = lines[0] + b"garbage\n" + lines[2]
    path.write_bytes(content)
    with pytest.raises(LogCorruptError, match=r"bill\.jsonl, line 2"):
        AppendLog(path, ignore, reserve_bytes=0)
    assert path.read_bytes() == content


async def test_a_second_writer_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "bill.jsonl"
    first = AppendLog(path, ignore, reserve_bytes=0)
    with pytest.raises(LogLockedError):
        AppendLog(path, ignore, reserve_bytes=0)
    first.close()
    AppendLog(path, ignore, reserve_bytes=0).close()


async def test_lines_that_wait_share_a_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = 0
    real = os.fdatasync

    def counted(fd: int) -> None:
        nonlocal syncs
        syncs += 1
        real(fd)

    monkeypatch.setattr(os, "fdatasync", counted)
    path = tmp_path / "bill.jsonl"
    log = AppendLog(path, ignore, reserve_bytes=0)
    waiting = [asyncio.ensure_future(log.append(record(number))) for number in range(200)]
    await asyncio.sleep(0)
    log.start()
    await asyncio.gather(*waiting)
    log.close()
    assert syncs == 1
    assert len(read(path)) == 200


def failing_write(times: int, code: int) -> Callable[[int, bytes], int]:
    """``os.write`` that stops in the middle of a line, ``times`` times over."""
    real, left = os.write, times

    def write(fd: int, data: bytes) -> int:
        nonlocal left
        if left == 0:
            return real(fd, data)
        if len(data) > 5:
            return real(fd, bytes(data)[: len(data) // 2])
        left -= 1
        raise OSError(code, os.strerror(code))

    return write


async def test_a_line_that_does_not_fit_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bill.jsonl"
    log = AppendLog(path, ignore, reserve_bytes=0)
    log.start()
    await log.append(record(1))
    monkeypatch.setattr(os, "write", failing_write(1, errno.ENOSPC))
    with pytest.raises(LogUnavailableError, match="No space left"):
        await log.append(record(2))
    await log.append(record(3))
    log.close()
    assert [item["seq"] for item in read(path)] == [1, 3]


async def test_essential_lines_get_the_reserve_and_others_wait_for_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bill.jsonl"
    reserve = tmp_path / "bill.jsonl.reserve"
    log = AppendLog(path, ignore, reserve_bytes=4096)
    log.start()
    await log.append(record(1))
    assert reserve.stat().st_size == 4096

    monkeypatch.setattr(os, "write", failing_write(1, errno.ENOSPC))
    await log.append(record(2), essential=True)
    assert not reserve.exists()

    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(LogUnavailableError, match="reserve"):
            await log.append(record(3))
        await log.append(record(4), essential=True)
    await log.append(record(5))
    assert reserve.stat().st_size == 4096
    log.close()
    assert [item["seq"] for item in read(path)] == [1, 2, 4, 5]


async def test_after_a_failed_sync_nothing_is_taken_until_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bill.jsonl"
    log = AppendLog(path, ignore, reserve_bytes=0)
    log.start()
    await log.append(record(1))

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", broken)
        with pytest.raises(LogUnavailableError, match="restart needed"):
            await log.append(record(2))
    with pytest.raises(LogUnavailableError, match="restart needed"):
        await log.append(record(3), essential=True)
    log.close()
    await write(path, 4)
    assert [item["seq"] for item in read(path)][-1] == 4


async def test_a_closed_log_takes_nothing(tmp_path: Path) -> None:
    log = AppendLog(tmp_path / "bill.jsonl", ignore, reserve_bytes=0)
    log.start()
    log.close()
    log.close()
    with pytest.raises(LogUnavailableError):
        await log.append(record(1))
