"""Metrics of quota_sync. Labels are regions, pools and kinds of failures."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from terrace_quota_sync.shares import PoolShares


class Metrics:
    """One registry per process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.leading = Gauge(
            "terrace_quota_sync_leading", "1: this replica reads and publishes.",
            registry=self.registry,
        )  # fmt: skip
        self.readings = Counter(
            "terrace_quota_sync_readings", "Readings of a region by result.",
            ("region", "result"), registry=self.registry,
        )  # fmt: skip
        self.publications = Counter(
            "terrace_quota_sync_publications", "Publications by result.",
            ("result",), registry=self.registry,
        )  # fmt: skip
        self._age = Gauge(
            "terrace_quota_sync_age_seconds",
            "Since the beginning of the reading that was last published; only of a leader.",
            ("region",), registry=self.registry,
        )  # fmt: skip
        self._stale = Gauge(
            "terrace_quota_sync_stale", "1: older than it may be, the lower share holds.",
            ("region",), registry=self.registry,
        )  # fmt: skip
        self._findings = Gauge(
            "terrace_quota_sync_findings", "Pools with a finding, by kind.",
            ("region", "finding"), registry=self.registry,
        )  # fmt: skip
        self._denied = Gauge(
            "terrace_quota_sync_denied", "1: the account may not call the model.",
            ("pool",), registry=self.registry,
        )  # fmt: skip
        self._share = Gauge(
            "terrace_quota_sync_share", "Our share of a quota while it is fresh.",
            ("pool", "dimension", "window_seconds"), registry=self.registry,
        )  # fmt: skip

    def aged(self, region: str, age: Callable[[], float], stale_after_seconds: float) -> None:
        """Show the age of a region from now on."""
        self._age.labels(region).set_function(age)
        self._stale.labels(region).set_function(lambda: float(age() >= stale_after_seconds))

    def read(self, region: str, pools: Iterable[PoolShares]) -> None:
        """Show what was published of a region."""
        kinds: dict[str, int] = dict.fromkeys(
            ("ambiguous", "unmatched", "profile_leads_elsewhere", "no_such_profile"), 0
        )
        for pool in pools:
            self._denied.labels(pool.pool).set(pool.access == "denied")
            for kind in pool.findings:
                kinds[kind] = kinds.get(kind, 0) + 1
            for share in pool.shares:
                self._share.labels(pool.pool, share.dimension, str(share.window_seconds)).set(
                    share.amount
                )
        for kind, count in kinds.items():
            self._findings.labels(region, kind).set(count)

    def forget(self) -> None:
        """Who does not lead knows no ages and no shares."""
        for gauge in (self._age, self._stale, self._findings, self._denied, self._share):
            gauge.clear()

    def exposition(self) -> bytes:
        """Prometheus text."""
        return generate_latest(self.registry)
