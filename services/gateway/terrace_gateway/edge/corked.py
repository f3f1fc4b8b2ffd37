"""A transport that writes a response's head together with what follows it at once."""

import asyncio
from typing import Any

_HEAD = b"HTTP/1.1 "
MAX_JOINED_BYTES = 64 * 1024


class CorkedTransport:
    """One system call instead of two for every response, as uvicorn writes head and body apart.

    A head waits for the next write, at most until the event loop's next turn. Bytes and their
    order stay as they are; a body that looks like a head only waits that long too.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held = b""

    def write(self, data: bytes) -> None:
        """See ``asyncio.WriteTransport``."""
        held = self._held
        if held:
            self._held = b""
            if len(data) <= MAX_JOINED_BYTES:
                self._transport.write(held + data)
                return
            self._transport.write(held)
        elif data.startswith(_HEAD):
            self._held = data
            self._loop.call_soon(self._flush)
            return
        self._transport.write(data)

    def close(self) -> None:
        """Close after everything was written."""
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._held = b""
        self._transport.abort()

    def __getattr__(self, name: str) -> Any:
        """Everything else is the transport's own."""
        return getattr(self._transport, name)

    def _flush(self) -> None:
        held, self._held = self._held, b""
        if held and not self._transport.is_closing():
            self._transport.write(held)
