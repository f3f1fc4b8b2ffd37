"""Whether who calls the admin API may still do so when their change is committed.

A change waits: for its body, its turn, the lock of the policy. Who is stopped or removed meanwhile
changes nothing, by what is committed once it has the lock.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from terrace_gateway.calls.ports import AuthorityUnavailableError
from terrace_gateway.database import Connection
from terrace_gateway.edge.errors import AUTHORITY_UNAVAILABLE, ApiError

Role = Literal["viewer", "auditor", "admin"]
"""Each may do what those before it may. ``viewer`` reads keys, spend and governance; ``auditor``
also the ledger, the audit record and captures; ``admin`` changes things."""
UNCHECKED = (
    "whether this token is an administrator's cannot be checked now; try again, or use the admin"
    " key, which needs no policy"
)

_RANK: Mapping[Role, int] = {"viewer": 0, "auditor": 1, "admin": 2}
# An epoch that went back is another history, which may say anything.
_MOVED = (
    "SELECT (SELECT epoch FROM policy_head) < %(epoch)s"
    " OR EXISTS (SELECT FROM governance_version WHERE changed_epoch > %(epoch)s)"
    " OR EXISTS (SELECT FROM kill_switch WHERE changed_epoch > %(epoch)s AND lifted_at IS NULL"
    " AND kind || ':' || target = ANY (%(switches)s))"
)


@dataclass(frozen=True, slots=True)
class JudgedBy:
    """The epoch of the policy that let somebody in, and the kill switches that would not have
    (``kind:target``)."""

    epoch: int
    switches: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AdminIdentity:
    """An authenticated administrator. ``judged_by`` is ``None`` for who needs no policy."""

    actor: str
    roles: frozenset[Role]
    judged_by: JudgedBy | None = None

    def may(self, role: Role) -> bool:
        """Whether a call that needs ``role`` is allowed."""
        return any(_RANK[mine] >= _RANK[role] for mine in self.roles)


class AdmissionMovedError(Exception):
    """What is committed now may not let the caller in. Nothing was changed: ask again."""


class Admission:
    """Of one call. ``admitted`` authenticates its caller, by the policy that ``refresh`` brings up
    to what is committed."""

    def __init__(
        self,
        identity: AdminIdentity,
        *,
        admitted: Callable[[], Awaitable[AdminIdentity]],
        refresh: Callable[[], Awaitable[None]],
    ) -> None:
        self.identity = identity
        self._admitted = admitted
        self._refresh = refresh

    async def ask(self) -> None:
        """Ask again. Raises ``ApiError`` as for a new call."""
        self.identity = await self._admitted()

    async def renew(self) -> None:
        """Ask again, by what is committed when this is called. Raises ``ApiError`` as for a new
        call; 503 for a token if the newest policy cannot be had."""
        if self.identity.judged_by is not None:
            try:
                await self._refresh()
            except AuthorityUnavailableError:
                raise unchecked(1) from None
        await self.ask()


async def still_admitted(connection: Connection, admission: Admission | None) -> None:
    """Called in the transaction of a change, once it has its locks; under that of ``policy_head``
    it holds until the commit. ``None`` is the gateway itself.

    Raises ``AdmissionMovedError``.
    """
    judged_by = None if admission is None else admission.identity.judged_by
    if judged_by is None:
        return
    values = {"epoch": judged_by.epoch, "switches": list(judged_by.switches)}
    row = await (await connection.execute(_MOVED, values)).fetchone()
    if row != (False,):
        raise AdmissionMovedError


def unchecked(retry_after_seconds: int | None) -> ApiError:
    """The refusal (503) of a token that cannot be checked."""
    return ApiError(AUTHORITY_UNAVAILABLE, UNCHECKED, retry_after_seconds=retry_after_seconds)
