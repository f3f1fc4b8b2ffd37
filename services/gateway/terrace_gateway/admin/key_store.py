"""Virtual keys in the database, as the admin API reads and changes them. Money is micro-USD."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import DictRow, dict_row

from terrace_gateway.admin.admission import Admission, still_admitted
from terrace_gateway.admin.audit import record
from terrace_gateway.crash_points import reach
from terrace_gateway.database import Connection, Database

_COLUMNS = """
SELECT k.key_id, k.team, k.name, k.declared, k.app, k.user_name AS "user", k.models, k.policies,
       k.surfaces, k.features, m.amount AS budget_micro_usd, r.amount AS max_requests,
       p.amount AS requests_per_minute, k.created_at, k.expires_at, k.revoked_at, k.rotated_at,
       k.last_used_at,
       coalesce(c.settled + s.settled, 0)::bigint AS settled_micro_usd,
       coalesce(c.outstanding + c.sliced - s.settled, 0)::bigint AS outstanding_micro_usd
FROM virtual_key k
LEFT JOIN cap m ON (m.scope, m.scope_id, m.dimension, m.window_seconds, m.window_key)
                 = ('key', k.key_id, 'micro_usd', 0, '') AND m.retired_at IS NULL
LEFT JOIN cap r ON (r.scope, r.scope_id, r.dimension, r.window_seconds, r.window_key)
                 = ('key', k.key_id, 'requests', 0, '') AND r.retired_at IS NULL
LEFT JOIN cap p ON (p.scope, p.scope_id, p.dimension, p.window_seconds, p.window_key)
                 = ('key', k.key_id, 'requests', 60, '') AND p.retired_at IS NULL
LEFT JOIN counter c ON (c.scope, c.scope_id, c.dimension, c.window_seconds, c.window_key)
                     = ('key', k.key_id, 'micro_usd', 0, '')
LEFT JOIN LATERAL (SELECT coalesce(sum(x.settled - x.released), 0) AS settled
                   FROM slice x WHERE x.counter_id = c.counter_id) s ON true
"""
_ONE = _COLUMNS + " WHERE k.key_id = %s"
_OF_PAGE = """
WHERE (%(team)s::text IS NULL OR k.team = %(team)s)
  AND (%(app)s::text IS NULL OR k.app = %(app)s)
  AND (%(user)s::text IS NULL OR k.user_name = %(user)s)
  AND (%(name)s::text IS NULL OR k.name = %(name)s)
  AND (NOT %(live)s OR k.revoked_at IS NULL
       AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp()))
  AND (%(after)s::text IS NULL OR (k.created_at, k.key_id)
       > (SELECT a.created_at, a.key_id FROM virtual_key a WHERE a.key_id = %(after)s))
ORDER BY k.created_at, k.key_id LIMIT %(limit)s
"""
_INSERT = (
    "INSERT INTO virtual_key (key_id, key_hash, team, name, models, expires_at, declared, app,"
    " user_name, policies, surfaces, features)"
    " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
)
_INSERT_CAP = (
    "INSERT INTO cap (scope, scope_id, dimension, window_seconds, amount)"
    " VALUES ('key', %s, %s, %s, %s)"
)
_LOCK = "SELECT epoch FROM policy_head FOR UPDATE"
_VERSION = "SELECT coalesce(max(version), 0) FROM governance_version"
_REVOKE = (
    "UPDATE virtual_key SET revoked_at = clock_timestamp(), revoked_reason = %s"
    " WHERE key_id = %s AND revoked_at IS NULL RETURNING key_id"
)
_ROTATE = (
    "UPDATE virtual_key k SET key_hash = %s, rotated_at = clock_timestamp()"
    " FROM (SELECT key_id, key_hash FROM virtual_key WHERE key_id = %s FOR UPDATE) old"
    " WHERE k.key_id = old.key_id AND k.revoked_at IS NULL"
    " AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp()) RETURNING old.key_hash"
)
_KEEP = (
    "INSERT INTO rotated_secret (key_hash, key_id, valid_until)"
    " VALUES (%s, %s, clock_timestamp() + make_interval(secs => %s)) RETURNING valid_until"
)
_END_EARLIER = (
    "UPDATE rotated_secret SET valid_until = clock_timestamp() + make_interval(secs => %s)"
    " WHERE key_id = %s AND valid_until > clock_timestamp() + make_interval(secs => %s)"
)


class KeyConflictError(Exception):
    """The key cannot be minted beside what is there."""


class PolicyMovedError(Exception):
    """Another governance version came into force since the key was checked."""


@dataclass(frozen=True, slots=True)
class NewKeyRow:
    """A key to insert, checked against the spec. ``None`` lists allow everything."""

    key_id: str
    key_hash: bytes
    team: str
    name: str | None
    declared: str | None
    app: str | None
    user: str | None
    models: list[str] | None
    policies: list[str] | None
    surfaces: list[str] | None
    features: list[str] | None
    budget_micro_usd: int | None
    max_requests: int | None
    requests_per_minute: int | None
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """Which keys to list; ``None``: any."""

    team: str | None = None
    app: str | None = None
    user: str | None = None
    name: str | None = None
    live: bool = False


class KeyStore:
    """Reads and audited changes. Raises ``AuthorityUnavailableError`` while Postgres is away."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self,
        new: NewKeyRow,
        *,
        actor: str,
        reason: str | None,
        version: int,
        admission: Admission | None = None,
    ) -> dict[str, Any]:
        """Insert the key, its caps and the audit record, all or nothing. ``version`` is the
        governance version that the key was checked against.

        Raises ``KeyConflictError``, ``PolicyMovedError``.
        """
        caps = [("micro_usd", 0, new.budget_micro_usd)]  # counted even when it is not capped
        if new.max_requests is not None:
            caps.append(("requests", 0, new.max_requests))
        if new.requests_per_minute is not None:
            caps.append(("requests", 60, new.requests_per_minute))
        try:
            async with self._database.connection() as connection, connection.transaction():
                await connection.execute(_LOCK)
                await still_admitted(connection, admission)
                cursor = await connection.execute(_VERSION)
                found = await cursor.fetchone()
                if found is None or found[0] != version:
                    raise PolicyMovedError
                await connection.execute(
                    _INSERT,
                    (
                        new.key_id, new.key_hash, new.team, new.name, new.models, new.expires_at,
                        new.declared, new.app, new.user, new.policies, new.surfaces, new.features,
                    ),
                )  # fmt: skip
                for dimension, seconds, amount in caps:
                    await connection.execute(_INSERT_CAP, (new.key_id, dimension, seconds, amount))
                await record(
                    connection, actor=actor, action="key.create", subject=new.key_id,
                    reason=reason, detail=_detail(new),
                )  # fmt: skip
                reach("keys.before-create-commit")
                row = await _one(connection, new.key_id)
        except psycopg.errors.UniqueViolation:
            raise KeyConflictError(
                f"key {new.declared!r} has a live secret already: rotate it, or revoke it first"
            ) from None
        if row is None:
            raise RuntimeError("a key vanished in its own transaction")
        return row

    async def find(self, key_id: str) -> DictRow | None:
        """One key as the API shows it."""
        async with self._database.connection() as connection:
            return await _one(connection, key_id)

    async def page(self, wanted: KeyFilter, *, after: str | None, limit: int) -> list[DictRow]:
        """Keys by age, after the key with id ``after``. An id that does not exist ends the list."""
        parameters = {
            "team": wanted.team, "app": wanted.app, "user": wanted.user, "name": wanted.name,
            "live": wanted.live, "after": after, "limit": limit,
        }  # fmt: skip
        async with self._database.connection() as connection:
            cursor = connection.cursor(row_factory=dict_row)
            await cursor.execute((_COLUMNS + _OF_PAGE).encode(), parameters)
            return await cursor.fetchall()

    async def revoke(
        self, key_id: str, *, actor: str, reason: str | None, admission: Admission | None = None
    ) -> DictRow | None:
        """Revoke a key and all its secrets; ``None``: there is no such key."""
        async with self._database.connection() as connection, connection.transaction():
            await connection.execute(_LOCK)
            await still_admitted(connection, admission)
            cursor = await connection.execute(_REVOKE, (reason, key_id))
            if await cursor.fetchone() is not None:
                await record(
                    connection, actor=actor, action="key.revoke", subject=key_id, reason=reason
                )
            return await _one(connection, key_id)

    async def rotate(
        self,
        key_id: str,
        key_hash: bytes,
        *,
        overlap_seconds: int,
        actor: str,
        reason: str | None,
        admission: Admission | None = None,
    ) -> tuple[DictRow, datetime | None] | None:
        """Give a live key another secret; the old one stays valid for ``overlap_seconds``, and
        those of earlier rotations no longer than it.

        The row, and until when the old secret is valid. ``None``: there is no such live key.
        """
        until: datetime | None = None
        async with self._database.connection() as connection, connection.transaction():
            await connection.execute(_LOCK)
            await still_admitted(connection, admission)
            cursor = await connection.execute(_ROTATE, (key_hash, key_id))
            old = await cursor.fetchone()
            if old is None:
                return None
            ends = (overlap_seconds, key_id, overlap_seconds)
            await connection.execute(_END_EARLIER, ends)
            if overlap_seconds > 0:
                kept = await connection.execute(_KEEP, (old[0], key_id, overlap_seconds))
                row = await kept.fetchone()
                until = None if row is None else row[0]
            await record(
                connection, actor=actor, action="key.rotate", subject=key_id, reason=reason,
                detail={"overlap_seconds": overlap_seconds},
            )  # fmt: skip
            reach("keys.before-rotate-commit")
            found = await _one(connection, key_id)
        return None if found is None else (found, until)


async def _one(connection: Connection, key_id: str) -> DictRow | None:
    cursor = connection.cursor(row_factory=dict_row)
    await cursor.execute(_ONE, (key_id,))
    return await cursor.fetchone()


def _detail(new: NewKeyRow) -> dict[str, object]:
    return {
        "team": new.team,
        "name": new.name,
        "declared": new.declared,
        "app": new.app,
        "user": new.user,
        "models": new.models,
        "policies": new.policies,
        "surfaces": new.surfaces,
        "features": new.features,
        "budget_micro_usd": new.budget_micro_usd,
        "max_requests": new.max_requests,
        "requests_per_minute": new.requests_per_minute,
        "expires_at": None if new.expires_at is None else new.expires_at.isoformat(),
    }
