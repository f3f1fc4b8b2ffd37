"""The ``Journal`` port on a spool directory: one writer thread, many appends per sync."""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from terrace_gateway.calls.ports import (
    AuthorityUnavailableError,
    CloseRecord,
    Decision,
    OpenRecord,
    SpoolFullError,
)
from terrace_gateway.clock import Clock
from terrace_gateway.crash_points import reach
from terrace_gateway.spool.notes import Notes
from terrace_gateway.spool.reader import SpoolReader
from terrace_gateway.spool.records import Fields, decision_fields, open_fields
from terrace_gateway.spool.recovery import Recovery, recover
from terrace_gateway.spool.segments import SpoolDirectory
from terrace_gateway.spool.spool_log import SEGMENT_BYTES, Chain, SpoolLog, spool_directory

log = structlog.get_logger()

NOTE_SECONDS = 1.0


class SpoolBrokenError(AuthorityUnavailableError):
    """The volume failed a write or a sync. Nothing here can be trusted before a restart."""


class SpoolObserver(Protocol):
    """What is told about the spool, for metrics; called in the writer thread."""

    def group(self, records: int, size: int, seconds: float) -> None:
        """One group commit: its records, bytes and the time of its write and sync."""
        ...

    def refused(self) -> None:
        """An open was refused for want of room."""
        ...

    def dropped(self, decisions: int) -> None:
        """Decisions that could not be recorded."""
        ...


@dataclass(slots=True)
class _Item:
    apply: Callable[[SpoolLog], object]
    done: asyncio.Future[None] | None
    """``None``: nobody waits."""


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
    ) -> None:
        """``limit_bytes``: the spool takes no more of its volume than that."""
        self._path = directory
        self._replica = replica
        self._clock = clock
        self._observer = observer
        self._segment_bytes = segment_bytes
        self._limit_bytes = limit_bytes
        self._items: list[_Item] = []
        self._wake = threading.Condition()
        self._stopping = False
        self._broken: str | None = None
        self._notes = Notes()
        self._flusher: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._log: SpoolLog | None = None
        self._directory: SpoolDirectory | None = None
        self._reader: SpoolReader | None = None
        self.recovery = Recovery()
        self.grown = asyncio.Event()
        """Set after every group commit; who ships clears it."""

    def start(self) -> Recovery:
        """Lock the directory, make whole what a dead process left, start the writer thread.

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
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="spool-writer", daemon=True)
        self._thread.start()
        self._flusher = asyncio.create_task(self._flush_notes())
        self.grown.set()
        return self.recovery

    async def open(self, record: OpenRecord) -> None:
        """Durable when it returns, with room for its close.

        Raises ``SpoolFullError``, ``SpoolBrokenError``.
        """
        fields = open_fields(record)
        await self._append(lambda spool: spool.open(fields))

    async def close(self, record: CloseRecord) -> None:
        """Durable when it returns; a second close of an attempt changes nothing.

        Raises ``SpoolBrokenError`` if the volume fails (the reservation counts then).
        """
        at = self._clock.database_now()

        def apply(spool: SpoolLog) -> None:
            if not spool.close(record, at):
                log.error("closed_twice", attempt_id=record.attempt_id)

        await self._append(apply)

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
        await self._append(apply)
        return left

    async def release(self, segments: tuple[int, ...]) -> None:
        """These segments are in the ledger. Raises ``SpoolBrokenError``."""

        def apply(spool: SpoolLog) -> None:
            for number in segments:
                spool.release(number)

        await self._append(apply)

    async def finish(self) -> None:
        """All is in the ledger: an idle spool that was sealed leaves nothing on the disk."""
        await self._append(lambda spool: spool.finish())

    async def stop(self) -> None:
        """Write what is queued, end the thread, release the lock. A later append is refused."""
        if self._flusher is not None:
            self._flusher.cancel()
            await asyncio.gather(self._flusher, return_exceptions=True)
        self._queue_notes()
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
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
        return self._broken

    async def _append(self, apply: Callable[[SpoolLog], object]) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._put([_Item(apply, done)])
        await done

    def _put(self, items: list[_Item]) -> None:
        with self._wake:
            if self._stopping or self._thread is None:
                for item in items:
                    if item.done is not None:
                        item.done.set_exception(SpoolBrokenError("the journal is not running"))
                return
            self._items += items
            self._wake.notify()

    async def _flush_notes(self) -> None:
        while True:
            await asyncio.sleep(NOTE_SECONDS)
            self._queue_notes()

    def _queue_notes(self) -> None:
        noted = self._notes.take(self._clock.database_now())
        if noted:
            self._put([_Item(_deciding(fields), None) for fields in noted])

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._items and not self._stopping:
                    self._wake.wait()
                items, self._items = self._items, []
            if not items:
                return
            self._commit(items)

    def _commit(self, items: list[_Item]) -> None:
        spool = self._log
        if spool is None:
            return
        began = time.perf_counter()
        errors = [self._apply(item, spool) for item in items]
        size = 0
        try:
            if self._broken is None:
                size = spool.sync()
        except OSError as failed:
            broken = self._break(failed)
            errors = [error or broken for error in errors]
        if self._observer is not None and size:
            self._observer.group(len(items), size, time.perf_counter() - began)
        reach("journal.before-answer")
        outcome = [
            (item.done, error)
            for item, error in zip(items, errors, strict=True)
            if item.done is not None
        ]
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._answer, outcome)

    def _apply(self, item: _Item, spool: SpoolLog) -> Exception | None:
        if self._broken is not None:
            return SpoolBrokenError(self._broken)
        try:
            item.apply(spool)
        except SpoolFullError as refused:
            if self._observer is not None:
                if item.done is None:
                    self._observer.dropped(1)
                else:
                    self._observer.refused()
            return refused
        except OSError as failed:
            return self._break(failed)
        except Exception as failed:  # told to who asked; the thread goes on
            return failed
        return None

    def _break(self, error: OSError) -> SpoolBrokenError:
        # After a failed sync the kernel may call lost pages clean: only a restart knows what is
        # there.
        self._broken = f"the spool cannot be written ({error.strerror}); restart this replica"
        log.error("spool_broken", error=error.strerror)
        return SpoolBrokenError(self._broken)

    def _answer(self, outcome: list[tuple[asyncio.Future[None], Exception | None]]) -> None:
        for done, error in outcome:
            if done.done():
                continue
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)
        self.grown.set()


def _deciding(fields: Fields) -> Callable[[SpoolLog], object]:
    return lambda spool: spool.decide(fields)
