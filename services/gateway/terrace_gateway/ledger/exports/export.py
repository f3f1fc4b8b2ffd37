"""Days of the ledger as Parquet in an object store. Needs the extra ``terrace-gateway[export]``.

A day is written in parts; a manifest beside them says how many rows, each part's digest, the heads
of chains, and which entries of each chain these are (first, last, the last one's hash). Names
follow from the contents, so that an object is never overwritten and what is there under a name is
the same: a day that has grown since is written again whole, beside. The same again does nothing.

Only entries are taken before which none comes into the ledger any more: see ``cursor``.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, LiteralString

import psycopg
import structlog
from psycopg import sql

from terrace_gateway.calls.ports import AuthorityUnavailableError
from terrace_gateway.database import Connection, Database
from terrace_gateway.ledger.cursor import SettledIds
from terrace_gateway.ledger.exports.export_days import list_days
from terrace_gateway.ledger.exports.exported import DayRecord, NotStoredError, check_stored
from terrace_gateway.ledger.exports.parts import PartWriter, need_parquet
from terrace_gateway.ledger.object_store import ObjectStore, ObjectTakenError, store_named

log = structlog.get_logger()

PART_ROWS = 50_000
PAGE_ROWS = 5_000
DAY_SECONDS = 24 * 3600
SETTLING_SECONDS = 30.0
"""So long transactions that write are waited for: a shipper's end within seconds."""
_DIGITS = 16
_KNOWN: LiteralString = (
    "SELECT day::text, rows, last_entry_id, location, digest, stored_digest FROM ledger_export"
    " WHERE partition_name = %s AND day = coalesce(%s, day) ORDER BY day"
)
PAGE_SECONDS = 600
"""So long a page may take: a day's last one passes entries of later days."""
CLAIM_SECONDS = 30
OTHER = "ledger_entry_other"
# Of the month's own table, from the day's first entry on: else each page passes what is before it.
ROWS: LiteralString = (
    "SELECT * FROM {} WHERE opened_at >= %(begin)s AND opened_at < %(end)s"
    " AND entry_id > %(after)s AND entry_id <= %(last)s ORDER BY entry_id LIMIT %(limit)s"
)
# As make_ledger_month does, which moves a month's rows out of the default partition.
_LOCK_MONTHS: LiteralString = "SELECT pg_advisory_xact_lock(x'7E44ACE2'::bigint)"
_HAS_MONTH: LiteralString = (
    "SELECT FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
    " WHERE i.inhparent = 'ledger_entry'::regclass AND c.relname = %s"
)
_RECORD: LiteralString = (
    "INSERT INTO ledger_export (partition_name, day, rows, last_entry_id, location, digest,"
    " stored_digest) VALUES (%s, %s, %s, %s, %s, %s, %s)"
    " ON CONFLICT (partition_name, day) DO UPDATE SET"
    " rows = excluded.rows, last_entry_id = excluded.last_entry_id, location = excluded.location,"
    " digest = excluded.digest, stored_digest = excluded.stored_digest,"
    " exported_at = clock_timestamp()"
)
# Unless it has been recorded anew meanwhile.
_STORED: LiteralString = (
    "UPDATE ledger_export SET stored_digest = %s"
    " WHERE partition_name = %s AND (day, rows, last_entry_id, location, digest)"
    " = (%s::date, %s, %s, %s, %s)"
)


@dataclass(frozen=True, slots=True)
class ExportedDay:
    """One day of one month's table."""

    partition: str
    day: date
    rows: int
    manifest: str
    """Its key in the store."""


class LedgerExport:
    """Writes days that are over. Several at once do no harm: they write the same."""

    def __init__(
        self, database: Database, objects: ObjectStore, *, prefix: str = "ledger/"
    ) -> None:
        self._database = database
        self._objects = objects
        self._prefix = prefix
        self._ids = SettledIds(database, "SELECT last_value FROM ledger_entry_id_seq")

    async def export(self, *, before: datetime) -> list[ExportedDay]:
        """As ``days``, all at once."""
        return [day async for day in self.days(before=before)]

    async def days(self, *, before: datetime) -> AsyncGenerator[ExportedDay]:
        """Every day that ended before this moment and is not exported as it is now, once it is.

        A day under whose names something else is stored keeps no other: ``ObjectTakenError`` of the
        first one comes behind the last day. Raises ``ExportUnavailableError``,
        ``AuthorityUnavailableError``, ``ObjectStoreError``.
        """
        need_parquet()
        midnight = before.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        settled = await self._ids.wait(SETTLING_SECONDS)
        if not settled:
            raise AuthorityUnavailableError("a transaction has not ended for long; try again")
        days = await list_days(self._database, before=midnight, last_entry_id=settled)
        taken: ObjectTakenError | None = None
        for partition, day, rows, first, last in days:
            if await self._is_exported(partition, day, rows, last):
                continue
            try:
                done = await self._day(partition, day, rows, first, last)
            except ObjectTakenError as error:
                log.warning("day_not_exported", month=partition, day=str(day), why=str(error))
                taken = taken or error
                continue
            if done is not None:
                yield done
        if taken is not None:
            raise taken

    async def forget_lost(self, partition: str) -> list[str]:
        """Days of a month whose export is not in the store as it was recorded. They count as not
        exported from here on. Raises ``AuthorityUnavailableError``, ``ObjectStoreError``."""
        lost: list[str] = []
        for record, _ in await self._known(partition, None):
            if not await self._is_stored(partition, record):
                await self._note_stored(partition, record, None)
                lost.append(record.day)
        return lost

    async def _is_exported(self, partition: str, day: date, rows: int, last: int) -> bool:
        for record, stored in await self._known(partition, day):
            if (record.rows, record.last_entry_id) != (rows, last):
                return False
            if stored == record.digest:
                return True
            if await self._is_stored(partition, record):
                await self._note_stored(partition, record, record.digest)
                return True
        return False

    async def _is_stored(self, partition: str, record: DayRecord) -> bool:
        try:
            await asyncio.to_thread(check_stored, self._objects, partition, record)
        except NotStoredError as error:
            log.warning("export_not_stored", month=partition, day=record.day, why=str(error))
            return False
        return True

    async def _known(self, partition: str, day: date | None) -> list[tuple[DayRecord, str | None]]:
        async with self._database.connection() as connection:
            cursor = await connection.execute(_KNOWN, (partition, day))
            return [(DayRecord(*row[:-1]), row[-1]) for row in await cursor.fetchall()]

    async def _note_stored(self, partition: str, record: DayRecord, digest: str | None) -> None:
        async with self._database.connection() as connection:
            await connection.execute(_STORED, (digest, partition, *astuple(record)))

    async def _day(
        self, partition: str, day: date, expected: int, first: int, last: int
    ) -> ExportedDay | None:
        """``None``: its table is gone, or a month has taken its rows out of the default partition;
        then they are exported with that one."""
        folder = f"{self._prefix}month={day:%Y-%m}/day={day}/"
        heads: dict[str, dict[str, Any]] = {}
        try:
            parts = await self._parts(partition, day, (first, last), folder, heads)
        except psycopg.errors.UndefinedTable:  # another guard has dropped it
            return None
        total = sum(item["rows"] for item in parts)
        if total != expected:
            raise AuthorityUnavailableError(f"{day} changed while it was exported; try again")
        manifest = {
            "partition": partition, "day": day.isoformat(), "rows": total, "last_entry_id": last,
            "parts": parts, "chains": heads,
        }  # fmt: skip
        text = json.dumps(manifest, sort_keys=True, indent=1).encode()
        digest = hashlib.sha256(text).hexdigest()
        key = f"{folder}{partition}-{last}-{total}-{digest[:_DIGITS]}/manifest.json"
        record = DayRecord(str(day), total, last, f"{self._objects.location}/{key}", digest)
        if partition == OTHER and not await self._claim(day, record):
            return None
        await asyncio.to_thread(store_named, self._objects, key, text)
        async with self._database.connection() as connection:
            await connection.execute(_RECORD, (partition, *astuple(record), digest))
        return ExportedDay(partition, day, total, key)

    async def _claim(self, day: date, record: DayRecord) -> bool:
        """Record a day of the default partition, as not stored yet: then no month takes its rows.
        Not if one has them already."""
        async with (
            self._database.long_connection(CLAIM_SECONDS) as connection,
            connection.transaction(),
        ):
            await connection.execute(_LOCK_MONTHS)
            cursor = await connection.execute(_HAS_MONTH, (f"ledger_entry_{day:%Y%m}",))
            if await cursor.fetchone() is not None:
                return False
            await connection.execute(_RECORD, (OTHER, *astuple(record), None))
        return True

    async def _parts(
        self,
        partition: str,
        day: date,
        ids: tuple[int, int],
        folder: str,
        heads: dict[str, dict[str, Any]],
    ) -> list[dict[str, Any]]:
        """Store a day's parts; ``ids``: its first and last entry id. ``heads`` is filled."""
        parts: list[dict[str, Any]] = []
        part: PartWriter | None = None
        (first, last), more = ids, True
        after = first - 1
        async with self._database.long_connection(PAGE_SECONDS) as connection:
            while more:
                columns, page = await _page(connection, partition, day, after, last)
                more = len(page) == PAGE_ROWS
                if page:
                    after = page[-1][columns.index("entry_id")]
                    part = part or PartWriter(columns)
                    await asyncio.to_thread(_take, part, heads, columns, page)
                if part is not None and (part.rows >= PART_ROWS or not more):
                    name = f"{folder}{partition}/part-{len(parts):05d}"
                    parts.append(await asyncio.to_thread(self._store_part, name, part))
                    part = None
        return parts

    def _store_part(self, name: str, part: PartWriter) -> dict[str, Any]:
        body = part.finish()
        digest = hashlib.sha256(body).hexdigest()
        key = f"{name}-{digest[:_DIGITS]}.parquet"
        store_named(self._objects, key, body)
        return {"key": key, "rows": part.rows, "sha256": digest}


async def _page(
    connection: Connection, partition: str, day: date, after: int, last: int
) -> tuple[list[str], list[tuple[Any, ...]]]:
    begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
    values = {
        "begin": begin, "end": begin + timedelta(seconds=DAY_SECONDS),
        "after": after, "last": last, "limit": PAGE_ROWS,
    }  # fmt: skip
    cursor = await connection.execute(sql.SQL(ROWS).format(sql.Identifier(partition)), values)
    return [column.name for column in cursor.description or ()], await cursor.fetchall()


def _take(
    part: PartWriter,
    heads: dict[str, dict[str, Any]],
    columns: list[str],
    page: Sequence[tuple[Any, ...]],
) -> None:
    """A page into a part, and into what the manifest says of chains."""
    part.add(page)
    at_writer, at_seq, at_hash = (columns.index(name) for name in ("writer", "seq", "hash"))
    for row in page:
        seq, digest = row[at_seq], bytes(row[at_hash]).hex()
        head = heads.setdefault(
            row[at_writer], {"first_seq": seq, "seq": 0, "hash": "", "rows": 0, "ranges": []}
        )
        head["first_seq"] = min(head["first_seq"], seq)
        head["rows"] += 1
        if seq > head["seq"]:
            head["seq"], head["hash"] = seq, digest
        ranges: list[list[Any]] = head["ranges"]
        if ranges and ranges[-1][1] + 1 == seq:
            ranges[-1][1:] = [seq, digest]
        else:
            ranges.append([seq, seq, digest])
