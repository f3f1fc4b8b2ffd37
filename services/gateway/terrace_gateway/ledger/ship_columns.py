"""Records as the columns of ``ship_batch``, made a little at a time.

The event loop has callers waiting: what takes a millisecond for a batch is done in parts of a
tenth. The arrays are in Postgres' binary form; as text, escaping the hashes costs more than all
the rest.
"""

import asyncio
import struct
from dataclasses import dataclass
from typing import Any

from psycopg import AsyncCursor
from psycopg.adapt import Dumper
from psycopg.pq import Format

from terrace_gateway.spool.framing import Frame, FrameKind

PART_RECORDS = 64
# https://www.postgresql.org/docs/current/catalog-pg-type.html
_BIGINT, _TEXT, _BYTEA = 20, 25, 17
_HEAD = struct.Struct(">iiI")
_BOUNDS = struct.Struct(">ii")
_LENGTH = struct.Struct(">i")
_LONG = struct.Struct(">iq")


@dataclass(frozen=True, slots=True)
class Columns:
    """Of equal length."""

    numbers: list[int]
    types: list[bytes]
    """Of a record: ``E`` entry, ``O`` open, ``S`` seal, ``P`` an entry that was refused, ``-``
    nothing that the ledger keeps."""
    texts: list[bytes]
    """The body in UTF-8; of ``P`` the reason; else empty."""
    seqs: list[int]
    previous: list[bytes]
    hashes: list[bytes]


class PackedArray:
    """An array of one dimension in the binary form of Postgres."""

    __slots__ = ("data",)

    def __init__(self, element_type: int, elements: bytes, count: int) -> None:
        """``elements``: each its length and its bytes."""
        head = _HEAD.pack(1, 0, element_type) + _BOUNDS.pack(count, 1)
        self.data = head + elements if count else _HEAD.pack(0, 0, element_type)

    @staticmethod
    def taken_by(cursor: AsyncCursor[Any]) -> None:
        """The cursor takes such arrays as parameters of a query that names their type."""
        cursor.adapters.register_dumper(PackedArray, _PackedDumper)


class _PackedDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: PackedArray) -> bytes:
        return obj.data


async def columns_of(frames: list[Frame]) -> Columns:
    """Columns of ``ship_batch``. An open whose final close is in the same batch is left out."""
    final = {frame.key for frame in frames if frame.kind is FrameKind.FINAL}
    types: list[bytes] = []
    texts: list[bytes] = []
    for index, frame in enumerate(frames, 1):
        if frame.is_entry:
            types.append(b"E")
        elif frame.kind is FrameKind.OPEN and frame.key not in final:
            types.append(b"O")
        else:
            types.append(b"S" if frame.kind is FrameKind.SEAL else b"-")
        texts.append(frame.body if types[-1] in b"EO" else b"")
        if not index % PART_RECORDS:
            await asyncio.sleep(0)
    return Columns(
        [frame.number for frame in frames],
        types,
        texts,
        [frame.seq for frame in frames],
        [frame.previous for frame in frames],
        [frame.hash for frame in frames],
    )


async def packed(columns: Columns) -> tuple[PackedArray, ...]:
    """The columns as parameters, in their order."""
    arrays: list[PackedArray] = []
    for column, element_type in (
        (columns.numbers, _BIGINT),
        (columns.types, _TEXT),
        (columns.texts, _TEXT),
        (columns.seqs, _BIGINT),
        (columns.previous, _BYTEA),
        (columns.hashes, _BYTEA),
    ):
        elements = bytearray()
        for begin in range(0, len(column), PART_RECORDS):
            part = column[begin : begin + PART_RECORDS]
            elements += b"".join(_element(value) for value in part)
            await asyncio.sleep(0)
        arrays.append(PackedArray(element_type, bytes(elements), len(column)))
    return tuple(arrays)


def _element(value: int | bytes) -> bytes:
    return _LONG.pack(8, value) if isinstance(value, int) else _LENGTH.pack(len(value)) + value
