"""Admin routes of caps: what is in force and spent; changes of what the spec does not declare."""

from typing import Annotated, Any, Literal, Self

import structlog
from psycopg.rows import DictRow, dict_row
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from terrace_common.governance.quotas import known_zone
from terrace_gateway.admin.admission import Admission, still_admitted
from terrace_gateway.admin.audit import record
from terrace_gateway.admin.key_store import PolicyMovedError
from terrace_gateway.admin.known_names import TEAM_OF_KEYS, unknown_name
from terrace_gateway.admin.routing import AdminCall, AdminRefusal, AdminRoute, Query
from terrace_gateway.admin.spec_in_force import Names, SpecInForce, still_in_force
from terrace_gateway.database import Connection, Database
from terrace_gateway.policy.declared_caps import UPSERT
from terrace_gateway.runtime import Runtime
from terrace_gateway.surfaces.json_body import invalid

log = structlog.get_logger()

MAX_AMOUNT = 10**15
MAX_ROWS = 1000
CAP_BELOW_SPEND = "cap-below-spend"
Percent = Annotated[int, Field(ge=1, le=100, strict=True)]

_LOCK = "SELECT epoch FROM policy_head FOR UPDATE"
_ROWS = (
    "SELECT c.cap_id, c.scope, c.scope_id, c.dimension, c.window_kind,"
    " CASE c.window_kind WHEN 'calendar' THEN 0 ELSE abs(c.window_seconds) END AS window_seconds,"
    " c.window_unit, c.window_zone, c.amount, c.mode, c.thresholds, c.origin,"
    " (cap_window(c.window_kind, abs(c.window_seconds), c.window_unit, c.window_zone,"
    " clock_timestamp())).window_end AS window_ends,"
    " s.settled, s.outstanding FROM cap c JOIN cap_spend() s USING (cap_id)"
)
_LIST = (
    _ROWS + " WHERE c.retired_at IS NULL AND (%(scope)s::text IS NULL OR c.scope = %(scope)s)"
    " AND (%(scope_id)s::text IS NULL OR c.scope_id = %(scope_id)s) AND c.cap_id > %(after)s"
    " ORDER BY c.cap_id LIMIT %(limit)s"
)
_ONE = (
    _ROWS + " WHERE c.retired_at IS NULL AND (c.scope, c.scope_id, c.dimension, c.window_kind)"
    " = (%(scope)s, %(scope_id)s, %(dimension)s, %(window_kind)s)"
    " AND CASE c.window_kind WHEN 'calendar' THEN 0 ELSE abs(c.window_seconds) END"
    " = %(window_seconds)s AND c.window_unit IS NOT DISTINCT FROM %(window_unit)s"
    " AND c.window_zone = %(window_zone)s"
)
_RETIRED = (
    "SELECT settled + outstanding AS used FROM retired_cap_spend()"
    " WHERE (scope, scope_id, dimension, window_kind, window_seconds)"
    " = (%(scope)s, %(scope_id)s, %(dimension)s, %(window_kind)s, %(window_seconds)s)"
    " AND window_unit IS NOT DISTINCT FROM %(window_unit)s AND window_zone = %(window_zone)s"
)
_KEY = "SELECT EXISTS (SELECT FROM virtual_key WHERE key_id = %s)"


class CapChange(BaseModel):
    """A cap of a key or a team. ``amount`` null: counted and not limited."""

    model_config = ConfigDict(extra="forbid")

    scope: Literal["key", "team"]
    scope_id: str = Field(min_length=1, max_length=128)
    dimension: Literal[
        "requests", "input_tokens", "output_tokens", "total_tokens", "micro_usd", "concurrency"
    ]
    window_kind: Literal["lifetime", "fixed", "calendar", "rolling"] = "lifetime"
    window_seconds: int = Field(default=0, ge=0, le=366 * 86_400, strict=True)
    window_unit: Literal["minute", "hour", "day", "week", "month"] | None = None
    window_zone: Annotated[str, AfterValidator(known_zone)] = Field(
        default="UTC", max_length=64, description="IANA name, for calendar windows."
    )
    amount: int | None = Field(ge=0, le=MAX_AMOUNT, strict=True)
    mode: Literal["block", "audit"] = "block"
    thresholds: list[Percent] = Field(default_factory=list, max_length=10)
    reason: str = Field(min_length=1, max_length=512)
    allow: list[Literal["cap-below-spend"]] = Field(default_factory=list)

    @model_validator(mode="after")
    def _window_is_whole(self) -> Self:
        if (self.window_kind in ("fixed", "rolling")) != (self.window_seconds > 0):
            raise ValueError("window_seconds belongs to fixed and rolling windows")
        if (self.window_kind == "calendar") != (self.window_unit is not None):
            raise ValueError("window_unit belongs to calendar windows")
        if self.window_kind != "calendar" and self.window_zone != "UTC":
            raise ValueError("window_zone belongs to calendar windows")
        if self.dimension == "concurrency" and self.window_kind != "lifetime":
            raise ValueError("concurrency has no window")
        return self


class Caps:
    """Endpoints of caps."""

    def __init__(self, runtime: Runtime) -> None:
        self._store = CapStore(runtime.database)
        self._spec = SpecInForce(runtime)

    async def list_caps(self, call: AdminCall) -> dict[str, Any]:
        """A page of caps with what their present windows have used."""
        limit = call.number("limit", default=MAX_ROWS, low=1, high=MAX_ROWS)
        after = call.number("after", default=0, low=0, high=2**62)
        rows = await self._store.page(call.text("scope"), call.text("scope_id"), after, limit + 1)
        page = rows[:limit]
        return {"caps": page, "next": page[-1]["cap_id"] if len(rows) > limit else None}

    async def put(self, call: AdminCall) -> dict[str, Any]:
        """Set a cap that the spec does not declare; it holds within one policy lease."""
        body = await call.read(CapChange)
        while True:
            names = await self._spec.in_force() if body.scope == "team" else None
            try:
                row = await self._store.put(
                    body, actor=call.actor, names=names, admission=call.admission
                )
            except PolicyMovedError:
                continue
            break
        log.info("cap_changed", cap=row["cap_id"])
        return row


class CapStore:
    """Caps in the database. Raises ``AuthorityUnavailableError`` while Postgres is away."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(
        self, scope: str | None, scope_id: str | None, after: int, limit: int
    ) -> list[DictRow]:
        """Caps in force by id."""
        parameters = {"scope": scope, "scope_id": scope_id, "after": after, "limit": limit}
        async with self._database.connection() as connection:
            cursor = connection.cursor(row_factory=dict_row)
            await cursor.execute(_LIST.encode(), parameters)
            return await cursor.fetchall()

    async def put(
        self,
        change: CapChange,
        *,
        actor: str,
        names: Names | None,
        admission: Admission | None = None,
    ) -> DictRow:
        """Insert or change a cap, audited. ``names``: those that a team may have.

        Raises ``PolicyMovedError`` if they are of another version than the one in force, and
        ``ApiError`` for a key, or a team, that there is not: a misspelt one would cap
        nobody. Raises ``AdminRefusal`` (409) for a declared cap, and for an amount below what is
        spent unless that is allowed.
        """
        place = change.model_dump(
            include={"scope", "scope_id", "dimension", "window_kind", "window_seconds",
                     "window_unit", "window_zone"}
        )  # fmt: skip
        async with self._database.connection() as connection, connection.transaction():
            await connection.execute(_LOCK)
            await still_admitted(connection, admission)
            cursor = connection.cursor(row_factory=dict_row)
            if change.scope == "key":
                exists = await connection.execute(_KEY, (change.scope_id,))
                if await exists.fetchone() != (True,):
                    raise invalid("there is no such key", "scope_id")
            elif names is not None:
                await _check_team(connection, change.scope_id, names)
            await cursor.execute(_ONE.encode(), place)
            old = await cursor.fetchone()
            if old is None:  # one that comes back goes on from what it has counted
                await cursor.execute(_RETIRED.encode(), place)
                retired = await cursor.fetchone()
                _check_amount(change, 0 if retired is None else retired["used"])
            else:
                _check(change, old)
            await connection.execute(
                UPSERT,
                (*place.values(), change.amount, change.mode, change.thresholds, "runtime"),
            )
            await cursor.execute(_ONE.encode(), place)
            row = await cursor.fetchone()
            if row is None:
                raise RuntimeError("a cap vanished in its own transaction")
            detail = {
                "dimension": change.dimension, "window_kind": change.window_kind,
                "window_seconds": change.window_seconds, "window_unit": change.window_unit,
                "amount": change.amount, "before": None if old is None else old["amount"],
            }  # fmt: skip
            await record(
                connection, actor=actor, action="cap.change",
                subject=f"{change.scope}:{change.scope_id}", reason=change.reason, detail=detail,
            )  # fmt: skip
        return row


async def _check_team(connection: Connection, team: str, names: Names) -> None:
    await still_in_force(connection, names.version)
    declared = [one.name for one in names.newest.teams]
    if team in declared:
        return
    if names.any_team:
        exists = await connection.execute(TEAM_OF_KEYS, (team,))
        if await exists.fetchone() == (True,):
            return
    raise unknown_name("team", team, declared, "scope_id")


def _check(change: CapChange, old: DictRow) -> None:
    if old["origin"] == "declared":
        raise AdminRefusal(
            409, "conflict", "the governance spec declares this cap: change it there"
        )
    _check_amount(change, old["settled"] + old["outstanding"])


def _check_amount(change: CapChange, used: int) -> None:
    if change.amount is not None and change.amount < used and CAP_BELOW_SPEND not in change.allow:
        raise AdminRefusal(
            409, CAP_BELOW_SPEND,
            f"{used} are spent and reserved already: allow {CAP_BELOW_SPEND} to go below",
            extra={"used": used},
        )  # fmt: skip


def routes(runtime: Runtime) -> list[AdminRoute]:
    """Routes of caps."""
    caps = Caps(runtime)
    return [
        AdminRoute("GET", "/caps", caps.list_caps, "Caps with what their windows have used.",
                   "viewer", answer="A page: `caps` and `next`.",
                   query=(Query("scope", "org, team, user, app, key, model or provider."),
                          Query("scope_id", "Name, or a key's id."),
                          Query("after", "The `next` of the page before.", "integer"),
                          Query("limit", f"At most so many, up to {MAX_ROWS}.", "integer"))),
        AdminRoute("PUT", "/caps", caps.put, "Set a cap that the spec does not declare.", "admin",
                   body=CapChange, answer="The cap.", changes_policy=True),
    ]  # fmt: skip
