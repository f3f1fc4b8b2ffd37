"""Authentication by virtual key, out of the policy in force: two look-ups and no network."""

from hmac import compare_digest

import structlog

from terrace_common.governance.compile import UnknownSubjectError
from terrace_gateway.authentication.keys import hash_key, looks_like_key
from terrace_gateway.calls.ports import (
    Authenticator,
    AuthorityUnavailableError,
    Presented,
    Principal,
)
from terrace_gateway.clock import Clock
from terrace_gateway.edge.errors import AUTHORITY_UNAVAILABLE, INVALID_API_KEY, ApiError
from terrace_gateway.policy.feed import PolicyFeed
from terrace_gateway.policy.key_use import KeyUse
from terrace_gateway.policy.snapshot import Snapshot

log = structlog.get_logger()

INVALID = "the API key is unknown, revoked or expired"
"""One text for the three: what a stranger tries tells nothing of the keys that there are."""


class VirtualKeyAuthenticator(Authenticator):
    """Finds a key by its keyed hash. The time that takes tells nothing without the pepper.

    A key that is not known is looked for once more, after a question to the database that was sent
    after the request came: so a key works everywhere as soon as its minting is answered, and 401
    is never said of a key that cannot be checked. Strangers share these questions.
    """

    def __init__(
        self, feed: PolicyFeed, clock: Clock, *, pepper: bytes, use: KeyUse | None = None
    ) -> None:
        self._feed = feed
        self._clock = clock
        self._pepper = pepper
        self._use = use

    async def authenticate(self, presented: Presented) -> Principal | None:
        """See the port. Raises ``ApiError``: 401, or 503 if the key cannot be checked."""
        token = presented.token
        if token is None or not looks_like_key(token):
            return None
        key_hash = hash_key(self._pepper, token)
        try:
            principal = await self._search(key_hash)
        except AuthorityUnavailableError as error:
            raise ApiError(AUTHORITY_UNAVAILABLE, "keys cannot be checked now") from error
        if principal is None:
            raise ApiError(INVALID_API_KEY, INVALID)
        if self._use is not None:
            self._use.note(principal.caller.key_id)
        return principal

    async def _search(self, key_hash: bytes) -> Principal | None:
        principal = self._find(self._feed.current().snapshot, key_hash)
        if principal is not None:
            return principal
        await self._feed.refresh()
        in_force = self._feed.current()
        principal = self._find(in_force.snapshot, key_hash)
        if principal is None and not in_force.fresh:
            raise AuthorityUnavailableError("the policy lease has ended")
        return principal

    def _find(self, snapshot: Snapshot, key_hash: bytes) -> Principal | None:
        secret = snapshot.find_secret(key_hash)
        if secret is None or not compare_digest(secret.key_hash, key_hash):
            return None
        now = self._clock.database_now()
        key = snapshot.keys.get(secret.key_id)
        if key is None or (secret.valid_until is not None and secret.valid_until <= now):
            return None
        if key.expires_at is not None and key.expires_at <= now:
            return None
        try:
            return snapshot.principal(key)
        except UnknownSubjectError as error:
            log.warning("key_orphaned", key_id=key.key_id, error=str(error))
            raise ApiError(
                INVALID_API_KEY, "the owner of this API key is not declared any more"
            ) from None
