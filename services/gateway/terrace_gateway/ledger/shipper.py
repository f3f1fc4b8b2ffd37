"""Brings the spool's records into Postgres, in order, exactly once.

The database keeps each writer's position; a batch that is sent again changes nothing. A record
that the database refuses goes to a dead-letter file, and the chain goes on behind a named gap.
What a writer with lost records held is never given back here: nobody knows what it spent.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import psycopg
import structlog

from terrace_gateway.calls.ports import AuthorityUnavailableError, Decision
from terrace_gateway.crash_points import reach
from terrace_gateway.database import Database
from terrace_gateway.ledger.ship_columns import Columns, PackedArray, columns_of, packed
from terrace_gateway.spool.framing import Frame, FrameKind
from terrace_gateway.spool.group_commit import SpoolBrokenError
from terrace_gateway.spool.journal import SpoolJournal
from terrace_gateway.spool.reader import FEW_BYTES, Batch

log = structlog.get_logger()

GATHER_SECONDS = 0.2
"""Between batches when there is little to ship, so that one transaction carries many records."""
LONG_GATHER_SECONDS = 1.0
"""The same while more comes: Postgres works once in a second and not five times."""
MANY_RECORDS = 100
"""In one batch: more comes."""
AWAY_SECONDS = 0.5
DEAD_LETTERS = "dead-letters.jsonl"
_SHIP = (
    b"SELECT ship_batch(%s, %s, %b::bigint[], %b::text[], %b::text[], %b::bigint[],"
    b" %b::bytea[], %b::bytea[])"
)
# Classes of SQLSTATE that are the fault of a record: data, constraints, limits of a row.
_REFUSALS = ("22", "23", "54")
_TOO_SLOW = "57014"


@dataclass(slots=True)
class Shipped:
    """Counts since the start."""

    entries: int = 0
    opens: int = 0
    batches: int = 0
    skipped: int = 0
    """Records that the database had already."""
    late: int = 0
    """Closes that came after the attempt had been given up or reconciled."""
    dead: int = 0
    retries: int = 0
    forfeited: int = 0
    """Incarnations left to an operator, because records of theirs are lost."""


OnIncarnation = Callable[[int], Awaitable[None]]


class Shipper:
    """Runs beside the journal; one per process."""

    def __init__(
        self,
        journal: SpoolJournal,
        database: Database,
        *,
        replica: str,
        dead_letters: Path,
        on_incarnation_shipped: OnIncarnation | None = None,
        running: Callable[[int], int] = lambda _: 0,
    ) -> None:
        """``on_incarnation_shipped``: all that this incarnation will ever record is committed.

        ``running``: holds of an incarnation of this process that are not settled in memory; one
        that is reserved and not yet open is known to nobody else.
        """
        self._journal = journal
        self._database = database
        self._replica = replica
        self._dead_letters = dead_letters / DEAD_LETTERS
        self._on_incarnation = on_incarnation_shipped
        self._running = running
        self._closed: set[int] = set()
        self._forfeited: set[int] = set()
        self._lossy = _writers_of(self._dead_letters)
        self._empty = asyncio.Event()
        self._hurry = asyncio.Event()
        self.shipped = Shipped()
        self.head: tuple[str, int, bytes] | None = None
        """Writer, seq and hash of the last entry that is committed."""

    async def run(self) -> None:
        """Ship until cancelled."""
        while True:
            self._journal.grown.clear()
            self._empty.clear()
            over = await self._ended_incarnations()
            batch = await self._journal.reader.next_batch_beside()
            if batch is None:
                for incarnation in over:
                    await self._call_closed(incarnation, self._journal.chain.writer)
                self._empty.set()
                await self._journal.grown.wait()
                await self._gather(GATHER_SECONDS)
                continue
            await self._ship(batch)
            if self._journal.reader.behind_bytes < FEW_BYTES:
                many = len(batch.frames) >= MANY_RECORDS
                await self._gather(LONG_GATHER_SECONDS if many else GATHER_SECONDS)

    async def drain(self, seconds: float) -> bool:
        """Ship at once until everything durable is in the ledger. False: not within that time."""
        try:
            async with asyncio.timeout(seconds):
                while self._journal.reader.behind_bytes or not self._empty.is_set():
                    self._hurry.set()
                    await asyncio.sleep(0.02)
        except TimeoutError:
            return False
        return True

    async def _gather(self, seconds: float) -> None:
        """So long, or until somebody wants it drained."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
        self._hurry.clear()

    async def _ship(self, batch: Batch) -> None:
        if batch.frames:
            await self._send(batch.writer, list(batch.frames))
            entries = [frame for frame in batch.frames if frame.is_entry]
            if entries:
                self.head = (batch.writer, entries[-1].seq, entries[-1].hash)
            if batch.frames[-1].kind is FrameKind.SEAL:
                await self._sealed(batch.writer)
        if batch.finished:
            reach("shipper.before-release")
            with contextlib.suppress(SpoolBrokenError):  # the process ends for that reason anyway
                await self._journal.release(batch.finished)

    def is_whole(self, writer: str) -> bool:
        """Every record of this writer that may count money is, or will be, in the ledger."""
        return writer not in self._lossy and writer not in self._journal.recovery.damaged_writers

    async def _sealed(self, writer: str) -> None:
        """A dead writer is shipped to its end: its incarnations get their credit."""
        for incarnation in self._journal.recovery.incarnations.get(writer, ()):
            reach("shipper.before-close-incarnation")
            await self._call_closed(incarnation, writer)

    async def _ended_incarnations(self) -> list[int]:
        """Earlier incarnations of this process that will record nothing more, all of what they
        recorded being durable: if nothing is left to read after this, they are shipped whole."""
        open_now = self._journal.open_incarnations()
        over = [
            incarnation
            for incarnation in self._journal.chain.incarnations[:-1]
            if incarnation not in self._closed | self._forfeited
            and incarnation not in open_now
            and not self._running(incarnation)
        ]
        if over:
            try:
                await self._journal.release(())  # returns behind what was appended before it
            except SpoolBrokenError:
                return []
        return over

    async def _call_closed(self, incarnation: int, writer: str) -> None:
        if self._on_incarnation is None or incarnation in self._closed:
            return
        if not self.is_whole(writer):
            self._forfeit(incarnation, writer)
            return
        while True:
            try:
                await self._on_incarnation(incarnation)
            except (AuthorityUnavailableError, psycopg.Error) as error:
                log.warning("incarnation_not_closed", error=type(error).__name__)
                await asyncio.sleep(AWAY_SECONDS)
                continue
            self._closed.add(incarnation)
            return

    def _forfeit(self, incarnation: int, writer: str) -> None:
        """Its slices stay as they are until an operator calls ``close_lost_incarnation``."""
        if incarnation in self._forfeited:
            return
        self._forfeited.add(incarnation)
        self.shipped.forfeited += 1
        detail = {"incarnation": incarnation, "writer": writer, "replica": self._replica}
        log.error("incarnation_forfeited", **detail)
        self._journal.note(Decision("alert", "incarnation_forfeited", detail, "", "", None))

    async def _send(self, writer: str, frames: list[Frame]) -> None:
        """Send until it is taken; halve what is refused until the one record is found."""
        while True:
            try:
                answer = await self._statement(writer, await columns_of(frames))
            except (AuthorityUnavailableError, psycopg.Error) as error:
                state = _sqlstate(error)
                if state == _TOO_SLOW and len(frames) > 1:
                    break
                if state[:2] in _REFUSALS:
                    if len(frames) == 1:
                        await self._bury(writer, frames[0], error)
                        return
                    break
                await self._wait(error)
                continue
            self._count(answer)
            return
        middle = len(frames) // 2
        await self._send(writer, frames[:middle])
        await self._send(writer, frames[middle:])

    async def _wait(self, error: Exception) -> None:
        """The database is away, its migrations are on their way, or it has a fault of ours; the
        records are safe in the spool meanwhile."""
        self.shipped.retries += 1
        if isinstance(error, psycopg.Error):
            log.error("not_shipped", error=type(error).__name__, sqlstate=error.sqlstate)
        await asyncio.sleep(AWAY_SECONDS)

    async def _bury(self, writer: str, frame: Frame, error: Exception) -> None:
        """To the dead-letter file, durable, then past it. Its attempt stays open: the reservation
        counts until the reaper and reconcile have dealt with it."""
        cause = _database_error(error)
        message = "" if cause is None else cause.diag.message_primary or ""
        reason = f"{_sqlstate(error)}: {message}"[:300]
        letter = {
            "writer": writer, "number": frame.number, "seq": frame.seq, "kind": frame.kind.name,
            "key": frame.key, "hash": frame.hash.hex(), "previous": frame.previous.hex(),
            "reason": reason, "body": frame.body.decode("utf-8", "replace"),
        }  # fmt: skip
        await asyncio.to_thread(_append_line, self._dead_letters, json.dumps(letter))
        if frame.key:
            self._lossy.add(writer)
        log.error("record_refused", writer=writer, number=frame.number, reason=reason)
        self.shipped.dead += 1
        columns = await columns_of([frame])
        kind = b"P" if frame.is_entry else b"-"
        while True:
            try:
                gap = replace(columns, types=[kind], texts=[reason.encode()])
                await self._statement(writer, gap)
            except (AuthorityUnavailableError, psycopg.Error) as failed:
                if _sqlstate(failed)[:2] in _REFUSALS:
                    kind = b"-"  # not even as a gap: the chain in the database is another one
                await self._wait(failed)
                continue
            return

    async def _statement(self, writer: str, columns: Columns) -> dict[str, int]:
        reach("shipper.before-ship")
        parameters = (writer, self._replica, *await packed(columns))
        async with self._database.connection() as connection:
            cursor = connection.cursor()
            PackedArray.taken_by(cursor)
            await cursor.execute(_SHIP, parameters)
            row = await cursor.fetchone()
        reach("shipper.after-ship")
        return cast("dict[str, int]", row[0] if row is not None else {})

    def _count(self, answer: dict[str, int]) -> None:
        self.shipped.batches += 1
        self.shipped.entries += answer.get("entries", 0)
        self.shipped.opens += answer.get("opens", 0)
        self.shipped.skipped += answer.get("skipped", 0)
        self.shipped.late += answer.get("late", 0)


def _database_error(error: BaseException) -> psycopg.Error | None:
    """The error of the statement, which ``Database`` may have wrapped."""
    if isinstance(error, psycopg.Error):
        return error
    return error.__cause__ if isinstance(error.__cause__, psycopg.Error) else None


def _sqlstate(error: BaseException) -> str:
    found = _database_error(error)
    return (None if found is None else found.sqlstate) or ""


def _writers_of(dead_letters: Path) -> set[str]:
    """Who wrote records of attempts that were refused. A torn line was followed by a whole one."""
    found: set[str] = set()
    with contextlib.suppress(FileNotFoundError), dead_letters.open("rb") as file:
        for line in file:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                letter = json.loads(line)
                if letter["key"]:
                    found.add(letter["writer"])
    return found


def _append_line(path: Path, line: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())
