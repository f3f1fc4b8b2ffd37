"""Days of the ledger as Parquet in an object store. Needs the extra ``terrace-gateway[export]``.

A day is written in parts; a manifest beside them says how many rows, each part's digest, the heads
of chains, and which entries of each chain these are (first, last, the last one's hash). An object
is never overwritten: a day that has grown since is written again whole, under another name. The
same again does nothing.
"""

import asyncio
import hashlib
import io
import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, LiteralString, cast

from psycopg.rows import dict_row

from terrace_gateway.calls.ports import AuthorityUnavailableError
from terrace_gateway.database import Database
from terrace_gateway.ledger.object_store import ObjectStore

PART_ROWS = 50_000
PAGE_ROWS = 5_000
DAY_SECONDS = 24 * 3600
_JSON_COLUMNS = ("charges", "detail")
_DAYS: LiteralString = """
SELECT e.tableoid::regclass::text AS partition, (e.opened_at AT TIME ZONE 'UTC')::date AS day,
       count(*) AS rows, max(e.entry_id) AS last_entry_id
FROM ledger_entry e WHERE e.opened_at < %s GROUP BY 1, 2
ORDER BY 2, 1
"""
_KNOWN: LiteralString = (
    "SELECT rows, last_entry_id FROM ledger_export WHERE partition_name = %s AND day = %s"
)
_ROWS: LiteralString = (
    "SELECT * FROM ledger_entry WHERE opened_at >= %(begin)s AND opened_at < %(end)s"
    " AND tableoid = %(partition)s::regclass AND entry_id > %(after)s"
    " AND entry_id <= %(last)s ORDER BY entry_id LIMIT %(limit)s"
)
_RECORD: LiteralString = (
    "INSERT INTO ledger_export (partition_name, day, rows, last_entry_id, location, digest)"
    " VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (partition_name, day) DO UPDATE SET"
    " rows = excluded.rows, last_entry_id = excluded.last_entry_id, location = excluded.location,"
    " digest = excluded.digest, exported_at = clock_timestamp()"
)


class ExportUnavailableError(RuntimeError):
    """pyarrow is not installed."""


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

    async def export(self, *, before: datetime) -> list[ExportedDay]:
        """Every day that ended before this moment and is not exported as it is now.

        Raises ``ExportUnavailableError``, ``AuthorityUnavailableError``, ``ObjectStoreError``.
        """
        _parquet()
        midnight = before.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        async with self._database.connection() as connection:
            days = await (await connection.execute(_DAYS, (midnight,))).fetchall()
        done: list[ExportedDay] = []
        for partition, day, rows, last in days:
            async with self._database.connection() as connection:
                cursor = await connection.execute(_KNOWN, (partition, day))
                known = await cursor.fetchone()
            if known != (rows, last):
                done.append(await self._day(partition, day, rows, last))
        return done

    async def _day(self, partition: str, day: date, expected: int, last: int) -> ExportedDay:
        folder = f"{self._prefix}month={day:%Y-%m}/day={day}/{partition}-{last}/"
        heads: dict[str, dict[str, Any]] = {}
        parts: list[dict[str, Any]] = []
        total, after = 0, -1
        while True:
            rows = await self._read(partition, day, after, last)
            if not rows:
                break
            after = rows[-1]["entry_id"]
            for row in rows:
                head = heads.setdefault(
                    row["writer"],
                    {"first_seq": row["seq"], "seq": 0, "hash": "", "rows": 0, "ranges": []},
                )
                digest = bytes(row["hash"]).hex()
                head["first_seq"] = min(head["first_seq"], row["seq"])
                head["rows"] += 1
                if row["seq"] > head["seq"]:
                    head["seq"], head["hash"] = row["seq"], digest
                ranges: list[list[Any]] = head["ranges"]
                if ranges and ranges[-1][1] + 1 == row["seq"]:
                    ranges[-1][1:] = [row["seq"], digest]
                else:
                    ranges.append([row["seq"], row["seq"], digest])
            body = await asyncio.to_thread(_encode, rows)
            key = f"{folder}part-{len(parts):05d}.parquet"
            await asyncio.to_thread(self._objects.put, key, body)
            parts.append(
                {"key": key, "rows": len(rows), "sha256": hashlib.sha256(body).hexdigest()}
            )
            total += len(rows)
        if total != expected:
            raise AuthorityUnavailableError(f"{day} changed while it was exported; try again")
        manifest = {
            "partition": partition, "day": day.isoformat(), "rows": total, "last_entry_id": last,
            "parts": parts, "chains": heads,
        }  # fmt: skip
        text = json.dumps(manifest, sort_keys=True, indent=1).encode()
        key = f"{folder}manifest.json"
        await asyncio.to_thread(self._objects.put, key, text)
        values = (
            partition, day, total, last, f"{self._objects.location}/{key}",
            hashlib.sha256(text).hexdigest(),
        )  # fmt: skip
        async with self._database.connection() as connection:
            await connection.execute(_RECORD, values)
        return ExportedDay(partition, day, total, key)

    async def _read(self, partition: str, day: date, after: int, last: int) -> list[dict[str, Any]]:
        begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
        rows: list[dict[str, Any]] = []
        while len(rows) < PART_ROWS:
            values = {
                "begin": begin, "end": begin + timedelta(seconds=DAY_SECONDS),
                "partition": partition, "after": rows[-1]["entry_id"] if rows else after,
                "last": last, "limit": PAGE_ROWS,
            }  # fmt: skip
            async with self._database.connection() as connection:
                cursor = connection.cursor(row_factory=dict_row)
                await cursor.execute(_ROWS, values)
                page = await cursor.fetchall()
            rows += page
            if len(page) < PAGE_ROWS:
                break
        return rows


def read_part(body: bytes) -> list[dict[str, Any]]:
    """Rows of a part as the database gave them. Raises ``ExportUnavailableError``."""
    table = _parquet().read_table(io.BytesIO(body))
    rows = cast("list[dict[str, Any]]", table.to_pylist())
    for row in rows:
        for name in _JSON_COLUMNS:
            row[name] = None if row[name] is None else json.loads(row[name])
    return rows


def _encode(rows: list[dict[str, Any]]) -> bytes:
    import pyarrow as pa  # noqa: PLC0415  # pyright: ignore[reportMissingImports, reportMissingTypeStubs]

    arrow = cast("Any", pa)
    stamp, text, number = arrow.timestamp("us", tz="UTC"), arrow.string(), arrow.int64()
    fields: list[Any] = []
    for name in rows[0]:
        kind = text
        if name in ("opened_at", "closed_at", "created_at"):
            kind = stamp
        elif name in ("hash", "previous_hash"):
            kind = arrow.binary()
        elif name == "late":
            kind = arrow.bool_()
        elif name in _NUMBERS:
            kind = number
        fields.append(arrow.field(name, kind))
    plain = [
        row
        | {
            name: None if row[name] is None else json.dumps(row[name], sort_keys=True)
            for name in _JSON_COLUMNS
        }
        for row in rows
    ]
    sink = io.BytesIO()
    table = arrow.Table.from_pylist(plain, schema=arrow.schema(fields))
    _parquet().write_table(table, sink, compression="zstd")
    return sink.getvalue()


_NUMBERS = frozenset(
    {
        "entry_id", "seq", "revision", "incarnation_id", "policy_version", "reserved_micro_usd",
        "reserved_input_tokens", "reserved_output_tokens", "input_tokens", "output_tokens",
        "cache_read_tokens", "cache_write_tokens", "cache_write_1h_tokens", "images",
        "amount_micro_usd", "latency_ms", "first_byte_ms",
    }
)  # fmt: skip


def _parquet() -> Any:
    try:
        from pyarrow import parquet  # noqa: PLC0415  # pyright: ignore[reportMissingImports, reportMissingTypeStubs]
    except ImportError:
        raise ExportUnavailableError(
            "exporting needs pyarrow: install terrace-gateway[export]"
        ) from None
    return cast("Any", parquet)
