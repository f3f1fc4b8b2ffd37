"""Verification of the whole ledger in the database, page by page, against anchors."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, LiteralString

from psycopg.rows import dict_row

from terrace_gateway.database import Connection, Database
from terrace_gateway.ledger.chains.anchors import Anchor, AnchorStore, read_anchor
from terrace_gateway.ledger.chains.chain_check import (
    OUTSIDE_OF_THE_HASH,
    ChainCheck,
    EntryRow,
    Finding,
    Gap,
    check_late,
)
from terrace_gateway.ledger.exports.exported import EXPORTED, ExportedMonths
from terrace_gateway.ledger.object_store import ObjectStore

PAGE = 1000
MAX_FINDINGS = 1000
_WRITERS: LiteralString = (
    "SELECT writer FROM (SELECT writer FROM chain UNION SELECT writer FROM anchor"
    " UNION SELECT writer FROM chain_gap) w WHERE writer > %s ORDER BY writer"
)
# Rows of a writer that table chain does not know: a loose index scan over all rows' writers.
_STRAY = """
WITH RECURSIVE w AS (
    (SELECT writer FROM ledger_entry ORDER BY writer LIMIT 1)
    UNION ALL
    SELECT (SELECT l.writer FROM ledger_entry l WHERE l.writer > w.writer ORDER BY l.writer LIMIT 1)
    FROM w WHERE w.writer IS NOT NULL)
SELECT writer FROM w WHERE writer IS NOT NULL
"""
_HEAD = "SELECT seq, hash FROM chain WHERE writer = %s"
_GAPS = "SELECT after_seq, before_seq, hash, reason FROM chain_gap WHERE writer = %s"
_ROWS = (
    "SELECT * FROM ledger_entry WHERE writer = %s AND seq >= %s AND (seq, entry_id) > (%s, %s)"
    " ORDER BY seq, entry_id LIMIT %s"
)
_LATE = "SELECT writer || ':' || seq FROM ledger_entry WHERE late"
_ANSWERED = "SELECT replaces FROM ledger_entry WHERE replaces IS NOT NULL"


@dataclass
class Verification:
    """What a pass found. ``findings`` has at most ``MAX_FINDINGS``; ``more`` counts the rest."""

    chains: int = 0
    entries: int = 0
    anchors: int = 0
    unsigned_anchors: int = 0
    findings: list[Finding] = field(default_factory=list[Finding])
    more: int = 0

    @property
    def whole(self) -> bool:
        """Nothing was changed, dropped, inserted, moved or cut. Exported months are elsewhere, as
        their manifests say, and checked there."""
        return not self.more and all(finding.kind == "exported" for finding in self.findings)

    def add(self, found: Sequence[Finding]) -> None:
        """Remember findings within the bound."""
        room = MAX_FINDINGS - len(self.findings)
        self.findings += found[:room]
        self.more += len(found[room:])


class LedgerVerifier:
    """Reads only. ``public_keys``: who may have signed anchors; empty: signatures are not asked.
    ``exports``: where months went; without it a month that is gone is a gap."""

    def __init__(
        self,
        database: Database,
        *,
        store: AnchorStore | None,
        public_keys: Sequence[bytes] = (),
        exports: ObjectStore | None = None,
    ) -> None:
        self._database = database
        self._store = store
        self._public_keys = tuple(public_keys)
        self._exports = exports

    async def verify(self, writer: str | None = None) -> Verification:
        """Check one chain or all. Anchors of the outside store are believed before those of the
        database. Raises ``AuthorityUnavailableError``, ``ObjectStoreError``."""
        result = Verification()
        months = ExportedMonths(self._database, self._exports)
        anchors = await self._anchors(result)
        async with self._database.connection() as connection:
            known = [row[0] for row in await _all(connection, _WRITERS, ("",))]
            known += [row[0] for row in await _all(connection, _STRAY)]
        for name in sorted({*known, *anchors}) if writer is None else [writer]:
            await self._chain(name, anchors.get(name, []), months, result)
        if writer is None:
            async with self._database.connection() as connection:
                marked = [row[0] for row in await _all(connection, _LATE)]
                answered = [row[0] for row in await _all(connection, _ANSWERED)]
            result.add(check_late(marked, answered))
        return result

    async def _anchors(self, result: Verification) -> dict[str, list[Anchor]]:
        async with self._database.connection() as connection:
            rows = await _all(connection, "SELECT document FROM anchor")
        documents = [str(row[0]).encode() for row in rows]
        if self._store is not None:
            documents += await asyncio.to_thread(self._store.documents)
        anchors: dict[str, list[Anchor]] = {}
        for document in set(documents):
            try:
                anchor = read_anchor(document)
            except ValueError as error:
                result.add([Finding("unreadable", "", 0, str(error))])
                continue
            result.anchors += 1
            if anchor.signature is None:
                result.unsigned_anchors += 1
            elif self._public_keys and not anchor.is_signed_by(self._public_keys):
                text = f"the anchor of {anchor.signed_at} is not signed by a key that we know"
                result.add([Finding("signature", anchor.writer, anchor.seq, text)])
            anchors.setdefault(anchor.writer, []).append(anchor)
        return anchors

    async def _chain(
        self, writer: str, anchors: list[Anchor], months: ExportedMonths, result: Verification
    ) -> None:
        async with self._database.connection() as connection:
            gaps = [Gap(*row) for row in await _all(connection, _GAPS, (writer,))]
        for place, gap in enumerate(gaps):
            if gap.reason.startswith(EXPORTED):
                gaps[place] = await months.proven(writer, gap)
        check = ChainCheck(writer, gaps=gaps, anchors=anchors)
        position = (0, 0)
        head: list[tuple[Any, ...]] = []
        looked = False
        while True:
            async with self._database.connection() as connection:
                head = await _all(connection, _HEAD, (writer,))
            # Not before the first look: a line that says "nothing yet" may be a lie.
            if looked and head and (head[0][0], head[0][1]) == (check.seq, check.hash):
                break
            looked = True
            before, position = position, await self._rows(check, position, result)
            if position == before:
                break  # else: entries may have been shipped since the head was read
        head_seq, head_hash = head[0] if head else (None, None)
        result.add(check.finish(head_seq=head_seq, head_hash=head_hash))
        result.chains += 1

    async def _rows(
        self, check: ChainCheck, position: tuple[int, int], result: Verification
    ) -> tuple[int, int]:
        """Check what lies behind ``position`` (seq, entry id). Returns the last one's."""
        while True:
            async with self._database.connection() as connection:
                cursor = connection.cursor(row_factory=dict_row)
                await cursor.execute(_ROWS, (check.writer, position[0], *position, PAGE))
                rows = await cursor.fetchall()
            for row in rows:
                result.add(check.feed(entry_row(row)))
            result.entries += len(rows)
            if rows:
                position = (rows[-1]["seq"], rows[-1]["entry_id"])
            if len(rows) < PAGE:
                return position


def entry_row(row: dict[str, Any]) -> EntryRow:
    """A row of ``ledger_entry`` for the check."""
    columns = {name: value for name, value in row.items() if name not in OUTSIDE_OF_THE_HASH}
    return EntryRow(row["seq"], row["previous_hash"], row["hash"], row["canonical"], columns)


async def _all(
    connection: Connection, query: LiteralString, parameters: tuple[object, ...] = ()
) -> list[tuple[Any, ...]]:
    return await (await connection.execute(query, parameters)).fetchall()
