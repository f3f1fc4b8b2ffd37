"""The client of the translator: one POST over a Unix socket, headers built from scratch."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from terrace_common.names import ATTEMPT_ID_HEADER, ATTEMPT_ID_METADATA
from terrace_gateway.surfaces.upstream_request import UpstreamRequest
from terrace_gateway.upstream.error_body import error_body
from terrace_gateway.upstream.header_numbers import whole_number
from terrace_gateway.upstream.http_connection import ConnectionBrokenError, HttpConnection
from terrace_gateway.upstream.pool import Address, ConnectionPool
from terrace_gateway.upstream.port import (
    BeforeSend,
    NotSentError,
    UpstreamLostError,
    send_at_once,
)
from terrace_gateway.upstream.refusals import LOST_4XX, is_own_word

READY_FILE = "ready"
PROBE_SECONDS = 2
CONNECT_SECONDS = 5.0
IDLE_SECONDS = 1.0  # uvicorn keeps an idle connection for five
UPSTREAM_STATUS = "x-terrace-upstream-status"
"""What the provider said, taken off the wire below LiteLLM: see ``terrace_translator``."""
INPUT_TOKENS = "x-terrace-upstream-input-tokens"
"""What Bedrock counted, taken off the wire likewise."""
NOTHING_SENT = "none"
IN_JSON = " json"
"""Behind the status of a 5xx whose body said that it is JSON."""
_REQUEST_IDS = ("llm_provider-x-request-id", "x-amzn-requestid", "llm_provider-x-amzn-requestid")
_METADATA = "x-litellm-spend-logs-metadata"
"""LiteLLM tells Bedrock what is in it, as the metadata of each call that Bedrock logs."""
_PROBE = b"GET /health/liveliness HTTP/1.1\r\nhost: translator\r\n\r\n"

__all__ = ["NotSentError", "Translator", "TranslatorResponse", "UpstreamLostError"]


class TranslatorResponse:
    """The translator's answer. None of its headers is for a client: they name what is behind."""

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection
        found = connection.headers
        self.status = connection.status
        self.headers: Mapping[str, str] = {}
        self.retry_after = found.get("retry-after")
        ids = (found[name] for name in _REQUEST_IDS if name in found)
        self.request_id = next((i for i in ids if i.isprintable() and len(i) <= 256), None)
        self.provider_answered = self.status >= 400 and _provider_answered(self.status, found)
        counted = found.get(INPUT_TOKENS)
        self.input_tokens = None if counted is None else whole_number(counted)

    def chunks(self) -> AsyncIterator[bytes]:
        """The body. ``ConnectionBrokenError`` becomes ``UpstreamLostError`` in
        ``Translator.call``."""
        return self._connection.body()

    async def error_body(self) -> bytes:
        """The body of an error; empty if it is large, late or broken."""
        return await error_body(self._connection)


class Translator:
    """LiteLLM behind its Unix socket.

    A connection is used again only as the relay does it: within a second and while its socket is
    quiet, so that one which the other side closes is not taken for a call whose cost is unknown.
    """

    def __init__(self, socket: Path, key_file: Path) -> None:
        self._socket = socket
        self._key_file = key_file
        self._key: tuple[tuple[int, int, int], str] | None = None
        self._pool: ConnectionPool | None = None

    async def open(self) -> None:
        """Make the pool."""
        self._pool = ConnectionPool(
            Address("translator", 0, tls=False, socket=self._socket),
            tls=None,
            connect_seconds=CONNECT_SECONDS,
            idle_seconds=IDLE_SECONDS,
        )

    async def close(self) -> None:
        """Close idle connections."""
        if self._pool is not None:
            self._pool.close()

    @asynccontextmanager
    async def call(
        self, request: UpstreamRequest, before_send: BeforeSend = send_at_once
    ) -> AsyncGenerator[TranslatorResponse]:
        """Make the one upstream call. The body is read inside the ``async with``.

        Raises ``NotSentError`` or ``UpstreamLostError``.
        """
        pool = self._pool
        if pool is None:
            raise NotSentError("the client is not open")
        try:
            key = self._master_key()
        except (OSError, UnicodeDecodeError) as error:
            raise NotSentError(f"no translator key ({type(error).__name__})") from error
        head = (
            f"POST {request.path} HTTP/1.1\r\n"
            "host: translator\r\n"
            f"authorization: Bearer {key}\r\n"
            "content-type: application/json\r\n"
            "accept: application/json, text/event-stream\r\n"
            "accept-encoding: identity\r\n"
            f"content-length: {len(request.body)}\r\n"
            f"{_named(request)}\r\n"
        ).encode("ascii")
        connection = await pool.acquire()
        try:
            await before_send()
            await connection.exchange(head, request.body)
            if "content-encoding" in connection.headers:
                raise UpstreamLostError("the answer is compressed, and nobody asked for it")
            yield TranslatorResponse(connection)
        except ConnectionBrokenError as error:
            raise UpstreamLostError(str(error)) from error
        finally:
            pool.release(connection)

    async def is_ready(self) -> bool:
        """Whether the translator has warmed up and answers. Makes no upstream call."""
        if self._pool is None:
            return False
        try:
            (self._socket.parent / READY_FILE).stat()
            async with asyncio.timeout(PROBE_SECONDS):
                connection = await self._pool.acquire()
                try:
                    await connection.exchange(_PROBE, b"")
                    async for _ in connection.body():
                        pass
                    return connection.status == 200
                finally:
                    self._pool.release(connection)
        except (NotSentError, ConnectionBrokenError, OSError, TimeoutError):
            return False

    def _master_key(self) -> str:
        """It is new with every restart of the translator. Raises ``OSError``,
        ``UnicodeDecodeError``."""
        found = self._key_file.stat()
        identity = (found.st_ino, found.st_mtime_ns, found.st_size)
        if self._key is None or self._key[0] != identity:
            self._key = (identity, self._key_file.read_text(encoding="ascii").strip())
        return self._key[1]


def _named(request: UpstreamRequest) -> str:
    """The attempt's id, where LiteLLM looks for what Bedrock shall log."""
    attempt_id = request.headers.get(ATTEMPT_ID_HEADER)
    if attempt_id is None:
        return ""
    return f'{_METADATA}: {{"{ATTEMPT_ID_METADATA}":"{attempt_id}"}}\r\n'


def _provider_answered(status: int, headers: Mapping[str, str]) -> bool:
    """Whether an error is the provider's own word, and not the translator's for a call that was
    lost, or answered and not understood.

    LiteLLM's own status is no proof: it says 400 and 422 of a 200, too. What came off the wire is.
    A 4xx is a refusal, if it was the only answer. A 5xx may come from a proxy on the way and hide a
    call that goes on: the relay's rule.
    """
    said = headers.get(UPSTREAM_STATUS, "")
    if said == NOTHING_SENT:  # LiteLLM's own refusal; a 5xx may be followed by what it began
        return status < 500 and status not in LOST_4XX
    seen = said.removesuffix(IN_JSON)
    if len(seen) != 3 or not seen.isdecimal():  # not known, lost, or several answers
        return False
    return is_own_word(int(seen), json=seen != said)
