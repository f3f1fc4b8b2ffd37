"""Tells when a budget passes a threshold of its quota's ``alert_at``: to the journal, the log, the
metrics, and to webhooks. Runs in every guard; the database lets each alert be raised once."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from terrace_gateway.calls.ports import Decision
from terrace_gateway.crash_points import reach
from terrace_gateway.money.budget_metrics import BudgetMetrics
from terrace_gateway.money.budget_store import BudgetAlert, BudgetStore
from terrace_gateway.turns import DATABASE_FAILURES, Turns

log = structlog.get_logger()

EVERY_SECONDS = 2.0
LOOKS_PER_READING = 8
"""The use of all budgets is read that seldom, for the metric."""
REASON = "budget_threshold"


class AlertJournal(Protocol):
    """The part of the journal that alerts need."""

    async def record(self, decision: Decision) -> None:
        """Durable when it returns. Raises ``AuthorityUnavailableError``."""
        ...


class BudgetWatch:
    """Looks every few seconds; nothing on a call's path waits for it.

    An alert is raised exactly once. In the journal it stands once, but for a guard that died
    between its journal and the database: then another records it again, with the same ``alert``.
    """

    def __init__(
        self,
        store: BudgetStore,
        journal: AlertJournal,
        metrics: BudgetMetrics,
        webhooks: Callable[[], Sequence[str] | None],
        *,
        replica: str,
        every_seconds: float = EVERY_SECONDS,
    ) -> None:
        """``webhooks``: names of the spec in force; ``None``: none is known yet."""
        self._store = store
        self._journal = journal
        self._metrics = metrics
        self._webhooks = webhooks
        self._replica = replica
        self._every_seconds = every_seconds
        self._resting = False
        self.turns = Turns("budget_watch")

    async def run(self) -> None:
        """Look until cancelled."""
        looks = 0
        while True:
            try:
                await self.look()
                if looks % LOOKS_PER_READING == 0:
                    await self.read()
                looks += 1
                self.turns.done()
            except DATABASE_FAILURES as error:
                self.turns.miss(error)
                self._metrics.ratios = ()
                looks = 0
            await asyncio.sleep(self._every_seconds)

    async def look(self) -> list[BudgetAlert]:
        """Raise what is due and record what nobody has; the alerts that this guard recorded.

        Raises ``AuthorityUnavailableError``; the next look goes on where this one ended.
        """
        for kind, number in await self._store.work():
            try:
                if await self._store.step(kind, number):
                    reach("alerts.after-raise")
            except DATABASE_FAILURES as error:  # such as a row that is locked for long
                log.warning("budget_look_failed", error=type(error).__name__)
        webhooks = self._webhooks()
        if webhooks is None or self._resting:
            return []
        mine = await self._store.claim()
        reach("alerts.after-claim")
        for alert in mine:
            if self._resting:
                break
            await self._tell(alert, webhooks)
        return mine

    def rest(self) -> None:
        """Record nothing more: the journal is about to be sealed. Another guard does it."""
        self._resting = True

    async def read(self) -> None:
        """Read the use of budgets for the metric, and forget old alerts.

        Raises ``AuthorityUnavailableError``.
        """
        self._metrics.ratios = await self._store.ratios()
        await self._store.drop_old()

    async def _tell(self, alert: BudgetAlert, webhooks: Sequence[str]) -> None:
        detail = alert.detail()
        await self._journal.record(Decision("alert", REASON, detail, "", "", None))
        reach("alerts.after-record")
        await self._store.recorded(alert.alert_id, replica=self._replica, webhooks=webhooks)
        self._metrics.raised(alert)
        log.warning("budget_threshold", **detail)
