"""Writing the caps that a governance version declares. A cap that ends is retired, never deleted:
when it comes back, it goes on from what it has counted."""

from collections.abc import Iterable

from terrace_common.governance.compiled import DeclaredCap
from terrace_gateway.database import Connection

UPSERT = (
    "INSERT INTO cap (scope, scope_id, dimension, window_kind, window_seconds, window_unit,"
    " window_zone, amount, mode, thresholds, origin)"
    " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
    " ON CONFLICT (scope, scope_id, dimension, window_seconds, window_key) DO UPDATE"
    " SET amount = excluded.amount, mode = excluded.mode, thresholds = excluded.thresholds,"
    " origin = excluded.origin, retired_at = NULL"
    " WHERE (cap.amount, cap.mode, cap.thresholds, cap.origin, cap.retired_at) IS DISTINCT FROM"
    " (excluded.amount, excluded.mode, excluded.thresholds, excluded.origin, NULL::timestamptz)"
    " RETURNING cap_id"
)
_NOW = (
    "SELECT cap_id, scope, scope_id, dimension, window_kind, "
    " CASE window_kind WHEN 'calendar' THEN 0 ELSE abs(window_seconds) END, window_unit,"
    " window_zone, amount, mode, thresholds FROM cap WHERE origin = 'declared'"
    " AND retired_at IS NULL"
)
_RETIRE = "UPDATE cap SET retired_at = clock_timestamp() WHERE cap_id = ANY (%s)"

_UNIT_SECONDS = {"minute": 60, "hour": 3600, "day": 86_400, "week": 604_800, "month": 2_592_000}

Place = tuple[str, str, str, str, int, str | None, str]
Value = tuple[int | None, str, tuple[int, ...]]


async def write_declared_caps(connection: Connection, caps: Iterable[DeclaredCap]) -> int:
    """Make the live caps of origin ``declared`` equal to ``caps``, in the caller's transaction.

    Returns how many rows changed. The caller holds the row lock of ``policy_head``.
    """
    cursor = await connection.execute(_NOW)
    now: dict[Place, tuple[int, Value]] = {}
    for row in await cursor.fetchall():
        place: Place = (*row[1:6], row[6], row[7] or "UTC")
        now[place] = (row[0], (row[8], row[9], tuple(row[10] or ())))
    wanted: dict[Place, Value] = {
        _place(cap): (cap.amount, cap.mode, cap.thresholds) for cap in caps
    }
    changed = [
        (*place, amount, mode, list(thresholds), "declared")
        for place, (amount, mode, thresholds) in sorted(wanted.items(), key=_lock_order)
        if place not in now or now[place][1] != (amount, mode, thresholds)
    ]
    if changed:
        await connection.cursor().executemany(UPSERT, changed)
    retired = [cap_id for place, (cap_id, _) in now.items() if place not in wanted]
    if retired:
        await connection.execute(_RETIRE, (retired,))
    return len(changed) + len(retired)


def _lock_order(item: tuple[Place, Value]) -> tuple[str, str, str, int, str]:
    # A lowered cap locks its counters: in the order in which grants do.
    scope, scope_id, dimension, kind, seconds, unit, zone = item[0]
    if kind == "calendar":
        return (
            scope,
            scope_id,
            dimension,
            -_UNIT_SECONDS[unit or "month"],
            f"calendar {unit} {zone}",
        )
    if kind == "rolling":
        return scope, scope_id, dimension, -seconds, "rolling"
    return scope, scope_id, dimension, seconds, ""


def _place(cap: DeclaredCap) -> Place:
    window = cap.window
    return (
        cap.scope, cap.scope_id, cap.dimension, window.kind, window.seconds, window.unit,
        window.zone,
    )  # fmt: skip
