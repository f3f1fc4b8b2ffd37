"""The spec whose names an administrator gives: that of the newest version."""

import asyncio
from dataclasses import dataclass

import structlog

from terrace_common.governance import Governance, GovernanceError, load_governance
from terrace_gateway.admin.key_store import PolicyMovedError
from terrace_gateway.database import Connection
from terrace_gateway.policy.feed import NoPolicyError
from terrace_gateway.policy.planning import in_thread
from terrace_gateway.policy.texts import SOURCE
from terrace_gateway.runtime import Runtime

log = structlog.get_logger()

_NEWEST = "SELECT version, digest FROM governance_version ORDER BY version DESC LIMIT 1"


@dataclass(frozen=True, slots=True)
class Names:
    """Those that a target may have."""

    version: int
    """The newest."""
    newest: Governance
    here: Governance | None
    """What this replica still goes by meanwhile; ``None``: the newest."""
    stuck: bool
    """It cannot go by the newest."""
    unread: bool = False
    """It cannot even read it: ``newest`` is what it goes by."""

    @property
    def any_team(self) -> bool:
        """A team may be one that only keys have: a spec without teams accepts any."""
        return (
            self.unread
            or not self.newest.teams
            or (self.stuck and self.here is not None and not self.here.teams)
        )

    def switches(self, name: str) -> list[str]:
        """Names that stop a model, by the newest spec first; empty: there is no such model.

        One that the newest spec does not have any more is stopped where it still runs, by a
        replica that is stuck; elsewhere whoever asks has to learn its new name.
        """
        now = self.newest.find_model(name)
        if now is None and not self.stuck:
            return []
        # By the name asked for as well: a replica that is stuck may know the model by that alone.
        found = [] if now is None else [now.name, name]
        if self.here is not None:
            asked = self.here.find_model(name)
            others = () if now is None else (now.name, *now.aliases)
            for one in (asked, *map(self.here.find_model, others)):
                if one is None:
                    continue
                is_now = self.newest.find_model(one.name)
                if one is asked or is_now is None or is_now is now:
                    found.append(one.name)
        return list(dict.fromkeys(found))

    def lifted(self, name: str) -> list[str]:
        """Names that a model may have been stopped by. One that is not declared has the name of
        its switch."""
        now = self.newest.find_model(name)
        names = () if now is None else (now.name, *now.aliases)
        # Not one that has another model's name by now, which may be stopped on purpose.
        here = [one for one in self.switches(name) if self.newest.find_model(one) in (None, now)]
        return list(dict.fromkeys((name, *names, *here)))


class SpecInForce:
    """Reads it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._reading = asyncio.Lock()
        self._was_read: tuple[str, Governance | None] | None = None  # by digest

    async def in_force(self) -> Names:
        """Those of the newest version. This replica may not have loaded it yet, or may not be
        able to go by it; if it cannot even read it, it is the spec that it goes by."""
        policy = self._runtime.policy
        snapshot = policy.current().snapshot
        newest = await self._newest()
        if newest is None:
            raise NoPolicyError("the database has no governance version")
        version, digest = newest
        stuck = policy.problem is not None
        if digest == snapshot.digest:
            return Names(version, snapshot.governance, None, stuck=False)
        spec = await self._read(version, digest)
        if spec is None:
            return Names(version, snapshot.governance, None, stuck, unread=True)
        return Names(version, spec, snapshot.governance, stuck)

    async def _read(self, version: int, digest: str) -> Governance | None:
        """A version that this replica does not go by, read once. ``None``: it cannot be."""
        async with self._reading:
            compiled = self._runtime.versions.texts.known(digest)
            if compiled is not None:
                return compiled.spec
            if self._was_read is None or self._was_read[0] != digest:
                row = await self._runtime.versions.version(version)
                spec = None
                if row is not None:
                    try:
                        spec = await in_thread(lambda: load_governance(row["text"], SOURCE))
                    except GovernanceError as error:
                        log.warning("kill_by_an_older_version", error=str(error))
                self._was_read = (digest, spec)
            return self._was_read[1]

    async def _newest(self) -> tuple[int, str] | None:
        async with self._runtime.database.connection() as connection:
            return await newest_version(connection)


async def still_in_force(connection: Connection, version: int) -> None:
    """Called under the lock of ``policy_head``: raises ``PolicyMovedError`` if another version is
    in force than the one whose names were looked up."""
    newest = await newest_version(connection)
    if newest is None or newest[0] != version:
        raise PolicyMovedError


async def newest_version(connection: Connection) -> tuple[int, str] | None:
    """Number and digest of the governance version in force; ``None``: there is none."""
    row = await (await connection.execute(_NEWEST)).fetchone()
    return None if row is None else (int(row[0]), str(row[1]))
