"""The ``Journal`` port on a spool directory."""

import asyncio
from pathlib import Path

import structlog

from terrace_gateway.calls.ports import CloseRecord, Decision, OpenRecord
from terrace_gateway.clock import Clock
from terrace_gateway.spool.group_commit import (
    Apply,
    GroupCommits,
    MakeSyncer,
    SpoolBrokenError,
    SpoolObserver,
)
from terrace_gateway.spool.notes import Notes
from terrace_gateway.spool.reader import SpoolReader
from terrace_gateway.spool.records import Fields, decision_fields, open_fields
from terrace_gateway.spool.recovery import Recovery, recover
from terrace_gateway.spool.segments import SpoolDirectory
from terrace_gateway.spool.spool_log import SEGMENT_BYTES, Chain, SpoolLog, spool_directory
from terrace_gateway.spool.syncing import best_syncer

log = structlog.get_logger()

NOTE_SECONDS = 1.0


class SpoolJournal:
    """Use from one event loop. ``start`` before, ``stop`` after everything else.

    Attempts that a dead process left open are closed as unknown by ``start``, without a database.
    """

    def __init__(
        self,
        directory: Path,
        *,
        replica: str,
        clock: Clock,
        observer: SpoolObserver | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        limit_bytes: int | None = None,
        make_syncer: MakeSyncer = best_syncer,
    ) -> None:
        """``limit_bytes``: the spool takes no more of its volume than that."""
        self._path = directory
        self._replica = replica
        self._clock = clock
        self._observer = observer
        self._segment_bytes = segment_bytes
        self._limit_bytes = limit_bytes
        self._make_syncer = make_syncer
        self._commits: GroupCommits | None = None
        self._notes = Notes()
        self._flusher: asyncio.Task[None] | None = None
        self._log: SpoolLog | None = None
        self._directory: SpoolDirectory | None = None
        self._reader: SpoolReader | None = None
        self.recovery = Recovery()
        self.grown = asyncio.Event()
        """Set after every group commit; who ships clears it."""

    def start(self) -> Recovery:
        """Lock the directory, make whole what a dead process left, begin to take records.

        Raises ``SpoolLockedError``, or ``OSError`` if the volume cannot be used.
        """
        directory = spool_directory(self._path)
        try:
            self.recovery = recover(directory, replica=self._replica, at=self._clock.database_now())
            self._log = SpoolLog(
                directory,
                replica=self._replica,
                segment_bytes=self._segment_bytes,
                limit_bytes=self._limit_bytes,
            )
            self._log.kept |= self.recovery.damaged_segments
        except BaseException:
            directory.close()
            raise
        self._directory = directory
        self._reader = SpoolReader(directory)
        self._commits = GroupCommits(
            self._log,
            probe=directory.lock,
            observer=self._observer,
            grown=self.grown,
            make_syncer=self._make_syncer,
        )
        self._flusher = asyncio.create_task(self._flush_notes())
        self.grown.set()
        return self.recovery

    def open(self, record: OpenRecord) -> asyncio.Future[None]:
        """Done when it is durable, with room for its close.

        Raises ``SpoolFullError``, ``SpoolBrokenError``.
        """
        fields = open_fields(record)
        return self._append(lambda spool: spool.open(fields))

    def close(self, record: CloseRecord) -> asyncio.Future[None]:
        """Done when it is durable; a second close of an attempt changes nothing.

        Raises ``SpoolBrokenError`` if the volume fails (the reservation counts then).
        """
        at = self._clock.database_now()

        def apply(spool: SpoolLog) -> None:
            if not spool.close(record, at):
                log.error("closed_twice", attempt_id=record.attempt_id)

        return self._append(apply)

    def note(self, decision: Decision) -> None:
        """Recorded within a second or so; the same by the same key is counted together."""
        if not self._notes.add(decision) and self._observer is not None:
            self._observer.dropped(1)

    async def record(self, decision: Decision) -> None:
        """An entry of its own, not counted together with others; durable when it returns.

        Raises ``SpoolFullError``, ``SpoolBrokenError``.
        """
        fields = decision_fields(decision, count=1, at=self._clock.database_now())
        await self._append(_deciding(fields))

    async def act_for(self, incarnation: int) -> None:
        """From now on attempts are of this incarnation; durable when it returns.

        Raises ``SpoolFullError``, ``SpoolBrokenError``.
        """
        await self._append(lambda spool: spool.act_for(incarnation))

    async def seal(self) -> int:
        """Record what was noted, and end the chain if no attempt is open.

        Returns how many are open: they are closed as unknown by the next start.
        """
        left = 0

        def apply(spool: SpoolLog) -> None:
            nonlocal left
            left = len(spool.opens)
            if not left:
                spool.seal()

        self._queue_notes()
        await self._append(apply, files=True)
        return left

    async def release(self, segments: tuple[int, ...]) -> None:
        """These segments are in the ledger. Raises ``SpoolBrokenError``."""

        def apply(spool: SpoolLog) -> None:
            for number in segments:
                spool.release(number)

        await self._append(apply, files=True)

    async def finish(self) -> None:
        """All is in the ledger: an idle spool that was sealed leaves nothing on the disk."""
        await self._append(lambda spool: spool.finish(), files=True)

    async def stop(self) -> None:
        """Write what is queued and release the lock. A later append is refused.

        Of a volume that does not answer, files and lock are the process's until it ends: it may
        do yet what it was asked for.
        """
        if self._flusher is not None:
            self._flusher.cancel()
            await asyncio.gather(self._flusher, return_exceptions=True)
        self._queue_notes()
        if self._commits is not None:
            await self._commits.stop()
            if self._commits.given_up:
                return
        if self._directory is not None:
            self._directory.close()

    @property
    def reader(self) -> SpoolReader:
        """The one reader of this spool."""
        if self._reader is None:
            raise RuntimeError("the journal was not started")
        return self._reader

    @property
    def chain(self) -> Chain:
        """This process's chain; a snapshot may be one group behind."""
        if self._log is None:
            raise RuntimeError("the journal was not started")
        return self._log.chain

    def open_incarnations(self) -> frozenset[int]:
        """Incarnations that still have an open attempt in this process."""
        if self._log is None:
            return frozenset()
        return frozenset(
            int(opened.fields["incarnation_id"]) for opened in list(self._log.opens.values())
        )

    @property
    def open_attempts(self) -> int:
        """Attempts without a close."""
        return 0 if self._log is None else len(self._log.opens)

    @property
    def allocated_bytes(self) -> int:
        """What the spool takes of its volume."""
        return 0 if self._directory is None else self._directory.allocated

    @property
    def broken(self) -> str | None:
        """Why nothing is accepted any more; ``None``: it works."""
        return None if self._commits is None else self._commits.broken

    @property
    def answers(self) -> bool:
        """The volume works, and answers in time."""
        return self._commits is None or self._commits.answers

    def _append(self, apply: Apply, *, files: bool = False) -> asyncio.Future[None]:
        if self._commits is None:
            raise SpoolBrokenError("the journal is not running")
        return self._commits.append(apply, files=files)

    async def _flush_notes(self) -> None:
        while True:
            await asyncio.sleep(NOTE_SECONDS)
            self._queue_notes()

    def _queue_notes(self) -> None:
        noted = self._notes.take(self._clock.database_now())
        if self._commits is not None:
            for count, fields in noted:
                self._commits.append_soon(_deciding(fields), decisions=count)


def _deciding(fields: Fields) -> Apply:
    return lambda spool: spool.decide(fields)
