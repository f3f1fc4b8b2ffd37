"""The authenticators of the guard, asked in turn."""

from collections.abc import Sequence

from terrace_gateway.authentication.virtual_key import INVALID
from terrace_gateway.calls.ports import Authenticator, Presented, Principal
from terrace_gateway.edge.errors import INVALID_API_KEY, ApiError

MISSING = "no API key was shown: send one as `authorization: Bearer`, `x-api-key` or `api-key`"


class AuthenticatorChain:
    """The first that knows the kind of what is presented decides; none: 401."""

    def __init__(self, authenticators: Sequence[Authenticator]) -> None:
        self._authenticators = tuple(authenticators)

    async def authenticate(self, presented: Presented) -> Principal:
        """The caller. Raises ``ApiError``: 401 or 403 where it is refused, 503 where it cannot be
        checked now."""
        for authenticator in self._authenticators:
            principal = await authenticator.authenticate(presented)
            if principal is not None:
                return principal
        raise ApiError(INVALID_API_KEY, MISSING if presented.token is None else INVALID)
