"""Virtual keys: minted at random, kept only as keyed hashes, found by the hash."""

import hmac
import re
import secrets
from collections.abc import Mapping

KEY_PREFIX = "tk-"
_KEY_BYTES = 32
_KEY_SHAPE = re.compile(r"tk-[A-Za-z0-9_-]{43}")


def mint_key() -> str:
    """A new key with 256 bits of randomness."""
    return KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)


def mint_key_id() -> str:
    """A new public name for a key."""
    return "key_" + secrets.token_hex(10)


def hash_key(pepper: bytes, key: str) -> bytes:
    """HMAC-SHA256 of the key. Looking up by it leaks nothing by timing: the pepper is secret."""
    return hmac.digest(pepper, key.encode(), "sha256")


def bearer_token(headers: Mapping[str, str]) -> str | None:
    """The bearer token of the ``authorization`` header (lower-case keys), if there is one."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    token = token.strip()
    return token if scheme.lower() == "bearer" and token else None


def looks_like_key(token: str) -> bool:
    """Whether the token has the shape of a virtual key; saves the database the rest."""
    return _KEY_SHAPE.fullmatch(token) is not None
