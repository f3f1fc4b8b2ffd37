"""Admin routes of the kill switches. A switch holds everywhere within one policy lease, and cuts
running calls."""

from typing import Any, cast

import structlog
from psycopg.rows import DictRow, dict_row
from pydantic import BaseModel, ConfigDict, Field

from terrace_gateway.admin.audit import record
from terrace_gateway.admin.routing import AdminCall, AdminRoute
from terrace_gateway.crash_points import reach
from terrace_gateway.database import Database
from terrace_gateway.edge.errors import MODEL_NOT_FOUND, ApiError
from terrace_gateway.policy.records import KillKind
from terrace_gateway.policy.snapshot import Snapshot
from terrace_gateway.runtime import Runtime
from terrace_gateway.surfaces.json_body import invalid

log = structlog.get_logger()

KINDS = ("key", "team", "org", "user", "app", "model", "provider", "all")
MAX_SHOWN = 20

_LOCK = "SELECT epoch FROM policy_head FOR UPDATE"
_KILL = (
    "INSERT INTO kill_switch (kind, target, reason, actor) VALUES (%s, %s, %s, %s)"
    " ON CONFLICT (kind, target) DO UPDATE SET reason = excluded.reason, actor = excluded.actor,"
    " killed_at = clock_timestamp(), lifted_at = NULL WHERE kill_switch.lifted_at IS NOT NULL"
    " RETURNING kind"
)
_LIFT = (
    "UPDATE kill_switch SET lifted_at = clock_timestamp() WHERE kind = %s AND target = %s"
    " AND lifted_at IS NULL RETURNING kind"
)
_COLUMNS = (
    "SELECT CASE kind WHEN 'all' THEN 'all' ELSE kind || ':' || target END AS target,"
    " lifted_at IS NULL AS active, killed_at AS since, actor, reason, lifted_at FROM kill_switch"
)
_ONE = _COLUMNS + " WHERE kind = %s AND target = %s"
_ACTIVE = _COLUMNS + " WHERE lifted_at IS NULL ORDER BY killed_at, kind, target"
_TEAM_OF_KEYS = "SELECT EXISTS (SELECT FROM virtual_key WHERE team = %s)"
_KEY = "SELECT EXISTS (SELECT FROM virtual_key WHERE key_id = %s)"


class Switch(BaseModel):
    """What to stop or to let go on: ``team:NAME``, ``key:ID``, ``model:NAME`` ..., or ``all``."""

    model_config = ConfigDict(extra="forbid")

    target: str = Field(min_length=1, max_length=300)
    reason: str = Field(min_length=1, max_length=512)


class KillSwitches:
    """Endpoints of the kill switches."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._store = KillStore(runtime.database)

    async def kill(self, call: AdminCall) -> dict[str, Any]:
        """Stop every call of a target. A second time changes nothing."""
        body = await call.read(Switch)
        snapshot = self._runtime.policy.current().snapshot
        kind, target = await self._store.resolve(snapshot, body.target)
        row = await self._store.kill(kind, target, actor=call.actor, reason=body.reason)
        await self._runtime.policy.refresh()
        log.warning("killed", target=body.target)
        return row

    async def unkill(self, call: AdminCall) -> dict[str, Any]:
        """Let a target go on."""
        body = await call.read(Switch)
        kind, target = split_target(body.target)
        model = self._runtime.policy.current().snapshot.governance.find_model(target)
        if kind == "model" and model is not None:
            target = model.name  # an alias; a model that is no longer declared has its own name
        row = await self._store.lift(kind, target, actor=call.actor, reason=body.reason)
        if row is None:
            raise ApiError(MODEL_NOT_FOUND, "there is no such kill switch", param="target")
        await self._runtime.policy.refresh()
        log.warning("unkilled", target=body.target)
        return row

    async def active(self, _: AdminCall) -> dict[str, Any]:
        """The switches that are on."""
        return {"switches": await self._store.active()}


class KillStore:
    """Kill switches in the database. Raises ``AuthorityUnavailableError``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def resolve(self, snapshot: Snapshot, text: str) -> tuple[KillKind, str]:
        """Kind and name of a target that exists: a misspelt one would stop nothing.

        Raises ``ApiError`` that lists what would have been right.
        """
        kind, name = split_target(text)
        spec = snapshot.governance
        if kind == "all":
            return kind, ""
        if kind == "model":
            model = spec.find_model(name)
            if model is None:
                raise _unknown(kind, name, [model.name for model in spec.models])
            return kind, model.name
        declared = {
            "provider": spec.providers, "org": spec.orgs, "team": spec.teams,
            "user": spec.users, "app": spec.apps, "key": spec.keys,
        }[kind]  # fmt: skip
        names = [subject.name for subject in declared]
        if name in names or (kind in ("key", "team") and await self._has(kind, name)):
            return kind, name
        raise _unknown(kind, name, names)

    async def kill(self, kind: KillKind, target: str, *, actor: str, reason: str) -> dict[str, Any]:
        """Turn a switch on, audited."""
        async with self._database.connection() as connection, connection.transaction():
            await connection.execute(_LOCK)
            cursor = await connection.execute(_KILL, (kind, target, reason, actor))
            if await cursor.fetchone() is not None:
                await record(
                    connection, actor=actor, action="kill", subject=_subject(kind, target),
                    reason=reason,
                )  # fmt: skip
            reach("kill.before-commit")
            found = connection.cursor(row_factory=dict_row)
            await found.execute(_ONE, (kind, target))
            row = await found.fetchone()
        if row is None:
            raise RuntimeError("a kill switch vanished in its own transaction")
        return row

    async def lift(self, kind: KillKind, target: str, *, actor: str, reason: str) -> DictRow | None:
        """Turn a switch off, audited; ``None``: it never was on."""
        async with self._database.connection() as connection, connection.transaction():
            await connection.execute(_LOCK)
            cursor = await connection.execute(_LIFT, (kind, target))
            if await cursor.fetchone() is not None:
                await record(
                    connection, actor=actor, action="unkill", subject=_subject(kind, target),
                    reason=reason,
                )  # fmt: skip
            found = connection.cursor(row_factory=dict_row)
            await found.execute(_ONE, (kind, target))
            return await found.fetchone()

    async def active(self) -> list[DictRow]:
        """Switches that are on, oldest first."""
        async with self._database.connection() as connection:
            cursor = connection.cursor(row_factory=dict_row)
            await cursor.execute(_ACTIVE)
            return await cursor.fetchall()

    async def _has(self, kind: str, name: str) -> bool:
        async with self._database.connection() as connection:
            cursor = await connection.execute(_KEY if kind == "key" else _TEAM_OF_KEYS, (name,))
            row = await cursor.fetchone()
        return row is not None and row[0]


def split_target(text: str) -> tuple[KillKind, str]:
    """``team:search`` as ``("team", "search")``, ``all`` as ``("all", "")``.

    Raises ``ApiError``.
    """
    kind, separator, name = text.partition(":")
    if kind == "all" and not separator:
        return "all", ""
    if kind not in KINDS or kind == "all" or not name:
        shapes = ", ".join(f"{kind}:NAME" for kind in KINDS[:-1])
        raise invalid(f"target must be one of {shapes}, or all", "target")
    return cast("KillKind", kind), name


def _subject(kind: str, target: str) -> str:
    return "all" if kind == "all" else f"{kind}:{target}"


def _unknown(kind: str, name: str, known: list[str]) -> ApiError:
    shown = ", ".join(sorted(known)[:MAX_SHOWN]) or "none"
    more = ", ..." if len(known) > MAX_SHOWN else ""
    return invalid(f"there is no {kind} {name[:100]!r}; known: {shown}{more}", "target")


def routes(runtime: Runtime) -> list[AdminRoute]:
    """Routes of the kill switches."""
    switches = KillSwitches(runtime)
    return [
        AdminRoute("POST", "/kill", switches.kill, "Stop every call of a target, running ones too.",
                   "admin", body=Switch, answer="The switch."),
        AdminRoute("POST", "/unkill", switches.unkill, "Let a target go on.", "admin", body=Switch,
                   answer="The switch."),
        AdminRoute("DELETE", "/kill", switches.unkill, "The same as `unkill`.", "admin",
                   body=Switch, answer="The switch."),
        AdminRoute("GET", "/kill", switches.active, "The switches that are on.", "viewer",
                   answer="`switches`."),
    ]  # fmt: skip
