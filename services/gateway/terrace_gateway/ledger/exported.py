"""Whether a gap of a chain is a month that was exported: not by its word, but by the manifests."""

import asyncio
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, LiteralString, cast

from terrace_gateway.database import Database
from terrace_gateway.ledger.chain_check import Gap
from terrace_gateway.ledger.object_store import ObjectStore, ObjectStoreError

EXPORTED = "exported: "
_THERE: LiteralString = "SELECT to_regclass(quote_ident(%s)) IS NOT NULL"
_DAYS: LiteralString = (
    "SELECT day::text, rows, location, digest FROM ledger_export WHERE partition_name = %s"
    " ORDER BY day"
)

Island = tuple[int, int, bytes]
"""First and last entry that follow each other, and the last one's hash."""


class _NotProvenError(Exception):
    """Why; for people."""


class ExportedMonths:
    """Reads each month's manifests once. For one verification."""

    def __init__(self, database: Database, exports: ObjectStore | None) -> None:
        self._database = database
        self._exports = exports
        self._months: dict[str, dict[str, frozenset[Island]] | str] = {}

    async def proven(self, writer: str, gap: Gap) -> Gap:
        """``gap`` with ``exported``, if its month is gone and its manifests have exactly its
        entries; else with the reason why not. Raises ``AuthorityUnavailableError``."""
        month = gap.reason.removeprefix(EXPORTED)
        if month not in self._months:
            try:
                self._months[month] = await self._month(month)
            except _NotProvenError as error:
                self._months[month] = str(error)
        known = self._months[month]
        if isinstance(known, str):
            return replace(gap, reason=f"{gap.reason}; {known}")
        island = (gap.after_seq + 1, gap.before_seq - 1, bytes(gap.hash))
        if island not in known.get(writer, frozenset()):
            return replace(gap, reason=f"{gap.reason}; the manifests have other entries")
        return replace(gap, exported=True)

    async def _month(self, month: str) -> dict[str, frozenset[Island]]:
        async with self._database.connection() as connection:
            row = await (await connection.execute(_THERE, (month,))).fetchone()
            days = await (await connection.execute(_DAYS, (month,))).fetchall()
        if row is None or row[0]:
            raise _NotProvenError("the month is still there")
        if not days:
            raise _NotProvenError("there is no export of it")
        if self._exports is None:
            raise _NotProvenError("no place of exports is set")
        islands: dict[str, list[Island]] = defaultdict(list)
        for day, rows, location, digest in days:
            manifest = await asyncio.to_thread(_manifest, self._exports, location, digest)
            try:
                if (manifest["partition"], manifest["day"], manifest["rows"]) != (month, day, rows):
                    raise _NotProvenError(f"the manifest of {day} is of something else")
                for writer, head in manifest["chains"].items():
                    for first, last, end in head["ranges"]:
                        islands[writer].append((int(first), int(last), bytes.fromhex(end)))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise _NotProvenError(f"the manifest of {day} cannot be read") from error
        return {writer: frozenset(joined(parts)) for writer, parts in islands.items()}


def joined(parts: Iterable[Island]) -> list[Island]:
    """Those that follow each other as one, by their entries."""
    found: list[Island] = []
    for first, last, end in sorted(parts):
        if found and found[-1][1] + 1 == first:
            found[-1] = (found[-1][0], last, end)
        else:
            found.append((first, last, end))
    return found


def _manifest(exports: ObjectStore, location: str, digest: str) -> dict[str, Any]:
    """What is stored there, if it is what was stored. Raises ``_NotProvenError``."""
    key = location.removeprefix(f"{exports.location}/")
    if key == location:
        raise _NotProvenError(f"{location} is not in the place of exports")
    try:
        text = exports.get(key)
        if hashlib.sha256(text).hexdigest() != digest:
            raise _NotProvenError(f"{location} is not what was written")
        return cast("dict[str, Any]", json.loads(text))
    except (ObjectStoreError, ValueError) as error:
        raise _NotProvenError(f"{location} cannot be read") from error
