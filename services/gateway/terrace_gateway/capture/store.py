"""Captures in Postgres."""

import json
from typing import Any, cast

from psycopg.rows import dict_row

from terrace_gateway.capture.cipher import Sealed, Sealer
from terrace_gateway.capture.record import CapturedCall, binding, plain_bytes
from terrace_gateway.database import Connection, Database

_DAY = "SELECT capture_day(%s)"
_INSERT = """
INSERT INTO capture (request_id, expires_on, key_id, org, team, "user", app, surface, model, kek,
                     wrapped_key, nonce, sealed)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (expires_on, request_id) DO NOTHING
"""
_SELECT = """
SELECT request_id, expires_on, captured_at, key_id, org, team, "user", app, surface, model, kek,
       wrapped_key, nonce, sealed
FROM capture WHERE request_id = %s AND expires_on > (clock_timestamp() AT TIME ZONE 'UTC')::date
ORDER BY captured_at LIMIT 1
"""
_DROP = "SELECT drop_ended_captures()"


class CaptureStore:
    """Writes and reads. Raises ``AuthorityUnavailableError`` while Postgres is away."""

    def __init__(self, database: Database, sealer: Sealer) -> None:
        self._database = database
        self._sealer = sealer

    async def write(self, call: CapturedCall) -> None:
        """Encrypt and insert one redacted call; once per request. Raises ``KeyWrappingError``."""
        caller = call.caller
        async with self._database.connection() as connection:
            cursor = await connection.execute(_DAY, (call.retention_days,))
            row = await cursor.fetchone()
            assert row is not None  # noqa: S101  a function's call has one row
            day = row[0]
            sealed = await self._sealer.seal(
                plain_bytes(call.texts, call.answer_texts, truncated=call.truncated),
                bound_to=binding(call.request_id, day, caller.key_id),
            )
            await connection.execute(
                _INSERT,
                (
                    call.request_id, day, caller.key_id, caller.org, caller.team, caller.user,
                    caller.app, call.surface, call.model, sealed.kek, sealed.wrapped_key,
                    sealed.nonce, sealed.data,
                ),
            )  # fmt: skip

    async def read(self, connection: Connection, request_id: str) -> dict[str, Any] | None:
        """One capture, opened; ``None``: there is none (any more), or it has ended and is not
        dropped yet. Raises ``KeyWrappingError``."""
        async with connection.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(_SELECT, (request_id,))
            row = await cursor.fetchone()
        if row is None:
            return None
        sealed = Sealed(
            row.pop("kek"), bytes(row.pop("wrapped_key")), bytes(row.pop("nonce")),
            bytes(row.pop("sealed")),
        )  # fmt: skip
        plain = await self._sealer.open(
            sealed, bound_to=binding(row["request_id"], row["expires_on"], row["key_id"])
        )
        row["expires_on"] = row["expires_on"].isoformat()
        return {**row, **cast("dict[str, Any]", json.loads(plain))}


async def forget_ended(database: Database) -> int:
    """Drop what has ended; how many days of it. Needs no key. Raises
    ``AuthorityUnavailableError``."""
    async with database.connection() as connection:
        cursor = await connection.execute(_DROP)
        row = await cursor.fetchone()
    return 0 if row is None else int(row[0])
