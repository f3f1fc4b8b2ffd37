"""The index that serves the ledger in the order of openings: recheck, re-rating, days of export.

It is made month by month beside running calls (``CREATE INDEX CONCURRENTLY``: nobody waits for it),
so it is no migration. Until a month has it, what reads by time reads that month whole.
"""

import asyncio
from typing import LiteralString

import psycopg
import structlog
from psycopg import sql

from terrace_gateway.calls.ports import AuthorityUnavailableError
from terrace_gateway.database import Connection, Database

log = structlog.get_logger()

EVERY_SECONDS = 3600.0
AWAY_SECONDS = 5.0
BUILD_SECONDS = 6 * 3600
_TRY_LOCK: LiteralString = "SELECT pg_try_advisory_lock(x'7E44ACE7'::bigint)"
_UNLOCK: LiteralString = "SELECT pg_advisory_unlock(x'7E44ACE7'::bigint)"
_DROP: LiteralString = "DROP INDEX CONCURRENTLY IF EXISTS {}"
_CREATE: LiteralString = "CREATE INDEX CONCURRENTLY IF NOT EXISTS {} ON {} (opened_at, entry_id)"
# Names of months without it, and whether one was begun and not made. What another guard is making
# now is left to it.
_MISSING: LiteralString = """
SELECT c.relname, x.indexrelid IS NOT NULL
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
LEFT JOIN pg_class n ON n.relname = c.relname || '_opened' AND n.relnamespace = c.relnamespace
LEFT JOIN pg_index x ON x.indexrelid = n.oid
WHERE i.inhparent = 'ledger_entry'::regclass AND x.indisvalid IS NOT TRUE
  AND NOT EXISTS (SELECT FROM pg_stat_progress_create_index p WHERE p.relid = c.oid)
ORDER BY 1 DESC
"""


async def keep_opening_index(database: Database) -> None:
    """Until cancelled: months are made later, and a build may break off."""
    while True:
        pause = AWAY_SECONDS
        if database.up:
            try:
                async with database.long_connection(BUILD_SECONDS) as connection:
                    await make_opening_index(connection)
                pause = EVERY_SECONDS
            except psycopg.errors.InsufficientPrivilege as error:
                pause = EVERY_SECONDS
                log.warning("ledger_index_not_ours", error=error.diag.message_primary)
            except (AuthorityUnavailableError, psycopg.Error) as error:
                log.warning("ledger_index_not_made", error=f"{type(error).__name__}: {error}")
        await asyncio.sleep(pause)


async def make_opening_index(connection: Connection) -> list[str]:
    """Make what is missing, the newest month first. ``connection`` is in autocommit mode.

    Returns the months that were given one; none while another guard is at it. Raises
    ``psycopg.Error``.
    """
    # Tried, not waited for: who waits in a statement is waited for by CREATE INDEX CONCURRENTLY.
    row = await (await connection.execute(_TRY_LOCK)).fetchone()
    if row is None or not row[0]:
        return []
    try:
        return await _make(connection)
    finally:
        if not connection.closed:
            await connection.execute(_UNLOCK)


async def _make(connection: Connection) -> list[str]:
    made: list[str] = []
    for month, broken in await (await connection.execute(_MISSING)).fetchall():
        index = sql.Identifier(f"{month}_opened")
        if broken:
            await connection.execute("SET lock_timeout = '1s'")
            await connection.execute(sql.SQL(_DROP).format(index))
            await connection.execute("RESET lock_timeout")
        await connection.execute(sql.SQL(_CREATE).format(index, sql.Identifier(month)))
        made.append(month)
    if made:
        log.info("ledger_index_made", months=made)
    return made
