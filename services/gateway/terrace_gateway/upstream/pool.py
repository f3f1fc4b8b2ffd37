"""Connections to one provider. One is used again only while it is almost surely still open.

A server may close an idle connection at the moment in which we send, and then nobody can say
whether the call was made. So a connection is used again within a short time only, shorter than
the idle timeout of any common server, and only if its socket is quiet. That leaves a server which
goes away in the very moment of sending, as on a new connection.
"""

import asyncio
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from terrace_gateway.upstream.header_numbers import whole_seconds
from terrace_gateway.upstream.http_connection import HttpConnection
from terrace_gateway.upstream.port import NotSentError

MAX_TOLD_SECONDS = 3600


@dataclass(frozen=True)
class Address:
    """Where a provider listens: a host and port, or a Unix socket."""

    host: str
    port: int
    tls: bool
    socket: Path | None = None


class ConnectionPool:
    """Idle connections of one provider, the latest first."""

    def __init__(
        self,
        address: Address,
        *,
        tls: ssl.SSLContext | None,
        connect_seconds: float,
        idle_seconds: float,
    ) -> None:
        self._address = address
        self._tls = tls if address.tls else None
        self._connect_seconds = connect_seconds
        self._idle_seconds = idle_seconds
        self._idle: list[tuple[float, HttpConnection]] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False

    async def acquire(self) -> HttpConnection:
        """A connection. Raises ``NotSentError``: name, connection or TLS failed, or too slowly."""
        now = asyncio.get_running_loop().time()
        while self._idle:
            good_until, connection = self._idle.pop()
            if now < good_until and connection.is_quiet():
                return connection
            connection.close()
        return await self._connect()

    def release(self, connection: HttpConnection) -> None:
        """Take a connection back, or close it if its exchange did not end well."""
        window = self._window(connection)
        if self._closed or window <= 0 or not connection.is_reusable:
            connection.abort()
            return
        loop = asyncio.get_running_loop()
        self._idle.append((loop.time() + window, connection))
        if self._sweeper is None:
            self._sweeper = loop.call_later(self._idle_seconds, self._sweep)

    def close(self) -> None:
        """Close what is idle; what is in use is closed when it comes back."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for _, connection in self._idle:
            connection.close()
        self._idle.clear()

    @property
    def idle(self) -> int:
        """How many connections are idle."""
        return len(self._idle)

    async def _connect(self) -> HttpConnection:
        address = self._address
        try:
            async with asyncio.timeout(self._connect_seconds):
                loop = asyncio.get_running_loop()
                if address.socket is not None:
                    _, connection = await loop.create_unix_connection(
                        HttpConnection, str(address.socket)
                    )
                    return connection
                transport, connection = await loop.create_connection(
                    HttpConnection,
                    address.host,
                    address.port,
                    ssl=self._tls,
                    server_hostname=address.host if self._tls is not None else None,
                )
        except (OSError, TimeoutError) as error:  # ssl.SSLError is an OSError
            raise NotSentError(f"no connection ({type(error).__name__})") from error
        wire = transport.get_extra_info("socket")
        if wire is not None:
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _window(self, connection: HttpConnection) -> float:
        """How long this one may be idle: ours, or less if the server says that it closes early."""
        for part in connection.headers.get("keep-alive", "").split(","):
            name, _, value = part.strip().partition("=")
            seconds = whole_seconds(value, most=MAX_TOLD_SECONDS)
            if name.lower() == "timeout" and seconds is not None:
                return min(self._idle_seconds, seconds - 1)
        return self._idle_seconds

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        kept: list[tuple[float, HttpConnection]] = []
        for good_until, connection in self._idle:
            if now < good_until:
                kept.append((good_until, connection))
            else:
                connection.close()
        self._idle = kept
        self._sweeper = loop.call_later(self._idle_seconds, self._sweep) if kept else None
