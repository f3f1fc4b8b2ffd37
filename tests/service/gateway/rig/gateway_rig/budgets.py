"""Budget alerts over a real Postgres: counters that a test moves, a journal and a receiver that
keep their own books."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from gateway_rig.postgres import Postgres, free_port
from terrace_gateway.calls.ports import AuthorityUnavailableError, Decision, Window
from terrace_gateway.database import Database
from terrace_gateway.money.budget_alerts import BudgetWatch
from terrace_gateway.money.budget_metrics import BudgetMetrics
from terrace_gateway.money.budget_store import BudgetAlert, BudgetStore

MONTH = Window("calendar", unit="month", zone="Europe/Berlin")
_INSERT = (
    "INSERT INTO cap (scope, scope_id, dimension, window_kind, window_seconds, window_unit,"
    " window_zone, amount, mode, thresholds) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
    " RETURNING cap_id"
)
_COUNTER = (
    "INSERT INTO counter (scope, scope_id, dimension, window_seconds, window_key, window_start,"
    " window_end, {column}) SELECT k.scope, k.scope_id, k.dimension, k.window_seconds,"
    " k.window_key, w.window_start, w.window_end, %s FROM cap k,"
    " cap_window(k.window_kind, abs(k.window_seconds),"
    " k.window_unit, k.window_zone, %s::timestamptz - make_interval(secs => %s)) w"
    " WHERE k.cap_id = %s ON CONFLICT (scope, scope_id, dimension, window_seconds, window_key,"
    " window_start) DO UPDATE SET {column} = excluded.{column}"
)


class Journal:
    """Keeps what was recorded. ``broken``: it takes nothing."""

    def __init__(self) -> None:
        self.decisions: list[Decision] = []
        self.broken = False

    async def record(self, decision: Decision) -> None:
        await asyncio.sleep(0)
        if self.broken:
            raise AuthorityUnavailableError("no room")
        self.decisions.append(decision)

    @property
    def uids(self) -> list[str]:
        return [str(decision.detail["alert"]) for decision in self.decisions]


@dataclass
class Guard:
    """The part of a guard that looks at budgets."""

    database: Database
    store: BudgetStore
    journal: Journal
    registry: CollectorRegistry
    metrics: BudgetMetrics
    watch: BudgetWatch
    webhooks: list[str] = field(default_factory=list[str])


class Budgets:
    """A database with caps and counters."""

    def __init__(self, postgres: Postgres, name: str) -> None:
        self.postgres = postgres
        self.name = name
        self.guards: list[Guard] = []
        ((self.began,),) = self.sql("SELECT clock_timestamp()")
        """What moves a counter moves it then: no window of a test ends meanwhile."""

    def sql(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        with self.postgres.superuser(self.name) as connection:
            connection.execute("SET ROLE gateway")
            cursor = connection.execute(query.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def cap(
        self,
        amount: int | None,
        thresholds: Sequence[int],
        *,
        scope: str = "team",
        scope_id: str = "search",
        dimension: str = "micro_usd",
        window: Window = MONTH,
        mode: str = "block",
    ) -> int:
        ((cap_id,),) = self.sql(
            _INSERT, scope, scope_id, dimension, window.kind, window.seconds, window.unit,
            window.zone, amount, mode, list(thresholds),
        )  # fmt: skip
        return cap_id

    def use(
        self, cap_id: int, amount: int, *, seconds_ago: int = 0, column: str = "settled"
    ) -> None:
        """As a grant, an overrun, or a guard of the release before moves a counter."""
        self.sql(_COUNTER.format(column=column), amount, self.began, seconds_ago, cap_id)

    def raised(self, cap_id: int) -> list[int]:
        """Percentages of all alerts, in order."""
        rows = self.sql(
            "SELECT percent FROM budget_alert WHERE cap_id = %s ORDER BY alert_id", cap_id
        )
        return [row[0] for row in rows]

    def claims_lapse(self) -> None:
        """The time passes after which another guard takes over."""
        self.sql("UPDATE budget_alert SET claimed_until = '-infinity' WHERE recorded_at IS NULL")
        self.sql("UPDATE budget_delivery SET next_at = '-infinity' WHERE delivered_at IS NULL")

    async def guard(self, name: str = "", *, every_seconds: float = 0.02) -> Guard:
        database = Database(SecretStr(self.postgres.url(self.name)), size=4, wait_seconds=2)
        database.prepared = True
        await database.open()
        while not await database.probe():
            await asyncio.sleep(0.01)
        registry = CollectorRegistry()
        store, journal, metrics = BudgetStore(database), Journal(), BudgetMetrics(registry)
        webhooks: list[str] = []
        watch = BudgetWatch(
            store, journal, metrics, lambda: webhooks,
            replica=name or f"gateway-{len(self.guards)}", every_seconds=every_seconds,
        )  # fmt: skip
        guard = Guard(database, store, journal, registry, metrics, watch, webhooks)
        self.guards.append(guard)
        return guard

    async def settled_look(self, guard: Guard) -> list[BudgetAlert]:
        """Looks until nothing is left, also not the second look at changed caps."""
        found = await guard.watch.look()
        while await guard.store.work():
            found += await guard.watch.look()
        return found

    async def close(self) -> None:
        for guard in self.guards:
            await guard.database.close()


@asynccontextmanager
async def budgets_on(postgres: Postgres, database: str) -> AsyncIterator[Budgets]:
    """Over ``database``, which has all migrations."""
    budgets = Budgets(postgres, database)
    try:
        yield budgets
    finally:
        await budgets.close()


class Receiver:
    """A webhook receiver. ``answer``: a status, or ``hang``."""

    def __init__(self) -> None:
        self.port = free_port()
        self.answer: int | str = 204
        self.location = ""
        self.heard: list[tuple[Mapping[str, str], dict[str, Any]]] = []
        """Headers and bodies of all that came, also of what was refused."""
        self._released = asyncio.Event()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/alerts"

    @property
    def uids(self) -> list[str]:
        return [headers["idempotency-key"] for headers, _ in self.heard]

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._take)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def stop(self) -> None:
        self._released.set()
        if self._runner is not None:
            await self._runner.cleanup()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.heard) < count:
                await asyncio.sleep(0.01)

    async def _take(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.heard.append((headers, await request.json()))
        if self.answer == "hang":
            await self._released.wait()
            return web.Response(status=204)
        extra = {"location": self.location} if self.location else {}
        return web.Response(status=int(self.answer), headers=extra)
