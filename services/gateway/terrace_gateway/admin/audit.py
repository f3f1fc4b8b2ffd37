"""The audit record of an administrative change, in the transaction of the change."""

from collections.abc import Mapping

from psycopg.types.json import Jsonb

from terrace_gateway.database import Connection

# The transaction has its number before the row has its id: see ledger/cursor.py.
_INSERT = (
    "WITH number AS MATERIALIZED (SELECT pg_current_xact_id() AS taken)"
    " INSERT INTO audit (actor, action, subject, reason, detail)"
    " SELECT %s, %s, %s, %s, %s FROM number WHERE taken IS NOT NULL"
)


async def record(
    connection: Connection,
    *,
    actor: str,
    action: str,
    subject: str,
    reason: str | None = None,
    detail: Mapping[str, object] | None = None,
) -> None:
    """Append who did what to what, and why. ``detail`` is plain data without secrets."""
    await connection.execute(_INSERT, (actor, action, subject, reason, Jsonb(dict(detail or {}))))
