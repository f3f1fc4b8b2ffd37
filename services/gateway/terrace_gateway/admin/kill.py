"""Admin routes of the kill switches. A switch holds everywhere within one policy lease, and cuts
running calls."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import structlog
from psycopg.rows import DictRow, dict_row
from pydantic import BaseModel, ConfigDict, Field

from terrace_common.governance import Governance, GovernanceError, load_governance
from terrace_common.governance.authentication import OidcIssuer
from terrace_gateway.admin.audit import record
from terrace_gateway.admin.known_names import TEAM_OF_KEYS, unknown_name
from terrace_gateway.admin.routing import AdminCall, AdminRoute
from terrace_gateway.authentication.bearer import person_id
from terrace_gateway.crash_points import reach
from terrace_gateway.database import Connection, Database
from terrace_gateway.edge.errors import MODEL_NOT_FOUND, ApiError
from terrace_gateway.policy.feed import NoPolicyError
from terrace_gateway.policy.planning import in_thread
from terrace_gateway.policy.records import KillKind
from terrace_gateway.policy.texts import SOURCE
from terrace_gateway.runtime import Runtime
from terrace_gateway.surfaces.json_body import invalid

log = structlog.get_logger()

KINDS = ("key", "team", "org", "user", "app", "model", "provider", "all")
SUBJECT = "subject"
"""``subject:ISSUER:SUBJECT``: one person by their tokens, declared or not. Switched as the key that
the ledger names their calls by, so that no subject is kept."""
_TOKEN_KEY = re.compile(r"(oidc|workload):[0-9a-f]{24}")

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
_NEWEST = "SELECT version, digest FROM governance_version ORDER BY version DESC LIMIT 1"
_KEY = "SELECT EXISTS (SELECT FROM virtual_key WHERE key_id = %s)"


class Switch(BaseModel):
    """What to stop or to let go on: ``team:NAME``, ``key:ID``, ``model:NAME`` ...,
    ``subject:ISSUER:SUBJECT`` for one person with a token, or ``all``."""

    model_config = ConfigDict(extra="forbid")

    target: str = Field(min_length=1, max_length=400)
    reason: str = Field(min_length=1, max_length=512)


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


class KillSwitches:
    """Endpoints of the kill switches."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._store = KillStore(runtime.database)
        self._reading = asyncio.Lock()
        self._was_read: tuple[str, Governance | None] | None = None  # by digest

    async def kill(self, call: AdminCall) -> dict[str, Any]:
        """Stop every call of a target. A second time changes nothing."""
        body = await call.read(Switch)
        row = None
        found = await self._store.find_without_spec(body.target)
        if found is not None:
            kind, name = found
            row = await self._store.kill(
                kind, [name], version=None, actor=call.actor, reason=body.reason
            )
        while row is None:
            names = await self._in_force()
            kind, targets = resolve(names, body.target)
            row = await self._store.kill(
                kind, targets, version=names.version, actor=call.actor, reason=body.reason
            )
        log.warning("killed", target=row["target"])
        return row

    async def unkill(self, call: AdminCall) -> dict[str, Any]:
        """Let a target go on."""
        body = await call.read(Switch)
        kind, _, name = body.target.partition(":")
        if kind in ("model", SUBJECT) and name:
            names = await self._in_force()
            kind, name = split_target(body.target, names.newest)
            targets = names.lifted(name) if kind == "model" else [name]
        else:
            kind, name = split_target(body.target, None)
            targets = [name]
        row = await self._store.lift(kind, targets, actor=call.actor, reason=body.reason)
        if row is None:
            raise ApiError(MODEL_NOT_FOUND, "there is no such kill switch", param="target")
        log.warning("unkilled", target=row["target"])
        return row

    async def active(self, _: AdminCall) -> dict[str, Any]:
        """The switches that are on."""
        return {"switches": await self._store.active()}

    async def _in_force(self) -> Names:
        """Those of the newest version. This replica may not have loaded it yet, or may not be
        able to go by it; if it cannot even read it, it is the spec that it goes by."""
        policy = self._runtime.policy
        snapshot = policy.current().snapshot
        newest = await self._store.newest_version()
        if newest is None:
            raise NoPolicyError("the database has no governance version")
        version, digest = newest
        stuck = policy.problem is not None
        if digest == snapshot.digest:
            return Names(version, snapshot.governance, None, stuck=False)
        spec = await self._read(version, digest)
        if spec is None:
            return Names(version, snapshot.governance, None, stuck)
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


class KillStore:
    """Kill switches in the database. Raises ``AuthorityUnavailableError``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def newest_version(self) -> tuple[int, str] | None:
        """Number and digest of the governance version in force; ``None``: there is none."""
        async with self._database.connection() as connection:
            return await _newest(connection)

    async def find_without_spec(self, text: str) -> tuple[KillKind, str] | None:
        """Kind and name of a target that is one whatever the spec says; ``None``: it may be one
        by the spec.

        Raises ``ApiError`` for what is no target at all.
        """
        if text.startswith(f"{SUBJECT}:"):
            return None
        kind, name = split_target(text, None)
        if kind == "all":
            return kind, ""
        if kind == "key" and _TOKEN_KEY.fullmatch(name):  # of who shows a token: kept nowhere
            return kind, name
        if kind in ("key", "team") and await self._has(kind, name):
            return kind, name
        return None

    async def kill(
        self,
        kind: KillKind,
        targets: Sequence[str],
        *,
        version: int | None,
        actor: str,
        reason: str,
    ) -> dict[str, Any] | None:
        """Turn the switches of a target on, audited. Answers the first one. ``version``: whose
        names they are, if they are of one; ``None`` as answer: another is in force, whose plan did
        not know of this switch, and nothing was changed."""
        async with self._database.connection() as connection, connection.transaction():
            await connection.execute(_LOCK)
            if version is not None:
                newest = await _newest(connection)
                if newest is None or newest[0] != version:
                    return None
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
        self, kind: KillKind, targets: Sequence[str], *, actor: str, reason: str
    ) -> DictRow | None:
        """Turn the switches of a target, by each of its names, off, audited. Answers the last one;
        ``None``: there never was one."""
        names = list(targets)
        async with self._database.connection() as connection, connection.transaction():
            await connection.execute(_LOCK)
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

    async def _has(self, kind: str, name: str) -> bool:
        async with self._database.connection() as connection:
            cursor = await connection.execute(_KEY if kind == "key" else TEAM_OF_KEYS, (name,))
            row = await cursor.fetchone()
        return row is not None and row[0]


async def _newest(connection: Connection) -> tuple[int, str] | None:
    row = await (await connection.execute(_NEWEST)).fetchone()
    return None if row is None else (int(row[0]), str(row[1]))


def resolve(names: Names, text: str) -> tuple[KillKind, list[str]]:
    """Kind and names of a target of the spec: a misspelt one would stop nothing.

    Raises ``ApiError`` that lists what would have been right.
    """
    spec = names.newest
    kind, name = split_target(text, spec)
    if kind == "key" and _TOKEN_KEY.fullmatch(name):  # a subject's
        return kind, [name]
    if kind == "model":
        switches = names.switches(name)
        if not switches:
            raise unknown_name(kind, name, [model.name for model in spec.models], "target")
        return kind, switches
    declared = {
        "provider": spec.providers, "org": spec.orgs, "team": spec.teams,
        "user": spec.users, "app": spec.apps, "key": spec.keys,
    }[kind]  # fmt: skip
    known = [subject.name for subject in declared]
    if name in known:
        return kind, [name]
    raise unknown_name(kind, name, known, "target")


def split_target(text: str, spec: Governance | None) -> tuple[KillKind, str]:
    """``team:search`` as ``("team", "search")``, ``all`` as ``("all", "")``, a subject as the key
    that its person has, which needs ``spec``.

    Raises ``ApiError``.
    """
    kind, separator, name = text.partition(":")
    if kind == "all" and not separator:
        return "all", ""
    if kind == SUBJECT and name and spec is not None:
        return "key", _person(name, spec)
    if kind not in KINDS or kind == "all" or not name:
        shapes = ", ".join(f"{kind}:NAME" for kind in KINDS[:-1])
        raise invalid(f"target must be one of {shapes}, subject:ISSUER:SUBJECT, or all", "target")
    return cast("KillKind", kind), name


def _person(name: str, spec: Governance) -> str:
    """By ``<issuer's name>:<subject>``, as users of the spec have it. Whether there is such a
    subject only the issuer knows."""
    of, _, subject = name.partition(":")
    authentication = spec.authentication
    declared = () if authentication is None else authentication.issuers
    issuers = {one.name: one for one in declared if isinstance(one, OidcIssuer)}
    issuer = issuers.get(of)
    if issuer is None:
        raise unknown_name("oidc issuer", of, list(issuers), "target")
    if not subject:
        raise invalid("target must be subject:ISSUER:SUBJECT", "target")
    return person_id(issuer, subject)


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
