"""Metrics of budgets. Labels are names of orgs, teams, models and providers; never a key."""

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily

from terrace_gateway.money.budget_store import BudgetAlert, BudgetRatio


class BudgetMetrics:
    """What the watch and the webhooks tell. Alerts are counted by the guard that recorded them."""

    def __init__(self, r: CollectorRegistry) -> None:
        self.ratios: tuple[BudgetRatio, ...] = ()
        """As of the last look; empty while the database is away."""
        self._alerts = Counter(
            "terrace_budget_alerts", "Thresholds of budgets that were passed.",
            ("scope", "dimension", "mode"), registry=r,
        )  # fmt: skip
        self._deliveries = Counter(
            "terrace_alert_deliveries", "Posts of alerts to webhooks.", ("webhook", "result"),
            registry=r,
        )  # fmt: skip
        r.register(self)  # pyright: ignore[reportArgumentType]

    def raised(self, alert: BudgetAlert) -> None:
        """An alert is in this guard's journal."""
        self._alerts.labels(alert.scope, alert.dimension, alert.mode).inc()

    def delivery(self, webhook: str, result: str) -> None:
        """One post: ``delivered``, ``failed``; or ``given_up``, after many."""
        self._deliveries.labels(webhook, result).inc()

    def collect(self) -> Iterator[Any]:
        """As prometheus_client asks."""
        used = GaugeMetricFamily(
            "terrace_budget_used_ratio",
            "Used part of a budget's present window, running calls included; the fullest budgets.",
            labels=["scope", "scope_id", "dimension", "window"],
        )
        for one in self.ratios:
            used.add_metric([one.scope, one.scope_id, one.dimension, one.window], one.ratio)
        yield used
