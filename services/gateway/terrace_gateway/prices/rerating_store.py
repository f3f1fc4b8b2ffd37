"""Reads past attempts out of the ledger and writes re-ratings into it."""

from collections.abc import Sequence
from datetime import datetime

from psycopg.rows import DictRow, dict_row

from terrace_common.prices import Units
from terrace_gateway.admin.audit import record
from terrace_gateway.database import Database
from terrace_gateway.prices.rerating import PastAttempt, Rerating

WRITER = "rerating"

_KNOWN = "kind IN ('attempt', 'correction')"
_PAGE = f"""
    SELECT attempt_id, opened_at, model, provider, deployment,
           sum(input_tokens) FILTER (WHERE {_KNOWN})::bigint AS input_tokens,
           sum(output_tokens) FILTER (WHERE {_KNOWN})::bigint AS output_tokens,
           sum(cache_read_tokens) FILTER (WHERE {_KNOWN})::bigint AS cache_read_tokens,
           sum(cache_write_tokens) FILTER (WHERE {_KNOWN})::bigint AS cache_write_tokens,
           sum(cache_write_tokens - cache_write_1h_tokens)
               FILTER (WHERE kind = 'attempt')::bigint AS short_cache_writes,
           sum(images)::bigint AS images, sum(amount_micro_usd)::bigint AS amount_micro_usd,
           sum(amount_micro_usd) FILTER (WHERE {_KNOWN})::bigint AS settled_micro_usd
    FROM ledger_entry
    WHERE NOT late AND kind IN ('attempt', 'correction', 'rerating') AND purpose <> 'guardrail'
      AND opened_at >= %(since)s AND opened_at < %(until)s
      AND (opened_at, attempt_id) > (%(after_time)s, %(after_id)s)
      AND (%(model)s::text IS NULL OR model = %(model)s)
    GROUP BY attempt_id, opened_at, model, provider, deployment
    HAVING bool_or(kind = 'attempt')
    ORDER BY opened_at, attempt_id LIMIT %(limit)s
"""  # noqa: S608  nothing of a caller's is in it


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
        values = {
            "since": since,
            "until": until,
            "model": model,
            "after_time": since if after is None else after[0],
            "after_id": "" if after is None else after[1],
            "limit": limit,
        }
        async with self._database.connection() as connection:
            cursor = connection.cursor(row_factory=dict_row)
            await cursor.execute(_PAGE, values)
            rows = await cursor.fetchall()
        return [_past(row) for row in rows]

    async def write(self, reratings: Sequence[Rerating], *, actor: str, reason: str) -> int:
        """Append an entry for each, all or none. Returns how many were new: an attempt is re-rated
        once per price version."""
        written = 0
        async with self._database.connection() as connection, connection.transaction():
            for one in reratings:
                cursor = await connection.execute(
                    "SELECT rerate_entry(%s, %s, %s, %s, %s, %s, %s, %s)",
                    (
                        WRITER,
                        self._replica,
                        one.attempt.attempt_id,
                        one.attempt.opened_at,
                        one.delta_micro_usd,
                        one.price_version,
                        actor,
                        reason,
                    ),
                )
                row = await cursor.fetchone()
                written += row is not None and row[0] is True
            if written:
                await record(
                    connection, actor=actor, action="prices.rerate",
                    subject=f"prices:{reratings[0].price_version}", reason=reason,
                    detail={"written": written},
                )  # fmt: skip
        return written


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
