"""Callers with a token: employees of an identity provider, and pods with their service account."""

from terrace_gateway.authentication.directory import PolicyDirectory
from terrace_gateway.authentication.tokens import TokenVerifier
from terrace_gateway.calls.ports import Authenticator, Presented, Principal


class TokenAuthenticator(Authenticator):
    """Checks the token and finds its bearer in the governance spec. The ledger gets a digest of
    issuer and subject, never the token."""

    def __init__(self, verifier: TokenVerifier, directory: PolicyDirectory) -> None:
        self._verifier = verifier
        self._directory = directory

    async def authenticate(self, presented: Presented) -> Principal | None:
        """See the port. Raises ``ApiError``: 401, 403, 503."""
        if presented.token is None:
            return None
        token = await self._verifier.verify(presented.token)
        return None if token is None else await self._directory.find(token)
