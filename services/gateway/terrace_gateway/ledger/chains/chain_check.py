"""Checks one writer's chain, entry by entry. Pure: rows in, findings out.

A chain is whole when its entries are numbered without a gap from 1, each says the hash of the one
before, has the hash of its own bytes, and its columns are what its bytes say; and when its head is
at or behind every anchor, which lies on it.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, cast

from terrace_gateway.ledger.chains.anchors import Anchor
from terrace_gateway.spool.records import entry_hash, genesis_hash

FindingKind = Literal[
    "changed", "columns", "missing", "order", "duplicate", "truncated", "gap", "exported",
    "anchor", "signature", "late", "unreadable",
]  # fmt: skip
OUTSIDE_OF_THE_HASH = frozenset(
    {"entry_id", "created_at", "late", "previous_hash", "hash", "canonical"}
)
"""What the database adds: not part of what a writer said."""
_DEFAULTS: dict[str, object] = {
    "revision": 0, "input_tokens": 0, "output_tokens": 0, "cache_read_tokens": 0,
    "cache_write_tokens": 0, "cache_write_1h_tokens": 0, "images": 0, "amount_micro_usd": 0,
    "charges": [],
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it was written. ``gap`` is explained by a line of
    ``chain_gap``, which is itself only as good as its explanation; ``exported`` by a manifest."""

    kind: FindingKind
    writer: str
    seq: int
    text: str


@dataclass(frozen=True, slots=True)
class EntryRow:
    """An entry as the database has it. ``columns`` by name, without those outside of the hash."""

    seq: int
    previous: bytes
    hash: bytes
    canonical: str
    columns: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Gap:
    """A line of ``chain_gap``."""

    after_seq: int
    before_seq: int
    hash: bytes
    reason: str
    exported: bool = False
    """Proven by a manifest outside of the database, not by ``reason``."""


@dataclass
class ChainCheck:
    """Feed rows by ``seq``, then ``finish``. May be continued from a position that was checked."""

    writer: str
    seq: int = 0
    hash: bytes = b""
    gaps: Iterable[Gap] = ()
    anchors: Iterable[Anchor] = ()
    entries: int = 0
    _gaps: dict[int, Gap] = field(default_factory=dict[int, Gap])
    _anchors: dict[int, list[Anchor]] = field(default_factory=dict[int, list[Anchor]])

    def __post_init__(self) -> None:
        self.hash = self.hash or genesis_hash(self.writer)
        self._gaps = {gap.after_seq: gap for gap in self.gaps}
        for anchor in self.anchors:
            self._anchors.setdefault(anchor.seq, []).append(anchor)

    def feed(self, row: EntryRow) -> list[Finding]:
        """Check the next row."""
        found: list[Finding] = []
        self.entries += 1
        if row.seq <= self.seq:
            return [self._find("duplicate", row.seq, f"entry {row.seq} is there more than once")]
        if row.seq != self.seq + 1:
            found += self._cross(row.seq)
        if row.previous != self.hash:
            found.append(
                self._find("order", row.seq, "it does not follow the entry before: another hash")
            )
        if entry_hash(row.previous, row.canonical.encode()) != row.hash:
            found.append(self._find("changed", row.seq, "its bytes have another hash than it says"))
        found += self._columns(row)
        self.seq, self.hash = row.seq, row.hash
        found += self._anchored()
        return found

    def finish(self, *, head_seq: int | None, head_hash: bytes | None) -> list[Finding]:
        """After the last row. The head is what the table ``chain`` says."""
        found: list[Finding] = []
        last = max([head_seq or 0, *self._anchors])
        if last > self.seq:
            found += self._cross(last + 1)
            if self.seq != last:
                return found
        if head_seq is None:
            return [*found, self._find("truncated", self.seq, "table chain has no line for it")]
        if (head_seq, head_hash) != (self.seq, self.hash):
            found.append(
                self._find("truncated", self.seq, f"table chain says that its head is {head_seq}")
            )
        return found

    def _cross(self, next_seq: int) -> list[Finding]:
        """From here to before ``next_seq``, by what ``chain_gap`` explains."""
        found: list[Finding] = []
        while self.seq + 1 < next_seq:
            gap = self._gaps.get(self.seq)
            if gap is None or gap.before_seq > next_seq or gap.before_seq <= gap.after_seq + 1:
                missing = f"{self.seq + 1} to {next_seq - 1}"
                kind: FindingKind = "missing"
                found.append(self._find(kind, self.seq + 1, f"entries {missing} are missing"))
                found += [
                    self._find("truncated", anchor.seq, f"an anchor of {anchor.signed_at} saw it")
                    for seq in sorted(self._anchors)
                    if self.seq < seq < next_seq
                    for anchor in self._anchors[seq][:1]
                ]
                return found
            text = f"entries {self.seq + 1} to {gap.before_seq - 1}: {gap.reason}"
            found.append(self._find("exported" if gap.exported else "gap", self.seq + 1, text))
            self.seq, self.hash = gap.before_seq - 1, gap.hash
            found += self._anchored()
        return found

    def _anchored(self) -> list[Finding]:
        return [
            self._find("anchor", self.seq, f"an anchor of {anchor.signed_at} has another hash")
            for anchor in self._anchors.get(self.seq, ())
            if anchor.hash != self.hash
        ]

    def _columns(self, row: EntryRow) -> list[Finding]:
        try:
            said = cast("dict[str, Any]", json.loads(row.canonical))
        except ValueError:
            return [self._find("unreadable", row.seq, "its bytes are no JSON")]
        said.setdefault("seq", None)
        differing = sorted(
            name
            for name in said.keys() | row.columns.keys()
            if not _same(said.get(name, _DEFAULTS.get(name)), row.columns.get(name))
        )
        if differing:
            text = f"columns differ from its bytes: {', '.join(differing)}"
            return [self._find("columns", row.seq, text)]
        return []

    def _find(self, kind: FindingKind, seq: int, text: str) -> Finding:
        return Finding(kind, self.writer, seq, text)


def _same(said: object, column: object) -> bool:
    if isinstance(column, datetime):
        try:
            return isinstance(said, str) and datetime.fromisoformat(said) == column
        except (ValueError, TypeError):
            return False
    return said == column


def check_late(marked: Iterable[str], answered: Iterable[str]) -> list[Finding]:
    """Entries that count nothing because they came late, against the corrections that say so.

    Both are ``writer:seq``.
    """
    left, right = set(marked), set(answered)
    found: list[Finding] = []
    for name in sorted(left ^ right):
        writer, _, seq = name.rpartition(":")
        text = (
            "it is marked as late, and no correction says so"
            if name in left
            else "a correction says that it came late, and it is not marked"
        )
        found.append(Finding("late", writer, int(seq) if seq.isdecimal() else 0, text))
    return found
