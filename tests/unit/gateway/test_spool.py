"""The spool's files: what was durable is read back, whatever happens to the end of a file."""

import errno
import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from terrace_gateway.calls.ports import (
    Charge,
    SpoolFullError,
    Usage,
)
from terrace_gateway.spool.framing import Frame, FrameKind, encode_frame, read_frames, scan
from terrace_gateway.spool.reader import SpoolReader
from terrace_gateway.spool.records import (
    canonical_bytes,
    close_fields,
    close_room,
    genesis_hash,
    open_fields,
)
from terrace_gateway.spool.recovery import recover
from terrace_gateway.spool.segments import Segment, SpoolDirectory, SpoolLockedError
from terrace_gateway.spool.spool_log import SpoolLog, spool_directory

from .spool_world import AT, assert_chain_is_whole, closed, frames_of, new_log, opened

# --- framing -------------------------------------------------------------------------------------

frames = st.builds(
    Frame,
    kind=st.sampled_from(FrameKind), number=st.integers(0, 2**40), durable=st.just(0),
    seq=st.integers(0, 2**40), previous=st.binary(min_size=32, max_size=32),
    hash=st.binary(min_size=32, max_size=32), key=st.text(max_size=40),
    body=st.binary(max_size=300),
)  # fmt: skip


@given(st.lists(frames, max_size=8), st.integers(0, 200))
def test_frames_are_read_back(written: list[Frame], zeros: int) -> None:
    data = b"".join(map(encode_frame, written))
    assert [frame for _, frame in read_frames(data + bytes(zeros))] == written
    found = scan(data + bytes(zeros))
    assert (found.end, found.damage, found.torn) == (len(data), (), 0)


@given(st.lists(frames, min_size=1, max_size=6), st.data())
def test_a_cut_file_holds_its_whole_frames(written: list[Frame], data: st.DataObject) -> None:
    parts = [encode_frame(frame) for frame in written]
    whole = b"".join(parts)
    cut = data.draw(st.integers(0, len(whole)))
    found = scan(whole[:cut])
    ends = [sum(map(len, parts[: n + 1])) for n in range(len(parts))]
    assert [frame for _, frame in found.frames] == [
        frame for frame, end in zip(written, ends, strict=True) if end <= cut
    ]
    assert found.damage == ()


@given(st.lists(frames, min_size=1, max_size=6), st.data())
def test_a_changed_byte_never_makes_another_frame(
    written: list[Frame], data: st.DataObject
) -> None:
    whole = bytearray(b"".join(map(encode_frame, written)))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    found = [frame for _, frame in scan(bytes(whole)).frames]
    assert len(found) == len(written) - 1
    assert all(frame in written for frame in found)


def test_damage_before_the_synced_mark_is_told_from_a_torn_tail() -> None:
    first = encode_frame(Frame(FrameKind.OPEN, 1, 0, 0, bytes(32), bytes(32), "a", b"{}"))
    second = encode_frame(Frame(FrameKind.OPEN, 2, len(first), 0, bytes(32), bytes(32), "b", b"{}"))
    torn = scan(first + second[:-1])
    assert (torn.end, torn.damage, torn.torn) == (len(first), (), len(second) - 1)
    damaged = scan(b"\x01" + first[1:] + second)
    assert damaged.damage == ((0, len(first)),)
    assert [frame.key for _, frame in damaged.frames] == ["b"]


# --- room ----------------------------------------------------------------------------------------

texts = st.text(max_size=600)
charges = st.lists(
    st.builds(
        Charge, st.integers(0, 2**62), st.sampled_from(["micro_usd", "requests", "total_tokens"]),
        st.integers(0, 2**62),
    ), max_size=12,
)  # fmt: skip


@settings(max_examples=300)
@given(texts, texts, charges, st.integers(0, 2**62), texts)
def test_every_close_fits_into_its_room(
    clamped: str, model: str, held: list[Charge], number: int, upstream_id: str
) -> None:
    record = opened("a" * 40, tuple(held), clamped=clamped, model=model, images=number)
    fields = open_fields(record)
    room = close_room(fields, canonical_bytes(fields))
    settled = tuple(Charge(2**62, "output_tokens", 2**62) for _ in held)
    close = closed(
        "a" * 40, settled, outcome="client_cancelled", usage_source="provider_log",
        usage=Usage(number, number, number, number, number), amount_micro_usd=number,
        latency_ms=number, first_byte_ms=number, upstream_request_id=upstream_id,
    )  # fmt: skip
    body = canonical_bytes(
        close_fields(fields, close, AT)
        | {"writer": "w-" + "0" * 16, "seq": 2**62, "replica": "r" * 128}
    )
    assert (
        len(encode_frame(Frame(FrameKind.FINAL, 1, 0, 1, bytes(32), bytes(32), "a" * 40, body)))
        <= room
    )


def fill(log: SpoolLog) -> list[str]:
    """Open attempts until the volume is full."""
    names: list[str] = []
    while True:
        name = f"a{len(names)}"
        try:
            log.open(open_fields(opened(name)))
        except SpoolFullError:
            log.sync()
            return names
        names.append(name)
        if len(names) % 10 == 0:
            log.sync()


def test_a_full_volume_refuses_opens_and_takes_every_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, log = new_log(tmp_path, segment_bytes=64 * 1024)
    room = [400_000]
    real = os.posix_fallocate

    def fallocate(fd: int, offset: int, length: int) -> None:
        if length > room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        room[0] -= length
        real(fd, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    names = fill(log)
    assert len(names) > 50
    room[0] = 0
    for name in names:
        assert log.close(closed(name), AT)
    log.sync()
    assert all(segment.written <= segment.allocated for segment in directory.segments.values())
    directory.close()
    found = frames_of(tmp_path)
    assert [frame.key for frame in found if frame.kind is FrameKind.FINAL] == names
    assert_chain_is_whole(found)


def test_the_limit_of_the_spool_is_a_full_volume(tmp_path: Path) -> None:
    directory, log = new_log(tmp_path, limit_bytes=3_000_000)
    names = fill(log)
    assert directory.allocated <= 3_000_000
    for name in names:
        log.close(closed(name), AT)
    log.sync()
    assert directory.allocated <= 3_000_000
    directory.close()


def test_a_close_with_more_charges_than_room_counts_as_its_reservation(tmp_path: Path) -> None:
    directory, log = new_log(tmp_path, limit_bytes=1_200_000)
    fill(log)
    many = tuple(Charge(n, "micro_usd", 2**60) for n in range(100))
    assert log.close(closed("a0", many), AT)
    log.sync()
    assert all(s.written <= s.allocated for s in directory.segments.values())
    directory.close()
    entry = next(frame for frame in frames_of(tmp_path) if frame.is_entry)
    assert b'"kind":"unknown"' in entry.body
    assert b'"amount_micro_usd":900' in entry.body


# --- lock, rotation, release ---------------------------------------------------------------------


def test_a_second_process_is_refused_and_told_why(tmp_path: Path) -> None:
    directory, _ = new_log(tmp_path)
    with pytest.raises(SpoolLockedError, match="another process writes this spool"):
        spool_directory(tmp_path)
    directory.close()
    spool_directory(tmp_path).close()


def test_segments_go_when_they_are_shipped_and_long_attempts_are_carried(tmp_path: Path) -> None:
    directory, log = new_log(tmp_path, segment_bytes=16 * 1024)
    log.open(open_fields(opened("long")))
    for number in range(200):
        log.open(open_fields(opened(f"a{number}")))
        log.close(closed(f"a{number}"), AT)
        log.sync()
    assert len(directory.segments) > 3
    reader = SpoolReader(directory)
    shipped: list[Frame] = []
    while (batch := reader.next_batch()) is not None:
        shipped += batch.frames
        for segment in batch.finished:
            log.release(segment)
    assert len(directory.segments) == 1
    assert [frame.number for frame in shipped] == list(range(1, len(shipped) + 1))
    directory.close()
    # A kill now: the attempt that has been open all the time is known.
    directory = spool_directory(tmp_path)
    assert recover(directory, replica="r", at=AT).abandoned == 1
    directory.close()
    found = frames_of(tmp_path)
    assert [frame.key for frame in found if frame.kind is FrameKind.CARRY] == ["long"]
    assert [f.key for f in found if f.is_entry and b'"unknown"' in f.body] == ["long"]


# --- recovery ------------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(
        st.sampled_from(["open", "close", "decide", "sync", "release"]), st.integers(0, 9)
    ), max_size=40,
)  # fmt: skip


def run_steps(
    log: SpoolLog, directory: SpoolDirectory, plan: list[tuple[str, int]]
) -> dict[str, str]:
    """Returns what is durable: attempt -> open | closed."""
    durable: dict[str, str] = {}
    pending: dict[str, str] = {}
    reader = SpoolReader(directory)
    for step, number in plan:
        name = f"a{number}"
        if step == "open" and name not in log.opens:
            fields = open_fields(opened(f"{name}"))
            log.open(fields)
            pending[name] = "open"
        elif step == "close" and log.close(closed(name), AT):
            pending[name] = "closed"
        elif step == "decide":
            log.decide({"kind": "decision", "reason": name})
        elif step == "sync":
            log.sync()
            durable |= pending
            pending = {}
        elif step == "release":
            while (batch := reader.next_batch()) is not None:
                for segment in batch.finished:
                    log.release(segment)
    return durable


@settings(max_examples=150, deadline=None)
@given(steps, st.integers(0, 2**32), st.booleans())
def test_after_a_kill_what_was_durable_is_there_and_every_open_is_closed(
    plan: list[tuple[str, int]], seed: int, garbage: bool
) -> None:
    """Whatever the unsynced tail looks like: cut anywhere, or garbage behind what was synced."""
    import tempfile

    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        directory, log = new_log(path, segment_bytes=8 * 1024)
        durable = run_steps(log, directory, plan)
        current = log.current
        if current is not None and log._buffer:
            tail = b"".join(log._buffer)
            tail = tail[: chance.randrange(len(tail) + 1)]
            if garbage:
                tail += chance.randbytes(chance.randrange(200))
            os.pwrite(current.fd, tail, current.written)
        directory.close()

        directory = spool_directory(path)
        found = recover(directory, replica="r", at=AT)
        assert found.damage == []
        again = recover(directory, replica="r", at=AT)  # killed while it recovered: the same
        assert again.abandoned == 0
        directory.close()

        left = frames_of(path)
        assert_chain_is_whole(left)
        if left:
            assert left[-1].kind is FrameKind.SEAL
        carried = {f.key for f in left if f.kind in (FrameKind.OPEN, FrameKind.CARRY)}
        ended: dict[str, int] = {}
        for frame in left:
            if frame.is_entry and frame.key:
                ended[frame.key] = ended.get(frame.key, 0) + 1
        assert carried <= set(ended)
        assert {name for name, state in durable.items() if state == "open"} <= set(ended)


@pytest.mark.parametrize("seed", range(20))
def test_damage_to_durable_records_is_named_and_the_rest_counts(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    directory, log = new_log(tmp_path, segment_bytes=16 * 1024)
    for number in range(100):
        log.open(open_fields(opened(f"a{number}")))
        log.close(closed(f"a{number}"), AT)
        log.sync()
    segment = chance.choice(list(directory.segments.values())[:-1])
    place = chance.randrange(segment.written - 2000)
    os.pwrite(segment.fd, chance.randbytes(40), place)
    name = segment.path.name
    directory.close()
    directory = spool_directory(tmp_path)
    found = recover(directory, replica="r", at=AT)
    assert found.damaged_segments == {segment.number}
    assert all(place.startswith(name) for place in found.damage)
    reader = SpoolReader(directory)
    read: list[Frame] = []
    while (batch := reader.next_batch()) is not None:
        read += batch.frames
    entries = sum(frame.is_entry for frame in read)
    assert 97 <= entries <= 100
    directory.close()


def test_a_dead_writers_chain_is_gone_on_with(tmp_path: Path) -> None:
    directory, log = new_log(tmp_path)
    log.act_for(7)
    log.open(open_fields(opened("a", (Charge(3, "micro_usd", 900), Charge(4, "concurrency", 1)))))
    log.open(open_fields(opened("b")))
    log.close(closed("b"), AT)
    log.sync()
    writer = log.chain.writer
    directory.close()
    directory = spool_directory(tmp_path)
    found = recover(directory, replica="r", at=AT)
    assert found.incarnations == {writer: [7, 1]}
    directory.close()
    entries = [frame for frame in frames_of(tmp_path) if frame.is_entry]
    assert [frame.seq for frame in entries] == [1, 2]
    assert entries[0].previous == genesis_hash(writer)
    assert entries[1].previous == entries[0].hash
    assert b'"charges":[[3,"micro_usd",900]]' in entries[1].body
    assert b'"outcome":"unknown"' in entries[1].body


def test_a_failed_write_leaves_the_segment_as_it_was(tmp_path: Path) -> None:
    directory = spool_directory(tmp_path)
    segment = directory.create("w-" + "0" * 16, 4096)
    os.close(segment.fd)
    read_only = os.open(segment.path, os.O_RDONLY)
    broken = Segment(segment.number, segment.writer, segment.path, read_only, 0, 0, 4096)
    with pytest.raises(OSError, match="Bad file descriptor"):
        broken.write(b"x")
    assert broken.written == 0
    directory.segments[segment.number] = broken
    directory.close()
