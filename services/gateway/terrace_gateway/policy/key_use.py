"""When keys were last used: gathered in memory, written in batches, never a write per request."""

import asyncio
from datetime import datetime

from terrace_gateway.clock import Clock
from terrace_gateway.database import Database
from terrace_gateway.turns import DATABASE_FAILURES, Turns

FLUSH_SECONDS = 10.0


class KeyUse:
    """Last uses of keys that are not written yet. A kill loses those of ``every_seconds``."""

    def __init__(
        self, database: Database, clock: Clock, *, every_seconds: float = FLUSH_SECONDS
    ) -> None:
        self._database = database
        self._clock = clock
        self._every_seconds = every_seconds
        self._used: dict[str, datetime] = {}
        self.turns = Turns("key_use")

    def note(self, key_id: str) -> None:
        """``key_id`` is used now."""
        self._used[key_id] = self._clock.database_now()

    async def flush(self) -> None:
        """Write what is gathered. What could not be written is kept for the next time.

        Raises ``AuthorityUnavailableError``, ``psycopg.Error``.
        """
        batch, self._used = self._used, {}
        if not batch:
            return
        try:
            async with self._database.connection() as connection:
                await connection.execute(
                    "SELECT note_key_use(%s, %s)", (list(batch), list(batch.values()))
                )
        except DATABASE_FAILURES:
            self._used = {**batch, **self._used}
            raise

    async def run(self) -> None:
        """Flush every now and then until cancelled."""
        while True:
            await asyncio.sleep(self._every_seconds)
            with self.turns.turn():
                await self.flush()
