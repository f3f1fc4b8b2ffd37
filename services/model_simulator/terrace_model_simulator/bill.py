"""The provider's book: one entry per call that the model began to work on.

An entry is opened on the disk before the answer's first byte leaves and closed before its last.
What a dead process left open is closed at the next start with the output last noted: the bill
never holds a call without an end, and never two entries for one call.
"""

import bisect
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from terrace_model_simulator.append_log import AppendLog, LogUnavailableError, Record
from terrace_model_simulator.prices import ModelEntry, cost_micro_usd

Outcome = Literal["ok", "client_gone", "failed_after_start"]
Clock = Callable[[], datetime]


class BillUnavailableError(Exception):
    """The book cannot take the record; a call must not be served (or not be finished)."""


@dataclass(slots=True)
class Entry:
    """One call. Prices are those in force when it was opened, in micro-USD per million tokens."""

    seq: int
    attempt_id: str | None
    model: str
    surface: str
    input_tokens: int
    input_price: int
    output_price: int
    started_at: str
    request_metadata: Mapping[str, str]
    output_tokens: int = 0
    outcome: Outcome | None = None
    ended_at: str | None = None
    final: bool = False

    @property
    def cost_micro_usd(self) -> int:
        """What the call costs; for one in flight, what it would cost if it ended now."""
        return cost_micro_usd(
            self.input_tokens,
            self.output_tokens,
            input_price=self.input_price,
            output_price=self.output_price,
        )


@dataclass(slots=True)
class Totals:
    """Sums over entries. Only final entries count in tokens and money."""

    calls: int = 0
    in_flight: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    micro_usd: int = 0


@dataclass(slots=True)
class _Index:
    entries: list[Entry] = field(default_factory=list[Entry])
    by_attempt: defaultdict[str, list[Entry]] = field(
        default_factory=lambda: defaultdict(list[Entry])
    )


class Book:
    """Keeps every entry in memory (about 1 KB each), as it serves a machine, not a company."""

    def __init__(
        self, path: Path, *, reserve_bytes: int, clock: Clock = lambda: datetime.now(UTC)
    ) -> None:
        """Read the book. Raises the errors of AppendLog."""
        self._clock = clock
        self._index = _Index()
        self._totals = Totals()
        self._unwritten: list[Entry] = []
        open_entries: dict[int, Entry] = {}
        self._log = AppendLog(
            path,
            lambda record: self._replay(record, open_entries),
            reserve_bytes=reserve_bytes,
        )
        self._totals.in_flight = len(open_entries)
        self._next_seq = self._index.entries[-1].seq + 1 if self._index.entries else 1
        self.torn_bytes = self._log.torn_bytes

    async def start(self) -> int:
        """Start writing; close what a dead process left open. Returns how many calls that were."""
        self._log.start()
        left_open = [entry for entry in self._index.entries if not entry.final]
        for entry in left_open:
            entry.outcome = "failed_after_start"
            entry.ended_at = self._now()
            self._unwritten.append(entry)
        await self.write_overdue()
        return len(left_open)

    async def open(
        self,
        *,
        attempt_id: str | None,
        model: str,
        price: ModelEntry,
        surface: str,
        input_tokens: int,
        request_metadata: Mapping[str, str],
    ) -> Entry:
        """Open an entry; it is on the disk on return. Raises BillUnavailableError."""
        self._totals.calls += 1
        entry = Entry(
            seq=self._next_seq,
            attempt_id=attempt_id,
            model=model,
            surface=surface,
            input_tokens=input_tokens,
            input_price=price.input_micro_usd_per_mtok,
            output_price=price.output_micro_usd_per_mtok,
            started_at=self._now(),
            request_metadata=request_metadata,
        )
        self._next_seq += 1
        try:
            await self._log.append(_open_record(entry))
        except LogUnavailableError as error:
            self._totals.calls -= 1
            raise BillUnavailableError(str(error)) from error
        self._totals.in_flight += 1
        self._add(entry)
        return entry

    def checkpoint(self, entry: Entry, output_tokens: int) -> None:
        """Note how much output a running call has produced; written soon, not waited for."""
        entry.output_tokens = output_tokens
        self._log.note({"record": "progress", "seq": entry.seq, "output_tokens": output_tokens})

    async def close(self, entry: Entry, *, output_tokens: int, outcome: Outcome) -> None:
        """Close an entry; it is on the disk on return.

        Raises BillUnavailableError when it is not: the answer must then not be finished, and the
        entry stays in flight until the disk allows its close (``write_overdue``).
        """
        entry.output_tokens = output_tokens
        entry.outcome = outcome
        entry.ended_at = self._now()
        try:
            await self._log.append(_close_record(entry), essential=True)
        except LogUnavailableError as error:
            if outcome == "ok":
                entry.outcome = "failed_after_start"
            self._unwritten.append(entry)
            raise BillUnavailableError(str(error)) from error
        self._settle(entry)

    async def write_overdue(self) -> None:
        """Try again to write the closes that failed; keeps those that fail again."""
        overdue, self._unwritten = self._unwritten, []
        for entry in overdue:
            try:
                await self._log.append(_close_record(entry), essential=True)
            except LogUnavailableError:
                self._unwritten.append(entry)
            else:
                self._settle(entry)

    def stop(self) -> None:
        """Write what is queued and release the file."""
        self._log.close()

    def entries(self, *, after: int, limit: int, attempt_id: str | None = None) -> list[Entry]:
        """Entries with ``seq`` above ``after``, ascending, at most ``limit``."""
        found = self._index.entries
        if attempt_id is not None:
            found = self._index.by_attempt.get(attempt_id, [])
        begin = bisect.bisect_right(found, after, key=lambda entry: entry.seq)
        return found[begin : begin + limit]

    def totals(self, attempt_id: str | None = None) -> Totals:
        """Sums over the whole book, or over one attempt."""
        if attempt_id is None:
            return self._totals
        totals = Totals()
        for entry in self._index.by_attempt.get(attempt_id, []):
            totals.calls += 1
            if entry.final:
                _count(totals, entry)
            else:
                totals.in_flight += 1
        return totals

    def _replay(self, record: Record, open_entries: dict[int, Entry]) -> None:
        kind, seq = record["record"], int(record["seq"])
        if kind == "open":
            fields = {name: value for name, value in record.items() if name != "record"}
            entry = Entry(**fields)
            entry.model, entry.surface = sys.intern(entry.model), sys.intern(entry.surface)
            open_entries[seq] = entry
            self._totals.calls += 1
            self._add(entry)
            return
        entry = open_entries[seq]
        entry.output_tokens = int(record["output_tokens"])
        if kind == "close":
            entry.outcome = record["outcome"]
            entry.ended_at = record["ended_at"]
            entry.final = True
            _count(self._totals, entry)
            del open_entries[seq]

    def _add(self, entry: Entry) -> None:
        self._index.entries.append(entry)
        if entry.attempt_id is not None:
            self._index.by_attempt[entry.attempt_id].append(entry)

    def _settle(self, entry: Entry) -> None:
        entry.final = True
        self._totals.in_flight -= 1
        _count(self._totals, entry)

    def _now(self) -> str:
        return self._clock().isoformat(timespec="milliseconds")


def _count(totals: Totals, entry: Entry) -> None:
    totals.input_tokens += entry.input_tokens
    totals.output_tokens += entry.output_tokens
    totals.micro_usd += entry.cost_micro_usd


def _open_record(entry: Entry) -> Record:
    return {
        "record": "open",
        "seq": entry.seq,
        "attempt_id": entry.attempt_id,
        "model": entry.model,
        "surface": entry.surface,
        "input_tokens": entry.input_tokens,
        "input_price": entry.input_price,
        "output_price": entry.output_price,
        "started_at": entry.started_at,
        "request_metadata": dict(entry.request_metadata),
    }


def _close_record(entry: Entry) -> Record:
    return {
        "record": "close",
        "seq": entry.seq,
        "output_tokens": entry.output_tokens,
        "cost_micro_usd": entry.cost_micro_usd,
        "outcome": entry.outcome,
        "ended_at": entry.ended_at,
    }
