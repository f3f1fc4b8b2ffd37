"""Budget alerts in the database: raised once, claimed by one guard at a time, delivered until
heard. The rules are those of ``migrations/0012_budget_alerts.sql``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, LiteralString

from psycopg.rows import DictRow, dict_row

from terrace_gateway.database import Database
from terrace_gateway.ledger.cursor import SettledIds

LOOK_LIMIT = 200
"""Counters, changes and alerts that one look takes of each kind."""
CLAIM_SECONDS = 15.0
"""After that another guard does the work of one that has not said that it is done."""
SHOWN_BUDGETS = 500
"""Budgets of which the use is a metric: the fullest."""
KEPT_DAYS = 90
SETTLING_SECONDS = 2.0

_WORK = (
    "(SELECT 0 AS kind, counter_id AS id FROM budget_due ORDER BY counter_id LIMIT %(limit)s)"
    " UNION ALL (SELECT 1, recheck_id FROM budget_recheck WHERE seen IS NULL"
    " OR seen < pg_snapshot_xmin(pg_current_snapshot()) ORDER BY recheck_id LIMIT %(limit)s)"
    " UNION ALL (SELECT 2, alert_id FROM budget_alert WHERE rearmed_at IS NULL"
    " AND rearm_at <= clock_timestamp() ORDER BY rearm_at LIMIT %(limit)s)"
)
_STEPS: tuple[LiteralString, ...] = (
    "SELECT raise_budget_alerts(%s)",
    "SELECT recheck_budget(%s)",
    "SELECT rearm_budget_alert(%s)::integer",
)
_CLAIM = (
    "UPDATE budget_alert SET claimed_until = clock_timestamp() + make_interval(secs => %s)"
    " WHERE alert_id IN (SELECT alert_id FROM budget_alert WHERE recorded_at IS NULL"
    " AND claimed_until < clock_timestamp() ORDER BY alert_id LIMIT %s FOR UPDATE SKIP LOCKED)"
    " RETURNING *"
)
_RECORDED = (
    "WITH mine AS (UPDATE budget_alert SET recorded_at = clock_timestamp(), recorded_by = %s"
    " WHERE alert_id = %s AND recorded_at IS NULL RETURNING alert_id)"
    " INSERT INTO budget_delivery (alert_id, webhook) SELECT alert_id, unnest(%s::text[]) FROM mine"
    " ON CONFLICT DO NOTHING"
)
_NEXT_DELIVERY = (
    "WITH mine AS (UPDATE budget_delivery SET attempts = attempts + 1,"
    " next_at = clock_timestamp() + make_interval(secs => %s)"
    " WHERE (alert_id, webhook) = (SELECT alert_id, webhook FROM budget_delivery"
    " WHERE webhook = %s AND delivered_at IS NULL AND gave_up_at IS NULL"
    " AND next_at <= clock_timestamp() ORDER BY next_at LIMIT 1 FOR UPDATE SKIP LOCKED)"
    " RETURNING alert_id, attempts)"
    " SELECT a.*, mine.attempts FROM mine JOIN budget_alert a USING (alert_id)"
)
_DELIVERED = (
    "UPDATE budget_delivery SET delivered_at = clock_timestamp(), last_error = NULL"
    " WHERE alert_id = %s AND webhook = %s"
)
_FAILED = (
    "UPDATE budget_delivery SET last_error = %s,"
    " next_at = clock_timestamp() + make_interval(secs => %s)"
    " WHERE alert_id = %s AND webhook = %s AND delivered_at IS NULL"
)
_GIVE_UP = (
    "UPDATE budget_delivery d SET gave_up_at = clock_timestamp() FROM budget_alert a"
    " WHERE a.alert_id = d.alert_id AND d.delivered_at IS NULL AND d.gave_up_at IS NULL"
    " AND a.raised_at < clock_timestamp() - make_interval(secs => %s) RETURNING d.webhook"
)
_RATIOS = (
    "SELECT k.scope, k.scope_id, k.dimension, k.window_kind, abs(k.window_seconds), k.window_unit,"
    " k.window_zone, (greatest(0, t.settled + t.outstanding + t.sliced - coalesce(x.expired, 0))"
    " / k.amount::double precision) AS ratio"
    " FROM cap k CROSS JOIN LATERAL cap_window(k.window_kind, abs(k.window_seconds), k.window_unit,"
    " k.window_zone, clock_timestamp()) w"
    " JOIN counter t ON t.scope = k.scope AND t.scope_id = k.scope_id"
    " AND t.dimension = k.dimension AND t.window_seconds = k.window_seconds"
    " AND t.window_key = k.window_key AND t.window_start = w.window_start"
    " LEFT JOIN LATERAL (SELECT sum(b.amount) AS expired FROM rolling_bucket b"
    " WHERE k.window_kind = 'rolling' AND b.counter_id = t.counter_id AND b.bucket_start"
    " + make_interval(secs => rolling_width(abs(k.window_seconds)))"
    " <= clock_timestamp() - make_interval(secs => abs(k.window_seconds))) x ON true"
    " WHERE k.scope IN ('org', 'team', 'model', 'provider') AND k.retired_at IS NULL"
    " AND k.amount > 0 ORDER BY ratio DESC, k.cap_id LIMIT %s"
)
_DROP = (
    "DELETE FROM budget_alert WHERE alert_id IN (SELECT alert_id FROM budget_alert"
    " WHERE raised_at < clock_timestamp() - make_interval(days => %(days)s)"
    " AND (rearmed_at IS NOT NULL"
    " OR window_ends < clock_timestamp() - make_interval(days => %(days)s)) LIMIT 500)"
)
_PAGE = (
    "SELECT a.*, coalesce((SELECT jsonb_agg(jsonb_build_object('webhook', d.webhook,"
    " 'attempts', d.attempts, 'last_error', d.last_error, 'state', CASE"
    " WHEN d.delivered_at IS NOT NULL THEN 'delivered'"
    " WHEN d.gave_up_at IS NOT NULL THEN 'given_up' ELSE 'waiting' END) ORDER BY d.webhook)"
    " FROM budget_delivery d WHERE d.alert_id = a.alert_id), '[]') AS deliveries"
    " FROM budget_alert a WHERE a.alert_id > %s AND a.alert_id <= %s ORDER BY a.alert_id LIMIT %s"
)

_LAST: LiteralString = (
    "SELECT pg_sequence_last_value(pg_get_serial_sequence('budget_alert', 'alert_id')::regclass)"
)

_UNITS = {60: "minute", 3600: "hour", 86_400: "day", 604_800: "week"}


@dataclass(frozen=True, slots=True)
class BudgetAlert:
    """A budget has reached a percentage of its amount. Amounts are calls, tokens or micro-USD."""

    alert_id: int
    uid: str
    """The same in every delivery of this alert, and of no other."""
    scope: str
    scope_id: str
    """A name of the spec, or a key's id."""
    dimension: str
    window: str
    """Such as ``calendar month UTC`` or ``rolling hour``."""
    window_start: datetime | None
    """``None``: a lifetime or a rolling window."""
    window_ends: datetime | None
    mode: str
    percent: int
    amount: int
    used: int
    raised_at: datetime
    rearmed_at: datetime | None = None
    recorded_at: datetime | None = None
    recorded_by: str | None = None

    def detail(self) -> dict[str, object]:
        """Plain data for the journal and for receivers."""
        return {
            "alert": self.uid, "scope": self.scope, "scope_id": self.scope_id,
            "dimension": self.dimension, "window": self.window,
            "window_start": _text(self.window_start), "window_ends": _text(self.window_ends),
            "mode": self.mode, "percent": self.percent, "amount": self.amount, "used": self.used,
            "raised_at": _text(self.raised_at),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class BudgetRatio:
    """What a budget's present window has used of its amount, 1: all."""

    scope: str
    scope_id: str
    dimension: str
    window: str
    ratio: float


class BudgetStore:
    """The tables of 0012. Every method raises ``AuthorityUnavailableError``."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._ids = SettledIds(database, _LAST)

    async def work(self) -> list[tuple[int, int]]:
        """What is to be looked at: kind and id, for ``step``. Reads only what has moved."""
        async with self._database.connection() as connection:
            rows = await (await connection.execute(_WORK, {"limit": LOOK_LIMIT})).fetchall()
        return [(row[0], row[1]) for row in rows]

    async def step(self, kind: int, number: int) -> int:
        """Look at one, in a transaction of its own. Returns how many alerts it raised or armed."""
        async with self._database.connection() as connection:
            row = await (await connection.execute(_STEPS[kind], (number,))).fetchone()
        return 0 if row is None else row[0]

    async def claim(self, limit: int = LOOK_LIMIT) -> list[BudgetAlert]:
        """Alerts that nobody has recorded; for ``CLAIM_SECONDS`` they are the caller's."""
        async with self._database.connection() as connection:
            cursor = connection.cursor(row_factory=dict_row)
            await cursor.execute(_CLAIM, (CLAIM_SECONDS, limit))
            rows = await cursor.fetchall()
        return sorted((_alert(row) for row in rows), key=lambda alert: alert.alert_id)

    async def recorded(self, alert_id: int, *, replica: str, webhooks: Sequence[str]) -> None:
        """It is in the journal of ``replica``, and goes to ``webhooks``. Idempotent."""
        async with self._database.connection() as connection:
            await connection.execute(_RECORDED, (replica, alert_id, list(webhooks)))

    async def next_delivery(
        self, webhook: str, claim_seconds: float
    ) -> tuple[BudgetAlert, int] | None:
        """An alert that ``webhook`` has not heard, and which attempt this is, from 1."""
        async with self._database.connection() as connection:
            cursor = connection.cursor(row_factory=dict_row)
            await cursor.execute(_NEXT_DELIVERY, (claim_seconds, webhook))
            row = await cursor.fetchone()
        return None if row is None else (_alert(row), row["attempts"])

    async def delivered(self, alert_id: int, webhook: str) -> None:
        """The receiver has taken it."""
        async with self._database.connection() as connection:
            await connection.execute(_DELIVERED, (alert_id, webhook))

    async def failed(
        self, alert_id: int, webhook: str, error: str, *, again_seconds: float
    ) -> None:
        """It has not; it is tried again."""
        async with self._database.connection() as connection:
            await connection.execute(_FAILED, (error, again_seconds, alert_id, webhook))

    async def give_up(self, after_seconds: float) -> list[str]:
        """End deliveries of alerts that are so old; the webhook of each."""
        async with self._database.connection() as connection:
            rows = await (await connection.execute(_GIVE_UP, (after_seconds,))).fetchall()
        return [row[0] for row in rows]

    async def ratios(self) -> tuple[BudgetRatio, ...]:
        """Use of budgets of orgs, teams, models and providers, the fullest first, bounded."""
        async with self._database.connection() as connection:
            rows = await (await connection.execute(_RATIOS, (SHOWN_BUDGETS,))).fetchall()
        return tuple(
            BudgetRatio(row[0], row[1], row[2], window_text(*row[3:7]), row[7]) for row in rows
        )

    async def drop_old(self) -> None:
        """Forget what ended long ago. The ledger keeps its record."""
        async with self._database.connection() as connection:
            await connection.execute(_DROP, {"days": KEPT_DAYS})

    async def page(self, after: int, limit: int) -> list[dict[str, Any]]:
        """Alerts by number, with what their receivers have heard. None with a lower number than one
        of these comes later."""
        settled = await self._ids.wait(SETTLING_SECONDS)
        async with self._database.connection() as connection:
            cursor = connection.cursor(row_factory=dict_row)
            await cursor.execute(_PAGE, (after, settled, limit))
            rows = await cursor.fetchall()
        return [_row(row) for row in rows]


def window_text(kind: str, seconds: int, unit: str | None, zone: str) -> str:
    """A window in words: one text per window, for labels and people."""
    if kind == "calendar":
        return f"calendar {unit} {zone}"
    if kind == "lifetime":
        return kind
    return f"{kind} {_UNITS.get(seconds, f'{seconds} s')}"


def _row(row: DictRow) -> dict[str, Any]:
    alert = _alert(row)
    return {
        "alert_id": alert.alert_id, **alert.detail(), "rearmed_at": alert.rearmed_at,
        "recorded_at": alert.recorded_at, "recorded_by": alert.recorded_by,
        "deliveries": row["deliveries"],
    }  # fmt: skip


def _alert(row: Mapping[str, Any]) -> BudgetAlert:
    windowed = row["window_ends"] is not None
    return BudgetAlert(
        alert_id=row["alert_id"],
        uid=str(row["uid"]),
        scope=row["scope"],
        scope_id=row["scope_id"],
        dimension=row["dimension"],
        window=window_text(
            row["window_kind"], row["window_seconds"], row["window_unit"], row["window_zone"]
        ),
        window_start=row["window_start"] if windowed else None,
        window_ends=row["window_ends"],
        mode=row["mode"],
        percent=row["percent"],
        amount=row["amount"],
        used=row["used"],
        raised_at=row["raised_at"],
        rearmed_at=row["rearmed_at"],
        recorded_at=row["recorded_at"],
        recorded_by=row["recorded_by"],
    )


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
