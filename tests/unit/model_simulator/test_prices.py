"""The provider's own prices: exact, rounded up once, and read with errors that say where."""

import math
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terrace_model_simulator.prices import PriceTableError, cost_micro_usd, load_price_table

AMOUNTS = st.integers(min_value=0, max_value=10**12)


@given(AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS)
def test_cost_is_the_exact_ceiling(
    input_tokens: int, output_tokens: int, input_price: int, output_price: int
) -> None:
    exact = Fraction(input_tokens * input_price + output_tokens * output_price, 1_000_000)
    cost = cost_micro_usd(
        input_tokens, output_tokens, input_price=input_price, output_price=output_price
    )
    assert cost == math.ceil(exact)
    assert isinstance(cost, int)


@pytest.mark.parametrize("wrong", [(-1, 0, 1, 1), (0, -1, 1, 1), (0, 0, -1, 1), (0, 0, 1, -1)])
def test_negative_amounts_are_refused(wrong: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="negative"):
        cost_micro_usd(wrong[0], wrong[1], input_price=wrong[2], output_price=wrong[3])


def test_packaged_table() -> None:
    table = load_price_table(None)
    small = table.find("sim-small", "openai")
    claude = table.find("anthropic.claude-sonnet-4-5-20250929-v1:0", "bedrock")
    assert small is not None
    assert claude is not None
    assert small.cost_micro_usd(1_000_000, 1_000_000) == 750_000
    assert small.cost_micro_usd(1, 0) == 1
    assert claude.cost_micro_usd(1000, 1000) == 18_000
    assert table.offered("openai") == ["sim-small", "sim-large", "sim-embed"]


def test_a_model_is_offered_by_its_own_api_only() -> None:
    table = load_price_table(None)
    assert table.find("sim-small", "bedrock") is None
    assert table.find("anthropic.claude-sonnet-4-5-20250929-v1:0", "openai") is None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("version: 2\nmodels: {}", "version"),
        ("version: 1\nmodels: {}", "models"),
        ("version: 1\nmodels: {m: {api: openai}}", "models.m.context_tokens"),
        ("version: 1\nmodels: {m: {api: soap}}", "models.m.api"),
        ("version: [", "not valid YAML"),
        ("", "the document"),
    ],
)
def test_errors_name_the_file_and_the_property(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(PriceTableError) as caught:
        load_price_table(path)
    assert str(path) in str(caught.value)
    assert named in str(caught.value)


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(PriceTableError, match=r"gone\.yaml"):
        load_price_table(tmp_path / "gone.yaml")
