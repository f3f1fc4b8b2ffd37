"""One HTTP/1.1 connection to a relayed upstream: one exchange at a time, bytes as they come.

A client of its own, because the relay needs what general clients hide: whether a byte of the
request was handed to the network, whether an idle connection is still quiet, and body bytes without
a task, a copy or a decoding per chunk.
"""

import asyncio
import select
from collections import deque
from collections.abc import AsyncIterator
from typing import cast

import httptools

from terrace_gateway.upstream.port import NotSentError

MAX_HEAD_BYTES = 64 * 1024
HIGH_WATER_BYTES = 256 * 1024  # read no further while the client takes nothing


class ConnectionBrokenError(Exception):
    """The exchange ended before its answer was complete, or the answer is not HTTP."""


class HttpConnection(asyncio.Protocol):
    """Made by ``loop.create_connection``; then ``exchange``, ``body`` and again."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._loop = asyncio.get_running_loop()
        self._head: asyncio.Future[None] | None = None
        self._chunks: deque[bytes] = deque()
        self._queued = 0
        self._waiter: asyncio.Future[None] | None = None
        self._paused = False
        self._lost: str | None = None
        self._head_bytes = 0
        self._in_exchange = False
        self._complete = True
        self._keep_alive = False
        self.status = 0
        self.headers: dict[str, str] = {}

    # --- for the pool ----------------------------------------------------------------------------

    @property
    def is_reusable(self) -> bool:
        """Whether the last exchange ended so that another may follow."""
        transport = self._transport
        return (
            transport is not None
            and self._complete
            and self._keep_alive
            and self._lost is None
            and not transport.is_closing()
            and transport.get_write_buffer_size() == 0
        )

    def is_quiet(self) -> bool:
        """Whether the other side has sent nothing since, its goodbye included.

        Asks the socket: what has arrived may not have been read yet.
        """
        if not self.is_reusable or self._transport is None:
            return False
        wire = self._transport.get_extra_info("socket")
        if wire is None or wire.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(wire.fileno(), select.POLLIN | select.POLLRDHUP)
        return not poll.poll(0)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close in order (with TLS, its goodbye)."""
        if self._transport is not None:
            self._transport.close()

    # --- one exchange ----------------------------------------------------------------------------

    async def exchange(self, head: bytes, body: bytes) -> None:
        """Send a request; returns when the head of its answer is there.

        Raises ``NotSentError`` if the connection has ended meanwhile. Else, from the first moment
        on, it must be taken as sent; raises ``ConnectionBrokenError``.
        """
        transport = self._transport
        if transport is None or self._lost is not None or transport.is_closing():
            raise NotSentError(f"the connection has ended ({self._lost or 'closed'})")
        self._begin_answer()
        self._in_exchange = True
        self._head = self._loop.create_future()
        if len(body) < HIGH_WATER_BYTES:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)
        await self._head

    async def body(self) -> AsyncIterator[bytes]:
        """The answer's body. What arrived while nobody read comes as one piece.

        Raises ``ConnectionBrokenError``.
        """
        chunks = self._chunks
        while True:
            if chunks:
                data = chunks.popleft() if len(chunks) == 1 else b"".join(chunks)
                chunks.clear()
                self._queued = 0
                yield data
                if self._paused and not self._queued:
                    self._resume()
                continue
            if self._complete:
                return
            if self._lost is not None:
                raise ConnectionBrokenError(self._lost)
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    # --- asyncio.Protocol ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Parse what arrived and wake who waits for it."""
        if not self._in_exchange:
            self._fail("bytes that nobody asked for")
            return
        if self._head is not None:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, UnicodeDecodeError) as e:
            cause = e.__context__ if isinstance(e.__context__, ConnectionBrokenError) else e
            self._fail(str(cause) if isinstance(cause, ConnectionBrokenError) else "not HTTP")
            return
        if self._head is not None and self._head_bytes > MAX_HEAD_BYTES:
            self._fail("the head of the answer is too large")
            return
        self._wake()
        if self._queued > HIGH_WATER_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """The other side closed."""
        return False  # close ours too; connection_lost says the rest

    def connection_lost(self, exc: Exception | None) -> None:
        """End what runs: an answer without a length ends here, any other is cut."""
        until_close = (
            self._in_exchange
            and exc is None
            and self._head is None
            and "content-length" not in self.headers
            and "transfer-encoding" not in self.headers
        )
        if until_close:
            self._complete = True
        self._keep_alive = False
        self._lost = self._lost or (type(exc).__name__ if exc else "closed")
        self._wake()

    # --- httptools -------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header; of a trailer nothing."""
        if self._head is not None:
            key = name.decode("ascii").lower()
            if key in ("content-length", "transfer-encoding") and key in self.headers:
                raise ConnectionBrokenError("two lengths")
            self.headers[key] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """The head is there, if it is not an interim one."""
        if self._head is None:
            raise ConnectionBrokenError("a second answer")
        self.status = self._parser.get_status_code()
        if self.status == 101:
            raise ConnectionBrokenError("upgraded, and nobody asked for it")
        if self.status < 200:
            return
        if "content-length" in self.headers and "transfer-encoding" in self.headers:
            raise ConnectionBrokenError("two lengths")
        if not self._head.done():
            self._head.set_result(None)
        self._head = None

    def on_body(self, body: bytes) -> None:
        """Queue a part of the body."""
        self._chunks.append(body)
        self._queued += len(body)

    def on_message_complete(self) -> None:
        """The answer is whole, or an interim one is over."""
        if self.status < 200:
            self.headers = {}
            return
        self._complete = True
        self._in_exchange = False
        self._keep_alive = self._parser.should_keep_alive()

    # --- inner -----------------------------------------------------------------------------------

    def _begin_answer(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._chunks.clear()
        self._queued = self._head_bytes = self.status = 0
        self._complete = self._keep_alive = False
        self.headers = {}

    def _fail(self, reason: str) -> None:
        self._lost = self._lost or reason
        self._keep_alive = False
        self.abort()
        self._wake()

    def _wake(self) -> None:
        if self._lost is not None and self._head is not None:
            if not self._head.done():
                self._head.set_exception(ConnectionBrokenError(self._lost))
            self._head = None
        waiter = self._waiter
        news = self._chunks or self._complete or self._lost is not None
        if waiter is not None and not waiter.done() and news:
            waiter.set_result(None)

    def _resume(self) -> None:
        self._paused = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
