"""One writer's records in segment files: an append-only log with a hash chain.

Not thread-safe: one calls it at a time. Nothing is durable before ``sync``.
"""

import json
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from terrace_gateway.calls.ports import CloseRecord, SpoolFullError
from terrace_gateway.crash_points import reach
from terrace_gateway.spool.framing import FRAME_BYTES, Frame, FrameKind, encode_frame
from terrace_gateway.spool.records import (
    Fields,
    abandoned_fields,
    canonical_bytes,
    close_fields,
    close_room,
    entry_hash,
    genesis_hash,
    is_final,
)
from terrace_gateway.spool.segments import EXTEND_BYTES, Segment, SpoolDirectory

SEGMENT_BYTES = 8 * 1024 * 1024
COMMON_BYTES = 4096
"""A record and the room for its close, as a rule less."""
MARGIN_BYTES = 64 * 1024


@dataclass(slots=True)
class OpenAttempt:
    """An attempt without a close, and the room that is held for it."""

    fields: Fields
    body: bytes
    room: int
    segment: int


@dataclass(slots=True)
class Chain:
    """Where a writer is: its last record and its last entry."""

    writer: str
    number: int = 0
    seq: int = 0
    hash: bytes = b""
    sealed: bool = False
    incarnations: list[int] = field(default_factory=list[int])

    def __post_init__(self) -> None:
        self.hash = self.hash or genesis_hash(self.writer)


class SpoolLog:
    """The log of this process. ``directory`` is open and recovered already."""

    def __init__(
        self,
        directory: SpoolDirectory,
        *,
        replica: str,
        segment_bytes: int = SEGMENT_BYTES,
        limit_bytes: int | None = None,
        chain: Chain | None = None,
    ) -> None:
        """A new writer, or with ``chain`` one that has written before."""
        self.chain = chain or Chain(f"w-{secrets.token_hex(8)}")
        self.opens: dict[str, OpenAttempt] = {}
        self.room = 0
        """Bytes held for closes."""
        self.kept: set[int] = set()
        """Numbers of segments that are damaged: they are set aside instead of deleted."""
        self._directory = directory
        self._replica = replica
        self._segment_bytes = segment_bytes
        self._extend_bytes = min(EXTEND_BYTES, segment_bytes)
        self._limit_bytes = limit_bytes
        self._current: Segment | None = None
        self._buffer: list[bytes] = []
        self._buffered = 0

    @property
    def current(self) -> Segment | None:
        """The segment that is written."""
        return self._current

    def go_on(self, segment: Segment) -> None:
        """Write behind what a dead writer left there. Its open attempts are in ``opens``."""
        self._current = segment
        self.room = sum(opened.room for opened in self.opens.values())

    def act_for(self, incarnation: int) -> None:
        """Records from now on may be of this incarnation. Raises ``SpoolFullError``."""
        if incarnation in self.chain.incarnations:
            return
        self._take_room(FRAME_BYTES + 32)
        self.chain.incarnations.append(incarnation)
        self._append(FrameKind.INCARNATION, "", str(incarnation).encode())

    def open(self, fields: Fields) -> None:
        """An open record, with room for its close. Raises ``SpoolFullError``."""
        attempt_id = str(fields["attempt_id"])
        if attempt_id in self.opens:
            raise ValueError(f"attempt {attempt_id} is open already")
        body = canonical_bytes(fields)
        room = close_room(fields, body)
        reach("spool.before-open-room")
        self._take_room(FRAME_BYTES + len(attempt_id) + len(body) + room)
        self._append(FrameKind.OPEN, attempt_id, body)
        segment = self._segment().number
        self.opens[attempt_id] = OpenAttempt(fields, body, room, segment)
        self.room += room

    def close(self, record: CloseRecord, at: datetime) -> bool:
        """The close of an open attempt, into its room. False: it is not open."""
        opened = self.opens.get(record.attempt_id)
        if opened is None:
            return False
        self._close(record.attempt_id, opened, close_fields(opened.fields, record, at), at)
        return True

    def abandon(self, attempt_id: str, at: datetime) -> None:
        """Close an open attempt as unknown. Raises ``KeyError``."""
        opened = self.opens[attempt_id]
        self._close(attempt_id, opened, abandoned_fields(opened.fields, at), at)

    def decide(self, fields: Fields) -> None:
        """An entry that is no attempt. Raises ``SpoolFullError``."""
        body = self._entry_body(fields)
        self._take_room(FRAME_BYTES + len(body))
        self._append_entry(FrameKind.ENTRY, "", body)

    def seal(self) -> None:
        """The chain's last record. Needs no room that was not held before."""
        if not self.chain.sealed and self._current is not None:
            self._append(FrameKind.SEAL, "", b"")
            self.chain.sealed = True

    def release(self, number: int) -> None:
        """All of this segment's records are in the ledger. Its open attempts are written again.

        A segment that cannot be released now (no room to carry) stays; ask again.
        """
        segment = self._directory.segments.get(number)
        if segment is None or segment is self._current:
            return
        pinned = [key for key, opened in self.opens.items() if opened.segment == number]
        try:
            for attempt_id in pinned:
                opened = self.opens[attempt_id]
                self._take_room(FRAME_BYTES + len(attempt_id) + len(opened.body))
                self._append(FrameKind.CARRY, attempt_id, opened.body)
                opened.segment = self._segment().number
        except SpoolFullError:
            return
        reach("spool.after-carry")
        self.sync()
        reach("spool.before-segment-delete")
        if number in self.kept:
            self._directory.set_aside(segment)
        else:
            self._directory.remove(segment)
        reach("spool.after-segment-delete")

    def finish(self) -> bool:
        """All records are in the ledger and the chain is sealed: nothing need stay on the disk."""
        if not self.chain.sealed or self.opens or self._current is None:
            return False
        self._directory.remove(self._current)
        self._current = None
        return True

    def sync(self) -> int:
        """Make everything durable. Returns the bytes written. Raises ``OSError``."""
        written = self.write()
        if self._current is not None and written:
            self._current.sync()
            reach("spool.after-sync")
        return written

    def write(self) -> int:
        """Give everything to the kernel, which is not durable yet. Returns how many bytes that
        were. Raises ``OSError``."""
        written = self._buffered
        if self._current is None or not written:
            return 0
        data = b"".join(self._buffer)
        reach("spool.before-write")
        self._current.write(data)
        self._buffer, self._buffered = [], 0
        reach("spool.after-write")
        return written

    def written_is_durable(self) -> None:
        """Somebody synced the current segment after the last ``write``."""
        if self._current is not None:
            self._current.durable = self._current.written
        reach("spool.after-sync")

    def has_room_for(self, records: int) -> bool:
        """Whether so many records of a common size need no new or larger file."""
        current, size = self._current, self._common_size(records)
        if current is None:
            return False
        used = current.written + self._buffered
        return used + size < self._segment_bytes and used + size + self.room <= current.allocated

    def make_room_for(self, records: int) -> None:
        """See that ``has_room_for`` so many, if the volume has it."""
        with suppress(SpoolFullError):
            self._take_room(self._common_size(records))

    def _common_size(self, records: int) -> int:
        return min(max(MARGIN_BYTES, records * COMMON_BYTES), self._segment_bytes // 2)

    def _close(self, attempt_id: str, opened: OpenAttempt, fields: Fields, at: datetime) -> None:
        final = is_final(fields)
        body = self._entry_body(fields)
        size = FRAME_BYTES + len(attempt_id) + len(body)
        if size > opened.room:  # more charges than it was reserved with: use what is free, if any
            try:
                self._take_room(size - opened.room)
            except SpoolFullError:
                body, final = self._entry_body(abandoned_fields(opened.fields, at)), False
        kind = FrameKind.FINAL if final else FrameKind.ENTRY
        self._append_entry(kind, attempt_id, body)
        del self.opens[attempt_id]
        self.room -= opened.room

    def _entry_body(self, fields: Fields) -> bytes:
        chain = self.chain
        named = {"writer": chain.writer, "seq": chain.seq + 1, "replica": self._replica}
        return canonical_bytes(fields | named)

    def _append_entry(self, kind: FrameKind, key: str, body: bytes) -> None:
        """``body`` is the chain's next entry: nothing was appended since it was made."""
        chain, previous = self.chain, self.chain.hash
        chain.seq, chain.hash = chain.seq + 1, entry_hash(previous, body)
        self._append(kind, key, body, previous)

    def _append(
        self, kind: FrameKind, key: str, body: bytes, previous: bytes | None = None
    ) -> None:
        chain = self.chain
        if kind is not FrameKind.HEADER:
            chain.number += 1
        data = encode_frame(
            Frame(
                kind=kind,
                number=chain.number,
                durable=self._segment().durable,
                seq=chain.seq,
                previous=previous or chain.hash,
                hash=chain.hash,
                key=key,
                body=body,
            )
        )
        self._buffer.append(data)
        self._buffered += len(data)

    def _segment(self) -> Segment:
        if self._current is None:
            raise RuntimeError("a record without room")
        return self._current

    def _take_room(self, need: int) -> None:
        """Make ``need`` bytes fit beside what is held. Raises ``SpoolFullError``."""
        current = self._current
        need += FRAME_BYTES  # the seal
        if current is None:
            self._rotate(need)
            return
        used = current.written + self._buffered
        fits = used + need + self.room <= current.allocated
        if used >= self._segment_bytes:
            try:
                self._rotate(need)
            except SpoolFullError:
                if not fits:
                    raise
        elif not fits:
            self._grow(current, used + need + self.room)

    def _grow(self, current: Segment, least: int) -> None:
        for size in (least + self._extend_bytes, least):
            if self._limited(size - current.allocated):
                continue
            try:
                current.grow(size)
            except OSError:
                continue
            return
        raise SpoolFullError("the spool's volume is full")

    def _rotate(self, need: int) -> None:
        header = json.dumps(
            {"replica": self._replica, "incarnations": self.chain.incarnations}
        ).encode()
        size = FRAME_BYTES + len(header) + need + self.room
        self.sync()
        old = self._current
        for extra in (self._extend_bytes, 0):
            if self._limited(size + extra):
                continue
            try:
                reach("spool.before-segment-create")
                new = self._directory.create(self.chain.writer, size + extra)
            except OSError:
                continue
            reach("spool.after-segment-create")
            self._current = new
            self._append(FrameKind.HEADER, "", header)
            if old is not None:
                old.give_back()
            return
        raise SpoolFullError("the spool's volume is full")

    def _limited(self, more: int) -> bool:
        if self._limit_bytes is None:
            return False
        return self._directory.allocated + more > self._limit_bytes


def spool_directory(path: Path) -> SpoolDirectory:
    """Lock and open a directory. Raises ``SpoolLockedError``, ``OSError``."""
    directory = SpoolDirectory(path)
    directory.open()
    return directory
