"""Reading durable records in their order, segment by segment, while a writer goes on."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from terrace_gateway.spool.framing import MAGIC, Frame, FrameKind, decode_frame
from terrace_gateway.spool.segments import Segment, SpoolDirectory

READ_BYTES = 1024 * 1024
MAX_RECORDS = 1000
STEP_BYTES, STEP_RECORDS = 32 * 1024, 32
"""What is decoded in one go: about 0.1 ms, in which nobody else runs."""
FEW_BYTES = 512 * 1024
"""That much was written a moment ago and is in memory still: no thread is needed to read it."""


_NO_RECORDS = frozenset({FrameKind.HEADER, FrameKind.HOLE})


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one writer. ``finished`` are segments that hold nothing further."""

    writer: str
    frames: tuple[Frame, ...]
    finished: tuple[int, ...]


class SpoolReader:
    """Remembers where it is. Bounded memory: it reads ``READ_BYTES`` at a time."""

    def __init__(self, directory: SpoolDirectory) -> None:
        self._directory = directory
        self._number = 0
        self._offset = 0

    def next_batch(self) -> Batch | None:
        """The next durable records, at most ``MAX_RECORDS`` and about ``READ_BYTES``; ``None``:
        there are none now."""
        *_, batch = self._steps()
        return batch

    async def next_batch_beside(self) -> Batch | None:
        """``next_batch`` for an event loop that has other work: a little at a time, or in a
        thread if the disk may be asked for much."""
        if self.behind_bytes > FEW_BYTES:
            return await asyncio.to_thread(self.next_batch)
        batch = None
        for step in self._steps():
            batch = step
            await asyncio.sleep(0)
        return batch

    def _steps(self) -> Iterator[Batch | None]:
        """``None`` after each step that leaves work, and the batch last."""
        finished: list[int] = []
        frames: list[Frame] = []
        writer = ""
        size = 0
        while True:
            segment = self._segment()
            if segment is None:
                break
            if frames and segment.writer != writer:
                break
            writer = segment.writer
            # A newer segment exists only after everything of this one was written and synced.
            complete = self._has_newer(segment.number)
            while len(frames) < MAX_RECORDS and size < READ_BYTES:
                before = self._offset
                frames += self._read(segment, min(STEP_RECORDS, MAX_RECORDS - len(frames)))
                if self._offset == before:
                    break
                size += self._offset - before
                yield None
            complete = complete or bool(frames and frames[-1].kind is FrameKind.SEAL)
            if (
                len(frames) >= MAX_RECORDS
                or size >= READ_BYTES
                or not complete
                or self._offset < segment.durable
            ):
                break
            finished.append(segment.number)
            self._number, self._offset = segment.number + 1, 0
        yield Batch(writer, tuple(frames), tuple(finished)) if frames or finished else None

    @property
    def behind_bytes(self) -> int:
        """Durable bytes that have not been read."""
        total = 0
        for segment in list(self._directory.segments.values()):
            if segment.number > self._number:
                total += segment.durable
            elif segment.number == self._number:
                total += max(0, segment.durable - self._offset)
        return total

    def _segment(self) -> Segment | None:
        numbers = [number for number in list(self._directory.segments) if number >= self._number]
        if not numbers:
            return None
        number = min(numbers)
        if number != self._number:
            self._number, self._offset = number, 0
        return self._directory.segments.get(number)

    def _has_newer(self, number: int) -> bool:
        return any(other > number for other in list(self._directory.segments))

    def _read(self, segment: Segment, most: int) -> list[Frame]:
        end = segment.durable  # moves meanwhile; what it was is a whole frame's end
        data = segment.read(self._offset, min(STEP_BYTES, end - self._offset))
        frames: list[Frame] = []
        position = 0
        while len(frames) < most:
            found = decode_frame(data, position)
            if found is None:
                for size in (READ_BYTES, end - self._offset):  # one large frame
                    if position == 0 and found is None and self._offset + len(data) < end:
                        data = segment.read(self._offset, min(size, end - self._offset))
                        found = decode_frame(data, 0)
                if found is None:
                    if self._offset + len(data) < end:
                        break  # cut by the size of the read
                    position = self._skip(data, position)
                    if position >= len(data):
                        break
                    continue
            frame, position = found
            if frame.kind not in _NO_RECORDS:
                frames.append(frame)
        self._offset += position
        return frames

    def _skip(self, data: bytes, position: int) -> int:
        """Past what is unreadable: the next whole frame, or the end."""
        probe = data.find(MAGIC, position + 1)
        while probe >= 0:
            if decode_frame(data, probe) is not None:
                return probe
            probe = data.find(MAGIC, probe + 1)
        return len(data)
