"""The bearers of tokens among the callers of the policy in force."""

from terrace_gateway.authentication.bearer import NotDeclaredError, bearer_of
from terrace_gateway.authentication.token import Token
from terrace_gateway.calls.ports import AuthorityUnavailableError, Principal
from terrace_gateway.clock import Clock
from terrace_gateway.edge.errors import AUTHORITY_UNAVAILABLE, ApiError
from terrace_gateway.policy.feed import PolicyFeed
from terrace_gateway.policy.lease import InForce


class PolicyDirectory:
    """Callers of the policy in force. Who is not found is looked for once more in what the database
    has now, so that nobody is refused because of an old policy."""

    def __init__(self, feed: PolicyFeed, clock: Clock) -> None:
        self._feed = feed
        self._clock = clock

    async def find(self, token: Token) -> Principal:
        """The caller with ``token``, as ``bearer_of``. Raises ``ApiError``: 401, 403, and 503 where
        nobody can say now who it is."""
        try:
            try:
                return self._found(token, self._feed.current())
            except NotDeclaredError:
                await self._feed.refresh()
            in_force = self._feed.current()
            try:
                return self._found(token, in_force)
            except NotDeclaredError:
                if in_force.fresh:
                    raise
                raise AuthorityUnavailableError("the policy lease has ended") from None
        except AuthorityUnavailableError as error:
            raise ApiError(AUTHORITY_UNAVAILABLE, "callers cannot be looked up now") from error

    def _found(self, token: Token, in_force: InForce) -> Principal:
        return bearer_of(token, in_force.snapshot, now=self._clock.database_now())
