"""Shares: headroom, burndown, shared and ambiguous quotas."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terrace_common.governance import Governance, load_governance
from terrace_common.governance.upstream_pools import pool_names, upstream_pools
from terrace_quota_sync.region_facts import Quota, RegionFacts, quota_of
from terrace_quota_sync.shares import PoolShares, shares_of

SONNET = "anthropic.claude-sonnet-4-5-20250929-v1:0"
NAME = "Anthropic Claude Sonnet 4.5 V1"
APPLICATION = "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/abc"
PRICE = {"input_micro_usd_per_mtok": 1, "output_micro_usd_per_mtok": 1}


def catalogue(*models: dict[str, Any], **provider: Any) -> Governance:
    import yaml

    spec = {
        "version": 1,
        "price_version": "1",
        "providers": [
            {"name": "aws", "kind": "bedrock", "region": "us-east-1", **provider},
            {"name": "far", "kind": "bedrock", "region": "eu-west-1"},
            {"name": "sim", "kind": "bedrock", "region": "us-east-1", "endpoint": "http://s"},
        ],
        "models": [
            {"provider": "aws", "context_tokens": 100, "max_output_tokens": 10, "price": PRICE,
             "name": f"m{number}", **model}
            for number, model in enumerate(models)
        ],
    }  # fmt: skip
    return load_governance(yaml.safe_dump(spec), "test")


def facts(*quotas: tuple[str, float], **more: Any) -> RegionFacts:
    made = tuple(
        Quota(f"L-{number}", name, value, "applied") for number, (name, value) in enumerate(quotas)
    )
    return RegionFacts("us-east-1", 0.0, made, **more)


def published(governance: Governance, read: RegionFacts) -> dict[str, PoolShares]:
    return {one.pool: one for one in shares_of(upstream_pools(governance), read)}


def amounts(pool: PoolShares) -> dict[tuple[str, int], int]:
    return {(share.dimension, share.window_seconds): share.amount for share in pool.shares}


def test_headroom_and_burndown_make_the_share() -> None:
    governance = catalogue(
        {"upstream_model": SONNET, "output_burndown": 5, "upstream_headroom_percent": 20}
    )
    pool = published(
        governance,
        facts(
            (f"On-demand model inference requests per minute for {NAME}", 50),
            (f"On-demand model inference tokens per minute for {NAME}", 200_000),
            (f"Model invocation max tokens per day for {NAME}", 144_000_001),
            (f"Cross-region model inference tokens per minute for {NAME}", 7),
        ),
    )[f"us-east-1/{SONNET}"]
    assert amounts(pool) == {
        ("requests", 60): 40,
        ("total_tokens", 60): 32_000,
        ("total_tokens", 86_400): 23_040_000,
    }
    assert pool.findings == ()


def test_the_providers_headroom_holds_where_the_model_says_nothing() -> None:
    quota = (f"On-demand model inference requests per minute for {NAME}", 100)
    for headroom, amount in ((0, 100), (33, 67), (99, 1)):
        governance = catalogue({"upstream_model": SONNET}, upstream_headroom_percent=headroom)
        pool = published(governance, facts(quota))[f"us-east-1/{SONNET}"]
        assert amounts(pool) == {("requests", 60): amount}


def test_two_names_of_one_model_share_one_pool_with_the_more_careful_numbers() -> None:
    governance = catalogue(
        {"upstream_model": f"us.{SONNET}", "upstream_headroom_percent": 50},
        {"upstream_model": f"us.{SONNET}", "output_burndown": 5},
        {"upstream_model": APPLICATION, "base_model": f"us.{SONNET}"},
    )
    [pool, region] = [p for p in upstream_pools(governance)][::-1]
    assert (pool.headroom_percent, pool.output_burndown) == (50, 5)
    assert pool.models == region.models == ("m0", "m1", "m2")
    assert set(pool_names(governance).values()) == {(pool.name, region.name)}


def test_ways_of_calling_are_pools_of_their_own() -> None:
    governance = catalogue(
        {"upstream_model": SONNET},
        {"upstream_model": f"us.{SONNET}"},
        {"upstream_model": f"global.{SONNET}"},
    )
    found = published(
        governance,
        facts(
            (f"On-demand model inference requests per minute for {NAME}", 10),
            (f"Cross-region model inference requests per minute for {NAME}", 20),
            (f"Global cross-region model inference requests per minute for {NAME}", 40),
            (f"Model invocation max tokens per day for {NAME}", 3_000),
        ),
    )
    shared = 3_000 * 9 // 10 // 3  # one quota, three pools that draw on it
    for prefix, requests in (("", 9), ("us.", 18), ("global.", 36)):
        assert amounts(found[f"us-east-1/{prefix}{SONNET}"]) == {
            ("requests", 60): requests,
            ("total_tokens", 86_400): shared,
        }


def test_of_several_quotas_with_one_meaning_the_smallest_holds_and_it_is_told() -> None:
    governance = catalogue({"upstream_model": SONNET})
    pool = published(
        governance,
        facts(
            (f"On-demand model inference requests per minute for {NAME}", 90),
            (f"On-demand InvokeModel requests per minute for {NAME}", 10),
        ),
    )[f"us-east-1/{SONNET}"]
    assert amounts(pool) == {("requests", 60): 9}
    assert pool.findings == ("ambiguous",)


def test_a_model_without_a_quota_is_told_and_gets_none() -> None:
    governance = catalogue({"upstream_model": SONNET})
    read = facts(("On-demand model inference requests per minute for Amazon Nova Micro", 1))
    pool = published(governance, read)[f"us-east-1/{SONNET}"]
    assert pool.shares == ()
    assert pool.findings == ("unmatched",)


def test_the_quota_of_all_models_is_a_pool_of_the_region() -> None:
    governance = catalogue({"upstream_model": SONNET}, {"upstream_model": "amazon.nova-lite-v1:0"})
    found = published(governance, facts(("Cross-Model Max Tokens Per Day", 1000)))
    assert amounts(found["us-east-1/*"]) == {("total_tokens", 86_400): 900}
    assert found["us-east-1/*"].findings == ()


def test_an_application_profile_that_leads_elsewhere_is_held_to_both_quotas() -> None:
    governance = catalogue({"upstream_model": APPLICATION, "base_model": SONNET})
    leads = tuple(
        f"arn:aws:bedrock:{r}::foundation-model/{SONNET}" for r in ("us-east-1", "us-west-2")
    )
    quotas = (
        (f"On-demand model inference requests per minute for {NAME}", 90),
        (f"Cross-region model inference requests per minute for {NAME}", 10),
    )
    pool = published(governance, facts(*quotas, profiles={APPLICATION: leads}))[
        f"us-east-1/{SONNET}"
    ]
    assert amounts(pool) == {("requests", 60): 9}
    assert pool.findings == ("profile_leads_elsewhere",)
    assert pool.leads_to == leads
    same = published(governance, facts(*quotas, profiles={APPLICATION: leads[:1]}))
    assert amounts(same[f"us-east-1/{SONNET}"]) == {("requests", 60): 81}


def test_a_profile_that_the_region_does_not_have_is_told() -> None:
    governance = catalogue({"upstream_model": f"eu.{SONNET}"})
    quota = (f"Cross-region model inference requests per minute for {NAME}", 10)
    leads = ("arn:aws:bedrock:us-west-2::foundation-model/x.y",)
    pool = published(governance, facts(quota, profiles={f"us.{SONNET}": leads}))
    assert pool[f"us-east-1/eu.{SONNET}"].findings == ("no_such_profile",)


def test_simulated_providers_are_left_out_unless_asked_for() -> None:
    governance = catalogue(
        {"upstream_model": SONNET, "provider": "sim"},
        {"upstream_model": SONNET, "provider": "far"},
    )
    assert {pool.region for pool in upstream_pools(governance)} == {"eu-west-1"}
    assert {p.region for p in upstream_pools(governance, simulated=True)} == {
        "eu-west-1",
        "us-east-1",
    }
    assert set(pool_names(governance)) == {"m0", "m1"}


@given(
    value=st.floats(0, 1e15), headroom=st.integers(0, 99), burndown=st.integers(1, 100),
    count=st.integers(1, 3),
)  # fmt: skip
def test_all_shares_together_never_pass_the_quota(
    value: float, headroom: int, burndown: int, count: int
) -> None:
    prefixes = ("", "us.", "global.")[:count]
    governance = catalogue(
        *({"upstream_model": f"{p}{SONNET}", "output_burndown": burndown} for p in prefixes),
        upstream_headroom_percent=headroom,
    )
    found = published(governance, facts((f"Model invocation max tokens per day for {NAME}", value)))
    total = sum(share.amount for pool in found.values() for share in pool.shares)
    assert total * burndown * 100 <= value * (100 - headroom)


@pytest.mark.parametrize(
    "change",
    [
        {"Value": float("nan")}, {"Value": float("inf")}, {"Value": -1.0}, {"Value": "12"},
        {"Value": None}, {"Value": True}, {"Value": 1e300}, {"QuotaName": None}, {"QuotaName": ""},
        {"QuotaName": "x" * 1000}, {"QuotaCode": 7}, {"QuotaCode": ""},
    ],
)  # fmt: skip
def test_a_quota_that_makes_no_sense_is_none(change: dict[str, Any]) -> None:
    sound = {"QuotaCode": "L-1", "QuotaName": "name", "Value": 1.5}
    assert quota_of(sound, "applied") == Quota("L-1", "name", 1.5, "applied")
    assert quota_of({**sound, **change}, "applied") is None
    for missing in sound:
        assert quota_of({k: v for k, v in sound.items() if k != missing}, "applied") is None
