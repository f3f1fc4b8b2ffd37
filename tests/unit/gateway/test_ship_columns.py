"""Batches of the spool as parameters of ``ship_batch``, a little at a time."""

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg.adapt import PyFormat, Transformer

from terrace_gateway.ledger.ship_columns import (
    PART_RECORDS,
    PackedArray,
    columns_of,
    packed,
)
from terrace_gateway.spool.framing import Frame, FrameKind


def frame(number: int, kind: FrameKind, key: str, body: bytes) -> Frame:
    return Frame(kind, number, 0, number, bytes([number % 256]) * 32, b"h" * 32, key, body)


frames_of_all_kinds = st.lists(
    st.tuples(
        st.sampled_from([k for k in FrameKind if k is not FrameKind.HEADER]),
        st.sampled_from(["", "a", "b"]),
        st.text(max_size=20).map(str.encode),
    ),
    max_size=3 * PART_RECORDS,
).map(lambda made: [frame(n, k, key, body) for n, (k, key, body) in enumerate(made, 1)])


@settings(max_examples=60, deadline=None)
@given(frames_of_all_kinds)
def test_packed_columns_are_what_psycopg_makes_of_the_lists(frames: list[Frame]) -> None:
    async def made() -> tuple[Any, tuple[PackedArray, ...]]:
        columns = await columns_of(frames)
        return columns, await packed(columns)

    columns, arrays = asyncio.run(made())
    texts = [[t.decode() for t in column] for column in (columns.types, columns.texts)]
    lists = (columns.numbers, *texts, columns.seqs, columns.previous, columns.hashes)
    for values, array in zip(lists, arrays, strict=True):
        if values:
            told = Transformer().get_dumper(values, PyFormat.BINARY).dump(values)
            # psycopg takes the smallest type that holds the numbers; the query names bigint.
            if not isinstance(values[0], int):
                assert array.data == told
        assert list(_elements(array.data)) == [_bytes(value) for value in values]


def _bytes(value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return value.to_bytes(8, "big", signed=True)
    return value.encode() if isinstance(value, str) else value


def _elements(data: bytes) -> list[bytes]:
    """Read as the format's description says."""
    if int.from_bytes(data[:4], "big") == 0:
        assert len(data) == 12
        return []
    count, position = int.from_bytes(data[12:16], "big"), 20
    found: list[bytes] = []
    for _ in range(count):
        length = int.from_bytes(data[position : position + 4], "big")
        position += 4
        found.append(data[position : position + length])
        position += length
    assert position == len(data)
    return found


async def test_an_open_whose_close_is_in_the_batch_is_left_out() -> None:
    frames = [
        frame(1, FrameKind.OPEN, "a", b"open a"),
        frame(2, FrameKind.OPEN, "b", b"open b"),
        frame(3, FrameKind.FINAL, "a", b"final a"),
        frame(4, FrameKind.CARRY, "b", b"open b"),
        frame(5, FrameKind.SEAL, "", b""),
    ]
    columns = await columns_of(frames)
    assert columns.types == [b"-", b"O", b"E", b"-", b"S"]
    assert columns.texts == [b"", b"open b", b"final a", b"", b""]
