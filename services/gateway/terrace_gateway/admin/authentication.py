"""Who may call the admin API: the admin key, or an OIDC bearer token with a role."""

import hashlib
import hmac
from collections.abc import Mapping
from typing import Protocol

from pydantic import SecretStr

from terrace_gateway.admin.admission import AdminIdentity, Role
from terrace_gateway.authentication.keys import bearer_token
from terrace_gateway.edge.errors import INVALID_API_KEY, POLICY_DENIED, ApiError

ACTOR_HEADER = "x-terrace-actor"
DEFAULT_ACTOR = "admin"


class AdminAuthenticator(Protocol):
    """One way to authenticate at the admin API."""

    async def authenticate(self, token: str, headers: Mapping[str, str]) -> AdminIdentity | None:
        """The identity; ``None``: the token is not of this kind. Raises ``ApiError``."""
        ...


class AdminKeyAuthenticator(AdminAuthenticator):
    """The admin key of the deployment, compared in constant time. It is shared, so the actor is a
    claim of the caller (``x-terrace-actor``), recorded as one."""

    def __init__(self, admin_key: SecretStr) -> None:
        self._expected = _digest(admin_key.get_secret_value())

    async def authenticate(self, token: str, headers: Mapping[str, str]) -> AdminIdentity | None:
        """Every role, for the one key."""
        # Digests have one length, so the comparison says nothing about the key's.
        if not hmac.compare_digest(_digest(token), self._expected):
            return None
        actor = headers.get(ACTOR_HEADER, DEFAULT_ACTOR)[:128] or DEFAULT_ACTOR
        return AdminIdentity(actor, frozenset({"admin"}))


async def admit(
    authenticators: tuple[AdminAuthenticator, ...], headers: Mapping[str, str], role: Role
) -> AdminIdentity:
    """The caller of an admin route that needs ``role``. Raises ``ApiError``: 401, 403."""
    token = bearer_token(headers)
    if token is not None:
        for authenticator in authenticators:
            identity = await authenticator.authenticate(token, headers)
            if identity is None:
                continue
            if not identity.may(role):
                raise ApiError(POLICY_DENIED, f"this call needs the role {role}")
            return identity
    raise ApiError(INVALID_API_KEY, "the admin key is missing or wrong")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
