"""The spool's reader: every durable record once, in order, a little at a time."""

import asyncio
import json
import random
from pathlib import Path

import pytest

from terrace_gateway.spool.framing import Frame, scan
from terrace_gateway.spool.reader import (
    FEW_BYTES,
    MAX_RECORDS,
    READ_BYTES,
    STEP_BYTES,
    STEP_RECORDS,
    SpoolReader,
)
from terrace_gateway.spool.segments import Segment

from .spool_world import new_log


@pytest.mark.parametrize("beside", [False, True])
async def test_records_of_every_size_are_read_whole_and_a_step_is_short(
    tmp_path: Path, beside: bool
) -> None:
    directory, log = new_log(tmp_path, segment_bytes=4 * 1024 * 1024)
    rng = random.Random(5)
    sizes = [0, STEP_BYTES - 100, STEP_BYTES, STEP_BYTES + 1, READ_BYTES, READ_BYTES + 1, 3_000_000]
    sizes += [rng.randrange(2_000) for _ in range(3 * MAX_RECORDS)]
    rng.shuffle(sizes)
    for size in sizes:
        log.decide({"kind": "decision", "reason": "r" * size})
        log.sync()
    reader = SpoolReader(directory)
    found: list[Frame] = []
    while True:
        batch = await reader.next_batch_beside() if beside else reader.next_batch()
        if batch is None:
            break
        assert len(batch.frames) <= MAX_RECORDS
        assert sum(len(frame.body) for frame in batch.frames) < READ_BYTES + 3_100_000
        found += batch.frames
    assert [len(json.loads(frame.body)["reason"]) for frame in found] == sizes
    assert reader.behind_bytes == 0
    assert [frame.number for frame in found] == list(range(1, len(sizes) + 1))
    directory.close()


def test_what_becomes_durable_while_a_step_is_read_is_left_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark is moved by the spool's thread, at any moment."""
    directory, log = new_log(tmp_path)
    sizes = [10, 1000, STEP_BYTES, *[1000] * 100]
    for size in sizes:
        log.decide({"kind": "decision", "reason": "r" * size})
        log.sync()
    (segment,) = directory.segments.values()
    ends = [end for end, _ in scan(segment.path.read_bytes()).frames]
    read = Segment.read

    def moved(self: Segment, offset: int, size: int) -> bytes:
        self.durable = next((end for end in ends if end > self.durable), ends[-1])
        return read(self, offset, size)

    segment.durable = ends[1]
    monkeypatch.setattr(Segment, "read", moved)
    reader = SpoolReader(directory)
    found: list[Frame] = []
    while (batch := reader.next_batch()) is not None or segment.durable < ends[-1]:
        found += [] if batch is None else batch.frames
    assert [len(json.loads(frame.body)["reason"]) for frame in found] == sizes
    directory.close()


async def test_others_have_their_turn_while_what_was_just_written_is_read(tmp_path: Path) -> None:
    directory, log = new_log(tmp_path)
    for number in range(500):
        log.decide({"kind": "decision", "reason": str(number)})
    log.sync()
    reader = SpoolReader(directory)
    assert reader.behind_bytes < FEW_BYTES
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    batch = await reader.next_batch_beside()
    other.cancel()
    assert batch is not None
    assert len(batch.frames) == 500
    assert turns >= 500 // STEP_RECORDS
    directory.close()
