"""What a plan must know of the running system: live keys, kill switches that are on, and what caps
have counted."""

from terrace_common.governance.plan import CapSpend, Facts, LiveKey, LiveKill
from terrace_gateway.calls.ports import Window
from terrace_gateway.database import Connection

_KEYS = (
    "SELECT key_id, team, user_name, app, declared, models, policies FROM virtual_key"
    " WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > clock_timestamp())"
    " ORDER BY key_id"
)
_SPEND = (
    "SELECT s.scope, s.scope_id, s.dimension, s.window_kind, s.window_seconds, s.window_unit,"
    " s.window_zone, s.settled, s.outstanding,"
    " CASE WHEN c.origin = 'runtime' AND c.mode = 'block' THEN c.amount END"
    " FROM cap_spend() s JOIN cap c USING (cap_id)"
    " UNION ALL"
    " SELECT scope, scope_id, dimension, window_kind, window_seconds, window_unit, window_zone,"
    " settled, outstanding, NULL FROM retired_cap_spend()"
)
_KILLS = "SELECT kind, target FROM kill_switch WHERE lifted_at IS NULL ORDER BY kind, target"


async def read_facts(connection: Connection) -> Facts:
    """The facts, as of the caller's transaction."""
    keys = await (await connection.execute(_KEYS)).fetchall()
    spend = await (await connection.execute(_SPEND)).fetchall()
    kills = await (await connection.execute(_KILLS)).fetchall()
    return Facts(
        keys=tuple(
            LiveKey(
                key_id=row[0], team=row[1], user=row[2], app=row[3], key=row[4],
                models=None if row[5] is None else frozenset(row[5]),
                policies=tuple(row[6] or ()),
            )
            for row in keys
        ),
        spend=tuple(
            CapSpend(
                scope=row[0], scope_id=row[1], dimension=row[2],
                window=Window(row[3], row[4], row[5], row[6]), settled=row[7], outstanding=row[8],
                runtime=row[9],
            )
            for row in spend
        ),
        kills=tuple(LiveKill(*row) for row in kills),
    )  # fmt: skip
