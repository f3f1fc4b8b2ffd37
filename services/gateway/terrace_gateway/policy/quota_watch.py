"""Watches the age of upstream quotas, in every guard: a share that nobody has confirmed for too
long is lowered, and told, whether or not quota_sync lives."""

import asyncio
from collections.abc import Iterator
from typing import Any, Protocol

import structlog
from prometheus_client.core import GaugeMetricFamily

from terrace_gateway.calls.ports import Decision
from terrace_gateway.policy.upstream_quotas import Degraded, QuotaStanding, UpstreamQuotaStore
from terrace_gateway.turns import Turns

log = structlog.get_logger()

EVERY_SECONDS = 10.0


class QuotaJournal(Protocol):
    """The part of the journal that changes of quotas need."""

    async def record(self, decision: Decision) -> None:
        """An entry of its own, durable when it returns. Raises ``AuthorityUnavailableError``."""
        ...


class UpstreamQuotaWatch:
    """Give it to ``registry.register`` as well."""

    def __init__(
        self,
        store: UpstreamQuotaStore,
        journal: QuotaJournal,
        *,
        every_seconds: float = EVERY_SECONDS,
    ) -> None:
        self._store = store
        self._journal = journal
        self._every_seconds = every_seconds
        self._resting = False
        self.turns = Turns("quota_watch")
        self.standing = QuotaStanding(0, 0, 0.0)
        """As of the last look."""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(self._every_seconds)
            with self.turns.turn():
                await self.look()

    async def look(self) -> int:
        """One look; how many shares it lowered, each an entry of the ledger.

        Raises ``AuthorityUnavailableError``: nothing was lowered, or the spool takes no entry of
        what was (the audit record, made with the change, has it); ``psycopg.Error``: nothing was.
        """
        if self._resting:
            return 0
        lowered, self.standing = await self._store.degrade()
        details = [_detail(one) for one in lowered]
        for detail in details:
            log.warning("upstream_quota_stale", **detail)
        for detail in details:
            if not self._resting:
                await self._journal.record(
                    Decision("alert", "upstream_quota_stale", detail, "", "", None)
                )
        return len(lowered)

    def rest(self) -> None:
        """Look no more: the journal is about to be sealed. Another guard does it."""
        self._resting = True

    def collect(self) -> Iterator[Any]:
        """As prometheus_client asks."""
        yield GaugeMetricFamily(
            "terrace_upstream_quotas_stale",
            "Upstream quotas of which a lower share holds, because nobody has read them lately.",
            value=self.standing.degraded,
        )
        yield GaugeMetricFamily(
            "terrace_upstream_quotas_vanished",
            "Upstream quotas that the provider has stopped naming; their last values hold.",
            value=self.standing.vanished,
        )
        yield GaugeMetricFamily(
            "terrace_upstream_quota_oldest_seconds",
            "Age of the upstream quota that was read the longest ago.",
            value=self.standing.oldest_seconds,
        )


def _detail(one: Degraded) -> dict[str, object]:
    pool, dimension, seconds = one.place
    return {
        "pool": pool, "dimension": dimension, "window_seconds": seconds,
        "amount": one.amount, "age_seconds": round(one.age_seconds),
    }  # fmt: skip
