"""Administrators with a token of the identity provider, by the role that it gives them."""

from collections.abc import Mapping

from terrace_common.governance.authentication import OidcIssuer
from terrace_gateway.admin.authentication import AdminAuthenticator, AdminIdentity
from terrace_gateway.admin.routing import Role
from terrace_gateway.authentication.bearer import employee_subject
from terrace_gateway.authentication.tokens import TokenVerifier, claim_texts
from terrace_gateway.edge.errors import POLICY_DENIED, ApiError

MAX_ACTOR = 128


class AdminTokens(AdminAuthenticator):
    """Roles are those of ``admins`` of the issuer; the actor is the issuer's name and subject."""

    def __init__(self, verifier: TokenVerifier) -> None:
        self._verifier = verifier

    async def authenticate(self, token: str, headers: Mapping[str, str]) -> AdminIdentity | None:
        """See the port. ``headers`` cannot change the actor. Raises ``ApiError``."""
        del headers
        checked = await self._verifier.verify(token)
        if checked is None:
            return None
        issuer = checked.issuer
        if not isinstance(issuer, OidcIssuer):
            raise ApiError(POLICY_DENIED, "a workload is no administrator")
        given = set(claim_texts(checked.claims, issuer.role_claim))
        roles: frozenset[Role] = frozenset(
            mapping.role for mapping in issuer.admins if mapping.value in given
        )
        actor = f"{issuer.name}:{employee_subject(checked, issuer)}"
        return AdminIdentity(actor[:MAX_ACTOR], roles)
