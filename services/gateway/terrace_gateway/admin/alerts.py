"""Admin route of alerts: budgets that have passed a threshold, and who has heard of it."""

from typing import Any

from terrace_gateway.admin.routing import AdminCall, AdminRoute, Query
from terrace_gateway.money.budget_store import BudgetStore
from terrace_gateway.runtime import Runtime

MAX_ROWS = 1000


def routes(runtime: Runtime) -> list[AdminRoute]:
    """Routes of alerts."""
    store = BudgetStore(runtime.database)

    async def page(call: AdminCall) -> dict[str, Any]:
        limit = call.number("limit", default=MAX_ROWS, low=1, high=MAX_ROWS)
        rows = await store.page(call.number("after", default=0, low=0, high=2**62), limit + 1)
        alerts = rows[:limit]
        return {"alerts": alerts, "next": alerts[-1]["alert_id"] if len(rows) > limit else None}

    return [
        AdminRoute("GET", "/alerts", page, "Budgets that have passed a threshold, oldest first.",
                   "viewer", answer="A page: `alerts` with their deliveries, and `next`.",
                   query=(Query("after", "The `next` of the page before, or the last alert that"
                                " you know.", "integer"),
                          Query("limit", f"At most so many, up to {MAX_ROWS}.", "integer"))),
    ]  # fmt: skip
