"""How far a reader may page by ids that a sequence gives before their rows are committed.

A transaction that took a smaller id may commit after one with a larger id. A cursor that has passed
the larger one would never see the smaller.
"""

import asyncio
from typing import LiteralString

from terrace_gateway.database import Connection, Database

POLL_SECONDS = 0.02
_NEXT: LiteralString = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
_OLDEST: LiteralString = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"


class SettledIds:
    """Ids of one sequence below which every row is committed, or never will be.

    Holds only where who takes an id has written something in the same transaction before.
    """

    def __init__(self, database: Database, last_id: LiteralString) -> None:
        """``last_id``: a query of the last id that the sequence gave."""
        self._database = database
        self._last_id: LiteralString = last_id
        self._settled = 0

    async def wait(self, seconds: float) -> int:
        """The last id given now, once the transactions that run now have ended; if one of them
        outlasts ``seconds``, what was settled before.

        Raises ``AuthorityUnavailableError``.
        """
        async with self._database.connection() as connection:
            # In this order: who takes an id up to ``last`` is older than ``young``.
            last = await _number(connection, self._last_id)
            young = await _number(connection, _NEXT)
        try:
            async with asyncio.timeout(seconds):
                while not await self._is_over(young):
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            return self._settled
        self._settled = max(self._settled, last)
        return self._settled

    async def _is_over(self, transaction: int) -> bool:
        async with self._database.connection() as connection:
            return await _number(connection, _OLDEST) >= transaction


async def _number(connection: Connection, query: LiteralString) -> int:
    row = await (await connection.execute(query)).fetchone()
    return 0 if row is None or row[0] is None else int(row[0])
