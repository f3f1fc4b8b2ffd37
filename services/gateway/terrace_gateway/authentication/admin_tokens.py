"""Administrators with a token of the identity provider, by the role that it gives them."""

from collections.abc import Mapping

from terrace_common.governance.authentication import OidcIssuer
from terrace_gateway.admin.admission import AdminIdentity, JudgedBy, Role, unchecked
from terrace_gateway.admin.authentication import AdminAuthenticator
from terrace_gateway.authentication.bearer import (
    NotDeclaredError,
    bearer_of,
    employee_subject,
    person_id,
)
from terrace_gateway.authentication.token import Token
from terrace_gateway.authentication.tokens import (
    TokenVerifier,
    checked_again,
    claim_texts,
    looks_like_token,
)
from terrace_gateway.calls.ports import AuthorityUnavailableError, Caller
from terrace_gateway.clock import Clock
from terrace_gateway.edge.errors import AUTHORITY_UNAVAILABLE, KILLED, POLICY_DENIED, ApiError
from terrace_gateway.policy.feed import PolicyFeed
from terrace_gateway.policy.snapshot import Snapshot, switches_of

MAX_ACTOR = 128


class AdminTokens(AdminAuthenticator):
    """Roles are those of ``admins`` of the issuer in the policy in force; the actor is the issuer's
    name and subject.

    As for callers that are ``closed`` in an outage, the policy must be confirmed: one that is not
    may name somebody who was removed. A kill switch of the person, or of their user, team or org,
    holds here too. The one of ``all`` does not: it stops calls, and somebody must lift it.
    """

    def __init__(self, verifier: TokenVerifier, feed: PolicyFeed, clock: Clock) -> None:
        self._verifier = verifier
        self._feed = feed
        self._clock = clock

    async def authenticate(self, token: str, headers: Mapping[str, str]) -> AdminIdentity | None:
        """See the port. ``headers`` cannot change the actor. Raises ``ApiError``: 401, 403, and
        503 for a token that cannot be checked now."""
        del headers
        if not looks_like_token(token):
            return None
        try:
            await self._confirmed()  # the verifier knows no issuer before a policy is in force
            checked = await self._verifier.verify(token)
            if checked is None:
                return None
            snapshot = await self._confirmed()  # the issuer's keys may have been fetched meanwhile
            now = self._clock.database_now()
            checked = checked_again(checked, snapshot.governance.authentication, now=now)
        except AuthorityUnavailableError:
            raise unchecked(1) from None
        except ApiError as error:
            if error.code == AUTHORITY_UNAVAILABLE:
                raise unchecked(error.retry_after_seconds) from None
            raise
        return self._administrator(checked, snapshot)

    async def _confirmed(self) -> Snapshot:
        in_force = await self._feed.confirm()
        if not in_force.fresh:
            raise AuthorityUnavailableError("the policy lease has ended")
        return in_force.snapshot

    def _administrator(self, token: Token, snapshot: Snapshot) -> AdminIdentity:
        issuer = token.issuer
        if not isinstance(issuer, OidcIssuer):
            raise ApiError(POLICY_DENIED, "a workload is no administrator")
        subject = employee_subject(token, issuer)
        caller = self._caller(token, issuer, subject, snapshot)
        killed = snapshot.killed(caller, spare_all=True)
        if killed is not None:
            raise ApiError(KILLED, f"{killed}; another administrator or the admin key can lift it")
        given = set(claim_texts(token.claims, issuer.role_claim))
        roles: frozenset[Role] = frozenset(
            mapping.role for mapping in issuer.admins if mapping.value in given
        )
        switches = tuple(f"{kind}:{name}" for kind, name in switches_of(caller) if name is not None)
        return AdminIdentity(
            f"{issuer.name}:{subject}"[:MAX_ACTOR], roles, JudgedBy(snapshot.epoch, switches)
        )

    def _caller(self, token: Token, issuer: OidcIssuer, subject: str, snapshot: Snapshot) -> Caller:
        """Who this is to a kill switch. An administrator need not be a caller of the policy."""
        try:
            return bearer_of(token, snapshot, now=self._clock.database_now()).caller
        except NotDeclaredError:
            return Caller(person_id(issuer, subject), team="")
