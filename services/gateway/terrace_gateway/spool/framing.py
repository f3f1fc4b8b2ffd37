"""Records in a file: length, checksum, and what is needed to go on after a crash.

A frame is ``magic | length | crc32 | payload``; zeros follow the last one, because segments are
preallocated. The checksum covers the length too. Every frame says how far its file was synced when
it was written (``durable``): something unreadable before that mark is damage to what had been
durable, behind it only a write that a crash cut off.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from terrace_gateway.frozen import frozen

MAGIC = b"\xd6TsF"
_OUTER = struct.Struct("<4sII")
_INNER = struct.Struct("<cQQQ32s32sH")
FRAME_BYTES = _OUTER.size + _INNER.size
"""What a frame needs beside its key and body."""
MAX_PAYLOAD_BYTES = 4 * 1024 * 1024


class FrameKind(Enum):
    """What a frame holds."""

    HEADER = b"H"  # first of a segment; body: who writes
    INCARNATION = b"I"  # body: an incarnation that this writer acts for
    OPEN = b"O"  # an attempt's open record; key: the attempt
    CARRY = b"C"  # an open record again, so that an older segment can go
    FINAL = b"F"  # an entry that closes its attempt for good; key: the attempt
    ENTRY = b"E"  # any other entry; key: the attempt, or empty
    SEAL = b"S"  # the chain ends here
    HOLE = b"X"  # over what a write lost before it was durable; holds nothing, has no number


@frozen
class Frame:
    """One record. ``seq`` and ``hash`` are the chain's state behind it; of an entry they are its
    own, and ``previous`` is what came before it."""

    kind: FrameKind
    number: int
    """Of the record within its writer, from 1, without gaps."""
    durable: int
    seq: int
    previous: bytes
    hash: bytes
    key: str
    body: bytes

    @property
    def is_entry(self) -> bool:
        """Part of the chain."""
        return self.kind in (FrameKind.ENTRY, FrameKind.FINAL)


@dataclass(frozen=True, slots=True)
class Scan:
    """What a segment holds: frames with the offsets of their ends, and what is unreadable."""

    frames: tuple[tuple[int, Frame], ...]
    end: int
    """Behind the last whole frame; from here on it may be written."""
    damage: tuple[tuple[int, int], ...]
    """Ranges that had been durable and cannot be read."""
    holes: tuple[tuple[int, int], ...]
    """Ranges before ``end`` that never became durable and cannot be read."""
    torn: int
    """Bytes of a write that never became durable: holes, and what is behind ``end``."""


def encode_frame(frame: Frame) -> bytes:
    """The frame's bytes."""
    key = frame.key.encode()
    inner = _INNER.pack(
        frame.kind.value, frame.number, frame.durable, frame.seq, frame.previous, frame.hash,
        len(key),
    )  # fmt: skip
    payload = inner + key + frame.body
    crc = zlib.crc32(payload, zlib.crc32(len(payload).to_bytes(4, "little")))
    return _OUTER.pack(MAGIC, len(payload), crc) + payload


def cover(size: int) -> bytes:
    """Frames that say that ``size`` bytes, at least ``FRAME_BYTES``, hold nothing."""
    parts: list[bytes] = []
    while size:
        part = min(size, MAX_PAYLOAD_BYTES)
        if 0 < size - part < FRAME_BYTES:
            part -= FRAME_BYTES
        body = bytes(part - FRAME_BYTES)
        parts.append(encode_frame(Frame(FrameKind.HOLE, 0, 0, 0, bytes(32), bytes(32), "", body)))
        size -= part
    return b"".join(parts)


def decode_frame(data: bytes | memoryview, offset: int = 0) -> tuple[Frame, int] | None:
    """The frame at ``offset`` and where it ends; ``None``: there is no whole frame."""
    if len(data) - offset < _OUTER.size:
        return None
    magic, length, crc = _OUTER.unpack_from(data, offset)
    begin = offset + _OUTER.size
    if magic != MAGIC or not _INNER.size <= length <= min(MAX_PAYLOAD_BYTES, len(data) - begin):
        return None
    payload = bytes(data[begin : begin + length])
    if zlib.crc32(payload, zlib.crc32(length.to_bytes(4, "little"))) != crc:
        return None
    kind, number, durable, seq, previous, digest, key_length = _INNER.unpack_from(payload)
    rest = payload[_INNER.size :]
    try:
        frame = Frame(
            FrameKind(kind), number, durable, seq, previous, digest,
            rest[:key_length].decode(), rest[key_length:],
        )  # fmt: skip
    except ValueError:  # written by a later release
        return None
    return frame, begin + length


def read_frames(data: bytes, offset: int = 0) -> Iterator[tuple[int, Frame]]:
    """Frames one behind the other with the offset of their ends, up to the first that is none."""
    while (found := decode_frame(data, offset)) is not None:
        frame, offset = found
        yield offset, frame


def scan(data: bytes) -> Scan:
    """Read a whole segment, also past what is unreadable."""
    frames: list[tuple[int, Frame]] = []
    unreadable: list[tuple[int, int]] = []
    offset = 0
    while True:
        for end, frame in read_frames(data, offset):
            frames.append((end, frame))
            offset = end
        # The next place that looks like a frame and is one.
        probe = data.find(MAGIC, offset + 1)
        while probe >= 0 and decode_frame(data, probe) is None:
            probe = data.find(MAGIC, probe + 1)
        if probe < 0:
            break
        unreadable.append((offset, probe))
        offset = probe
    synced = max((frame.durable for _, frame in frames), default=0)
    # A later sync reached only what is before `synced`; a readable frame behind a hole of the last
    # write is not durable for anybody, but it is whole, and so it counts.
    tail = data[offset:].rstrip(b"\0")
    damage = [part for part in unreadable if part[0] < synced]
    if offset < synced:
        damage.append((offset, synced))
    holes = tuple(part for part in unreadable if part[0] >= synced)
    torn = sum(end - begin for begin, end in holes) + len(tail)
    return Scan(tuple(frames), offset, tuple(damage), holes, torn)
