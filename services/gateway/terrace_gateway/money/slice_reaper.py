"""Frees gauges of holders that are gone and drops counters of windows that ended long ago."""

import asyncio

from terrace_gateway.database import Database
from terrace_gateway.turns import Turns

_REAP = "SELECT free_gauges(), drop_ended_counters(%s)"
_BATCH = 200


class SliceReaper:
    """Runs in every guard; several at once do no harm."""

    def __init__(self, database: Database, *, every_seconds: float = 5.0) -> None:
        self._database = database
        self._every_seconds = every_seconds
        self.turns = Turns("slice_reaper")

    async def run(self) -> None:
        """Reap until cancelled."""
        while True:
            await asyncio.sleep(self._every_seconds)
            with self.turns.turn():
                await self.reap()

    async def reap(self) -> tuple[int, int]:
        """One pass: incarnations whose gauges were freed, counters that were dropped.

        Raises ``AuthorityUnavailableError``, ``psycopg.Error``.
        """
        async with self._database.connection() as connection:
            row = await (await connection.execute(_REAP, (_BATCH,))).fetchone()
        return (0, 0) if row is None else (row[0], row[1])
