"""The identity of this process at the database, its lease, and what each beat tells.

A beat renews the replica lease and brings the database's time, the time line, the policy epoch and
the counters that others want something of. Only durations count: the holder's lease ends so many
seconds after the moment in which it *sent* the beat, minus a margin, on a clock that runs during
suspend; the database's later, by its own clock.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import structlog

from terrace_gateway.calls.ports import AuthorityUnavailableError
from terrace_gateway.clock import Clock
from terrace_gateway.crash_points import reach
from terrace_gateway.database import Database
from terrace_gateway.turns import Turns

log = structlog.get_logger()

_BEGIN = "SELECT begin_incarnation(%s, %s, %s)"
_BEAT = (
    "SELECT state, database_time, timeline, suspended, declared, policy_epoch, wanted"
    " FROM heartbeat(%s, %s)"
)
_CLOSE = "SELECT close_incarnation(%s)"
LEASE_MARGIN_SECONDS = 1.0
BEAT_TIMEOUT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Beat:
    """What one beat brought. ``sent_at`` and ``lease_ends_at`` are on the holder's clock."""

    incarnation: int
    sent_at: float
    lease_ends_at: float
    database_time: datetime
    timeline: str
    suspended: bool
    """Grants are suspended after a failover."""
    declared: bool
    """What this incarnation holds is known on the present time line."""
    policy_epoch: int
    wanted: tuple[int, ...]
    """Counters of which others need what is idle here."""


class Heartbeat:
    """Beats until cancelled; ``listeners`` hear every beat, in order, synchronously."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        *,
        replica: str,
        heartbeat_seconds: float = 0.25,
        lease_seconds: int = 90,
        stream_limit_seconds: int,
    ) -> None:
        if lease_seconds <= LEASE_MARGIN_SECONDS + heartbeat_seconds:
            raise ValueError("lease_seconds must be longer than a beat and the margin")
        self._database = database
        self._clock = clock
        self._replica = replica
        self._heartbeat_seconds = heartbeat_seconds
        self._lease_seconds = lease_seconds
        self._stream_limit_seconds = stream_limit_seconds
        self._incarnation: int | None = None
        self._lock = asyncio.Lock()
        self._left = False
        self.turns = Turns("heartbeat")
        self.last: Beat | None = None
        self.listeners: list[Callable[[Beat], None]] = []
        self.ended: list[int] = []
        """Incarnations of this process whose lease ended: to be closed once their entries are in
        the ledger."""

    @property
    def incarnation(self) -> int | None:
        """The identity that the next beat renews."""
        return self._incarnation

    async def run(self) -> None:
        """Beat until cancelled. A beat that fails is tried again at the next turn."""
        while True:
            sent_at = self._clock.monotonic()
            with self.turns.turn():
                await self.beat()
            took = self._clock.monotonic() - sent_at
            await asyncio.sleep(max(0.01, self._heartbeat_seconds - took))

    async def beat(self) -> Beat:
        """One beat; a new incarnation if there is none or its lease has ended.

        Raises ``AuthorityUnavailableError``, and ``psycopg.Error`` of what Postgres answered.
        """
        async with self._lock:
            if self._left:
                raise AuthorityUnavailableError("this guard has left")
            try:
                async with asyncio.timeout(BEAT_TIMEOUT_SECONDS):
                    beat = await self._beat()
            except TimeoutError:
                raise AuthorityUnavailableError("the database did not answer a beat") from None
        self._clock.hear(beat.database_time, sent_at=beat.sent_at)
        self.last = beat
        for listener in self.listeners:
            listener(beat)
        return beat

    async def leave(self) -> None:
        """No beat comes after this, so that none begins a new incarnation."""
        async with self._lock:
            self._left = True

    async def close(self, incarnation: int) -> bool:
        """After everything that it spooled is in the ledger: what it did not use comes back."""
        async with self._database.connection() as connection:
            cursor = await connection.execute(_CLOSE, (incarnation,))
            row = await cursor.fetchone()
        reach("membership.after-close")
        if incarnation in self.ended:
            self.ended.remove(incarnation)
        return row is not None and bool(row[0])

    async def _beat(self) -> Beat:
        async with self._database.connection() as connection:
            while True:
                if self._incarnation is None:
                    parameters = (self._replica, self._lease_seconds, self._stream_limit_seconds)
                    cursor = await connection.execute(_BEGIN, parameters)
                    row = await cursor.fetchone()
                    if row is None:
                        raise RuntimeError("begin_incarnation gave no identity")
                    self._incarnation = int(row[0])
                    reach("membership.after-begin")
                sent_at = self._clock.monotonic()
                cursor = await connection.execute(
                    _BEAT, (self._incarnation, self._lease_seconds), prepare=True
                )
                row = await cursor.fetchone()
                if row is None:
                    raise RuntimeError("heartbeat gave no answer")
                state, database_time, timeline, suspended, declared, epoch, wanted = row
                if state == "live":
                    return Beat(
                        incarnation=self._incarnation,
                        sent_at=sent_at,
                        lease_ends_at=sent_at + self._lease_seconds - LEASE_MARGIN_SECONDS,
                        database_time=database_time,
                        timeline=timeline,
                        suspended=suspended,
                        declared=declared,
                        policy_epoch=epoch,
                        wanted=tuple(wanted),
                    )
                log.warning("lease_ended", incarnation=self._incarnation)
                self.ended.append(self._incarnation)
                self._incarnation = None
