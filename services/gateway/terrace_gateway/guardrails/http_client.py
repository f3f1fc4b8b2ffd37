"""The connections of guardrails that are asked over HTTP."""

import os
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

import aiohttp
from aiohttp.connector import Connection
from yarl import URL

from terrace_gateway.guardrails.aws_signing import AmbientCredentials, AwsCredentials
from terrace_gateway.guardrails.port import Ask, GuardrailFailedError

MAX_CONNECTIONS = 64
MAX_ANSWER_BYTES = 16 * 1024 * 1024
CONNECT_SECONDS = 2


@dataclass
class GuardrailHttp:
    """One pool for all guardrails. No redirects, no proxies of the environment, no retries."""

    ambient: AwsCredentials = field(default_factory=AmbientCredentials)
    """Of Bedrock providers with ``credentials: ambient``."""
    credential: Callable[[str], str | None] = os.environ.get
    """What ``token_env`` names, and the keys of ``credentials: keys``; ``None``: there is none."""
    _session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Make the pool; connects to nothing."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=True,
            request_class=_Request,
        )

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def post(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes,
        before_send: Ask | None = None,
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers (lower-case names) and body, at most ``MAX_ANSWER_BYTES``.

        ``before_send`` is awaited with a connection at hand; what it raises ends it unsent. Raises
        ``NotConnectedError``: nothing was sent; ``GuardrailFailedError``: it is not known.
        """
        if self._session is None:
            raise NotConnectedError("the guardrails' connections are not open")
        asked = _BEFORE_SEND.set(before_send)
        try:
            async with self._session.post(
                URL(url, encoded=True), headers=headers, data=body, allow_redirects=False
            ) as answer:
                content = await answer.content.read(MAX_ANSWER_BYTES + 1)
                while len(content) <= MAX_ANSWER_BYTES and not answer.content.at_eof():
                    content += await answer.content.read(MAX_ANSWER_BYTES + 1 - len(content))
                if len(content) > MAX_ANSWER_BYTES:
                    raise GuardrailFailedError("its answer is too large")
                names = {name.lower(): value for name, value in answer.headers.items()}
                return answer.status, names, content
        except (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError) as error:
            raise NotConnectedError(type(error).__name__) from None
        except (aiohttp.ClientError, OSError) as error:
            raise GuardrailFailedError(type(error).__name__) from None
        finally:
            _BEFORE_SEND.reset(asked)


_BEFORE_SEND: ContextVar[Ask | None] = ContextVar("before_send")


class _Request(aiohttp.ClientRequest):
    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        before_send = _BEFORE_SEND.get()
        if before_send is not None:
            await before_send()
        return await super().send(conn)


class NotConnectedError(GuardrailFailedError):
    """Nothing was sent."""
