"""Reading and publishing, while this replica leads.

What was published is in the gateways' database, not here: a new leader begins by reading
everything. A region that cannot be read is left out of the publication and keeps what it has there;
its age grows, and the guards lower its share when it is too old.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from terrace_common.governance.upstream_pools import UpstreamPool, upstream_pools
from terrace_quota_sync.election import Election
from terrace_quota_sync.gateway_admin import GatewayAdmin, GatewayError, GovernanceInForce
from terrace_quota_sync.metrics import Metrics
from terrace_quota_sync.region_facts import RegionFacts
from terrace_quota_sync.region_reader import RegionUnreadError
from terrace_quota_sync.settings import QuotaSyncSettings
from terrace_quota_sync.shares import shares_of

log = structlog.get_logger()

MOST_DOUBLINGS = 16
THROTTLED_WAITS = 4  # a throttled reading waits so many times longer


class Reader(Protocol):
    """Reads one region, blocking."""

    def read(self, region: str, pools: Iterable[UpstreamPool]) -> RegionFacts:
        """Raises ``RegionUnreadError``."""
        ...


@dataclass(slots=True)
class RegionState:
    """How the readings of one region go."""

    due_at: float
    failures: int = 0
    published_at: float | None = None
    """Beginning of the reading that was last published."""
    unpublished: RegionFacts | None = None


class QuotaSync:
    """The work of a leader."""

    def __init__(
        self,
        settings: QuotaSyncSettings,
        admin: GatewayAdmin,
        election: Election,
        reader: Reader,
        *,
        metrics: Metrics,
        now: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._admin = admin
        self._election = election
        self._reader = reader
        self._metrics = metrics
        self._now = now
        self._regions: dict[str, RegionState] = {}
        self._pools: Sequence[UpstreamPool] = ()
        self._version: int | None = None
        self._catalogue_known = False
        self._fence: int | None = None
        self._publish_at = 0.0
        self._publish_failures = 0
        self._pools_changed = False

    @property
    def regions(self) -> dict[str, RegionState]:
        """Of the catalogue; empty while another one leads."""
        return self._regions

    async def run(self) -> None:
        """Work whenever this replica leads, until cancelled."""
        pause = min(1.0, self._settings.retry_seconds, self._settings.catalogue_seconds)
        catalogue_at = float("-inf")
        while True:
            if self._election.fence is None:
                self._forget()
                catalogue_at = float("-inf")
                await self._election.won()
            if self._version is None or self._now() >= catalogue_at:
                known = await self._look_at_catalogue()
                wait = self._settings.catalogue_seconds
                catalogue_at = self._now() + (wait if known else min(wait, pause))
            await self.step()
            await asyncio.sleep(pause)

    async def step(self) -> None:
        """Read what is due, and publish what was read."""
        fence = self._election.fence
        if fence is None or self._version is None:
            return
        if fence != self._fence:  # also after a gap in which another one may have led
            self._begin(fence)
        due = [name for name, state in self._regions.items() if state.due_at <= self._now()]
        await asyncio.gather(*(self._read(name) for name in due))
        fresh = any(state.unpublished is not None for state in self._regions.values())
        if (fresh or self._pools_changed) and self._now() >= self._publish_at:
            await self._publish()

    def _begin(self, fence: int) -> None:
        self._fence = fence
        self._metrics.leading.set(1)
        for state in self._regions.values():
            state.due_at = self._now()

    def _forget(self) -> None:
        self._regions, self._pools, self._version, self._fence = {}, (), None, None
        self._catalogue_known = self._pools_changed = False
        self._publish_at, self._publish_failures = 0.0, 0
        self._metrics.leading.set(0)
        self._metrics.forget()

    async def _look_at_catalogue(self) -> bool:
        try:
            found = await self._admin.governance()
        except GatewayError as error:
            log.warning("catalogue_not_read", error=error.code)
            return False
        if found.version != self._version:
            self._use(found)
        return True

    def _use(self, found: GovernanceInForce) -> None:
        pools = upstream_pools(found.governance, simulated=self._settings.simulated)
        names = sorted({pool.region for pool in pools})
        changed = tuple(pools) != tuple(self._pools)
        if changed or not self._catalogue_known:
            now = self._now()
            self._regions = {
                name: self._regions.get(name, RegionState(due_at=now)) for name in names
            }
            for state in self._regions.values():
                state.due_at = now
            self._pools_changed = True
            self._metrics.forget()
        self._version, self._pools, self._catalogue_known = found.version, pools, True
        log.info("catalogue", version=found.version, regions=names, pools=len(pools))

    async def _read(self, region: str) -> None:
        state = self._regions[region]
        mine = [pool for pool in self._pools if pool.region == region]
        throttled = False
        try:
            async with asyncio.timeout(self._settings.region_seconds):
                facts = await asyncio.to_thread(self._reader.read, region, mine)
        except TimeoutError:
            log.warning("region_not_read", region=region, why="it takes too long")
        except RegionUnreadError as error:
            throttled = error.throttled
            log.warning("region_not_read", region=region, why=str(error), throttled=throttled)
        except Exception:  # what a provider answers must not end the process
            log.exception("region_not_read", region=region, why="a defect")
        else:
            state.unpublished = facts
            state.failures = 0
            state.due_at = self._now() + self._settings.every_seconds * random.uniform(0.9, 1.0)  # noqa: S311
            self._metrics.readings.labels(region, "read").inc()
            for problem in facts.problems:
                log.warning("region_read_in_part", region=region, why=problem)
            return
        self._metrics.readings.labels(region, "throttled" if throttled else "failed").inc()
        wait = self._settings.retry_seconds * (THROTTLED_WAITS if throttled else 1)
        wait = min(wait * 2 ** min(state.failures, MOST_DOUBLINGS), self._settings.every_seconds)
        state.failures += 1
        # Spread, so that replicas and accounts that were throttled together do not come together.
        state.due_at = self._now() + wait * random.uniform(0.5, 1.0)  # noqa: S311

    async def _publish(self) -> None:
        fence = self._election.fence
        if fence is None or self._version is None:
            return
        settings = self._settings
        facts = [s.unpublished for s in self._regions.values() if s.unpublished is not None]
        shares = {one.region: shares_of(self._pools, one) for one in facts}
        publication = {
            "holder": self._election.holder,
            "fence": fence,
            "governance_version": self._version,
            "stale_after_seconds": settings.stale_after_seconds,
            "stale_percent": settings.stale_percent,
            "reason": "upstream quotas as AWS names them",
            "regions": [
                {
                    "region": one.region,
                    "age_seconds": max(0.0, self._now() - one.begun_at),
                    "pools": [pool.to_json() for pool in shares[one.region]],
                }
                for one in facts
            ],
        }
        try:
            changes = await self._admin.publish(publication)
        except GatewayError as error:
            self._not_published(error)
            return
        self._publish_failures, self._pools_changed = 0, False
        self._metrics.publications.labels("published").inc()
        for one in facts:
            state = self._regions.get(one.region)
            if state is None:
                continue
            state.unpublished, state.published_at = None, one.begun_at
            self._show(one, state)
            self._metrics.read(one.region, shares[one.region])
        log.info("published", fence=fence, regions=sorted(shares), changes=changes)

    def _not_published(self, error: GatewayError) -> None:
        log.warning("not_published", error=error.code)
        self._metrics.publications.labels(
            error.code if error.code in {"fenced", "version_conflict"} else "failed"
        ).inc()
        if error.code == "fenced":
            self._election.lost()
            return
        if error.code == "version_conflict":
            self._version = None  # read anew at the next look; nothing is published before that
        wait = self._settings.retry_seconds * 2 ** min(self._publish_failures, MOST_DOUBLINGS)
        self._publish_failures += 1
        self._publish_at = self._now() + min(wait, self._settings.every_seconds)

    def _show(self, facts: RegionFacts, state: RegionState) -> None:
        self._metrics.aged(
            facts.region,
            lambda: self._now() - (state.published_at or 0.0),
            self._settings.stale_after_seconds,
        )
