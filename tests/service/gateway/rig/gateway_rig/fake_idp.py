"""An identity provider on the loopback: it signs, rotates its keys, and misbehaves when told to."""

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from terrace_gateway.clock import Clock

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


class SetClock(Clock):
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        super().__init__()

    def monotonic(self) -> float:
        return self.seconds

    def database_now(self) -> datetime:
        return NOW + timedelta(seconds=self.seconds - 1000.0)


class FakeIdp:
    """Keys by id; ``published`` are those that the key set shows."""

    def __init__(self) -> None:
        self.private: dict[str, Any] = {}
        self.algorithms: dict[str, str] = {}
        self.published: list[str] = []
        self.fetches = 0
        self.discoveries = 0
        self.status = 200
        self.body: bytes | None = None
        self.extra: list[dict[str, Any]] = []
        self.without_kid = False
        self.wrong_issuer = False
        self.hang = False
        self.port = 0
        self.authorizations: list[str | None] = []

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self.port}/realm"

    def rotate(self, key_id: str, algorithm: str = "RS256", *, keep: bool = True) -> None:
        """Make a key and sign with it from now on."""
        if algorithm.startswith(("RS", "PS")):
            private: Any = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        elif algorithm == "ES256":
            private = ec.generate_private_key(ec.SECP256R1())
        else:
            private = ed25519.Ed25519PrivateKey.generate()
        self.private[key_id], self.algorithms[key_id] = private, algorithm
        self.published = [*(self.published if keep else []), key_id]

    def sign(self, key_id: str, headers: dict[str, Any] | None = None, **claims: Any) -> str:
        """A token; ``claims`` are over the usual ones, ``None`` leaves one out."""
        return jwt.encode(
            self.claims(**claims),
            self.private[key_id],
            algorithm=self.algorithms[key_id],
            headers={"kid": key_id, **(headers or {})},
        )

    def claims(self, **changes: Any) -> dict[str, Any]:
        """The usual claims."""
        seconds = int(NOW.timestamp())
        usual = {"iss": self.issuer, "sub": "jo", "aud": "terrace", "iat": seconds,
                 "exp": seconds + 600}  # fmt: skip
        return {name: one for name, one in {**usual, **changes}.items() if one is not None}

    def public_pem(self, key_id: str) -> bytes:
        """What an attacker knows as well."""
        return (
            self.private[key_id]
            .public_key()
            .public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )

    def jwk(self, key_id: str, *, private: bool = False) -> dict[str, Any]:
        """As the key set shows it."""
        algorithm = jwt.get_algorithm_by_name(self.algorithms[key_id])
        key = self.private[key_id] if private else self.private[key_id].public_key()
        found = dict(algorithm.to_jwk(key, as_dict=True))  # type: ignore[call-overload]
        found.pop("key_ops", None)
        if not self.without_kid:
            found["kid"] = key_id
        return {**found, "use": "sig"}

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["FakeIdp"]:
        app = web.Application()
        app.router.add_get("/realm/.well-known/openid-configuration", self._discovery)
        app.router.add_get("/realm/keys", self._keys)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _discovery(self, _: web.Request) -> web.Response:
        self.discoveries += 1
        issuer = "https://evil.example" if self.wrong_issuer else self.issuer
        return web.json_response({"issuer": issuer, "jwks_uri": f"{self.issuer}/keys"})

    async def _keys(self, request: web.Request) -> web.Response:
        self.fetches += 1
        self.authorizations.append(request.headers.get("authorization"))
        if self.hang:
            await asyncio.sleep(0.05)
        if self.status != 200:
            return web.Response(status=self.status)
        keys = [self.jwk(key_id) for key_id in self.published]
        body = self.body or json.dumps({"keys": [*keys, *self.extra]}).encode()
        return web.Response(body=body, content_type="application/json")


def encode(value: object) -> str:
    """A part of a token."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def forged(header: dict[str, Any], claims: object, secret: bytes = b"") -> str:
    """A token by hand; with ``secret`` signed by HMAC-SHA256 whatever the header says."""
    signed = f"{encode(header)}.{encode(claims)}"
    signature = hmac.new(secret, signed.encode(), hashlib.sha256).digest() if secret else b""
    return f"{signed}.{encode(signature)}"
