"""The authority on Postgres: a reservation and a settlement are one transaction each."""

from typing import cast

from gateway_rig.release_before.authority import (
    Authority,
    Caller,
    Grant,
    Refusal,
    RefusalCause,
    Reservation,
    Settlement,
    SettleResult,
)
from gateway_rig.release_before.incarnation import Incarnation
from terrace_gateway.database import Database

_RESERVE = (
    "SELECT verdict, key_id, team, cap_scope, cap_dimension, retry_after, remaining"
    " FROM reserve_attempt_v2(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
)
_SETTLE = "SELECT settle_attempt(%s, %s, %s, %s, %s, %s, %s, %s)"
_AUTHENTICATE = (
    "SELECT key_id, team, models FROM virtual_key WHERE key_hash = %s AND revoked_at IS NULL"
    " AND (expires_at IS NULL OR expires_at > clock_timestamp())"
)


class PostgresAuthority(Authority):
    """See the functions in ``migrations/``: they hold the rules."""

    def __init__(self, database: Database, incarnation: Incarnation, *, replica: str) -> None:
        self._database = database
        self._incarnation = incarnation
        self._replica = replica

    async def authenticate(self, key_hash: bytes) -> Caller | None:
        """The caller of a key that is neither revoked nor expired at this moment."""
        async with self._database.connection() as connection:
            cursor = await connection.execute(_AUTHENTICATE, (key_hash,), prepare=True)
            row = await cursor.fetchone()
        if row is None:
            return None
        return Caller(row[0], row[1], None if row[2] is None else frozenset(row[2]))

    async def reserve(self, request: Reservation) -> Grant | Refusal:
        """One transaction: key, model allow-list, every cap, the open record."""
        incarnation_id = await self._incarnation.ensure_fresh()
        parameters = (
            request.key_hash,
            request.attempt_id,
            request.request_id,
            request.trace_id,
            incarnation_id,
            self._replica,
            request.model,
            request.deployment,
            request.provider,
            request.surface,
            request.reserved_micro_usd,
            request.price_version,
            request.hard_limit_seconds,
        )
        async with self._database.connection() as connection:
            cursor = await connection.execute(_RESERVE, parameters, prepare=True)
            row = await cursor.fetchone()
        if row is None:
            raise RuntimeError("reserve_attempt_v2 gave no verdict")
        verdict, key_id, team, scope, dimension, retry_after, remaining = row
        if verdict == "granted":
            return Grant(request.attempt_id, key_id, team, request.reserved_micro_usd)
        cause = cast("RefusalCause", verdict)
        return Refusal(cause, key_id, team, scope, dimension, retry_after, remaining)

    async def settle(self, settlement: Settlement) -> SettleResult:
        """One transaction: the entry, and the counters only if the entry is new."""
        parameters = (
            settlement.attempt_id,
            settlement.kind,
            settlement.input_tokens,
            settlement.output_tokens,
            settlement.amount_micro_usd,
            settlement.usage_source,
            settlement.outcome,
            self._replica,
        )
        async with self._database.connection() as connection:
            cursor = await connection.execute(_SETTLE, parameters, prepare=True)
            row = await cursor.fetchone()
        if row is None:
            raise RuntimeError("settle_attempt gave no result")
        return cast("SettleResult", row[0])
