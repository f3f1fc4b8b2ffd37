"""Admin routes of the kill switches. A switch holds everywhere within one policy lease, and cuts
running calls."""

from collections.abc import Sequence
from typing import Any, LiteralString

import structlog
from psycopg.rows import DictRow, dict_row
from pydantic import BaseModel, ConfigDict, Field

from terrace_gateway.admin.admission import Admission, still_admitted
from terrace_gateway.admin.audit import record
from terrace_gateway.admin.key_store import PolicyMovedError
from terrace_gateway.admin.kill_targets import SUBJECT, TOKEN_KEY, resolve, split_target
from terrace_gateway.admin.known_names import TEAM_OF_KEYS
from terrace_gateway.admin.routing import AdminCall, AdminRoute
from terrace_gateway.admin.spec_in_force import SpecInForce, still_in_force
from terrace_gateway.crash_points import reach
from terrace_gateway.database import Database
from terrace_gateway.edge.errors import MODEL_NOT_FOUND, ApiError
from terrace_gateway.policy.records import KillKind
from terrace_gateway.runtime import Runtime

log = structlog.get_logger()

_LOCK = "SELECT epoch FROM policy_head FOR UPDATE"
_KILL = (
    "INSERT INTO kill_switch (kind, target, reason, actor) VALUES (%s, %s, %s, %s)"
    " ON CONFLICT (kind, target) DO UPDATE SET reason = excluded.reason, actor = excluded.actor,"
    " killed_at = clock_timestamp(), lifted_at = NULL WHERE kill_switch.lifted_at IS NOT NULL"
    " RETURNING kind"
)
_LIFT = (
    "UPDATE kill_switch SET lifted_at = clock_timestamp() WHERE kind = %s AND target = ANY (%s)"
    " AND lifted_at IS NULL RETURNING target"
)
_COLUMNS = (
    "SELECT CASE kind WHEN 'all' THEN 'all' ELSE kind || ':' || target END AS target,"
    " lifted_at IS NULL AS active, killed_at AS since, actor, reason, lifted_at FROM kill_switch"
)
_ONE = _COLUMNS + " WHERE kind = %s AND target = %s"
_LIFTED = _COLUMNS + " WHERE kind = %s AND target = ANY (%s) ORDER BY lifted_at DESC LIMIT 1"
_ACTIVE = _COLUMNS + " WHERE lifted_at IS NULL ORDER BY killed_at, kind, target"
_KEY = "SELECT EXISTS (SELECT FROM virtual_key WHERE key_id = %s)"


class Switch(BaseModel):
    """What to stop or to let go on: ``team:NAME``, ``key:ID``, ``model:NAME`` ...,
    ``subject:ISSUER:SUBJECT`` for one person with a token, or ``all``."""

    model_config = ConfigDict(extra="forbid")

    target: str = Field(min_length=1, max_length=400)
    reason: str = Field(min_length=1, max_length=512)


class KillSwitches:
    """Endpoints of the kill switches."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._store = KillStore(runtime.database)
        self._spec = SpecInForce(runtime)

    async def kill(self, call: AdminCall) -> dict[str, Any]:
        """Stop every call of a target. A second time changes nothing."""
        body = await call.read(Switch)
        while True:
            version, kind, targets = await self._resolve(body.target)
            try:
                row = await self._store.kill(
                    kind, targets, version=version, actor=call.actor, reason=body.reason,
                    admission=call.admission,
                )  # fmt: skip
            except PolicyMovedError:
                continue
            break
        log.warning("killed", target=row["target"])
        return row

    async def unkill(self, call: AdminCall) -> dict[str, Any]:
        """Let a target go on."""
        body = await call.read(Switch)
        while True:
            version, kind, targets = await self._lifted(body.target)
            try:
                row = await self._store.lift(
                    kind, targets, version=version, actor=call.actor, reason=body.reason,
                    admission=call.admission,
                )  # fmt: skip
            except PolicyMovedError:
                continue
            break
        if row is None:
            raise ApiError(MODEL_NOT_FOUND, "there is no such kill switch", param="target")
        log.warning("unkilled", target=row["target"])
        return row

    async def active(self, _: AdminCall) -> dict[str, Any]:
        """The switches that are on."""
        return {"switches": await self._store.active()}

    async def _resolve(self, text: str) -> tuple[int | None, KillKind, list[str]]:
        """Version, kind and names of a target to stop; no version: one whatever the spec says.

        Raises ``ApiError`` for what is no target.
        """
        if not text.startswith(f"{SUBJECT}:"):
            kind, name = split_target(text, None)
            if kind == "all":
                return None, kind, [""]
            if kind == "key" and (TOKEN_KEY.fullmatch(name) or await self._store.is_key(name)):
                return None, kind, [name]
            blind = kind == "team" and not self._runtime.policy.ready
            if blind and await self._store.is_team_of_keys(name):
                return None, kind, [name]
        names = await self._spec.in_force()
        kind, name = split_target(text, names.newest)
        if kind == "team" and names.any_team and await self._store.is_team_of_keys(name):
            return names.version, kind, [name]
        kind, targets = resolve(names, text)
        return names.version, kind, targets

    async def _lifted(self, text: str) -> tuple[int | None, KillKind, list[str]]:
        """The same of a target to let go on."""
        kind, _, name = text.partition(":")
        if kind not in ("model", SUBJECT) or not name:
            kind, name = split_target(text, None)
            return None, kind, [name]
        names = await self._spec.in_force()
        kind, name = split_target(text, names.newest)
        return names.version, kind, names.lifted(name) if kind == "model" else [name]


class KillStore:
    """Kill switches in the database. Raises ``AuthorityUnavailableError``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def is_key(self, key_id: str) -> bool:
        """Whether there is such a key, by its id."""
        return await self._has(_KEY, key_id)

    async def is_team_of_keys(self, team: str) -> bool:
        """Whether a row of a key has it."""
        return await self._has(TEAM_OF_KEYS, team)

    async def kill(
        self,
        kind: KillKind,
        targets: Sequence[str],
        *,
        version: int | None,
        actor: str,
        reason: str,
        admission: Admission | None = None,
    ) -> dict[str, Any]:
        """Turn the switches of a target on, audited. Answers the first one. ``version``: whose
        names they are, if they are of one. Raises ``PolicyMovedError`` if another is in force,
        whose plan did not know of this switch: nothing was changed."""
        async with self._database.connection() as connection, connection.transaction():
            await connection.execute(_LOCK)
            await still_admitted(connection, admission)
            if version is not None:
                await still_in_force(connection, version)
            for target in targets:
                cursor = await connection.execute(_KILL, (kind, target, reason, actor))
                if await cursor.fetchone() is not None:
                    await record(
                        connection, actor=actor, action="kill", subject=_subject(kind, target),
                        reason=reason,
                    )  # fmt: skip
            reach("kill.before-commit")
            found = connection.cursor(row_factory=dict_row)
            await found.execute(_ONE, (kind, targets[0]))
            row = await found.fetchone()
        if row is None:
            raise RuntimeError("a kill switch vanished in its own transaction")
        return row

    async def lift(
        self,
        kind: KillKind,
        targets: Sequence[str],
        *,
        version: int | None,
        actor: str,
        reason: str,
        admission: Admission | None = None,
    ) -> DictRow | None:
        """Turn the switches of a target, by each of its names, off, audited. Answers the last one;
        ``None``: there never was one. Raises ``PolicyMovedError`` if the names are of a ``version``
        and another is in force: nothing was changed."""
        names = list(targets)
        async with self._database.connection() as connection, connection.transaction():
            await connection.execute(_LOCK)
            await still_admitted(connection, admission)
            if version is not None:
                await still_in_force(connection, version)
            cursor = await connection.execute(_LIFT, (kind, names))
            for (target,) in await cursor.fetchall():
                await record(
                    connection, actor=actor, action="unkill", subject=_subject(kind, target),
                    reason=reason,
                )  # fmt: skip
            found = connection.cursor(row_factory=dict_row)
            await found.execute(_LIFTED, (kind, names))
            return await found.fetchone()

    async def active(self) -> list[DictRow]:
        """Switches that are on, oldest first."""
        async with self._database.connection() as connection:
            cursor = connection.cursor(row_factory=dict_row)
            await cursor.execute(_ACTIVE)
            return await cursor.fetchall()

    async def _has(self, query: LiteralString, name: str) -> bool:
        async with self._database.connection() as connection:
            row = await (await connection.execute(query, (name,))).fetchone()
        return row == (True,)


def _subject(kind: str, target: str) -> str:
    return "all" if kind == "all" else f"{kind}:{target}"


def routes(runtime: Runtime) -> list[AdminRoute]:
    """Routes of the kill switches."""
    switches = KillSwitches(runtime)
    return [
        AdminRoute("POST", "/kill", switches.kill, "Stop every call of a target, running ones too.",
                   "admin", body=Switch, answer="The switch.", changes_policy=True),
        AdminRoute("POST", "/unkill", switches.unkill, "Let a target go on.", "admin", body=Switch,
                   answer="The switch.", changes_policy=True),
        AdminRoute("DELETE", "/kill", switches.unkill, "The same as `unkill`.", "admin",
                   body=Switch, answer="The switch.", changes_policy=True),
        AdminRoute("GET", "/kill", switches.active, "The switches that are on.", "viewer",
                   answer="`switches`."),
    ]  # fmt: skip
