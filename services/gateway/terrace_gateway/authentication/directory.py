"""From what a token says of its bearer to the callers that the governance spec declares."""

from typing import Protocol

import structlog

from terrace_common.governance.authentication import OidcIssuer
from terrace_common.governance.compile import UnknownSubjectError
from terrace_gateway.calls.ports import AuthorityUnavailableError, Principal
from terrace_gateway.edge.errors import AUTHORITY_UNAVAILABLE, ApiError
from terrace_gateway.policy.feed import PolicyFeed
from terrace_gateway.policy.snapshot import Snapshot

log = structlog.get_logger()


class Directory(Protocol):
    """Finds callers. ``key_id`` is what the ledger calls them."""

    async def employee(
        self, *, issuer: str, subject: str, teams: tuple[str, ...], key_id: str
    ) -> Principal | None:
        """A user of the spec with this ``subject``, else a member of the first of ``teams`` that
        the spec has. ``issuer`` is its name in the spec. Raises ``ApiError`` (503)."""
        ...

    async def workload(self, *, app: str, key_id: str) -> Principal | None:
        """An app of the spec. Raises ``ApiError`` (503)."""
        ...


class PolicyDirectory(Directory):
    """Callers of the policy in force. Who is not found is looked for once more in what the database
    has now, so that nobody is refused because of an old policy."""

    def __init__(self, feed: PolicyFeed) -> None:
        self._feed = feed

    async def employee(
        self, *, issuer: str, subject: str, teams: tuple[str, ...], key_id: str
    ) -> Principal | None:
        """See the port."""

        def find(snapshot: Snapshot) -> Principal | None:
            user = user_of(snapshot, issuer=issuer, subject=subject)
            if user is not None:
                name, team = user
                return snapshot.caller_without_key(key_id=key_id, team=team, user=name)
            declared = {team.name for team in snapshot.governance.teams}
            for team in teams:
                if team in declared:
                    return snapshot.caller_without_key(key_id=key_id, team=team)
            return None

        return await self._look(find)

    async def workload(self, *, app: str, key_id: str) -> Principal | None:
        """See the port."""

        def find(snapshot: Snapshot) -> Principal | None:
            for declared in snapshot.governance.apps:
                if declared.name == app:
                    return snapshot.caller_without_key(key_id=key_id, team=declared.team, app=app)
            return None

        return await self._look(find)

    async def _look(self, find: "Finder") -> Principal | None:
        try:
            found = _found(find, self._feed.current().snapshot)
            if found is None:
                await self._feed.refresh()
                in_force = self._feed.current()
                found = _found(find, in_force.snapshot)
                if found is None and not in_force.fresh:
                    raise ApiError(AUTHORITY_UNAVAILABLE, "callers cannot be looked up now")
        except AuthorityUnavailableError as error:
            raise ApiError(AUTHORITY_UNAVAILABLE, "callers cannot be looked up now") from error
        return found


class Finder(Protocol):
    """Looks for a caller in a snapshot."""

    def __call__(self, snapshot: Snapshot, /) -> Principal | None: ...


def user_of(snapshot: Snapshot, *, issuer: str, subject: str) -> tuple[str, str] | None:
    """Name and team of the user with this subject.

    ``subject`` of the spec is ``<issuer's name>:<subject>``, or the subject alone while one issuer
    of employees is declared: two may give the same subject to different people.
    """
    authentication = snapshot.governance.authentication
    issuers = () if authentication is None else authentication.issuers
    alone = sum(isinstance(one, OidcIssuer) for one in issuers) == 1
    for user in snapshot.governance.users:
        if user.subject is None:
            continue
        of, _, own = user.subject.partition(":")
        if (of, own) == (issuer, subject) or (alone and of != issuer and user.subject == subject):
            return user.name, user.team
    return None


def _found(find: Finder, snapshot: Snapshot) -> Principal | None:
    try:
        return find(snapshot)
    except UnknownSubjectError as error:
        log.warning("caller_orphaned", error=str(error))
        return None
