"""Tokens of identity providers: JSON Web Tokens, signed with the provider's own keys.

The algorithm is one that the issuer is declared with, never what the token asks for alone; keys are
the issuer's only; times are the database's.
"""

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, cast

import jwt
from jwt.types import Options

from terrace_common.governance.authentication import Authentication, Issuer
from terrace_gateway.authentication.jwks import KeySource, KeysUnavailableError, SigningKey
from terrace_gateway.authentication.token import Token
from terrace_gateway.clock import Clock
from terrace_gateway.edge.errors import AUTHORITY_UNAVAILABLE, INVALID_API_KEY, ApiError

MAX_TOKEN = 16 * 1024
MAX_SUBJECT = 255  # OpenID Connect Core, section 2
MAX_KEYS_TRIED = 8
_SHAPE = re.compile(r"[A-Za-z0-9_-]{2,}\.[A-Za-z0-9_-]{2,}\.[A-Za-z0-9_-]*")
_UNVERIFIED: Options = {
    "verify_signature": True,
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
    "verify_iss": False,
    "verify_sub": False,
    "verify_jti": False,
}  # fmt: skip  claims are checked below, by the database's clock


def looks_like_token(text: str) -> bool:
    """Whether this has the shape of a JSON Web Token."""
    return _SHAPE.fullmatch(text) is not None


class TokenVerifier:
    """The issuers in force. Others take over the keys of those that stay."""

    def __init__(self, authentication: Authentication | None, clock: Clock) -> None:
        self._clock = clock
        self._by_issuer: dict[str, tuple[Issuer, KeySource]] = {}
        self._gone: list[KeySource] = []
        self.use(authentication)

    def use(self, authentication: Authentication | None) -> None:
        """Put these issuers in force."""
        self.prepare(authentication)()

    def prepare(self, authentication: Authentication | None) -> Callable[[], None]:
        """Make ready what ``authentication`` needs; what is returned puts its issuers in force.
        Changes nothing by itself."""
        old, new = self._by_issuer, dict[str, tuple[Issuer, KeySource]]()
        for issuer in () if authentication is None else authentication.issuers:
            known = old.get(issuer.issuer)
            if known is not None and _same_keys(known[0], issuer):
                new[issuer.issuer] = (issuer, known[1])
            else:
                source = KeySource(issuer, monotonic=self._clock.monotonic)
                new[issuer.issuer] = (issuer, source)
        kept = {id(source) for _, source in new.values()}
        gone = [source for _, source in old.values() if id(source) not in kept]

        def switch() -> None:
            self._by_issuer = new
            self._gone += gone

        return switch

    async def close(self) -> None:
        """Stop running fetches."""
        for source in (*self._gone, *(source for _, source in self._by_issuer.values())):
            await source.close()

    async def verify(self, text: str) -> Token | None:
        """The token, checked; ``None``: this is no JSON Web Token.

        Raises ``ApiError``: 401 for one that is refused, 503 if it cannot be checked now.
        """
        if not looks_like_token(text) or not self._by_issuer:
            return None
        if len(text) > MAX_TOKEN:
            raise _refused("it is too large")
        header, claims = (_decoded(part) for part in text.split(".")[:2])
        if header is None:
            return None
        if claims is None:
            raise _refused("it is malformed")
        named = claims.get("iss")
        known = self._by_issuer.get(named) if isinstance(named, str) else None
        if known is None:
            raise _refused("its issuer is not known here")
        issuer, source = known
        algorithm, key_id = header.get("alg"), header.get("kid")
        if algorithm not in issuer.algorithms:
            raise _refused("its algorithm is not taken")
        if "crit" in header or not (key_id is None or isinstance(key_id, str)):
            raise _refused("its header is not understood")
        try:
            keys = await source.find(key_id, algorithm)
        except KeysUnavailableError as error:
            raise ApiError(
                AUTHORITY_UNAVAILABLE,
                "tokens cannot be checked now",
                retry_after_seconds=error.retry_after_seconds,
            ) from None
        signed = _signed_claims(text, algorithm, keys[:MAX_KEYS_TRIED])
        if signed is None or signed.get("iss") != issuer.issuer:
            raise _refused("its signature is wrong")
        return _checked(issuer, algorithm, signed, now=self._clock.database_now())


def _signed_claims(text: str, algorithm: str, keys: list[SigningKey]) -> dict[str, object] | None:
    for key in keys:
        try:
            return jwt.decode(
                text,
                key.public(algorithm),
                algorithms=[algorithm],
                options=_UNVERIFIED,
            )
        except (jwt.PyJWTError, ValueError, TypeError):
            continue
    return None


def checked_again(token: Token, authentication: Authentication | None, *, now: datetime) -> Token:
    """A token by the issuers that are declared now; the same object while its own is the same.

    Its signature is not checked again: the keys that it was checked with stand for it, and no
    network is needed. Raises ``ApiError``: 401 for one that is refused now, 503 if its issuer's
    keys come from elsewhere now.
    """
    issuers = () if authentication is None else authentication.issuers
    issuer = next((one for one in issuers if one.issuer == token.issuer.issuer), None)
    if issuer is None:
        raise _refused("its issuer is not known here")
    if issuer is token.issuer:
        return token
    if token.algorithm not in issuer.algorithms:
        raise _refused("its algorithm is not taken")
    if not _same_keys(token.issuer, issuer):
        raise ApiError(
            AUTHORITY_UNAVAILABLE,
            "the keys of this token's issuer come from elsewhere now; send the request again",
            retry_after_seconds=1,
        )
    return _checked(issuer, token.algorithm, token.claims, now=now)


def claim(claims: Mapping[str, object], name: str) -> object:
    """A claim by its name; else, for a name with dots, the value inside of objects."""
    if name in claims:
        return claims[name]
    inside = claims
    *path, last = name.split(".")
    for part in path:
        value = inside.get(part)
        inside = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    return inside.get(last)


def claim_texts(claims: Mapping[str, object], name: str | None) -> tuple[str, ...]:
    """A claim that is a text or a list of texts."""
    value = None if name is None else claim(claims, name)
    items = cast("list[object]", value) if isinstance(value, list) else [value]
    return tuple(item for item in items if isinstance(item, str))


def _checked(
    issuer: Issuer, algorithm: str, claims: Mapping[str, object], *, now: datetime
) -> Token:
    seconds, skew = now.timestamp(), issuer.clock_skew_seconds
    expires = _time(claims, "exp")
    if expires is None:
        raise _refused("it has no expiry")
    if seconds >= expires + skew:
        raise _refused("it has expired")
    begins, issued = _time(claims, "nbf"), _time(claims, "iat")
    if begins is not None and seconds < begins - skew:
        raise _refused("it is not valid yet")
    if issued is not None and seconds < issued - skew:
        raise _refused("it was issued in the future")
    if issuer.max_age_seconds is not None and (
        issued is None or expires - issued > issuer.max_age_seconds
    ):
        raise _refused("it lives too long")
    audience = claims.get("aud")
    named = cast("list[object]", audience) if isinstance(audience, list) else [audience]
    if not any(isinstance(one, str) and one in issuer.audiences for one in named):
        raise _refused("it is for another audience")
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= MAX_SUBJECT:
        raise _refused("it has no subject")
    try:
        expires_at = datetime.fromtimestamp(expires + skew, tz=now.tzinfo)
    except (OverflowError, ValueError, OSError):
        raise _refused("its expiry is out of range") from None
    return Token(issuer, algorithm, subject, claims, expires_at)


def _time(claims: Mapping[str, object], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refused(f"its {name} is no time")
    try:
        seconds = float(value)
    except OverflowError:
        raise _refused(f"its {name} is no time") from None
    if not math.isfinite(seconds):
        raise _refused(f"its {name} is no time")
    return seconds


def _decoded(part: str) -> dict[str, Any] | None:
    try:
        data = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
        found: object = json.loads(data)
    except (binascii.Error, ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


def _same_keys(old: Issuer, new: Issuer) -> bool:
    fields: list[Callable[[Issuer], object]] = [
        lambda one: one.issuer, lambda one: one.jwks_url, lambda one: one.ca_file,
        lambda one: one.bearer_file,
    ]  # fmt: skip
    return all(field(old) == field(new) for field in fields)


def _refused(why: str) -> ApiError:
    return ApiError(INVALID_API_KEY, f"the token is refused: {why}")
