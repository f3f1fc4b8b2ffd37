"""Governance versions in the database: planned, applied in one transaction, rolled back.

A version and the caps that it declares are written together or not at all, under the row lock of
``policy_head``: of two applies at once, one sees the other's version. Every guard reads the text
and compiles it itself, so that one that cannot says so instead of going by half of it.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from terrace_common.governance.plan import Finding, Plan
from terrace_gateway.admin.admission import Admission, still_admitted
from terrace_gateway.admin.audit import record
from terrace_gateway.crash_points import reach
from terrace_gateway.database import Connection, Database
from terrace_gateway.policy.declared_caps import write_declared_caps
from terrace_gateway.policy.deployed import Deployed
from terrace_gateway.policy.facts import read_facts
from terrace_gateway.policy.planning import Planning, PreparedText, in_thread, read_base
from terrace_gateway.policy.texts import Texts, digest_of

Origin = Literal["api", "deployment", "rollback"]

_LOCK = "SELECT epoch FROM policy_head FOR UPDATE"
_MAY_THINK = "SET LOCAL idle_in_transaction_session_timeout = '7s'"
"""As long as a connection may be held at all: the plan of a large text takes its time."""
_HAS_THOUGHT = "SET LOCAL idle_in_transaction_session_timeout TO DEFAULT"
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
        self.codes = sorted({finding.code for finding in refused})
        found = ", ".join(self.codes)
        super().__init__(f"the plan has findings that are not allowed: {found}")
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
class _Wish:
    """What an apply was asked for."""

    text: str
    digest: str
    actor: str
    reason: str | None
    allow: Collection[str]
    base_version: int | None
    check_base: bool
    source: Origin
    rollback_of: int | None
    only_new: bool

    def check(self, in_force: int | None) -> None:
        """Raises ``VersionConflictError``."""
        if self.check_base and in_force != self.base_version:
            raise VersionConflictError(self.base_version, in_force)


class GovernanceVersions:
    """The versions. Raises ``AuthorityUnavailableError`` while Postgres is away."""

    def __init__(self, database: Database, deployed: Deployed, texts: Texts | None = None) -> None:
        self._database = database
        self.texts = texts or Texts()
        self._planning = Planning(database, deployed, self.texts)

    async def plan(self, text: str, *, actor: str, may_apply: bool = True) -> Planned:
        """What applying ``text`` would change now. ``actor`` is who asks; those who may not apply
        have places of their own.

        Raises ``GovernanceError`` and ``TooManyWaitingError``.
        """
        async with self._planning.turn("plan" if may_apply else "look", actor):
            prepared, plan = await self._planning.prepare(text)
        digest = digest_of(text)
        same = prepared.base is not None and prepared.base.digest == digest
        return Planned(prepared.base_version, digest, same, plan)

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
        admission: Admission | None = None,
    ) -> Applied:
        """Put ``text`` in force as a new version, with its caps and an audit record, or nothing.

        ``base_version`` is the version that the plan was made on (``None``: there was none).
        ``allow`` are codes of blocking findings to go past. ``only_new``: a text that ever was in
        force is left alone. ``admission`` of ``actor`` is asked for again when the turn has come,
        and before the commit. Raises ``GovernanceError``, ``VersionConflictError``,
        ``BlockedError``, ``TooManyWaitingError``, and what ``admission`` raises.
        """
        wish = _Wish(
            text, digest_of(text), actor, reason, allow, base_version, check_base, source,
            rollback_of, only_new,
        )  # fmt: skip
        async with self._planning.turn("apply", actor):
            while True:
                if admission is not None:
                    await admission.renew()
                prepared, _ = await self._planning.prepare(text, wish.check)
                applied = await self._put(wish, prepared, admission)
                if applied is not None:
                    break
        if not applied.unchanged:
            reach("policy.after-commit")
        return applied

    async def _put(
        self, wish: _Wish, prepared: PreparedText, admission: Admission | None
    ) -> Applied | None:
        """Commit it, with the plan as of this transaction; ``None``: another version came since
        it was prepared.

        Under the lock, which kill switches take too, is only what the facts that changed since
        make necessary.
        """
        async with self._database.connection() as connection, connection.transaction():
            await connection.execute(_LOCK)
            base = await read_base(connection)
            known = None if base is None else base.version
            if known != prepared.base_version:
                return None
            await still_admitted(connection, admission)
            facts = await read_facts(connection)
            await connection.execute(_MAY_THINK)
            plan = await in_thread(lambda: prepared.plan(facts))
            await connection.execute(_HAS_THOUGHT)
            if base is not None and (
                base.digest == wish.digest
                or (wish.only_new and await _is_known(connection, wish.digest))
            ):
                return Applied(base.version, wish.digest, None, True, plan)
            refused = plan.refused(wish.allow)
            if refused:
                raise BlockedError(plan, refused)
            version = (known or 0) + 1
            reach("policy.before-version")
            cursor = await connection.execute(
                _INSERT,
                (version, wish.text, wish.digest, wish.actor, wish.reason, wish.source,
                 wish.rollback_of, Jsonb(plan.to_json())),
            )  # fmt: skip
            row = await cursor.fetchone()
            reach("policy.after-version")
            written = await write_declared_caps(connection, prepared.compiled.caps)
            reach("policy.after-caps")
            detail = {
                "version": version, "digest": wish.digest, "source": wish.source,
                "rollback_of": wish.rollback_of, "allowed": sorted(wish.allow),
                "changes": len(plan.changes), "caps": written,
            }  # fmt: skip
            await record(
                connection, actor=wish.actor, action="governance.apply",
                subject=f"version {version}", reason=wish.reason, detail=detail,
            )  # fmt: skip
            reach("policy.before-commit")
        return Applied(version, wish.digest, None if row is None else row[0], False, plan)

    async def rollback(
        self,
        version: int,
        *,
        actor: str,
        reason: str | None,
        allow: Collection[str] = (),
        base_version: int | None = None,
        check_base: bool = False,
        admission: Admission | None = None,
    ) -> Applied:
        """Apply the text of ``version`` as a new version. Raises as ``apply`` does, and
        ``UnknownVersionError``."""
        found = await self.version(version)
        if found is None:
            raise UnknownVersionError(version)
        return await self.apply(
            found["text"], actor=actor, reason=reason, allow=allow, base_version=base_version,
            check_base=check_base, source="rollback", rollback_of=version, admission=admission,
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


async def _is_known(connection: Connection, digest: str) -> bool:
    cursor = await connection.execute(_KNOWN, (digest,))
    row = await cursor.fetchone()
    return row is not None and row[0]
