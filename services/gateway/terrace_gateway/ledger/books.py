"""The books as the admin API reads them: spend, entries, chains. Money is micro-USD."""

from typing import Any, LiteralString

from psycopg.rows import DictRow, dict_row

from terrace_gateway.database import Database
from terrace_gateway.ledger.cursor import SettledIds

SETTLING_SECONDS = 1.0

SPEND_COLUMNS: dict[str, LiteralString] = {
    "team": "team",
    "key": "key_id",
    "model": "model",
    "org": "org",
    "user": "user_name",
    "app": "app",
    "provider": "provider",
    "day": "day::text",
}
SPEND_NAMES: tuple[LiteralString, ...] = (
    "team", "key", "model", "org", "user", "app", "provider", "day",
)  # fmt: skip
# The rollup for the new ledger; the old one is as small as the release before left it.
_OLD: dict[str, LiteralString] = {
    "team": "team", "key": "key_id", "model": "model", "org": "''", "user": "''", "app": "''",
    "provider": "provider", "day": "(created_at AT TIME ZONE 'UTC')::date::text",
}  # fmt: skip
_OUTSTANDING: dict[str, tuple[LiteralString, LiteralString]] = {
    "team": ("team", "record ->> 'team'"),
    "key": ("key_id", "record ->> 'key_id'"),
    "model": ("model", "record ->> 'model'"),
    "org": ("''", "coalesce(record ->> 'org', '')"),
    "user": ("''", "coalesce(record ->> 'user_name', '')"),
    "app": ("''", "coalesce(record ->> 'app', '')"),
    "provider": ("provider", "provider"),
    "day": (
        "(opened_at AT TIME ZONE 'UTC')::date::text",
        "(opened_at AT TIME ZONE 'UTC')::date::text",
    ),
}
_SPEND: LiteralString = """
WITH settled AS (
    SELECT subject, sum(requests)::bigint AS requests, sum(input_tokens)::bigint AS input_tokens,
           sum(output_tokens)::bigint AS output_tokens,
           sum(cache_read_tokens)::bigint AS cache_read_tokens,
           sum(cache_write_tokens)::bigint AS cache_write_tokens, sum(amount)::bigint AS settled
    FROM (
        SELECT {new} AS subject, requests, input_tokens, output_tokens, cache_read_tokens,
               cache_write_tokens, amount_micro_usd AS amount FROM spend_daily
        WHERE day >= %(since)s
        UNION ALL
        SELECT {old}, (kind <> 'correction')::int, input_tokens, output_tokens, 0, 0,
               amount_micro_usd
        FROM ledger WHERE created_at >= %(since)s) s
    GROUP BY 1),
outstanding AS (
    SELECT subject, sum(reserved)::bigint AS outstanding FROM (
        SELECT {open_old} AS subject, reserved_micro_usd AS reserved
        FROM attempt WHERE state = 'open'
        UNION ALL
        SELECT {open_new}, (record ->> 'reserved_micro_usd')::bigint
        FROM open_attempt WHERE state = 'open') o
    GROUP BY 1)
SELECT subject AS "{by}", coalesce(requests, 0) AS requests,
       coalesce(input_tokens, 0) AS input_tokens, coalesce(output_tokens, 0) AS output_tokens,
       coalesce(cache_read_tokens, 0) AS cache_read_tokens,
       coalesce(cache_write_tokens, 0) AS cache_write_tokens,
       coalesce(settled, 0) AS settled_micro_usd, coalesce(outstanding, 0) AS outstanding_micro_usd
FROM settled FULL JOIN outstanding USING (subject) ORDER BY 1
"""
_ENTRIES: LiteralString = """
SELECT * FROM ledger_all
WHERE entry_id > %(after)s AND entry_id <= %(settled)s
  AND (%(key_id)s::text IS NULL OR key_id = %(key_id)s)
  AND (%(attempt_id)s::text IS NULL OR attempt_id = %(attempt_id)s)
  AND (%(kinds)s::text[] IS NULL OR kind = ANY (%(kinds)s))
ORDER BY entry_id LIMIT %(limit)s
"""
MONEY_KINDS = ("attempt", "unknown", "correction", "rerating")
KINDS = (*MONEY_KINDS, "decision")
_CHAINS: LiteralString = """
SELECT c.writer, c.replica, c.seq, encode(c.hash, 'hex') AS hash, c.position, c.started_at,
       c.moved_at, c.sealed_at, max(a.seq) AS anchored_seq, max(a.stored_at) AS anchored_at
FROM chain c LEFT JOIN anchor a USING (writer)
WHERE c.writer > %(after)s GROUP BY c.writer ORDER BY c.writer LIMIT %(limit)s
"""
_AUDIT: LiteralString = """
SELECT audit_id, actor, action, subject, reason, detail, created_at FROM audit
WHERE audit_id > %(after)s AND audit_id <= %(settled)s ORDER BY audit_id LIMIT %(limit)s
"""


class BookStore:
    """Reads only. Raises ``AuthorityUnavailableError`` while Postgres is away."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._entry_ids = SettledIds(database, "SELECT last_value FROM ledger_entry_id_seq")
        self._audit_ids = SettledIds(
            database,
            "SELECT pg_sequence_last_value(pg_get_serial_sequence('audit', 'audit_id')::regclass)",
        )

    async def spend(self, by: str, *, since: str = "-infinity") -> list[DictRow]:
        """Sums by one of ``SPEND_COLUMNS``, of days from ``since``. Raises ``KeyError``."""
        old, new = _OUTSTANDING[by]
        name: LiteralString = next(known for known in SPEND_NAMES if known == by)
        query = _SPEND.format(
            new=SPEND_COLUMNS[by], old=_OLD[by], open_old=old, open_new=new, by=name
        )
        return await self._all(query, {"since": since})

    async def entries(
        self,
        *,
        after: int,
        limit: int,
        key_id: str | None = None,
        attempt_id: str | None = None,
        kinds: list[str] | None = None,
    ) -> list[DictRow]:
        """Entries of both ledgers after ``after``, by entry id. None with a smaller id than the
        last one here comes into the ledger later."""
        settled = await self._entry_ids.wait(SETTLING_SECONDS)
        values = {
            "settled": settled, "after": after, "limit": limit, "key_id": key_id,
            "attempt_id": attempt_id, "kinds": kinds,
        }  # fmt: skip
        return await self._all(_ENTRIES, values)

    async def chains(self, *, after: str, limit: int) -> list[DictRow]:
        """Writers with their heads and last anchors, by name."""
        return await self._all(_CHAINS, {"after": after, "limit": limit})

    async def audit(self, *, after: int, limit: int) -> list[DictRow]:
        """Administrative changes, by id, as ``entries``."""
        settled = await self._audit_ids.wait(SETTLING_SECONDS)
        return await self._all(_AUDIT, {"settled": settled, "after": after, "limit": limit})

    async def _all(self, query: LiteralString, values: dict[str, Any]) -> list[DictRow]:
        async with self._database.connection() as connection:
            cursor = connection.cursor(row_factory=dict_row)
            await cursor.execute(query, values)
            return await cursor.fetchall()
