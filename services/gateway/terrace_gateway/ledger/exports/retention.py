"""Which months of the ledger stay in the database. One that goes leaves its audit record."""

import hashlib
from dataclasses import dataclass, field
from typing import LiteralString

import psycopg
import structlog

from terrace_gateway.admin.audit import record
from terrace_gateway.database import Connection, Database

log = structlog.get_logger()

DROP_SECONDS = 1800
"""A month of rows is read twice; nobody is locked out meanwhile."""
MAX_NAMED = 100
_OLD_MONTHS: LiteralString = """
SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'ledger_entry'::regclass AND c.relname ~ '^ledger_entry_[0-9]{6}$'
  AND c.relname < 'ledger_entry_' || to_char(
      (clock_timestamp() AT TIME ZONE 'UTC') - make_interval(months => %s), 'YYYYMM')
ORDER BY 1
"""
# But those of the reaper whose guard's spool may have a close of theirs.
_SETTLE: LiteralString = """
DELETE FROM open_attempt o WHERE o.state = 'unknown'
  AND o.opened_at < date_trunc('month', (clock_timestamp() AT TIME ZONE 'UTC')
                               - make_interval(months => %s)) AT TIME ZONE 'UTC'
  AND NOT EXISTS (
      SELECT FROM ledger_entry e JOIN incarnation i ON i.incarnation_id = e.incarnation_id
      WHERE e.attempt_id = o.attempt_id AND e.opened_at = o.opened_at AND e.kind = 'unknown'
        AND NOT e.late AND e.writer = 'reaper' AND i.closed_at IS NULL)
RETURNING o.attempt_id
"""
_NEEDED: LiteralString = "SELECT why_ledger_month_is_needed(%s)"


@dataclass(frozen=True, slots=True)
class Dropped:
    """What one pass did. By name of the month's table."""

    dropped: dict[str, int] = field(default_factory=dict[str, int])
    """Rows."""
    kept: dict[str, str] = field(default_factory=dict[str, str])
    """Why, of those that should have gone."""


class Retention:
    """Raises ``AuthorityUnavailableError`` while Postgres is away."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def old_months(self, keep: int) -> list[str]:
        """Tables of months before the last ``keep``, the oldest first."""
        async with self._database.connection() as connection:
            cursor = await connection.execute(_OLD_MONTHS, (keep,))
            return [row[0] for row in await cursor.fetchall()]

    async def needed(self, month: str) -> str | None:
        """Why a month is needed here although it is exported."""
        async with self._database.long_connection(DROP_SECONDS) as connection:
            try:
                row = await (await connection.execute(_NEEDED, (month,))).fetchone()
            except psycopg.errors.UndefinedTable:
                return "another guard has just dropped it"
        return None if row is None else row[0]

    async def settle_unknown(self, keep: int, *, actor: str) -> int:
        """Unknown attempts of before the last ``keep`` months count as their reservation for good:
        nobody is asked about them any more. Returns how many.

        Those stay whose guard's spool was not shipped to its end: it may know better. The audit
        record has their count and the digest of their ids, sorted, a line each; the ids themselves
        are those of the export's ``unknown`` entries.
        """
        async with (
            self._database.long_connection(DROP_SECONDS) as connection, connection.transaction()
        ):  # fmt: skip
            cursor = await connection.execute(_SETTLE, (keep,))
            settled = sorted(row[0] for row in await cursor.fetchall())
            if settled:
                digest = hashlib.sha256("\n".join(settled).encode()).hexdigest()
                await record(
                    connection, actor=actor, action="ledger.settle_unknown", subject="ledger",
                    detail={
                        "attempts": len(settled), "sha256": digest, "keep_months": keep,
                        "first": settled[:MAX_NAMED],
                    },
                )  # fmt: skip
        return len(settled)

    async def drop(self, months: list[str], *, actor: str) -> Dropped:
        """Drop months, each with its audit record in one transaction. One that cannot go keeps no
        other."""
        result = Dropped()
        async with self._database.long_connection(DROP_SECONDS) as connection:
            for name in months:
                try:
                    result.dropped[name] = await _drop(connection, name, actor)
                except psycopg.Error as error:
                    if connection.closed:
                        raise
                    why = error.diag.message_primary or type(error).__name__
                    result.kept[name] = why
                    log.warning("ledger_month_kept", month=name, why=why)
        return result


async def _drop(connection: Connection, name: str, actor: str) -> int:
    async with connection.transaction():
        cursor = await connection.execute("SELECT drop_ledger_partition(%s)", (name,))
        row = await cursor.fetchone()
        rows = 0 if row is None else int(row[0])
        await record(
            connection, actor=actor, action="ledger.drop", subject=name, detail={"rows": rows}
        )
    return rows
