"""Upstream quotas in the database: publications of quota_sync, and the caps that come of them.

A publication and its caps are one transaction under the row lock of ``policy_head``. What it does
not name is kept: a region that could not be read keeps its values and grows old, a quota that AWS
no longer names is flagged. Only pools that no model of the catalogue draws on are retired.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from psycopg.rows import DictRow, dict_row

from terrace_gateway.admin.admission import Admission, still_admitted
from terrace_gateway.admin.audit import record
from terrace_gateway.database import Connection, Database
from terrace_gateway.policy.declared_caps import UPSERT

LEASE = "quota-sync"
"""Name of the lease that a publisher holds."""

Access = Literal["available", "denied", "unknown"]
Place = tuple[str, str, int]
"""Pool, dimension, seconds of the window."""

_LOCK = "SELECT epoch FROM policy_head FOR UPDATE"
_VERSION = "SELECT max(version) FROM governance_version"
_HOLDS = (
    "SELECT holder = %s AND fence = %s AND expires_at > clock_timestamp()"
    " FROM service_lease WHERE name = %s FOR SHARE"
)
_POOL = (
    "INSERT INTO upstream_pool (pool, region, access, leads_to, findings, read_at)"
    " VALUES (%s, %s, %s, %s, %s, clock_timestamp() - make_interval(secs => %s))"
    " ON CONFLICT (pool) DO UPDATE SET access = excluded.access, leads_to = excluded.leads_to,"
    " findings = excluded.findings, read_at = excluded.read_at, retired_at = NULL"
)
_QUOTA = (
    "INSERT INTO upstream_quota (pool, dimension, window_seconds, quota_code, quota_name,"
    " quota_value, source, amount, read_at, stale_after_seconds, stale_percent, fence)"
    " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, clock_timestamp() - make_interval(secs => %s),"
    " %s, %s, %s) ON CONFLICT (pool, dimension, window_seconds) DO UPDATE SET"
    " quota_code = excluded.quota_code, quota_name = excluded.quota_name,"
    " quota_value = excluded.quota_value, source = excluded.source, amount = excluded.amount,"
    " vanished_at = NULL, read_at = excluded.read_at,"
    " stale_after_seconds = excluded.stale_after_seconds,"
    " stale_percent = excluded.stale_percent, degraded_at = NULL, fence = excluded.fence"
)
_VANISH = (
    "UPDATE upstream_quota SET vanished_at = clock_timestamp() WHERE pool = ANY (%s)"
    " AND vanished_at IS NULL AND (pool, dimension, window_seconds) NOT IN"
    " (SELECT * FROM unnest(%s::text[], %s::text[], %s::integer[]))"
    " RETURNING pool, dimension, window_seconds"
)
_RETIRE = (
    "UPDATE upstream_pool SET retired_at = clock_timestamp() WHERE retired_at IS NULL"
    " AND pool <> ALL (%s) RETURNING pool"
)
_RETIRE_CAPS = (
    "UPDATE cap SET retired_at = clock_timestamp() WHERE origin = 'upstream' AND scope = 'model'"
    " AND scope_id = ANY (%s) AND retired_at IS NULL"
)
_CAPS = (
    "SELECT scope_id, dimension, window_seconds, amount FROM cap WHERE origin = 'upstream'"
    " AND scope = 'model' AND window_kind = 'fixed' AND retired_at IS NULL"
)
_LIST = (
    "SELECT p.pool, p.region, p.access, p.leads_to, p.findings, q.dimension, q.window_seconds,"
    " q.quota_code, q.quota_name, q.quota_value, q.source, q.amount, c.amount AS in_force,"
    " q.vanished_at, q.degraded_at, q.stale_after_seconds, q.stale_percent, q.fence,"
    " greatest(0, extract(epoch FROM clock_timestamp() - q.read_at))::double precision"
    " AS age_seconds,"
    " greatest(0, extract(epoch FROM clock_timestamp() - p.read_at))::double precision"
    " AS pool_age_seconds"
    " FROM upstream_pool p LEFT JOIN upstream_quota q USING (pool)"
    " LEFT JOIN cap c ON c.origin = 'upstream' AND c.scope = 'model' AND c.scope_id = q.pool"
    " AND c.dimension = q.dimension AND c.window_kind = 'fixed'"
    " AND c.window_seconds = q.window_seconds AND c.retired_at IS NULL"
    " WHERE p.retired_at IS NULL ORDER BY p.pool, q.dimension, q.window_seconds"
)
_TAKE = "SELECT held, fence, holder, seconds_left FROM take_lease(%s, %s, %s)"
_GIVE = (
    "UPDATE service_lease SET expires_at = clock_timestamp()"
    " WHERE name = %s AND holder = %s AND fence = %s AND expires_at > clock_timestamp()"
)
_DEGRADE = (
    "SELECT pool, dimension, window_seconds, amount, age_seconds FROM degrade_stale_upstream()"
)
_STANDING = (
    "SELECT count(*) FILTER (WHERE q.degraded_at IS NOT NULL),"
    " count(*) FILTER (WHERE q.vanished_at IS NOT NULL),"
    " coalesce(max(extract(epoch FROM clock_timestamp() - q.read_at)), 0)::double precision"
    " FROM upstream_quota q JOIN upstream_pool p USING (pool) WHERE p.retired_at IS NULL"
)


class FencedError(Exception):
    """The publisher does not hold the lease (any more): nothing was changed."""


class OtherVersionError(Exception):
    """The governance version in force is another than the one the publication was made for."""


@dataclass(frozen=True, slots=True)
class ReadPool:
    """What AWS says of one pool."""

    pool: str
    region: str
    access: Access
    leads_to: tuple[str, ...]
    findings: tuple[str, ...]
    age_seconds: float


@dataclass(frozen=True, slots=True)
class ReadQuota:
    """One quota and our share of it."""

    place: Place
    code: str
    name: str
    value: float
    source: Literal["applied", "default"]
    amount: int
    age_seconds: float


@dataclass(frozen=True, slots=True)
class Publication:
    """Everything of the regions that could be read."""

    holder: str
    fence: int
    governance_version: int
    pools: tuple[ReadPool, ...]
    quotas: tuple[ReadQuota, ...]
    wanted: frozenset[str]
    """Every pool of the catalogue, also of regions that could not be read."""
    stale_after_seconds: int
    stale_percent: int


@dataclass(frozen=True, slots=True)
class Degraded:
    """A share that was lowered because nobody has read its quota for too long."""

    place: Place
    amount: int
    age_seconds: float


@dataclass(frozen=True, slots=True)
class QuotaStanding:
    """Of all quotas of pools in use."""

    degraded: int
    vanished: int
    oldest_seconds: float


class UpstreamQuotaStore:
    """The tables of 0010. Every method raises ``AuthorityUnavailableError``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def publish(
        self,
        news: Publication,
        *,
        actor: str,
        reason: str,
        admission: Admission | None = None,
    ) -> dict[str, Any]:
        """Write rows and caps, audited. Answers what changed.

        Raises ``FencedError``, ``OtherVersionError``; then nothing was changed.
        """
        async with self._database.connection() as connection, connection.transaction():
            await connection.execute(_LOCK)
            await still_admitted(connection, admission)
            cursor = await connection.execute(_HOLDS, (news.holder, news.fence, LEASE))
            if await cursor.fetchone() != (True,):
                raise FencedError
            row = await (await connection.execute(_VERSION)).fetchone()
            if row != (news.governance_version,):
                raise OtherVersionError
            vanished = await _write_rows(connection, news)
            cursor = await connection.execute(_RETIRE, (sorted(news.wanted),))
            retired = sorted(row[0] for row in await cursor.fetchall())
            if retired:
                await connection.execute(_RETIRE_CAPS, (retired,))
            changed = await _write_caps(connection, news.quotas)
            regions = sorted({pool.region for pool in news.pools})
            changes: dict[str, Any] = {
                "caps": changed, "vanished": vanished, "retired_pools": retired,
            }  # fmt: skip
            await record(
                connection, actor=actor, action="upstream_quota.publish",
                subject=",".join(regions) or "none", reason=reason,
                detail={**changes, "fence": news.fence, "quotas": len(news.quotas)},
            )  # fmt: skip
        return changes

    async def pools(self) -> list[dict[str, Any]]:
        """Every pool in use with its quotas, by name."""
        async with self._database.connection() as connection:
            cursor = connection.cursor(row_factory=dict_row)
            await cursor.execute(_LIST.encode())
            rows = await cursor.fetchall()
        grouped: defaultdict[str, list[DictRow]] = defaultdict(list)
        for row in rows:
            grouped[row["pool"]].append(row)
        return [_pool(rows) for rows in grouped.values()]

    async def take_lease(self, name: str, holder: str, seconds: float) -> dict[str, Any]:
        """Take or renew a lease. ``fence`` is only the caller's if ``held``."""
        async with self._database.connection() as connection:
            row = await (await connection.execute(_TAKE, (name, holder, seconds))).fetchone()
        if row is None:
            raise RuntimeError("take_lease answered nothing")
        return {"held": row[0], "fence": row[1], "holder": row[2], "seconds_left": row[3]}

    async def give_lease(self, name: str, holder: str, fence: int) -> bool:
        """End a lease that the caller holds. False: it held none."""
        async with self._database.connection() as connection:
            cursor = await connection.execute(_GIVE, (name, holder, fence))
        return cursor.rowcount == 1

    async def degrade(self) -> tuple[tuple[Degraded, ...], QuotaStanding]:
        """Lower the shares that nobody has read for too long; those that this call lowered, and
        how all stand."""
        async with self._database.connection() as connection:
            rows = await (await connection.execute(_DEGRADE)).fetchall()
            standing = await (await connection.execute(_STANDING)).fetchone()
        if standing is None:
            raise RuntimeError("a count answered nothing")
        return (
            tuple(Degraded((row[0], row[1], row[2]), row[3], row[4]) for row in rows),
            QuotaStanding(*standing),
        )


async def _write_rows(connection: Connection, news: Publication) -> list[str]:
    """Rows of pools and quotas. Answers the quotas that have vanished now."""
    for pool in sorted(news.pools, key=lambda pool: pool.pool):
        await connection.execute(
            _POOL,
            (pool.pool, pool.region, pool.access, list(pool.leads_to), list(pool.findings),
             pool.age_seconds),
        )  # fmt: skip
    for quota in sorted(news.quotas, key=lambda quota: quota.place):
        await connection.execute(
            _QUOTA,
            (*quota.place, quota.code, quota.name, quota.value, quota.source, quota.amount,
             quota.age_seconds, news.stale_after_seconds, news.stale_percent, news.fence),
        )  # fmt: skip
    places = [quota.place for quota in news.quotas]
    columns: tuple[list[Any], ...] = tuple([place[at] for place in places] for at in range(3))
    cursor = await connection.execute(_VANISH, ([pool.pool for pool in news.pools], *columns))
    return [f"{row[0]} {row[1]}/{row[2]}s" for row in await cursor.fetchall()]


async def _write_caps(connection: Connection, quotas: Sequence[ReadQuota]) -> list[str]:
    """Caps that differ from what is in force; an unchanged one is not touched, so that the epoch
    moves only when a guard has something to learn."""
    rows = await (await connection.execute(_CAPS)).fetchall()
    now: Mapping[Place, int | None] = {(row[0], row[1], row[2]): row[3] for row in rows}
    changed: list[str] = []
    for quota in sorted(quotas, key=lambda quota: quota.place):
        if quota.place in now and now[quota.place] == quota.amount:
            continue
        pool, dimension, seconds = quota.place
        values = ("model", pool, dimension, "fixed", seconds, None, "UTC", quota.amount, "block")
        await connection.execute(UPSERT, (*values, list[int](), "upstream"))
        changed.append(f"{pool} {dimension}/{seconds}s = {quota.amount}")
    return changed


def _pool(rows: Sequence[DictRow]) -> dict[str, Any]:
    first = rows[0]
    quotas = [
        {
            "dimension": row["dimension"], "window_seconds": row["window_seconds"],
            "quota_code": row["quota_code"], "quota_name": row["quota_name"],
            "quota_value": row["quota_value"], "source": row["source"], "share": row["amount"],
            "in_force": row["in_force"], "vanished_at": row["vanished_at"],
            "degraded_at": row["degraded_at"], "age_seconds": round(row["age_seconds"], 1),
            "stale_after_seconds": row["stale_after_seconds"],
            "stale_percent": row["stale_percent"], "fence": row["fence"],
        }
        for row in rows
        if row["dimension"] is not None
    ]  # fmt: skip
    return {
        "pool": first["pool"], "region": first["region"], "access": first["access"],
        "leads_to": first["leads_to"], "findings": first["findings"],
        "age_seconds": round(first["pool_age_seconds"], 1), "quotas": quotas,
    }  # fmt: skip
