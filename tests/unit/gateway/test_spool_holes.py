"""Holes of a last write that power cut: found once, covered, and never taken for damage."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terrace_gateway.spool.framing import (
    FRAME_BYTES,
    MAX_PAYLOAD_BYTES,
    Frame,
    FrameKind,
    cover,
    scan,
)
from terrace_gateway.spool.reader import SpoolReader
from terrace_gateway.spool.records import open_fields
from terrace_gateway.spool.recovery import Recovery, recover
from terrace_gateway.spool.spool_log import spool_directory

from .spool_world import AT, closed, new_log, opened


def start(path: Path) -> tuple[Recovery, list[Frame]]:
    """What a start finds, and what is there to be shipped afterwards."""
    directory = spool_directory(path)
    found = recover(directory, replica="r", at=AT)
    reader, frames = SpoolReader(directory), list[Frame]()
    while (batch := reader.next_batch()) is not None:
        frames += batch.frames
    directory.close()
    return found, frames


def lose(path: Path, begin: int, end: int) -> None:
    """Bytes that never reached the disk, while later ones did."""
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(bytes(end - begin))


@given(st.integers(FRAME_BYTES, 5000))
def test_a_cover_is_as_large_as_its_hole(size: int) -> None:
    found = scan(cover(size))
    assert (found.end, found.holes, found.damage, found.torn) == (size, (), (), 0)
    assert {frame.kind for _, frame in found.frames} == {FrameKind.HOLE}


@pytest.mark.parametrize("more", [-1, 0, 1, FRAME_BYTES - 1, FRAME_BYTES, MAX_PAYLOAD_BYTES])
def test_a_large_hole_has_a_cover_too(more: int) -> None:
    size = MAX_PAYLOAD_BYTES + more
    assert scan(cover(size)).end == size


@pytest.mark.parametrize("seed", range(30))
def test_a_hole_that_one_start_has_found_is_no_damage_to_the_next(
    tmp_path: Path, seed: int
) -> None:
    """What the first start appends says that its file was synced, also where the hole is."""
    chance = random.Random(seed)
    directory, log = new_log(tmp_path)
    for number in range(4):
        log.open(open_fields(opened(f"durable{number}")))
    log.sync()
    for number in range(chance.randrange(2, 20)):
        log.open(open_fields(opened(f"a{number}")))
        if chance.random() < 0.5:
            log.close(closed(f"a{number}"), AT)
    log.write()
    (segment,) = directory.segments.values()
    directory.close()
    ends = [end for end, _ in scan(segment.path.read_bytes()).frames]
    first = next(n for n, end in enumerate(ends) if end == segment.durable)
    begin = chance.randrange(segment.durable, ends[-2])
    end = chance.randrange(begin + 1, ends[-2] + 1)
    assert first < len(ends) - 1
    lose(segment.path, begin, end)

    found, shipped = start(tmp_path)
    assert found.torn_bytes
    again, left = start(tmp_path)
    for one in (found, again):
        assert (one.damage, one.damaged_writers) == ([], set())
    assert (again.abandoned, again.torn_bytes) == (0, 0)
    assert left == shipped
    assert FrameKind.HOLE not in {frame.kind for frame in left}
    opens = {frame.key for frame in left if frame.kind is FrameKind.OPEN}
    assert {f"durable{n}" for n in range(4)} <= opens
    assert opens <= {frame.key for frame in left if frame.is_entry}


def test_a_new_file_that_lost_its_beginning_is_no_damage_to_the_one_before(
    tmp_path: Path,
) -> None:
    directory, log = new_log(tmp_path, segment_bytes=16 * 1024)
    number = 0
    while len(directory.segments) < 2:
        log.sync()
        log.open(open_fields(opened(f"a{number}")))
        log.close(closed(f"a{number}"), AT)
        number += 1
    log.open(open_fields(opened("behind")))
    log.write()
    directory.close()
    newest = directory.path / max(path.name for path in tmp_path.glob("*.spool"))
    ends = [end for end, _ in scan(newest.read_bytes()).frames]
    lose(newest, 0, ends[-2])
    for _ in range(2):
        found, left = start(tmp_path)
        assert (found.damage, found.damaged_writers) == ([], set())
    assert "behind" in {frame.key for frame in left if frame.is_entry}


def test_a_seal_whose_group_lost_a_close_does_not_leave_its_attempt_open(tmp_path: Path) -> None:
    """Its incarnation gets its credit back when the seal is shipped: the attempt must count."""
    directory, log = new_log(tmp_path)
    log.open(open_fields(opened("lost")))
    log.sync()
    log.close(closed("lost"), AT)
    log.seal()
    log.write()
    (segment,) = directory.segments.values()
    directory.close()
    ends = [end for end, _ in scan(segment.path.read_bytes()).frames]
    lose(segment.path, segment.durable, ends[-2])
    found, left = start(tmp_path)
    assert (found.abandoned, found.damage) == (1, [])
    # One seal: a batch that ends with another would close the incarnation before the entry counts.
    assert [frame.kind for frame in left] == [FrameKind.OPEN, FrameKind.ENTRY, FrameKind.SEAL]
    again, unchanged = start(tmp_path)
    assert (again.abandoned, again.damage, unchanged) == (0, [], left)


def test_what_was_durable_and_cannot_be_read_is_damage_beside_a_hole_too(tmp_path: Path) -> None:
    directory, log = new_log(tmp_path)
    for number in range(3):
        log.open(open_fields(opened(f"durable{number}")))
        log.sync()
    for number in range(3):
        log.open(open_fields(opened(f"a{number}")))
    log.write()
    (segment,) = directory.segments.values()
    directory.close()
    ends = [end for end, _ in scan(segment.path.read_bytes()).frames]
    lose(segment.path, ends[1], ends[2])
    lose(segment.path, ends[-3], ends[-2])
    found, _ = start(tmp_path)
    assert found.damage == [f"{segment.path.name}, bytes {ends[1]} to {ends[2]}"]
    again, _ = start(tmp_path)
    assert again.damage == found.damage
