"""Reconciliation the other way round: calls in a provider's log that the ledger does not know.

An attempt that is in no ledger was made by a replica whose volume is lost, or by somebody who has
our credentials and makes up ids.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from heapq import nsmallest
from typing import Any, LiteralString

import structlog

from terrace_gateway.database import Database
from terrace_gateway.ledger.bills.bill_sources import BedrockBill, BillSource
from terrace_gateway.ledger.bills.invocation_log import InvocationLine
from terrace_gateway.ledger.bills.provider_bill import BillUnreachableError

log = structlog.get_logger()

MAX_LINES = 100
LOOK_SECONDS = 300
"""So long the attempts of a log may take to be looked up."""
LONGEST_CALL = timedelta(days=1)
"""A line is at most so much younger than its attempt."""
UNSHIPPED_SECONDS = 300
"""So young a call may still be in a spool."""
_NOW: LiteralString = "SELECT clock_timestamp()"
_UNKNOWN: LiteralString = """
SELECT asked FROM unnest(%(asked)s::text[]) asked
WHERE NOT EXISTS (SELECT FROM ledger_entry l WHERE l.attempt_id = asked
                  AND l.opened_at > %(since)s AND l.kind IN ('attempt', 'unknown') AND NOT l.late)
  AND NOT EXISTS (SELECT FROM open_attempt o WHERE o.attempt_id = asked)
  AND NOT EXISTS (SELECT FROM attempt a WHERE a.attempt_id = asked)
"""


async def unknown_to_ledger(
    database: Database, sources: Mapping[str, BillSource], *, hours: int
) -> dict[str, Any]:
    """``unknown_calls``: lines of the last ``hours`` that name an attempt which is in no ledger;
    ``unknown_to_ledger``: the first hundred of them. A call whose month was exported and dropped is
    unknown too: ask for no more hours than are kept.

    Raises ``AuthorityUnavailableError``. A log that cannot be read is left out from there on.
    """
    found: list[tuple[datetime, str, dict[str, Any]]] = []
    count = 0
    async with database.connection() as connection:
        row = await (await connection.execute(_NOW)).fetchone()
    if row is None:
        raise RuntimeError("the database has no time")
    end = row[0] - timedelta(seconds=UNSHIPPED_SECONDS)
    begin = row[0] - timedelta(hours=hours)
    for provider, source in sources.items():
        if not isinstance(source, BedrockBill):
            continue  # an API that is asked attempt by attempt
        try:
            async for lines in source.named(begin, end):
                strange = await _strange(database, lines, begin - LONGEST_CALL)
                count += len(strange)
                found += [(line.at, line.request_id, _document(provider, line)) for line in strange]
                found = nsmallest(MAX_LINES, found, key=lambda one: one[:2])
        except BillUnreachableError as error:
            log.warning("bill_unreachable", provider=provider, error=str(error))
    if count:
        log.error("calls_unknown_to_ledger", calls=count)
    return {"unknown_calls": count, "unknown_to_ledger": [document for *_, document in found]}


async def _strange(
    database: Database, lines: list[InvocationLine], since: datetime
) -> list[InvocationLine]:
    asked = sorted({str(line.attempt_id) for line in lines})
    async with database.long_connection(LOOK_SECONDS) as connection:
        cursor = await connection.execute(_UNKNOWN, {"asked": asked, "since": since})
        unknown = {attempt_id for (attempt_id,) in await cursor.fetchall()}
    return [line for line in lines if line.attempt_id in unknown]


def _document(provider: str, line: InvocationLine) -> dict[str, Any]:
    return {
        "provider": provider,
        "attempt_id": line.attempt_id,
        "request_id": line.request_id,
        "at": line.at.isoformat(),
        "model_id": line.model_id,
        "input_tokens": line.input_tokens,
        "output_tokens": line.output_tokens,
    }
