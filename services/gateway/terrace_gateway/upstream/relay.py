"""The relay: OpenAI-compatible upstreams without LiteLLM, the answer's bytes as they come.

The request is ours to the last byte: path and body from the surface's allow-list, headers from
here. One call, no redirect, no retry.
"""

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from terrace_gateway.surfaces.upstream_request import UpstreamRequest
from terrace_gateway.upstream.credentials import Credentials
from terrace_gateway.upstream.error_body import error_body
from terrace_gateway.upstream.http_connection import ConnectionBrokenError, HttpConnection
from terrace_gateway.upstream.pool import Address, ConnectionPool
from terrace_gateway.upstream.port import (
    BeforeSend,
    Target,
    UpstreamLostError,
    WayChangedError,
    send_at_once,
)
from terrace_gateway.upstream.refusals import is_json, is_own_word

API_PREFIX = "/v1"  # of a surface's path; a provider's ``api_base`` has its own
PASSED_HEADERS = ("content-type",)
_REQUEST_IDS = ("x-request-id", "request-id", "apim-request-id")
_OWN_HEADERS = frozenset({"x-terrace-attempt-id", "traceparent"})


@dataclass(frozen=True)
class RelayProvider:
    """A provider that is relayed."""

    name: str
    api_base: str
    credential: str
    """Name of the variable that holds it."""


@dataclass(frozen=True)
class RelaySettings:
    """``idle_seconds``: how long a connection may be idle and be used again; 0: never."""

    connect_seconds: float = 5.0
    idle_seconds: float = 1.0


class RelayResponse:
    """An answer on its way. See ``UpstreamResponse``."""

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection
        found = connection.headers
        self.status = connection.status
        self.headers: Mapping[str, str] = {
            name: found[name] for name in PASSED_HEADERS if name in found
        }
        self.retry_after = found.get("retry-after")
        ids = (found[name] for name in _REQUEST_IDS if name in found)
        self.request_id = next((i for i in ids if i.isprintable() and len(i) <= 256), None)
        json = is_json(found.get("content-type", ""))
        self.provider_answered = is_own_word(self.status, json=json)
        self.input_tokens: int | None = None

    def chunks(self) -> AsyncIterator[bytes]:
        """The body. ``ConnectionBrokenError`` becomes ``UpstreamLostError`` in ``Relay.call``."""
        return self._connection.body()

    async def error_body(self) -> bytes:
        """The body of an error; empty if it is large, late or broken."""
        return await error_body(self._connection)


class Relay:
    """Calls to all relayed providers, each with connections of its own."""

    def __init__(
        self,
        credentials: Credentials,
        settings: RelaySettings,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._credentials = credentials
        self._settings = settings
        self._tls = tls or tls_context()
        self._routes: dict[str, _Route] = {}

    def apply(self, providers: Sequence[RelayProvider]) -> None:
        """Put these providers in force. Raises ``ValueError`` for a URL that cannot be called."""
        self.prepare(providers)()

    def prepare(self, providers: Sequence[RelayProvider]) -> Callable[[], None]:
        """Routes to ``providers``; what is returned puts them in force, and changes nothing for
        calls that run. Unchanged ones keep their connections. Raises as ``apply``."""
        old, routes = self._routes, dict[str, _Route]()
        for provider in providers:
            known = old.get(provider.name)
            if known is None or known.provider != provider:
                known = self._route(provider)
            routes[provider.name] = known
        kept = {id(route) for route in routes.values()}
        gone = [route.pool for route in old.values() if id(route) not in kept]

        def switch() -> None:
            self._routes = routes
            for pool in gone:
                pool.close()

        return switch

    def serves(self, provider: str) -> bool:
        """Whether the provider is relayed now."""
        return provider in self._routes

    async def close(self) -> None:
        """Close idle connections."""
        for route in self._routes.values():
            route.pool.close()

    @asynccontextmanager
    async def call(
        self, request: UpstreamRequest, target: Target, before_send: BeforeSend = send_at_once
    ) -> AsyncGenerator[RelayResponse]:
        """Make the one call. Raises ``NotSentError`` (``WayChangedError`` is one) or
        ``UpstreamLostError``."""
        route = self._routes.get(target.provider)
        if route is None:
            await before_send()  # the policy has changed: this says what becomes of the call
            raise WayChangedError("the provider is not relayed")
        head = route.head(request, self._credentials.of(route.provider.credential))
        connection = await route.pool.acquire()
        try:
            await before_send()
            # The policy may be the call's own again, and another while the connection was made.
            if self._routes.get(target.provider) is not route:
                raise WayChangedError("the provider is relayed elsewhere")
            await connection.exchange(head, request.body)
            if "content-encoding" in connection.headers:
                raise UpstreamLostError("the answer is compressed, and nobody asked for it")
            yield RelayResponse(connection)
        except ConnectionBrokenError as error:
            raise UpstreamLostError(str(error)) from error
        finally:
            route.pool.release(connection)

    def _route(self, provider: RelayProvider) -> "_Route":
        url = urlsplit(provider.api_base)
        secure = url.scheme == "https"
        address = Address(url.hostname or "", url.port or (443 if secure else 80), secure)
        pool = ConnectionPool(
            address,
            tls=self._tls,
            connect_seconds=self._settings.connect_seconds,
            idle_seconds=self._settings.idle_seconds,
        )
        return _Route(provider, url.netloc.rpartition("@")[2], url.path.rstrip("/"), pool)


@dataclass(frozen=True)
class _Route:
    provider: RelayProvider
    host: str
    prefix: str
    pool: ConnectionPool

    def head(self, request: UpstreamRequest, credential: str) -> bytes:
        own = "".join(
            f"{name}: {value}\r\n"
            for name, value in request.headers.items()
            if name in _OWN_HEADERS and value.isascii() and value.isprintable()
        )
        return (
            f"POST {self.prefix}{request.path.removeprefix(API_PREFIX)} HTTP/1.1\r\n"
            f"host: {self.host}\r\n"
            f"authorization: Bearer {credential}\r\n"
            "content-type: application/json\r\n"
            "accept: application/json, text/event-stream\r\n"
            "accept-encoding: identity\r\n"
            "user-agent: terrace-gateway\r\n"
            f"content-length: {len(request.body)}\r\n{own}\r\n"
        ).encode("ascii")


def tls_context(ca_file: str | None = None) -> ssl.SSLContext:
    """TLS 1.2 or later, certificate and host name checked; ``ca_file``: further roots, PEM."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context
