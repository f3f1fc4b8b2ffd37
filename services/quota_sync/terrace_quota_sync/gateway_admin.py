"""The gateway's admin API, as quota_sync uses it."""

from dataclasses import dataclass
from typing import Any, cast

import aiohttp
from pydantic import SecretStr

from terrace_common.governance import Governance, GovernanceError, load_governance

MAX_ANSWER_BYTES = 32 * 1024 * 1024
TIMEOUT_SECONDS = 30
LEASE_NAME = "quota-sync"


class GatewayError(Exception):
    """The gateway did not do what was asked. ``code`` is its error code, or what failed."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True)
class Lease:
    """An answer about the lease."""

    held: bool
    fence: int
    holder: str


@dataclass(frozen=True, slots=True)
class GovernanceInForce:
    """The catalogue, and its version."""

    version: int
    governance: Governance


class GatewayAdmin:
    """A client. Use it as an asynchronous context manager."""

    def __init__(self, url: str, key: SecretStr) -> None:
        self._url = url.rstrip("/")
        self._key = key
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "GatewayAdmin":
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS), trust_env=False
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def governance(self) -> GovernanceInForce:
        """The version in force. Raises ``GatewayError``."""
        answer = await self._call("GET", "/governance")
        try:
            version, text = int(answer["version"]), str(answer["text"])
            return GovernanceInForce(version, load_governance(text, "governance in force"))
        except (KeyError, TypeError, ValueError, GovernanceError) as error:
            raise GatewayError(f"governance: {type(error).__name__}") from None

    async def take_lease(
        self, holder: str, seconds: float, *, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> Lease:
        """Take or renew the lease. Raises ``GatewayError``."""
        answer = await self._call(
            "POST",
            f"/leases/{LEASE_NAME}",
            {"holder": holder, "seconds": seconds},
            timeout_seconds=timeout_seconds,
        )
        try:
            return Lease(answer["held"] is True, int(answer["fence"]), str(answer["holder"]))
        except (KeyError, TypeError, ValueError) as error:
            raise GatewayError(f"lease: {type(error).__name__}") from None

    async def give_lease(self, holder: str, fence: int) -> None:
        """Give the lease back. Raises ``GatewayError``."""
        await self._call(
            "POST",
            f"/leases/{LEASE_NAME}/release",
            {"holder": holder, "fence": fence},
            timeout_seconds=3,
        )

    async def publish(self, publication: dict[str, Any]) -> dict[str, Any]:
        """Put quotas in force. Raises ``GatewayError``; code ``fenced``: another one leads, code
        ``version_conflict``: the catalogue has changed."""
        return await self._call("PUT", "/upstream-quotas", publication)

    async def _call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> dict[str, Any]:
        if self._session is None:
            raise RuntimeError("the client is not open")
        headers = {
            "authorization": f"Bearer {self._key.get_secret_value()}",
            "x-terrace-actor": "quota-sync",
        }
        try:
            async with self._session.request(
                method,
                f"{self._url}/admin/v1{path}",
                json=body,
                headers=headers,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=timeout_seconds),
            ) as answer:
                if answer.content_length is not None and answer.content_length > MAX_ANSWER_BYTES:
                    raise GatewayError("answer too large")
                document: object = await answer.json(content_type=None)
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as error:
            raise GatewayError(type(error).__name__) from None
        if not isinstance(document, dict):
            raise GatewayError(f"status {status}")
        found = cast("dict[str, Any]", document)
        if status >= 300:
            error: object = found.get("error")
            code = cast("dict[str, Any]", error).get("code") if isinstance(error, dict) else None
            raise GatewayError(str(code or f"status {status}")[:64])
        return found
