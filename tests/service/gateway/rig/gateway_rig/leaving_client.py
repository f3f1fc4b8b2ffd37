"""A client of one call over a socket of its own, that reads piece by piece and leaves when told."""

import asyncio
import contextlib
import json
import re
import socket
from typing import Any, Literal
from urllib.parse import urlsplit

How = Literal["abort", "close", "half"]
_CHUNK = re.compile(rb"\bw(?:ord)?\d+ ")
SMALL_BUFFER = 4096


class LeavingClient:
    """Made by ``call``; ``answer`` is what has arrived."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.answer = b""

    @classmethod
    async def call(
        cls, url: str, path: str, key: str, body: dict[str, Any], *, small_buffer: bool = False
    ) -> "LeavingClient":
        """Connect and send the whole request. With ``small_buffer`` little fits on the way."""
        place = urlsplit(url)
        assert place.hostname is not None
        wire = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if small_buffer:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        wire.setblocking(False)
        await asyncio.get_running_loop().sock_connect(wire, (place.hostname, place.port))
        reader, writer = await asyncio.open_connection(sock=wire, limit=SMALL_BUFFER)
        sent = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: guard\r\nauthorization: Bearer {key}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(sent)}\r\n\r\n"
        )
        writer.write(head.encode() + sent)
        await writer.drain()
        return cls(reader, writer)

    async def read_chunks(self, count: int) -> None:
        """Until so many chunks of the fake's stream have arrived, and not one byte more than came
        with them."""
        async with asyncio.timeout(60):
            while len(_CHUNK.findall(self.answer)) < count:
                data = await self._reader.read(65536)
                assert data, self.answer
                self.answer += data

    async def read_to_end(self) -> bytes:
        """Everything up to the end of the connection."""
        async with asyncio.timeout(60):
            while data := await self._reader.read(65536):
                self.answer += data
        return self.answer

    async def leave(self, how: How) -> None:
        """``abort`` resets the connection, ``close`` ends it, ``half`` ends our direction only."""
        if how == "half":
            self._writer.write_eof()
            return
        if how == "abort":
            self._writer.transport.abort()
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def __aenter__(self) -> "LeavingClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave("abort")
