"""Days of the ledger, and how many entries each has."""

from datetime import date, datetime
from typing import LiteralString

import psycopg
from psycopg import sql

from terrace_gateway.database import Database

LIST_SECONDS = 1800
"""So long one month may take to be counted."""
# Months that begin later have nothing to export; the default partition may have any moment.
_MONTHS: LiteralString = r"""
SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'ledger_entry'::regclass
  AND (c.relname !~ '^ledger_entry_\d{6}$' OR c.relname <= 'ledger_entry_' || %s)
ORDER BY 1
"""
# One month's own table at a time: then its index of openings has all that is asked.
DAYS: LiteralString = """
SELECT (opened_at AT TIME ZONE 'UTC')::date AS day, count(*), min(entry_id), max(entry_id)
FROM {} WHERE opened_at < %s AND entry_id <= %s GROUP BY 1
"""


async def list_days(
    database: Database, *, before: datetime, last_entry_id: int
) -> list[tuple[str, date, int, int, int]]:
    """Month's table, day, entries, first and last entry id; by day. ``before``: a midnight in
    UTC. Entries behind ``last_entry_id`` do not count.

    Raises ``AuthorityUnavailableError``.
    """
    found: list[tuple[str, date, int, int, int]] = []
    async with database.long_connection(LIST_SECONDS) as connection:
        cursor = await connection.execute(_MONTHS, (f"{before:%Y%m}",))
        for (month,) in await cursor.fetchall():
            query = sql.SQL(DAYS).format(sql.Identifier(month))
            try:
                rows = await (await connection.execute(query, (before, last_entry_id))).fetchall()
            except psycopg.errors.UndefinedTable:  # another guard has dropped it
                continue
            found += [(month, *row) for row in rows]
    return sorted(found, key=lambda day: (day[1], day[0]))
