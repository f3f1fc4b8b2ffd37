"""The client's side of one exchange, over raw ASGI: read once, answer once, notice leaving.

After the client has left, writes do nothing: what must go on (draining, settling) goes on.
"""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager

from starlette.types import Message, Receive, Send

from terrace_common.names import REQUEST_ID_HEADER
from terrace_gateway.edge.errors import INVALID_REQUEST, RATE_LIMITED, REQUEST_TOO_LARGE, ApiError

Headers = list[tuple[bytes, bytes]]


class ClientGoneError(Exception):
    """The client left before its request was complete."""


LEAVING = "terrace.leaving"
"""The ASGI extension whose value is the connection's ``Leaving``."""


class Leaving:
    """Whether a client's connection is lost, and who is told of it."""

    __slots__ = ("_resume_reading", "_told", "lost")

    def __init__(self, resume_reading: Callable[[], None]) -> None:
        """``resume_reading``: a server that has stopped to read sees nobody leave."""
        self.lost = False
        self._resume_reading = resume_reading
        self._told: Callable[[], None] | None = None

    def tell(self, told: Callable[[], None]) -> None:
        """Who answers on the connection now, its request being read; called at once if the
        connection is lost already."""
        self._told = told
        if self.lost:
            told()
        else:
            self._resume_reading()

    def forget(self, told: Callable[[], None]) -> None:
        """It answers no more; the next one may do so already."""
        if self._told == told:
            self._told = None

    def connection_lost(self) -> None:
        """The server's word."""
        self.lost = True
        if self._told is not None:
            self._told()


class BodyRoom:
    """The process's memory for large bodies, from their reading to the end of their calls."""

    def __init__(self, size: int) -> None:
        self._free = size

    @contextmanager
    def hold(self) -> Generator[Callable[[int], None]]:
        """Gives a function that takes bytes; all are given back at the end.

        It raises ``ApiError`` when there is no room.
        """
        held = 0

        def grow(count: int) -> None:
            nonlocal held
            if count > self._free:
                raise ApiError(
                    RATE_LIMITED, "too many large requests at once", retry_after_seconds=1
                )
            self._free -= count
            held += count

        try:
            yield grow
        finally:
            self._free += held


class Client:
    """One request's peer."""

    def __init__(
        self, receive: Receive, send: Send, *, request_id: str, leaving: Leaving | None = None
    ) -> None:
        """Without ``leaving``, of a server that does not know it, a task waits for the client's
        leaving."""
        self._receive = receive
        self._send = send
        self._leaving = leaving
        self._request_id = request_id
        self._watcher: asyncio.Task[None] | None = None
        self.extra: Headers = []
        """Headers that every answer of this exchange carries from now on."""
        self.status: int | None = None
        self.finished = False
        self.gone = False
        self._told: Callable[[], None] | None = None

    async def read_body(
        self,
        *,
        limit: int,
        seconds: float,
        free: int,
        grow: Callable[[int], None],
    ) -> bytes:
        """The whole body. Raises ``ApiError`` (too large, too slow) or ``ClientGoneError``.

        More than ``free`` bytes are read into memory that ``grow`` gives.
        """
        body = bytearray()
        counted = 0
        try:
            async with asyncio.timeout(seconds):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        self.gone = True
                        raise ClientGoneError
                    body += message.get("body", b"")
                    if len(body) > limit:
                        raise ApiError(
                            REQUEST_TOO_LARGE, f"the request body is larger than {limit} bytes"
                        )
                    if len(body) > free:
                        grow(len(body) - counted)
                        counted = len(body)
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise ApiError(INVALID_REQUEST, "the request body did not arrive in time") from None

    def watch(self) -> None:
        """Notice the client's leaving from now on. To be called after the body was read."""
        if self._leaving is not None:
            self._leaving.tell(self._noticed)
        else:
            self._watcher = asyncio.create_task(self._watch())

    def unwatch(self) -> None:
        """Stop watching."""
        if self._leaving is not None:
            self._leaving.forget(self._noticed)
        if self._watcher is not None:
            self._watcher.cancel()

    @contextmanager
    def telling(self, left: Callable[[], None]) -> Generator[None]:
        """Inside of the block ``left`` is called when the client leaves before its answer is
        complete; at once, if it has."""
        self._told = left
        if self.gone:
            left()
        try:
            yield
        finally:
            self._told = None

    async def start(self, status: int, headers: Headers) -> None:
        """Send status and headers, with our request id and nothing else."""
        self.status = status
        own = (REQUEST_ID_HEADER.encode(), self._request_id.encode())
        await self._pass(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*headers, *self.extra, own],
            }
        )

    async def write(self, data: bytes) -> None:
        """Send a part of the body; waits while the client reads slowly."""
        await self._pass({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self, data: bytes = b"") -> None:
        """Send the last part of the body."""
        self.finished = True
        await self._pass({"type": "http.response.body", "body": data, "more_body": False})

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole answer at once."""
        await self.start(status, [*headers, (b"content-length", str(len(body)).encode())])
        await self.finish(body)

    async def _pass(self, message: Message) -> None:
        if self.gone:
            return
        try:
            await self._send(message)
        except OSError:  # ASGI's way to say that nobody listens any more
            self._left()

    async def _watch(self) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._noticed()
                return

    def _noticed(self) -> None:
        if not self.finished:
            self._left()

    def _left(self) -> None:
        if not self.gone:
            self.gone = True
            if self._told is not None:
                self._told()
