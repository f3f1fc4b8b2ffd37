"""Gives up open attempts that nobody will close, as a writer with a chain of its own.

An attempt whose guard's replica lease has ended may still be running upstream until its hard limit;
after that plus a margin it counts as its reservation, as ``unknown``. A late close (the replica
came back and replayed its spool) becomes a correction, never a second charge.
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

import psycopg
import structlog

from terrace_gateway.crash_points import reach
from terrace_gateway.database import Database
from terrace_gateway.turns import Turns

log = structlog.get_logger()

WRITER = "reaper"
BATCH = 200
REFUSALS = (psycopg.DataError, psycopg.IntegrityError)
"""What the database has against one attempt, whatever it says to the next one."""
# A lease that is still renewed belongs to a process that closes its own attempts, however late; an
# attempt that outlived twice its hard limit is nobody's any more.
_GONE = """
SELECT o.attempt_id
FROM open_attempt o LEFT JOIN incarnation i USING (incarnation_id)
WHERE o.state = 'open'
  -- After a restart of Postgres every lease looks ended; spools get the time to be shipped first.
  AND pg_postmaster_start_time() < clock_timestamp() - make_interval(secs => %(margin)s)
  AND ((coalesce(i.lease_until, i.heartbeat_at, '-infinity') < clock_timestamp()
        AND o.opened_at < clock_timestamp()
            - make_interval(secs => o.hard_limit_seconds + %(margin)s))
    OR o.opened_at < clock_timestamp()
        - make_interval(secs => 2 * o.hard_limit_seconds + %(margin)s))
ORDER BY o.opened_at LIMIT %(batch)s
"""
_GIVE_UP = "SELECT give_up_open_attempt(%s, %s, %s)"
# Attempts of guards of the release before, in its own tables, when none of those is left.
_GONE_OLD = """
SELECT a.attempt_id FROM attempt a JOIN incarnation i USING (incarnation_id)
WHERE a.state = 'open' AND (
    i.ended_at IS NOT NULL
    OR (i.heartbeat_at < clock_timestamp() - make_interval(secs => %(silent)s)
        AND pg_postmaster_start_time() < clock_timestamp() - make_interval(secs => %(silent)s))
    OR a.opened_at < clock_timestamp() - make_interval(secs => a.hard_limit_seconds + %(margin)s))
ORDER BY a.opened_at LIMIT %(batch)s
"""
_GIVE_UP_OLD = "SELECT give_up_attempt(%s, %s)"
SILENT_SECONDS = 15
_FORGET = """
DELETE FROM open_attempt WHERE state = 'not_billed'
    AND opened_at < clock_timestamp() - make_interval(secs => %s)
"""
SECOND_LOOK_SECONDS = 24 * 3600


class LedgerReaper:
    """Runs in every guard; an attempt is given up once."""

    def __init__(
        self, database: Database, *, replica: str, every_seconds: float, margin_seconds: float
    ) -> None:
        self._database = database
        self._replica = replica
        self._every_seconds = every_seconds
        self._margin_seconds = margin_seconds
        self.turns = Turns("ledger_reaper")
        self.given_up = 0
        """Since the start."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._every_seconds)
            with self.turns.turn():
                await self.reap()

    async def reap(self) -> int:
        """One pass. Returns how many attempts were given up. Raises
        ``AuthorityUnavailableError``, ``psycopg.Error``."""
        given_up = 0
        limits = {"margin": self._margin_seconds, "batch": BATCH, "silent": SILENT_SECONDS}
        async with self._database.connection() as connection:
            cursor = await connection.execute(_GONE_OLD, limits)
            for (attempt_id,) in await cursor.fetchall():
                with self._refused(attempt_id):
                    await connection.execute(_GIVE_UP_OLD, (attempt_id, self._replica))
            cursor = await connection.execute(_GONE, limits)
            for (attempt_id,) in await cursor.fetchall():
                reach("reaper.before-give-up")
                with self._refused(attempt_id):
                    taken = await connection.execute(_GIVE_UP, (attempt_id, WRITER, self._replica))
                    row = await taken.fetchone()
                    if row is not None and row[0]:
                        given_up += 1
                        log.warning("attempt_given_up", attempt_id=attempt_id)
                reach("reaper.after-give-up")
            await connection.execute(_FORGET, (SECOND_LOOK_SECONDS,))
        self.given_up += given_up
        return given_up

    @contextmanager
    def _refused(self, attempt_id: str) -> Generator[None]:
        """An attempt that the database refuses keeps no other; it is counted as a failed turn."""
        try:
            yield
        except REFUSALS as error:
            log.warning("attempt_not_given_up", attempt_id=attempt_id, error=type(error).__name__)
            self.turns.miss(error)
