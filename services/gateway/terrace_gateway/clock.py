"""Time for decisions: durations that survive suspend, and the database's time without asking it."""

import time
from datetime import UTC, datetime, timedelta


def boottime() -> float:
    """Seconds on a clock that also runs while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Clock:
    """The process's clock. A jump of the local wall clock moves nothing that this says."""

    def __init__(self) -> None:
        self._heard_at: float | None = None
        self._heard = datetime.now(UTC)  # until the first heartbeat: the best guess there is
        self._started_at = self.monotonic()

    def monotonic(self) -> float:
        """Seconds since some moment, never back, also during suspend."""
        return boottime()

    def hear(self, database_time: datetime, *, sent_at: float) -> None:
        """The database's time, from an answer to what was sent at ``sent_at`` (monotonic)."""
        self._heard, self._heard_at = database_time, sent_at

    def database_now(self) -> datetime:
        """Database time now, at most one round trip behind."""
        since = self._started_at if self._heard_at is None else self._heard_at
        return self._heard + timedelta(seconds=self.monotonic() - since)
