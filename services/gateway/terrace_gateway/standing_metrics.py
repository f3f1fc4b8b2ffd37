"""How the guard stands, read from its parts when metrics are asked for: nothing on a call's path.

Labels are names of the catalogue and kinds; never a key, a team or text of a client.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from terrace_gateway.matching import Matcher
from terrace_gateway.money.slice_book import SliceBook
from terrace_gateway.policy.feed import NoPolicyError, PolicyFeed
from terrace_gateway.upstream.bulkhead import Bulkheads


@dataclass(frozen=True)
class StandingCollector:
    """Give it to ``registry.register``."""

    policy: PolicyFeed
    slices: SliceBook
    bulkheads: Bulkheads
    matcher: Matcher

    def collect(self) -> Iterator[Any]:
        """As prometheus_client asks."""
        yield from self._policy()
        yield from self._slices()
        yield from self._upstream()
        yield from self._health()

    def _policy(self) -> Iterator[Any]:
        yield _gauge(
            "terrace_policy_problem",
            "1: the newest governance version is not in force here.",
            float(self.policy.problem is not None),
        )
        try:
            now = self.policy.current()
        except NoPolicyError:
            return
        yield _gauge(
            "terrace_policy_age_seconds",
            "Since the question was sent whose answer last confirmed the policy in force.",
            now.age_seconds,
        )
        yield _gauge("terrace_policy_lease_seconds", "How old it may be.", now.lease_seconds)
        yield _gauge("terrace_policy_epoch", "Of the policy in force.", now.snapshot.epoch)
        yield _gauge("terrace_governance_version", "In force.", now.snapshot.version)
        models = GaugeMetricFamily(
            "terrace_models_in_force",
            "Of the governance in force; deployed=no: the translator was not started with them, and"
            " no call reaches them.",
            labels=["deployed"],
        )
        away = len(now.snapshot.undeployed)
        models.add_metric(["no"], away)
        models.add_metric(["yes"], len(now.snapshot.governance.models) - away)
        yield models
        kinds = Counter(kind for kind, _ in now.snapshot.kills)
        kills = GaugeMetricFamily(
            "terrace_kill_switches", "Kill switches that are pulled.", labels=["kind"]
        )
        for kind, count in sorted(kinds.items()):
            kills.add_metric([kind], count)
        yield kills

    def _slices(self) -> Iterator[Any]:
        yield _gauge(
            "terrace_slices_live",
            "1: the replica lease runs, so that granted slices may be used.",
            float(self.slices.is_live()),
        )
        yield CounterMetricFamily(
            "terrace_slice_grants", "Grant messages that were answered.", self.slices.grants
        )

    def _upstream(self) -> Iterator[Any]:
        running = GaugeMetricFamily(
            "terrace_upstream_running", "Calls in a provider's bulkhead.", labels=["provider"]
        )
        waiting = GaugeMetricFamily(
            "terrace_upstream_waiting", "Calls that wait for a place.", labels=["provider"]
        )
        places = GaugeMetricFamily(
            "terrace_upstream_places", "Calls at once that it allows.", labels=["provider"]
        )
        refused = CounterMetricFamily(
            "terrace_upstream_refused", "Calls that found no place.", labels=["provider"]
        )
        for provider, bulkhead in self.bulkheads.items():
            running.add_metric([provider], bulkhead.running)
            waiting.add_metric([provider], bulkhead.waiting)
            places.add_metric([provider], bulkhead.places)
            refused.add_metric([provider], bulkhead.refused)
        yield from (running, waiting, places, refused)

    def _health(self) -> Iterator[Any]:
        health = self.matcher.health
        models = GaugeMetricFamily(
            "terrace_model_troubled",
            "1: breaker open, throttled, frozen or full: some calls go elsewhere.",
            labels=["model"],
        )
        providers = GaugeMetricFamily(
            "terrace_provider_troubled", "1: breaker open or full.", labels=["provider"]
        )
        for model in sorted(health.troubled):
            models.add_metric([model], 1)
        for provider in sorted(health.troubled_providers):
            providers.add_metric([provider], 1)
        yield from (models, providers)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value)
