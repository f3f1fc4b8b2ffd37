"""What keeps the ledger in order in the background: anchors of heads, and months made ahead."""

import asyncio
from collections.abc import Awaitable, Callable

import psycopg
import structlog

from terrace_gateway.calls.ports import AuthorityUnavailableError
from terrace_gateway.clock import Clock
from terrace_gateway.crash_points import reach
from terrace_gateway.database import Database
from terrace_gateway.ledger.chains.anchors import AnchorStore, make_anchor
from terrace_gateway.ledger.chains.signing import HeadSigner
from terrace_gateway.ledger.months import MONTH_SECONDS, Months, make_months
from terrace_gateway.ledger.object_store import ObjectStoreError
from terrace_gateway.ledger.shipper import Shipper

log = structlog.get_logger()

FAILURES = (AuthorityUnavailableError, ObjectStoreError, psycopg.Error)
"""The database or the store is away, or did not do it."""

MONTHS_SECONDS = 3600.0
AWAY_SECONDS = 2.0
"""Between passes while the database is away, as it is at the start."""
MOST_FAILURES = 3
"""Of anchors in a pass, which ends then: a store that is away lets each wait."""
_ANCHOR = (
    "INSERT INTO anchor (writer, seq, hash, sealed, document) VALUES (%s, %s, %s, %s, %s)"
    " ON CONFLICT DO NOTHING"
)
# Chains that moved since their last anchor: of the database's own writers, and of dead ones.
_MOVED = """
SELECT c.writer, c.seq, c.hash, c.sealed_at IS NOT NULL
FROM chain c
WHERE c.seq > 0 AND NOT EXISTS (
    SELECT FROM anchor a WHERE a.writer = c.writer AND a.seq = c.seq
        AND a.sealed = (c.sealed_at IS NOT NULL))
  AND (c.writer NOT LIKE 'w-%%' OR c.sealed_at IS NOT NULL)
"""


class LedgerKeeper:
    """Runs in every guard. Several at once do no harm: anchors are written once per head."""

    def __init__(
        self,
        database: Database,
        shipper: Shipper,
        *,
        clock: Clock,
        store: AnchorStore | None,
        signer: HeadSigner | None,
        every_seconds: float,
    ) -> None:
        """``store`` ``None``: heads are kept in the database only, which proves less."""
        self._database = database
        self._shipper = shipper
        self._clock = clock
        self._store = store
        self._signer = signer
        self._every_seconds = every_seconds
        self._anchored: tuple[str, int] | None = None
        self._refused: set[str] = set()
        self._missing: tuple[tuple[str, str], ...] = ()
        self.anchored = 0
        """Heads that were anchored since the start."""
        self.failures = 0
        """Passes in a row in which heads were not anchored."""

    @property
    def missing_months(self) -> int:
        """Months that should have a table and cannot be given one; the log names them."""
        return len(self._missing)

    async def run(self) -> None:
        """Until cancelled."""
        months_at = float("-inf")
        while True:
            if not self._database.up:  # it may come back as it was before this month
                months_at = float("-inf")
            elif self._clock.monotonic() - months_at >= MONTHS_SECONDS:
                asked_at = self._clock.monotonic()
                if await self._kept(self.make_months) and not self._missing:
                    months_at = asked_at
            anchored = await self._kept(self.anchor)  # whatever the months are
            self.failures = 0 if anchored else self.failures + 1
            pause = self._every_seconds
            if not self._database.up:
                pause = min(AWAY_SECONDS, pause)
            await asyncio.sleep(pause)

    async def _kept(self, work: Callable[[], Awaitable[object]]) -> bool:
        try:
            await work()
        except FAILURES as error:
            tell = log.warning if self._database.up else log.debug
            tell("ledger_not_kept", error=f"{type(error).__name__}: {error}")
            return False
        return True

    async def make_months(self) -> Months:
        """Make the months that are due. Raises ``AuthorityUnavailableError``, ``psycopg.Error``."""
        async with self._database.long_connection(MONTH_SECONDS) as connection:
            months = await make_months(connection)
        if months.made:
            log.info("ledger_months_made", months=months.made, moved_rows=months.moved_rows)
        if months.missing != self._missing:
            self._missing = months.missing
            for name, why in months.missing:
                log.error("ledger_month_not_made", month=name, why=why)
        return months

    async def anchor(self) -> int:
        """Anchor every head that moved. Returns how many.

        This process's own head is what it shipped itself, not what the database says. A head that
        cannot be anchored keeps no other; it is the last one at the next pass. Raises what the
        first of them met: ``AuthorityUnavailableError``, ``ObjectStoreError``, ``psycopg.Error``.
        """
        heads: list[tuple[str, int, bytes, bool]] = []
        own = self._shipper.head
        if own is not None and own[:2] != self._anchored:
            heads.append((*own, False))
        async with self._database.connection() as connection:
            cursor = await connection.execute(_MOVED)
            heads += [(row[0], row[1], row[2], row[3]) for row in await cursor.fetchall()]
        heads.sort(key=lambda head: head[0] in self._refused)
        failed: dict[str, AuthorityUnavailableError | ObjectStoreError | psycopg.Error] = {}
        for head in heads:
            try:
                await self._anchor(*head)
            except FAILURES as error:
                failed[head[0]] = error
                log.warning("head_not_anchored", writer=head[0], error=type(error).__name__)
                if len(failed) == MOST_FAILURES:
                    break
                continue
            if own is not None and head == (*own, False):
                self._anchored = own[:2]
        self._refused = set(failed)
        if failed:
            raise next(iter(failed.values()))
        return len(heads)

    async def _anchor(self, writer: str, seq: int, digest: bytes, sealed: bool) -> None:
        anchor = make_anchor(
            writer, seq, digest, sealed=sealed, at=self._clock.database_now(), signer=self._signer
        )
        if self._store is not None:
            reach("anchor.before-store")
            await asyncio.to_thread(self._store.put, anchor)
        reach("anchor.before-database")
        values = (writer, seq, digest, sealed, anchor.document().decode())
        async with self._database.connection() as connection:
            await connection.execute(_ANCHOR, values)
        self.anchored += 1
