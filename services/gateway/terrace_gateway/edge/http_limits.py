"""uvicorn's HTTP protocol with an end to everything that a stranger can make long.

uvicorn on httptools bounds neither the size nor the time of a request's head, and keeps a request
for each one that is pipelined. All of it happens before a key is seen.
"""

import asyncio
import socket
from typing import cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from terrace_gateway.edge.client import LEAVING, Leaving
from terrace_gateway.edge.corked import CorkedTransport
from terrace_gateway.edge.framing import FramingError, behind_head, check_framing

MAX_HEAD_BYTES = 64 * 1024
MAX_PIPELINED = 16
LINGER_SECONDS = 2  # for the rest of a body that was refused before its end
INVALID = "Invalid HTTP request received."


class TooMuchError(Exception):
    """httptools makes a 400 of it and uvicorn closes the connection."""


def bounded_protocol(
    *, max_connections: int, head_seconds: float, stalled_seconds: float
) -> type[HttpToolsProtocol]:
    """A protocol class for uvicorn's ``http`` option.

    A head must arrive within ``head_seconds``; a client that takes no byte of its answer for
    ``stalled_seconds`` has left; connections above the maximum are closed at once.
    """

    class BoundedProtocol(HttpToolsProtocol):
        _head_timer: asyncio.TimerHandle | None = None
        _in_head = True
        _in_tail = False  # a chunk has begun and has no data: it may be the last, before trailers
        _message_complete = True
        _upgrading = False  # the head of a request that offers an upgrade has ended the parser
        _unbounded_bytes = 0

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._leaving = Leaving(self.flow.resume_reading)
            self._extensions: dict[str, object] = {LEAVING: self._leaving}
            self.transport = cast("asyncio.Transport", CorkedTransport(transport, self.loop))
            if len(self.connections) > max_connections:
                transport.abort()
                return
            wire = transport.get_extra_info("socket")
            if wire is not None and wire.family in (socket.AF_INET, socket.AF_INET6):
                wire.setsockopt(
                    socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(stalled_seconds * 1000)
                )
            self._start_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(exc)
            self._leaving.connection_lost()

        def data_received(self, data: bytes) -> None:
            if self._message_complete and not self._answering():
                self._in_head = True
                self._start_timer()
            self._unset_keepalive_if_required()
            try:
                self._feed(data)
            except httptools.HttpParserError:
                self.logger.warning(INVALID)
                self.send_400_response(INVALID)
                return
            self._unbounded_bytes += len(data) if self._in_head or self._in_tail else 0
            if self._unbounded_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response("The head of the request is too large.")

        def _feed(self, data: bytes) -> None:
            while True:
                try:
                    self.parser.feed_data(data)
                except httptools.HttpParserUpgrade as upgrade:  # has where the head ended
                    self.parser, head = behind_head(self, self.headers)
                    self.parser.feed_data(head)
                    data = data[cast("int", upgrade.args[0]) :]
                else:
                    return

        def on_message_begin(self) -> None:
            if self._upgrading:
                return
            self._in_head, self._message_complete = True, False
            super().on_message_begin()
            self.scope["extensions"] = self._extensions  # type: ignore[typeddict-item]

        def on_header(self, name: bytes, value: bytes) -> None:
            if self._in_head:  # uvicorn would take trailers for headers: another key, another peer
                super().on_header(name, value)

        def on_headers_complete(self) -> None:
            if self._upgrading:
                self._upgrading = False
                return
            if len(self.pipeline) >= MAX_PIPELINED:
                raise TooMuchError
            check_framing(self.headers, self.parser)
            self._upgrading = self.parser.should_upgrade()
            if self._upgrading and self.parser.get_method() == b"CONNECT":
                raise FramingError  # what follows has no end
            self._in_head, self._unbounded_bytes = False, 0
            self._stop_timer()
            super().on_headers_complete()

        def on_chunk_header(self) -> None:
            self._in_tail = True

        def on_body(self, body: bytes) -> None:
            self._in_tail, self._unbounded_bytes = False, 0
            super().on_body(body)

        def on_message_complete(self) -> None:
            if self._upgrading:
                return
            self._in_tail, self._message_complete, self._unbounded_bytes = False, True, 0
            super().on_message_complete()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self._refused_early():  # not at once: the client would miss the answer
                self.loop.call_later(LINGER_SECONDS, self._close_refused)

        def _answering(self) -> bool:
            # None before the first request, whatever uvicorn's types say.
            cycle = cast("RequestResponseCycle | None", self.cycle)
            return cycle is not None and not cycle.response_complete

        def _refused_early(self) -> bool:
            complete = self._message_complete or self._in_head
            return not complete and self.cycle.response_complete

        def _close_refused(self) -> None:
            if self._refused_early():
                self.transport.close()

        def _start_timer(self) -> None:
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(head_seconds, self.transport.abort)

        def _stop_timer(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

    return BoundedProtocol
