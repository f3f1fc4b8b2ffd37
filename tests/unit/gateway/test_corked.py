"""A response's head goes out with what follows it; no byte is lost, doubled or out of order."""

import asyncio
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from terrace_gateway.edge.corked import MAX_JOINED_BYTES, CorkedTransport

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Wire:
    """Keeps what was written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close


def corked() -> tuple[Wire, CorkedTransport]:
    wire = Wire()
    return wire, CorkedTransport(cast("asyncio.Transport", wire), asyncio.get_running_loop())


async def test_head_and_body_are_one_write() -> None:
    wire, transport = corked()
    transport.write(HEAD)
    transport.write(b"body")
    await asyncio.sleep(0)
    assert wire.written == [HEAD + b"body"]


async def test_a_head_alone_waits_one_turn_only() -> None:
    wire, transport = corked()
    transport.write(HEAD)
    assert wire.written == []
    await asyncio.sleep(0)
    assert wire.written == [HEAD]


async def test_closing_writes_what_is_held_and_aborting_does_not() -> None:
    wire, transport = corked()
    transport.write(HEAD)
    transport.close()
    assert (wire.written, transport.is_closing()) == ([HEAD], True)
    await asyncio.sleep(0)
    wire, transport = corked()
    transport.write(HEAD)
    transport.abort()
    await asyncio.sleep(0)
    assert wire.written == []


async def test_a_peer_that_is_gone_by_the_next_turn_is_not_written_to() -> None:
    wire, transport = corked()
    transport.write(HEAD)
    wire.closed = True
    await asyncio.sleep(0)
    assert wire.written == []


PIECES = st.lists(
    st.one_of(
        st.just(HEAD),
        st.binary(max_size=30),
        st.just(b"x" * (MAX_JOINED_BYTES + 1)),
        st.none(),  # a turn of the loop
    ),
    max_size=12,
)


@given(PIECES)
def test_bytes_and_order_stay(pieces: list[bytes | None]) -> None:
    async def run() -> Wire:
        wire, transport = corked()
        for piece in pieces:
            if piece is None:
                await asyncio.sleep(0)
            else:
                transport.write(piece)
        transport.close()
        return wire

    assert b"".join(asyncio.run(run()).written) == b"".join(piece or b"" for piece in pieces)
