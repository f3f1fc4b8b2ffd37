"""Reading durable records in their order, segment by segment, while a writer goes on."""

from dataclasses import dataclass

from terrace_gateway.spool.framing import MAGIC, Frame, FrameKind, decode_frame
from terrace_gateway.spool.segments import Segment, SpoolDirectory

READ_BYTES = 1024 * 1024
MAX_RECORDS = 1000


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
        """The next durable records, at most ``MAX_RECORDS``; ``None``: there are none now."""
        finished: list[int] = []
        frames: list[Frame] = []
        writer = ""
        while True:
            segment = self._segment()
            if segment is None:
                break
            if frames and segment.writer != writer:
                break
            writer = segment.writer
            # A newer segment exists only after everything of this one was written and synced.
            complete = self._has_newer(segment.number)
            frames += self._read(segment, MAX_RECORDS - len(frames))
            complete = complete or bool(frames and frames[-1].kind is FrameKind.SEAL)
            if len(frames) >= MAX_RECORDS or not complete or self._offset < segment.durable:
                break
            finished.append(segment.number)
            self._number, self._offset = segment.number + 1, 0
        if not frames and not finished:
            return None
        return Batch(writer, tuple(frames), tuple(finished))

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
        end = segment.durable
        data = segment.read(self._offset, READ_BYTES)
        frames: list[Frame] = []
        position = 0
        while len(frames) < most:
            found = decode_frame(data, position)
            if found is None:
                if position == 0 and self._offset + len(data) < end:
                    data = segment.read(self._offset, end - self._offset)  # one large frame
                    found = decode_frame(data, 0)
                if found is None:
                    if self._offset + len(data) < end:
                        break  # cut by the size of the read
                    position = self._skip(data, position)
                    if position >= len(data):
                        break
                    continue
            frame, position = found
            if frame.kind is not FrameKind.HEADER:
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
