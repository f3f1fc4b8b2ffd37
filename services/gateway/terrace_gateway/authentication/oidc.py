"""Callers with a token: employees of an identity provider, and pods with their service account."""

import hashlib
from dataclasses import replace

from terrace_common.governance.authentication import KubernetesIssuer, OidcIssuer
from terrace_gateway.authentication.directory import Directory
from terrace_gateway.authentication.tokens import Token, TokenVerifier, claim, claim_texts
from terrace_gateway.authentication.workload import app_of, service_account
from terrace_gateway.calls.ports import Authenticator, Presented, Principal
from terrace_gateway.edge.errors import INVALID_API_KEY, POLICY_DENIED, ApiError


class TokenAuthenticator(Authenticator):
    """Checks the token and finds its bearer in the governance spec. The ledger gets a digest of
    issuer and subject, never the token."""

    def __init__(self, verifier: TokenVerifier, directory: Directory) -> None:
        self._verifier = verifier
        self._directory = directory

    async def authenticate(self, presented: Presented) -> Principal | None:
        """See the port. Raises ``ApiError``: 401, 403, 503."""
        if presented.token is None:
            return None
        token = await self._verifier.verify(presented.token)
        if token is None:
            return None
        if isinstance(token.issuer, KubernetesIssuer):
            return await self._workload(token, token.issuer)
        return await self._employee(token, token.issuer)

    async def _employee(self, token: Token, issuer: OidcIssuer) -> Principal:
        subject = employee_subject(token, issuer)
        groups = set(claim_texts(token.claims, issuer.team_claim))
        teams = tuple(mapping.team for mapping in issuer.teams if mapping.value in groups)
        principal = await self._directory.employee(
            issuer=issuer.name,
            subject=subject,
            teams=teams,
            key_id=stable_id("oidc", issuer.issuer, subject),
        )
        if principal is None:
            raise ApiError(POLICY_DENIED, "nobody with this token's subject or teams is declared")
        return replace(principal, method="oidc", expires_at=token.expires_at)

    async def _workload(self, token: Token, issuer: KubernetesIssuer) -> Principal:
        account = service_account(token)
        app = app_of(account, issuer)
        if app is None:
            raise ApiError(POLICY_DENIED, f"service account {account} is no declared workload")
        principal = await self._directory.workload(
            app=app, key_id=stable_id("workload", issuer.issuer, str(account))
        )
        if principal is None:
            raise ApiError(POLICY_DENIED, f"app {app!r} is not declared")
        return replace(principal, method="workload", expires_at=token.expires_at)


def employee_subject(token: Token, issuer: OidcIssuer) -> str:
    """What the spec knows the bearer by. Raises ``ApiError`` (401)."""
    for name in issuer.require_claims:
        if not claim(token.claims, name):
            raise ApiError(INVALID_API_KEY, f"the token is refused: claim {name} is missing")
    subject = claim(token.claims, issuer.user_claim)
    if not isinstance(subject, str) or not 0 < len(subject) <= 255:
        raise ApiError(INVALID_API_KEY, f"the token is refused: claim {issuer.user_claim} is none")
    return subject


def stable_id(kind: str, issuer: str, subject: str) -> str:
    """How the ledger names a caller without a key: the same for each of its tokens."""
    digest = hashlib.sha256(f"{issuer}\0{subject}".encode("utf-8", "surrogatepass"))
    return f"{kind}:{digest.hexdigest()[:24]}"
