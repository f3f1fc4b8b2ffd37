"""Governance versions in the database: planned, applied in one transaction, rolled back.

A version and the caps that it declares are written together or not at all, under the row lock of
``policy_head``: of two applies at once, one sees the other's version. Every guard reads the text
and compiles it itself, so that one that cannot says so instead of going by half of it.
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, cast

from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from terrace_common.governance.compile import CompiledGovernance
from terrace_common.governance.effects import plan_change
from terrace_common.governance.plan import Code, Finding, Plan
from terrace_gateway.admin.audit import record
from terrace_gateway.crash_points import reach
from terrace_gateway.database import Connection, Database
from terrace_gateway.policy.declared_caps import write_declared_caps
from terrace_gateway.policy.deployed import Deployed
from terrace_gateway.policy.facts import read_facts
from terrace_gateway.policy.texts import Texts, digest_of

MODEL_NOT_DEPLOYED = "model-not-deployed"

Origin = Literal["api", "deployment", "rollback"]

_LOCK = "SELECT epoch FROM policy_head FOR UPDATE"
_HEAD = "SELECT version, text, digest FROM governance_version ORDER BY version DESC LIMIT 1"
_INSERT = (
    "INSERT INTO governance_version (version, text, digest, actor, reason, source, rollback_of,"
    " plan) VALUES (%s, %s, %s, %s, %s, %s, %s, %s) RETURNING applied_at"
)
_KNOWN = "SELECT EXISTS (SELECT FROM governance_version WHERE digest = %s)"
_ONE = (
    "SELECT version, text, digest, actor, reason, source, rollback_of, applied_at"
    " FROM governance_version"
)
_LIST = (
    "SELECT version, digest, actor, reason, source, rollback_of, applied_at,"
    " version = (SELECT max(version) FROM governance_version) AS in_force FROM governance_version"
    " WHERE %(before)s::bigint IS NULL OR version < %(before)s"
    " ORDER BY version DESC LIMIT %(limit)s"
)


class VersionConflictError(Exception):
    """Another version came between the plan and its apply. ``in_force`` is that one."""

    def __init__(self, planned_on: int | None, in_force: int | None) -> None:
        super().__init__(
            f"the plan was made on version {planned_on or 'none'}, and version"
            f" {in_force or 'none'} is in force: plan again"
        )
        self.in_force = in_force


class BlockedError(Exception):
    """The plan has blocking findings that were not allowed."""

    def __init__(self, plan: Plan, refused: tuple[Finding, ...]) -> None:
        codes = ", ".join(sorted({finding.code for finding in refused}))
        super().__init__(f"the plan has findings that are not allowed: {codes}")
        self.plan = plan
        self.refused = refused


class UnknownVersionError(LookupError):
    """There is no such version."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What a text would change. ``base_version`` is the version in force; ``None``: none yet."""

    base_version: int | None
    digest: str
    same: bool
    plan: Plan


@dataclass(frozen=True, slots=True)
class Applied:
    """A version as it came into force. ``unchanged``: the text was in force already."""

    version: int
    digest: str
    applied_at: datetime | None
    unchanged: bool
    plan: Plan


@dataclass(frozen=True, slots=True)
class _InForce:
    version: int
    text: str
    digest: str


class GovernanceVersions:
    """The versions. Raises ``AuthorityUnavailableError`` while Postgres is away."""

    def __init__(self, database: Database, deployed: Deployed, texts: Texts | None = None) -> None:
        self._database = database
        self._deployed = deployed
        self._texts = texts or Texts()
        self._planning = asyncio.Lock()

    async def plan(self, text: str) -> Planned:
        """What applying ``text`` would change now. Raises ``GovernanceError``.

        One at a time: a large text takes seconds of a thread, and versions need one to come into
        force.
        """
        async with self._planning:
            compiled = await asyncio.to_thread(self._texts.compile, text)
        async with self._database.connection() as connection, connection.transaction():
            base = await _head(connection)
            plan = await self._plan(connection, base, compiled, text)
        digest = digest_of(text)
        same = base is not None and base.digest == digest
        return Planned(None if base is None else base.version, digest, same, plan)

    async def apply(
        self,
        text: str,
        *,
        actor: str,
        reason: str | None,
        allow: Collection[str] = (),
        base_version: int | None = None,
        check_base: bool = True,
        source: Origin = "api",
        rollback_of: int | None = None,
        only_new: bool = False,
    ) -> Applied:
        """Put ``text`` in force as a new version, with its caps and an audit record, or nothing.

        ``base_version`` is the version that the plan was made on (``None``: there was none).
        ``allow`` are codes of blocking findings to go past. ``only_new``: a text that ever was in
        force is left alone. Raises ``GovernanceError``,
        ``VersionConflictError``, ``BlockedError``.
        """
        compiled = await asyncio.to_thread(self._texts.compile, text)
        digest = digest_of(text)
        async with self._database.connection() as connection, connection.transaction():
            await connection.execute(_LOCK)
            base = await _head(connection)
            known = None if base is None else base.version
            if check_base and known != base_version:
                raise VersionConflictError(base_version, known)
            plan = await self._plan(connection, base, compiled, text)
            if base is not None and (
                base.digest == digest or (only_new and await _is_known(connection, digest))
            ):
                return Applied(base.version, digest, None, True, plan)
            refused = plan.refused(allow)
            if refused:
                raise BlockedError(plan, refused)
            version = (known or 0) + 1
            reach("policy.before-version")
            cursor = await connection.execute(
                _INSERT,
                (version, text, digest, actor, reason, source, rollback_of, Jsonb(plan.to_json())),
            )
            row = await cursor.fetchone()
            reach("policy.after-version")
            written = await write_declared_caps(connection, compiled.caps)
            reach("policy.after-caps")
            detail = {
                "version": version, "digest": digest, "source": source, "rollback_of": rollback_of,
                "allowed": sorted(allow), "changes": len(plan.changes), "caps": written,
            }  # fmt: skip
            await record(
                connection, actor=actor, action="governance.apply",
                subject=f"version {version}", reason=reason, detail=detail,
            )  # fmt: skip
            reach("policy.before-commit")
        reach("policy.after-commit")
        return Applied(version, digest, None if row is None else row[0], False, plan)

    async def rollback(
        self,
        version: int,
        *,
        actor: str,
        reason: str | None,
        allow: Collection[str] = (),
        base_version: int | None = None,
        check_base: bool = False,
    ) -> Applied:
        """Apply the text of ``version`` as a new version. Raises as ``apply`` does, and
        ``UnknownVersionError``."""
        found = await self.version(version)
        if found is None:
            raise UnknownVersionError(version)
        return await self.apply(
            found["text"], actor=actor, reason=reason, allow=allow, base_version=base_version,
            check_base=check_base, source="rollback", rollback_of=version,
        )  # fmt: skip

    async def is_known(self, digest: str) -> bool:
        """Whether a text with this digest ever was in force."""
        async with self._database.connection() as connection:
            return await _is_known(connection, digest)

    async def version(self, version: int | None = None) -> dict[str, Any] | None:
        """One version with its text; without a number the one in force."""
        where = " ORDER BY version DESC LIMIT 1" if version is None else " WHERE version = %s"
        parameters = () if version is None else (version,)
        async with self._database.connection() as connection:
            cursor = connection.cursor(row_factory=dict_row)
            await cursor.execute((_ONE + where).encode(), parameters)
            return await cursor.fetchone()

    async def versions(self, *, before: int | None, limit: int) -> list[dict[str, Any]]:
        """Versions without their texts, newest first, older than ``before``."""
        async with self._database.connection() as connection:
            cursor = connection.cursor(row_factory=dict_row)
            await cursor.execute(_LIST, {"before": before, "limit": limit})
            return await cursor.fetchall()

    async def _plan(
        self, connection: Connection, base: _InForce | None, new: CompiledGovernance, text: str
    ) -> Plan:
        facts = await read_facts(connection)

        def make() -> Plan:
            old = None if base is None else self._texts.spec(base.text)
            plan = plan_change(old, new.spec, facts, new_text=text)
            missing = self._deployed.missing(new.spec)
            findings = [
                Finding(
                    code=cast("Code", MODEL_NOT_DEPLOYED),
                    message=f"model {name!r} needs a rollout first: {why}",
                    line=None,
                    blocking=True,
                )
                for name, why in missing.items()
            ]
            return replace(plan, findings=(*plan.findings, *findings))

        return await asyncio.to_thread(make)


async def _head(connection: Connection) -> _InForce | None:
    cursor = await connection.execute(_HEAD)
    row = await cursor.fetchone()
    return None if row is None else _InForce(*row)


async def _is_known(connection: Connection, digest: str) -> bool:
    cursor = await connection.execute(_KNOWN, (digest,))
    row = await cursor.fetchone()
    return row is not None and row[0]
