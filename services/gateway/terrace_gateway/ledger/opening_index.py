"""The index that serves the ledger in the order of openings: recheck, re-rating, days of export.

It is made month by month beside running calls (``CREATE INDEX CONCURRENTLY``: nobody waits for it),
so it is no migration. Until a month has it, what reads by time reads that month whole.
"""

import asyncio
from dataclasses import dataclass
from typing import LiteralString

import psycopg
import structlog
from psycopg import sql

from terrace_gateway.calls.ports import AuthorityUnavailableError
from terrace_gateway.database import Connection, Database

log = structlog.get_logger()

EVERY_SECONDS = 3600.0
AGAIN_SECONDS = 600.0
"""After a pass that left a month out: a build that fails may have read and written much."""
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


@dataclass(frozen=True, slots=True)
class Indexes:
    """What one pass did. Names are those of the months' tables."""

    made: tuple[str, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()
    """Months that could not be given one, and why."""


class OpeningIndex:
    """Runs in every guard; one at a time makes them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._missing: tuple[tuple[str, str], ...] = ()

    @property
    def missing(self) -> int:
        """Months that the last pass could not give one; the log names them."""
        return len(self._missing)

    async def run(self) -> None:
        """Until cancelled: months are made later, and a build may break off."""
        while True:
            pause = AWAY_SECONDS
            if self._database.up:
                try:
                    await self._pass()
                    pause = AGAIN_SECONDS if self._missing else EVERY_SECONDS
                except (AuthorityUnavailableError, psycopg.Error) as error:
                    log.warning("ledger_indexes_not_kept", error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(pause)

    async def _pass(self) -> None:
        async with self._database.long_connection(BUILD_SECONDS) as connection:
            found = await make_opening_index(connection)
        if found.missing != self._missing:
            self._missing = found.missing
            for month, why in found.missing:
                log.warning("ledger_index_not_made", month=month, why=why)


async def make_opening_index(connection: Connection) -> Indexes:
    """Make what is missing, the newest month first; one that cannot be made keeps no other.
    ``connection`` is in autocommit mode.

    Does nothing while another guard is at it. Raises ``psycopg.Error`` if it cannot be told what is
    missing, or the connection has ended.
    """
    # Tried, not waited for: who waits in a statement is waited for by CREATE INDEX CONCURRENTLY.
    row = await (await connection.execute(_TRY_LOCK)).fetchone()
    if row is None or not row[0]:
        return Indexes()
    try:
        return await _make(connection)
    finally:
        if not connection.closed:
            await connection.execute(_UNLOCK)


async def _make(connection: Connection) -> Indexes:
    made: list[str] = []
    missing: list[tuple[str, str]] = []
    for month, broken in await (await connection.execute(_MISSING)).fetchall():
        try:
            await _make_one(connection, month, broken=broken)
        except psycopg.errors.UndefinedTable:  # another guard has dropped it
            continue
        except psycopg.Error as error:
            if connection.closed:
                raise
            missing.append((month, f"{type(error).__name__}: {error.diag.message_primary or ''}"))
            continue
        made.append(month)
    if made:
        log.info("ledger_index_made", months=made)
    return Indexes(tuple(made), tuple(missing))


async def _make_one(connection: Connection, month: str, *, broken: bool) -> None:
    index = sql.Identifier(f"{month}_opened")
    if broken:
        await connection.execute("SET lock_timeout = '1s'")
        try:
            await connection.execute(sql.SQL(_DROP).format(index))
        finally:
            if not connection.closed:
                await connection.execute("RESET lock_timeout")
    await connection.execute(sql.SQL(_CREATE).format(index, sql.Identifier(month)))
