"""The keys of an issuer: fetched when needed, kept for a while, fetched anew when it rotates."""

import asyncio
import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import aiohttp
import jwt
import structlog

from terrace_common.governance.authentication import Issuer

log = structlog.get_logger()

REFRESH_SECONDS = 300
"""Keys older than this are fetched anew, beside the calls."""
STALE_SECONDS = 3600
"""Keys older than this are not used: a withdrawn key is refused after so long at the latest, also
while the issuer is away."""
MISS_SECONDS = 5
"""Between fetches because of key ids that are not known, so that strangers cannot have us flood
the issuer."""
FETCH_SECONDS = 5
MAX_BYTES = 512 * 1024
MAX_KEYS = 100
MIN_RSA_BITS = 2048
_TYPE_OF = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
_CURVES = {"ES256": "P-256", "ES384": "P-384", "EdDSA": "Ed25519"}


class KeysUnavailableError(Exception):
    """The issuer's keys cannot be had now: nobody can say whether a token is good."""

    def __init__(self, reason: str, *, retry_after_seconds: int = 1) -> None:
        super().__init__(reason)
        self.retry_after_seconds = retry_after_seconds


@dataclass(frozen=True, slots=True)
class SigningKey:
    """One public key. Its secret is the issuer's."""

    key_id: str | None
    kind: str
    curve: str | None
    algorithm: str | None
    """The only one that it may be used with, if the issuer says so."""
    source: dict[str, Any] = field(repr=False)

    def fits(self, algorithm: str) -> bool:
        """Whether it may check a signature of this algorithm."""
        if self.algorithm is not None and self.algorithm != algorithm:
            return False
        return self.kind == _TYPE_OF[algorithm[:2]] and (
            algorithm not in _CURVES or self.curve == _CURVES[algorithm]
        )

    def public(self, algorithm: str) -> Any:
        """For the library that checks."""
        return jwt.PyJWK(self.source, algorithm=algorithm).key


class KeySource:
    """The keys of one issuer. All calls share one fetch at a time."""

    def __init__(self, issuer: Issuer, *, monotonic: Callable[[], float]) -> None:
        self._issuer = issuer
        self._monotonic = monotonic
        self._keys: tuple[SigningKey, ...] = ()
        self._fetched_at: float | None = None
        self._tried_at: float | None = None
        self._running: asyncio.Task[None] | None = None
        self.fetches = 0

    async def close(self) -> None:
        """Stop a running fetch."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def find(self, key_id: str | None, algorithm: str) -> list[SigningKey]:
        """Keys that may have signed; empty: the issuer has none such.

        Raises ``KeysUnavailableError``.
        """
        asked_at = self._monotonic()
        if self._age(asked_at) > STALE_SECONDS:
            await self._fetch(asked_at)
        elif self._age(asked_at) > REFRESH_SECONDS and self._may_try(asked_at):
            self._begin()
        found = self._matching(key_id, algorithm)
        if found or (self._fetched_at is not None and self._fetched_at >= asked_at):
            return found
        await self._fetch(asked_at)
        return self._matching(key_id, algorithm)

    def _matching(self, key_id: str | None, algorithm: str) -> list[SigningKey]:
        return [
            key
            for key in self._keys
            if key.fits(algorithm) and (key_id is None or key.key_id == key_id)
        ]

    def _age(self, now: float) -> float:
        return float("inf") if self._fetched_at is None else now - self._fetched_at

    def _may_try(self, now: float) -> bool:
        return self._tried_at is None or now - self._tried_at >= MISS_SECONDS

    async def _fetch(self, asked_at: float) -> None:
        """A fetch that began after ``asked_at``, so that its answer knows of every older key."""
        if self._running is None or self._running.done():
            if not self._may_try(asked_at):
                left = MISS_SECONDS - (asked_at - (self._tried_at or 0.0))
                raise KeysUnavailableError(
                    "the keys were asked for just now",
                    retry_after_seconds=max(1, round(left + 0.5)),
                )
            self._begin()
        running = self._running
        assert running is not None  # noqa: S101  for the types
        await asyncio.wait([running])
        if self._fetched_at is None or self._monotonic() - self._fetched_at > STALE_SECONDS:
            raise KeysUnavailableError("the issuer's keys cannot be fetched")
        if running.cancelled() or running.exception() is not None:
            raise KeysUnavailableError("the issuer's keys cannot be fetched anew")

    def _begin(self) -> None:
        if self._running is None or self._running.done():
            self._tried_at = self._monotonic()
            self._running = asyncio.create_task(self._read())
            self._running.add_done_callback(self._told)

    def _told(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("issuer_keys_not_fetched", issuer=self._issuer.name, error=_reason(error))

    async def _read(self) -> None:
        self.fetches += 1
        began = self._monotonic()
        issuer = self._issuer
        timeout = aiohttp.ClientTimeout(total=FETCH_SECONDS)
        headers = {"accept": "application/json"}
        if issuer.bearer_file is not None:
            token = await asyncio.to_thread(Path(issuer.bearer_file).read_text, "utf-8")
            headers["authorization"] = f"Bearer {token.strip()}"
        secure: ssl.SSLContext | bool = True
        if issuer.ca_file is not None:
            secure = await asyncio.to_thread(ssl.create_default_context, cafile=issuer.ca_file)
        async with aiohttp.ClientSession(
            timeout=timeout, headers=headers, connector=aiohttp.TCPConnector(ssl=secure)
        ) as session:
            address = issuer.jwks_url
            if address is None:
                base = issuer.issuer.rstrip("/")
                found = await _get(session, f"{base}/.well-known/openid-configuration")
                address = discovered_address(found, issuer.issuer)
            document = await _get(session, address)
        keys = read_keys(document)
        if not keys:
            raise ValueError("the issuer has no key that can be used")
        self._keys, self._fetched_at = keys, began


def discovered_address(document: object, issuer: str) -> str:
    """Where discovery says that the keys are. Raises ``ValueError`` for what must not be used."""
    fields = cast("dict[str, object]", document) if isinstance(document, dict) else {}
    if fields.get("issuer") != issuer:
        raise ValueError("discovery names another issuer")
    address = fields.get("jwks_uri")
    if not isinstance(address, str) or not address.startswith(("https://", "http://")):
        raise ValueError("discovery has no jwks_uri")
    if issuer.startswith("https://") and not address.startswith("https://"):
        raise ValueError("discovery leads from https to http")
    return address


def read_keys(document: object) -> tuple[SigningKey, ...]:
    """Public keys for signatures. What is not understood, too weak or symmetric is left out."""
    fields = cast("dict[str, object]", document) if isinstance(document, dict) else {}
    items = fields.get("keys")
    if not isinstance(items, list):
        raise ValueError("the key set has no list of keys")  # noqa: TRY004  a bad answer
    keys: list[SigningKey] = []
    for item in cast("list[object]", items)[:MAX_KEYS]:
        key = _read_key(cast("dict[str, Any]", item)) if isinstance(item, dict) else None
        if key is not None:
            keys.append(key)
    return tuple(keys)


def _read_key(item: dict[str, Any]) -> SigningKey | None:
    kind, key_id, algorithm = item.get("kty"), item.get("kid"), item.get("alg")
    if kind not in ("RSA", "EC", "OKP") or item.get("use", "sig") != "sig" or "d" in item:
        return None  # a key with its private part is everybody's
    if not (key_id is None or isinstance(key_id, str)):
        return None
    try:
        public = cast("Any", jwt.PyJWK(item)).key
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError):
        return None
    if kind == "RSA" and public.key_size < MIN_RSA_BITS:
        return None
    curve = item.get("crv")
    return SigningKey(
        key_id=key_id,
        kind=kind,
        curve=curve if isinstance(curve, str) else None,
        algorithm=algorithm if isinstance(algorithm, str) else None,
        source=item,
    )


async def _get(session: aiohttp.ClientSession, url: str) -> object:
    async with session.get(url, allow_redirects=False) as answer:
        if answer.status != 200:
            raise ValueError(f"status {answer.status}")
        body = bytearray()
        async for part in answer.content.iter_any():
            body += part
            if len(body) > MAX_BYTES:
                raise ValueError("the answer is too large")
    found: object = json.loads(bytes(body))
    return found


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, ValueError) else type(error).__name__
