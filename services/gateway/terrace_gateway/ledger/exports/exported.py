"""What of the ledger is stored outside of the database: not by its word, but by the manifests."""

import asyncio
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, LiteralString, cast

from terrace_gateway.database import Database
from terrace_gateway.ledger.chains.chain_check import Gap
from terrace_gateway.ledger.object_store import ObjectMissingError, ObjectStore, ObjectStoreError

EXPORTED = "exported: "
_THERE: LiteralString = "SELECT to_regclass(quote_ident(%s)) IS NOT NULL"
_DAYS: LiteralString = (
    "SELECT day::text, rows, last_entry_id, location, digest FROM ledger_export"
    " WHERE partition_name = %s"
    " ORDER BY day"
)

Island = tuple[int, int, bytes]
"""First and last entry that follow each other, and the last one's hash."""


class NotStoredError(Exception):
    """Why it cannot be relied upon; for people."""


@dataclass(frozen=True, slots=True)
class DayRecord:
    """One day of one month's table, as its export was recorded."""

    day: str
    rows: int
    last_entry_id: int
    location: str
    """Of its manifest."""
    digest: str
    """Of its manifest."""


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
            except NotStoredError as error:
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
            cursor = await connection.execute(_DAYS, (month,))
            days = [DayRecord(*found) for found in await cursor.fetchall()]
        if row is None or row[0]:
            raise NotStoredError("the month is still there")
        if not days:
            raise NotStoredError("there is no export of it")
        if self._exports is None:
            raise NotStoredError("no place of exports is set")
        islands: dict[str, list[Island]] = defaultdict(list)
        for record in days:
            manifest = await asyncio.to_thread(read_manifest, self._exports, month, record)
            try:
                for writer, head in manifest["chains"].items():
                    for first, last, end in head["ranges"]:
                        islands[writer].append((int(first), int(last), bytes.fromhex(end)))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise NotStoredError(f"the manifest of {record.day} cannot be read") from error
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


def read_manifest(exports: ObjectStore, partition: str, record: DayRecord) -> Mapping[str, Any]:
    """What is stored, if it is what was recorded. Calls block. Raises ``NotStoredError``."""
    try:
        return _manifest(exports, partition, record)
    except ObjectStoreError as error:
        raise NotStoredError(f"{record.location} cannot be read") from error


def check_stored(exports: ObjectStore, partition: str, record: DayRecord) -> None:
    """That manifest and parts are there as they were recorded. Reads one part at a time. Calls
    block. Raises ``NotStoredError`` if not, ``ObjectStoreError`` if the store cannot tell."""
    try:
        manifest = _manifest(exports, partition, record)
        rows = 0
        for part in manifest["parts"]:
            if hashlib.sha256(exports.get(part["key"])).hexdigest() != part["sha256"]:
                raise NotStoredError(f"{part['key']} is not what its manifest says")
            rows += part["rows"]
        if (rows, manifest["last_entry_id"]) != (record.rows, record.last_entry_id):
            raise NotStoredError(f"the manifest of {record.day} has other parts")
    except ObjectMissingError as error:
        raise NotStoredError(str(error)) from error
    except (KeyError, TypeError) as error:
        raise NotStoredError(f"the manifest of {record.day} cannot be read") from error


def _manifest(exports: ObjectStore, partition: str, record: DayRecord) -> dict[str, Any]:
    key = record.location.removeprefix(f"{exports.location}/")
    if key == record.location:
        raise NotStoredError(f"{record.location} is not in the place of exports")
    text = exports.get(key)
    if hashlib.sha256(text).hexdigest() != record.digest:
        raise NotStoredError(f"{record.location} is not what was written")
    try:
        manifest = cast("dict[str, Any]", json.loads(text))
        named = (manifest["partition"], manifest["day"], manifest["rows"])
    except (KeyError, TypeError, ValueError) as error:
        raise NotStoredError(f"the manifest of {record.day} cannot be read") from error
    if named != (partition, record.day, record.rows):
        raise NotStoredError(f"the manifest of {record.day} is of something else")
    return manifest
