"""LiteLLM's map as prices, against an extract that its own version 1.108.7 gave."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terrace_common.prices import Price
from terrace_common.prices.cost_map import Drift, compare, price_of_entry

RECORDED = Path(__file__).parent / "recorded" / "litellm_prices.json"


@pytest.fixture(scope="module")
def entries() -> dict[str, dict[str, Any]]:
    """`python -m terrace_translator.price_map` of a spec with these models."""
    document = json.loads(RECORDED.read_text(), parse_float=Decimal)
    assert document["litellm"] == "1.108.7"
    return {name: found["entry"] for name, found in document["models"].items()}


def test_a_price_with_caches_and_a_tier(entries: dict[str, Any]) -> None:
    price = price_of_entry(entries["sonnet"])
    assert price is not None
    assert price.model_dump(exclude_defaults=True) == {
        "input_micro_usd_per_mtok": 3_300_000,
        "output_micro_usd_per_mtok": 16_500_000,
        "cache_read_micro_usd_per_mtok": 330_000,
        "cache_write_micro_usd_per_mtok": 4_125_000,
        "cache_write_1h_micro_usd_per_mtok": 6_600_000,
        "tiers": (
            {
                "above_input_tokens": 200_000,
                "input_micro_usd_per_mtok": 6_600_000,
                "output_micro_usd_per_mtok": 24_750_000,
                "cache_read_micro_usd_per_mtok": 660_000,
                "cache_write_micro_usd_per_mtok": 8_250_000,
                "cache_write_1h_micro_usd_per_mtok": 13_200_000,
            },
        ),
    }


def test_a_profile_costs_what_its_base_model_does(entries: dict[str, Any]) -> None:
    price = price_of_entry(entries["profile"])
    assert price is not None
    assert price.input_micro_usd_per_mtok == 1_100_000


def test_the_price_depends_on_the_profile(entries: dict[str, Any]) -> None:
    regional, everywhere = (price_of_entry(entries[name]) for name in ("sonnet", "sonnet-global"))
    assert regional is not None
    assert everywhere is not None
    assert regional.input_micro_usd_per_mtok * 10 == everywhere.input_micro_usd_per_mtok * 11


def test_batch_flex_and_priority_prices_are_not_tiers(entries: dict[str, Any]) -> None:
    price = price_of_entry(entries["gpt"])
    assert price is not None
    [tier] = price.tiers
    assert tier.above_input_tokens == 272_000
    assert (tier.input_micro_usd_per_mtok, tier.output_micro_usd_per_mtok) == (
        10_000_000,
        45_000_000,
    )


def price(**more: int) -> Price:
    plain = {"input_micro_usd_per_mtok": 150_000, "output_micro_usd_per_mtok": 600_000}
    return Price.model_validate({**plain, **more})


def drift(ours: Price, entry: dict[str, Any], **more: Any) -> list[Drift]:
    return list(compare("m", ours, entry, context_tokens=more.pop("context", 128_000), **more))


def test_the_same_price_has_no_drift(entries: dict[str, Any]) -> None:
    assert drift(price(cache_read_micro_usd_per_mtok=75_000), entries["mini"]) == []


def test_a_missing_cache_price_is_told(entries: dict[str, Any]) -> None:
    [one] = drift(price(), entries["mini"])
    assert (one.kind, one.what, one.theirs) == ("missing", "cache_read_micro_usd_per_mtok", 75_000)


@pytest.mark.parametrize(
    ("ours", "told"), [(151_500, False), (151_501, True), (148_500, False), (148_499, True)]
)
def test_more_than_one_percent_is_told(entries: dict[str, Any], ours: int, told: bool) -> None:
    mine = price(input_micro_usd_per_mtok=ours, cache_read_micro_usd_per_mtok=75_000)
    found = drift(mine, entries["mini"])
    assert [one.what for one in found] == (["input_micro_usd_per_mtok"] if told else [])
    if told:
        assert found[0].percent is not None
        assert 1 < abs(found[0].percent) < Decimal("1.1")


def test_a_tier_counts_only_within_the_context(entries: dict[str, Any]) -> None:
    mine = price_of_entry(entries["sonnet"])
    assert mine is not None
    flat = mine.model_copy(update={"tiers": ()})
    assert drift(flat, entries["sonnet"], context=200_000) == []
    found = drift(flat, entries["sonnet"], context=1_000_000)
    assert {one.kind for one in found} == {"missing"}
    assert "input_micro_usd_per_mtok above 200000" in {one.what for one in found}


def test_what_the_map_does_not_know_is_told(entries: dict[str, Any]) -> None:
    assert [one.kind for one in drift(price(), entries["own"])] == ["not_in_map"]
    extra = price(cache_read_micro_usd_per_mtok=75_000, micro_usd_per_image=5)
    assert [(one.kind, one.what) for one in drift(extra, entries["mini"])] == [
        ("not_in_price_map", "micro_usd_per_image")
    ]


def test_an_embedding_model_costs_nothing_for_output(entries: dict[str, Any]) -> None:
    price = price_of_entry(entries["vectors"])
    assert price is not None
    assert (price.input_micro_usd_per_mtok, price.output_micro_usd_per_mtok) == (20_000, 0)


VALUES = st.one_of(
    st.none(), st.booleans(), st.text(max_size=3), st.floats(), st.integers(), st.decimals()
)
NAMES = st.sampled_from(
    ["input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost",
     "input_cost_per_token_above_200k_tokens", "output_cost_per_token_above_1k_tokens",
     "input_cost_per_image", "x"]
)  # fmt: skip


@given(st.dictionaries(NAMES, VALUES))
def test_garbage_in_the_map_breaks_nothing(entry: dict[str, Any]) -> None:
    assert isinstance(price_of_entry(entry), Price | None)
    for one in drift(price(), entry):
        json.dumps(one.as_dict())


@given(st.integers(0, 10**8))
def test_prices_are_taken_exactly(rate: int) -> None:
    usd_per_token = float(Decimal(rate) / 10**12)
    entry = {"input_cost_per_token": usd_per_token, "output_cost_per_token": 0}
    found = price_of_entry(entry)
    assert found is not None
    assert found.input_micro_usd_per_mtok == rate
