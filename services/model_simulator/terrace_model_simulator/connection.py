"""One caller's connection: write, wait, notice that the caller has left, hang up on it."""

import asyncio
from typing import Any

from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class OpenConnections:
    """The transports of live connections, by the peer's address.

    ASGI has no way to break off an answer before its first byte; uvicorn's ``http`` option, which
    takes a protocol class, gives one.
    """

    def __init__(self) -> None:
        self._transports: dict[tuple[str, int], asyncio.Transport] = {}

    def protocol_class(self) -> type[HttpToolsProtocol]:
        """uvicorn's protocol, entering its connections here."""
        transports = self._transports

        class RegisteredProtocol(HttpToolsProtocol):
            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
                super().connection_made(transport)
                if self.client is not None:
                    transports[self.client] = transport

            def connection_lost(self, exc: Exception | None) -> None:
                if self.client is not None:
                    transports.pop(self.client, None)
                super().connection_lost(exc)

        return RegisteredProtocol

    def hang_up(self, scope: Scope) -> bool:
        """Close the connection after what was already written; False if it is not known here."""
        client: Any = scope.get("client")
        transport = self._transports.get(tuple(client)) if client else None
        if transport is None:
            return False
        transport.close()
        return True


class CallerConnection:
    """Use as an async context; ``gone`` is set as soon as the caller has left.

    The request's body must have been read.
    """

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, connections: OpenConnections
    ) -> None:
        self.gone = asyncio.Event()
        self._scope = scope
        self._receive = receive
        self._send = send
        self._connections = connections
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "CallerConnection":
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watcher is not None:
            self._watcher.cancel()

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Send status and headers."""
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes) -> None:
        """Send a part of the body; waits while the caller reads too slowly."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self, data: bytes) -> None:
        """Send the last part of the body."""
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def pause(self, seconds: float) -> None:
        """Wait, but no longer than the caller does. 0 only lets other tasks run."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        try:
            async with asyncio.timeout(seconds):
                await self.gone.wait()
        except TimeoutError:
            return

    async def hang_up(self) -> None:
        """Break the answer off: the caller gets what was written, then the end of the stream."""
        if not self._connections.hang_up(self._scope):
            raise RuntimeError("cannot hang up: the server was not started with protocol_class()")
        await self.gone.wait()

    async def _watch(self) -> None:
        while True:
            message: Message = await self._receive()
            if message["type"] == "http.disconnect":
                self.gone.set()
                return
