"""Every metric that an alert or the dashboard names is one that the guard exports."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from prometheus_client import CollectorRegistry

from terrace_common.telemetry import semconv
from terrace_gateway.calls.ports import Usage
from terrace_gateway.genai_metrics import GenAiMetrics
from terrace_gateway.ledger.metrics import LedgerCollector
from terrace_gateway.metrics import Metrics
from terrace_gateway.policy.feed import PolicyFeed
from terrace_gateway.policy.quota_watch import UpstreamQuotaWatch
from terrace_gateway.standing_metrics import StandingCollector
from terrace_gateway.turns import Turns, TurnsCollector
from terrace_gateway.upstream.bulkhead import BulkheadLimits, Bulkheads

PLACE = Path(__file__).parents[3] / "components/terrace_components/observability"
NAME = re.compile(r"\b((?:terrace|gen_ai)_[a-z0-9_]+)\b")
LABELS = {"gen_ai_request_model", "gen_ai_token_type"}


class Anything:
    """Stands in for the parts that a collector reads: every attribute is a small number."""

    def __getattr__(self, name: str) -> Any:
        return 1 if name not in {"journal", "reader", "recovery", "shipped"} else Anything()

    def __len__(self) -> int:
        return 0


class Standing:
    """Parts of a guard of which everything can be told."""

    problem = None
    kills = frozenset({("team", "a"), ("team", "b"), ("key", "c")})
    age_seconds, lease_seconds, epoch, version, grants = 0.5, 1.0, 7, 3, 11
    troubled = frozenset({"sim-small"})
    undeployed = frozenset({"sim-large"})
    models = ("sim-small", "sim-large", "sim-embed")
    troubled_providers = frozenset({"simulator"})

    @property
    def snapshot(self) -> "Standing":
        return self

    @property
    def health(self) -> "Standing":
        return self

    @property
    def governance(self) -> "Standing":
        return self

    def current(self) -> "Standing":
        return self

    def is_live(self) -> bool:
        return True


def standing() -> StandingCollector:
    bulkheads = Bulkheads(BulkheadLimits())
    bulkheads.of("simulator")
    part: Any = Standing()
    return StandingCollector(cast("PolicyFeed", part), part, bulkheads, part)


def exported() -> str:
    metrics = Metrics(replica="r", version="v")
    metrics.registry.register(standing())
    parts: Any = Anything()
    recovery: Any = Anything()
    recovery.__dict__["damaged_segments"] = ()
    parts.__dict__["recovery"] = recovery
    metrics.registry.register(LedgerCollector(parts, parts, parts, parts, parts))
    metrics.registry.register(UpstreamQuotaWatch(parts, parts))
    metrics.registry.register(TurnsCollector([Turns("heartbeat")]))
    return metrics.exposition().decode()


def samples(text: str) -> set[str]:
    """Names of samples that could be asked for, also of instruments without labels so far."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, flags=re.MULTILINE))
    ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    return {name + end for name, kind in kinds.items() for end in ends.get(kind, ("",))}


def asked() -> Iterator[tuple[str, str]]:
    rules = yaml.safe_load((PLACE / "alerts.yml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    board = json.loads((PLACE / "gateway_dashboard.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


@pytest.fixture(scope="module")
def known() -> set[str]:
    return samples(exported())


@pytest.mark.parametrize(("where", "expression"), sorted(set(asked())))
def test_every_metric_that_is_asked_for_exists(
    known: set[str], where: str, expression: str
) -> None:
    names = set(NAME.findall(expression)) - LABELS
    assert names, where
    assert names <= known, where


def test_every_alert_says_what_to_do() -> None:
    rules = yaml.safe_load((PLACE / "alerts.yml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in {"page", "ticket", "info"}
            assert {"summary", "action"} <= set(rule["annotations"])


def test_standing_is_told_without_names_of_callers() -> None:
    text = exported()
    assert 'terrace_kill_switches{kind="team"} 2.0' in text
    assert 'terrace_model_troubled{model="sim-small"} 1.0' in text
    assert 'terrace_upstream_places{provider="simulator"} 256.0' in text
    assert "terrace_policy_epoch 7.0" in text
    assert 'terrace_models_in_force{deployed="no"} 1.0' in text
    assert 'terrace_models_in_force{deployed="yes"} 2.0' in text


def test_gen_ai_names_are_those_of_the_conventions() -> None:
    registry = CollectorRegistry()
    metrics = GenAiMetrics(registry)
    metrics.answered(
        operation=semconv.OPERATION_CHAT, provider="p", model="m",
        usage=Usage(5, 7, cache_read_tokens=3), seconds=2.0, first_chunk_seconds=0.03,
    )  # fmt: skip
    labels = {
        "gen_ai_operation_name": "chat", "gen_ai_provider_name": "p", "gen_ai_request_model": "m"
    }  # fmt: skip
    for kind, count in (("input", 8), ("output", 7)):
        tokens = {**labels, "gen_ai_token_type": kind}
        assert registry.get_sample_value("gen_ai_client_token_usage_sum", tokens) == count
    name = "gen_ai_client_operation_time_to_first_chunk_seconds"
    assert registry.get_sample_value(f"{name}_bucket", {**labels, "le": "0.02"}) == 0
    assert registry.get_sample_value(f"{name}_bucket", {**labels, "le": "0.04"}) == 1
