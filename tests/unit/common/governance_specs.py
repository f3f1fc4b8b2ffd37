"""Governance specs for tests: a small whole one, and hypothesis strategies for its parts."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from terrace_common.governance import Governance, Policy

CATALOGUE = """
version: 1
price_version: "1"
providers:
  - {name: east, kind: openai, api_base: "http://east/v1"}
  - {name: west, kind: bedrock, region: eu-west-1}
models:
  - {name: small, provider: east, upstream_model: s, context_tokens: 1000, max_output_tokens: 100, aliases: [tiny],
     price: {input_micro_usd_per_mtok: 1, output_micro_usd_per_mtok: 2}}
  - {name: large, provider: east, upstream_model: l, context_tokens: 1000, max_output_tokens: 100,
     price: {input_micro_usd_per_mtok: 1, output_micro_usd_per_mtok: 2}}
  - {name: claude, provider: west, upstream_model: anthropic.claude-sonnet-4-5-20250929-v1:0, context_tokens: 1000,
     max_output_tokens: 100, price: {input_micro_usd_per_mtok: 1, output_micro_usd_per_mtok: 2}}
"""  # noqa: E501
ORGANISATION = """
guardrails:
  - {name: secrets, kind: secrets}
  - {name: people, kind: personal_data}
policies:
  - {name: small-only, models: [tiny]}
  - {name: in-europe, residency: ["eu-*"]}
  - {name: trial, mode: audit, deny_features: [tools]}
orgs:
  - {name: acme, quotas: [{dimension: micro_usd, per: month, usd: 12.50, zone: Europe/Berlin, alert_at: [80, 50]}]}
teams:
  - {name: search, org: acme, policies: [trial]}
  - {name: ads, org: acme}
users:
  - {name: jo, team: search, subject: sub-jo}
apps:
  - {name: bot, team: search, user: jo, quotas: [{dimension: concurrency, amount: 3}]}
keys:
  - {name: bot-prod, app: bot, models: [small, claude], policies: [small-only]}
"""  # noqa: E501
WHOLE = CATALOGUE + ORGANISATION

MODELS = ("small", "large", "claude", "tiny")
FEATURES = ("tools", "images", "streaming", "json_schema", "reasoning", "embeddings")
SPANS = (
    {"from": "08:00", "to": "18:00", "zone": "Europe/Berlin"},
    {"days": ["sat", "sun"]},
    {"days": ["fri"], "from": "22:00", "to": "06:00", "zone": "Asia/Kolkata"},
)

Documents = st.SearchStrategy[dict[str, Any]]


def _some(*values: Any, least: int = 0) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.sampled_from(values), min_size=least, unique_by=str, max_size=len(values))


RESTRICTIONS: Documents = st.fixed_dictionaries(
    {},
    optional={
        "mode": st.sampled_from(["block", "audit"]),
        "models": _some(*MODELS),
        "deny_models": _some(*MODELS),
        "providers": _some("east", "west"),
        "deny_providers": _some("east", "west"),
        "residency": _some("eu-*", "us-*", "eu-west-1", least=1),
        "deny_features": _some(*FEATURES),
        "max_context_tokens": st.integers(1, 1000),
        "max_output_tokens": st.integers(1, 1000),
        "over_output": st.sampled_from(["clamp", "refuse"]),
        "hours": _some(*SPANS, least=1),
        "networks": _some("10.0.0.0/8", "192.168.1.0/24", "2001:db8::/32", least=1),
        "outage": st.sampled_from(["closed", "limited"]),
        "outage_grace_seconds": st.integers(0, 600),
        "stream_grace_seconds": st.integers(0, 600),
        "on_disconnect": st.sampled_from(["drain", "cut"]),
        "guardrails": _some("secrets", "people"),
        "capture": st.one_of(
            st.just("never"), st.fixed_dictionaries({"retention_days": st.integers(1, 90)})
        ),
        "priority": st.integers(-100, 100),
    },
)


@st.composite
def policy_lists(draw: Callable[[st.SearchStrategy[Any]], Any], most: int = 5) -> list[Policy]:
    """Some policies with names p0, p1, ... each of which may extend one before it."""
    policies: list[Policy] = []
    for index in range(draw(st.integers(1, most))):
        document = {"name": f"p{index}", **draw(RESTRICTIONS)}
        if index and draw(st.booleans()):
            document["extends"] = f"p{draw(st.integers(0, index - 1))}"
        policies.append(Policy.model_validate(document))
    return policies


def with_policies(spec: Governance, policies: list[Policy]) -> Governance:
    """A spec with these policies beside its own."""
    return spec.model_copy(update={"policies": (*spec.policies, *policies)})
