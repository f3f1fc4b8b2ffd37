"""A guard process as the database knows it: a row with a heartbeat. Its attempts carry its id."""

import asyncio
import time

import structlog

from gateway_rig.release_before.authority import AuthorityUnavailableError
from terrace_gateway.database import Database

log = structlog.get_logger()

FRESH_PART = 0.6  # of the time after which the reaper acts: we stop well before it starts


def suspend_aware_seconds() -> float:
    """Seconds on a clock that also runs while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Incarnation:
    """Registers the process, beats, and knows whether the last beat is recent enough to act on.

    A process that was frozen longer than that sends nothing upstream before it has beaten again:
    its open attempts may have been given up meanwhile.
    """

    def __init__(
        self, database: Database, *, replica: str, heartbeat_seconds: float, silent_seconds: float
    ) -> None:
        self._database = database
        self._replica = replica
        self._heartbeat_seconds = heartbeat_seconds
        self._fresh_seconds = silent_seconds * FRESH_PART
        self._id: int | None = None
        self._beaten_at = float("-inf")
        self._lock = asyncio.Lock()

    @property
    def is_fresh(self) -> bool:
        """The last beat was sent recently enough that no reaper can have acted on us."""
        return suspend_aware_seconds() - self._beaten_at < self._fresh_seconds

    async def ensure_fresh(self) -> int:
        """The incarnation id, after a beat if the last one is old.

        Raises ``AuthorityUnavailableError``.
        """
        if self._id is None or not self.is_fresh:
            async with self._lock:
                if self._id is None or not self.is_fresh:
                    await self._beat()
        if self._id is None:
            raise AuthorityUnavailableError("this guard is not registered yet")
        return self._id

    async def run(self) -> None:
        """Beat until cancelled. A failed beat is tried again after half a second."""
        while True:
            pause = self._heartbeat_seconds
            try:
                await self._beat()
            except AuthorityUnavailableError:
                pause = min(0.5, pause)
            await asyncio.sleep(pause)

    async def end(self) -> None:
        """Tell the others that this process is done. Best effort: silence says the same later."""
        if self._id is None:
            return
        try:
            async with self._database.connection() as connection:
                await connection.execute(
                    "UPDATE incarnation SET ended_at = clock_timestamp() WHERE incarnation_id = %s",
                    (self._id,),
                )
        except AuthorityUnavailableError:
            log.warning("incarnation_not_ended", incarnation=self._id)

    async def _beat(self) -> None:
        sent_at = suspend_aware_seconds()
        async with self._database.connection() as connection:
            if self._id is None:
                cursor = await connection.execute(
                    "INSERT INTO incarnation (replica) VALUES (%s) RETURNING incarnation_id",
                    (self._replica,),
                )
            else:
                cursor = await connection.execute(
                    "UPDATE incarnation SET heartbeat_at = clock_timestamp()"
                    " WHERE incarnation_id = %s RETURNING incarnation_id",
                    (self._id,),
                )
            row = await cursor.fetchone()
        self._id = None if row is None else row[0]  # gone after a restore: register anew
        self._beaten_at = sent_at
