"""Reads past attempts out of the ledger and writes re-ratings into it."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, LiteralString

from psycopg.rows import DictRow, dict_row

from terrace_common.prices import Units
from terrace_gateway.admin.admission import Admission, still_admitted
from terrace_gateway.admin.audit import record
from terrace_gateway.database import Connection, Database
from terrace_gateway.prices.rerating import PastAttempt, Rerating

WRITER = "rerating"
PAGE_SECONDS = 300
"""So long a page may be looked for: of a model that is seldom called."""

_KNOWN = "kind IN ('attempt', 'correction')"


def _sums(entries: str) -> str:
    return f"""
    SELECT attempt_id, opened_at, model, provider, deployment,
           sum(input_tokens) FILTER (WHERE {_KNOWN})::bigint AS input_tokens,
           sum(output_tokens) FILTER (WHERE {_KNOWN})::bigint AS output_tokens,
           sum(cache_read_tokens) FILTER (WHERE {_KNOWN})::bigint AS cache_read_tokens,
           sum(cache_write_tokens) FILTER (WHERE {_KNOWN})::bigint AS cache_write_tokens,
           sum(cache_write_tokens - cache_write_1h_tokens)
               FILTER (WHERE kind = 'attempt')::bigint AS short_cache_writes,
           sum(images)::bigint AS images, sum(amount_micro_usd)::bigint AS amount_micro_usd,
           sum(amount_micro_usd) FILTER (WHERE {_KNOWN})::bigint AS settled_micro_usd
    FROM {entries}
    GROUP BY attempt_id, opened_at, model, provider, deployment
    HAVING bool_or(kind = 'attempt')
    ORDER BY opened_at, attempt_id LIMIT %(limit)s
"""  # noqa: S608  nothing of a caller's is in it


# In the order of an index (ledger/opening_index.py): what is behind a full page is not read.
PAGE: LiteralString = """
    SELECT attempt_id, opened_at FROM ledger_entry
    WHERE NOT late AND kind = 'attempt' AND purpose <> 'guardrail'
      AND opened_at >= %(since)s AND opened_at < %(until)s
      AND (opened_at, attempt_id) > (%(since)s, %(after_id)s)
      AND (%(model)s::text IS NULL OR model = %(model)s)
    ORDER BY opened_at, attempt_id LIMIT %(limit)s
"""
_OF_THESE = "attempt_id = ANY(%(attempts)s) AND opened_at BETWEEN %(first)s AND %(last)s"
# In two halves, as the ledger's indexes are: one has the closes, the other what came after them.
_THESE = _sums(f"""(
        SELECT * FROM ledger_entry
        WHERE {_OF_THESE} AND NOT late AND kind IN ('attempt', 'unknown')
        UNION ALL
        SELECT * FROM ledger_entry
        WHERE {_OF_THESE} AND NOT late AND kind IN ('correction', 'rerating')
    ) e""")  # noqa: S608  nor here


class ReratingStore:
    """Past attempts, page by page. Raises ``AuthorityUnavailableError``."""

    def __init__(self, database: Database, *, replica: str) -> None:
        self._database = database
        self._replica = replica

    async def page(
        self,
        *,
        since: datetime,
        until: datetime,
        model: str | None,
        after: tuple[datetime, str] | None,
        limit: int,
    ) -> list[PastAttempt]:
        """Attempts with known usage that were opened from ``since`` to before ``until``, in the
        order of their opening."""
        begin, after_id = (since, "") if after is None or after[0] < since else after
        values = {
            "since": begin,
            "until": until,
            "model": model,
            "after_id": after_id,
            "limit": limit,
        }
        async with self._database.long_connection(PAGE_SECONDS) as connection:
            found = await (await connection.execute(PAGE, values)).fetchall()
        if not found:
            return []
        async with self._database.connection() as connection:
            cursor = connection.cursor(row_factory=dict_row)
            await cursor.execute(_THESE.encode(), _these(found))
            rows = await cursor.fetchall()
        return [_past(row) for row in rows]

    async def write(
        self,
        attempts: Sequence[PastAttempt],
        price: Callable[[Sequence[PastAttempt]], Sequence[Rerating]],
        *,
        actor: str,
        reason: str,
        admission: Admission | None = None,
    ) -> list[Rerating]:
        """Make each of ``attempts`` cost what ``price`` says, by entries of the difference, all or
        none. Returns those that were written: one whose entries have that sum already needs none.

        They are read again once nobody else can add to them, so that no correction and no other
        re-rating comes between what is read and what is written.
        """
        if not attempts:
            return []
        values = _these([(one.attempt_id, one.opened_at) for one in attempts])
        async with self._database.connection() as connection, connection.transaction():
            await connection.execute("SELECT lock_attempts(%(attempts)s)", values)
            await still_admitted(connection, admission)
            cursor = connection.cursor(row_factory=dict_row)
            await cursor.execute(_THESE.encode(), values)
            reratings = price([_past(row) for row in await cursor.fetchall()])
            written = [
                one for one in reratings if await self._append(connection, one, actor, reason)
            ]
            if written:
                await record(
                    connection, actor=actor, action="prices.rerate",
                    subject=f"prices:{written[0].price_version}", reason=reason,
                    detail={"written": len(written)},
                )  # fmt: skip
        return written

    async def _append(self, connection: Connection, one: Rerating, actor: str, reason: str) -> bool:
        cursor = await connection.execute(
            "SELECT rerate_entry_to(%s, %s, %s, %s, %s, %s, %s, %s)",
            (
                WRITER, self._replica, one.attempt.attempt_id, one.attempt.opened_at,
                one.amount_micro_usd, one.price_version, actor, reason,
            ),
        )  # fmt: skip
        row = await cursor.fetchone()
        return row is not None and row[0] not in (None, 0)


def _these(attempts: Sequence[tuple[Any, ...]]) -> dict[str, object]:
    """Parameters of ``_THESE``: ids of attempts and when they were opened."""
    moments = [opened_at for _, opened_at in attempts]
    return {
        "attempts": [attempt_id for attempt_id, _ in attempts],
        "first": min(moments),
        "last": max(moments),
        "limit": len(attempts),
    }


def _past(row: DictRow) -> PastAttempt:
    # A correction does not say how long its writes live: as reconcile has priced them.
    short = min(row["short_cache_writes"], row["cache_write_tokens"])
    units = Units(
        input_tokens=row["input_tokens"],
        output_tokens=row["output_tokens"],
        cache_read_tokens=row["cache_read_tokens"],
        cache_write_tokens=short,
        cache_write_1h_tokens=row["cache_write_tokens"] - short,
        images=row["images"],
    )
    used = units.all_input_tokens + units.output_tokens
    return PastAttempt(
        attempt_id=row["attempt_id"],
        opened_at=row["opened_at"],
        model=row["model"],
        provider=row["provider"],
        deployment=row["deployment"],
        units=units,
        amount_micro_usd=row["amount_micro_usd"],
        billed=used > 0 or row["settled_micro_usd"] > 0,
    )
