"""Months of the ledger: made ahead, and healed where rows came before their partition."""

from dataclasses import dataclass
from typing import LiteralString

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import TupleRow

MONTHS_AHEAD = 2
MOST_ROWS = 20_000
"""So many rows of a month are moved out of the default partition by the guard itself: everybody
waits while they are. More are for a quiet hour: docs/gateway/ledger.md."""
MONTH_SECONDS = 5
"""So long one month may take, also at a start."""
_BOUND: LiteralString = "SELECT set_config('statement_timeout', %s, false)"
_DUE: LiteralString = "SELECT month, name FROM ledger_months_due(%s)"
_MAKE: LiteralString = "SELECT make_ledger_month(%s, %s)"


@dataclass(frozen=True, slots=True)
class Months:
    """What one look at the months did. Names are those of their tables."""

    made: tuple[str, ...] = ()
    moved_rows: int = 0
    """Out of the default partition into months that were made."""
    missing: tuple[tuple[str, str], ...] = ()
    """Months that could not be made, and why."""


async def make_months(connection: AsyncConnection[TupleRow]) -> Months:
    """Make the months that are due, each in a transaction of its own: ``connection`` is in
    autocommit mode. One that cannot be made keeps no other.

    None takes longer than ``MONTH_SECONDS``, which is what the session's statements may take then.
    Raises ``psycopg.Error`` if it cannot be told which are due, or the connection has ended.
    """
    await connection.execute(_BOUND, (f"{MONTH_SECONDS}s",))
    due = await (await connection.execute(_DUE, (MONTHS_AHEAD,))).fetchall()
    made: list[str] = []
    missing: list[tuple[str, str]] = []
    moved = 0
    for month, name in due:
        try:
            row = await (await connection.execute(_MAKE, (month, MOST_ROWS))).fetchone()
        except psycopg.Error as error:
            if connection.closed:
                raise
            why = error.diag.message_primary or ""
            missing.append((name, f"{type(error).__name__}: {why}"))
            continue
        if row is not None and row[0] is not None:  # another guard has just made it
            made.append(name)
            moved += row[0]
    return Months(tuple(made), moved, tuple(missing))
