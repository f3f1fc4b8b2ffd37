"""Money: rounding up, and a worst case that is one."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from terrace_common.prices import Price, cost_micro_usd, worst_case_micro_usd

PRICES = st.builds(
    Price,
    input_micro_usd_per_mtok=st.integers(0, 10**12),
    output_micro_usd_per_mtok=st.integers(0, 10**12),
)
COUNTS = st.integers(0, 10**7)


@given(PRICES, COUNTS, COUNTS)
def test_cost_is_the_exact_figure_rounded_up(price: Price, tokens_in: int, tokens_out: int) -> None:
    exact = Fraction(
        tokens_in * price.input_micro_usd_per_mtok + tokens_out * price.output_micro_usd_per_mtok,
        1_000_000,
    )
    cost = cost_micro_usd(price, input_tokens=tokens_in, output_tokens=tokens_out)
    assert exact <= cost < exact + 1


@given(PRICES, st.text(max_size=200), st.data())
def test_no_tokenisation_within_the_bytes_costs_more_than_the_worst_case(
    price: Price, text: str, data: st.DataObject
) -> None:
    size = len(text.encode())
    overhead = data.draw(st.integers(0, 100))
    limit = data.draw(st.integers(1, 10_000))
    tokens_in = data.draw(st.integers(0, size + overhead))
    tokens_out = data.draw(st.integers(0, limit))
    actual = cost_micro_usd(price, input_tokens=tokens_in, output_tokens=tokens_out)
    worst = worst_case_micro_usd(
        price, sent_bytes=size, overhead_tokens=overhead, max_output_tokens=limit
    )
    assert worst >= actual


def test_known_figures() -> None:
    price = Price(input_micro_usd_per_mtok=150_000, output_micro_usd_per_mtok=600_000)
    assert cost_micro_usd(price, input_tokens=7, output_tokens=11) == 8  # 7.65
    assert cost_micro_usd(price, input_tokens=0, output_tokens=0) == 0
    assert cost_micro_usd(price, input_tokens=1_000_000, output_tokens=0) == 150_000


@pytest.mark.parametrize(("tokens_in", "tokens_out"), [(-1, 0), (0, -1)])
def test_negative_counts_are_refused(tokens_in: int, tokens_out: int) -> None:
    price = Price(input_micro_usd_per_mtok=1, output_micro_usd_per_mtok=1)
    with pytest.raises(ValueError, match="negative"):
        cost_micro_usd(price, input_tokens=tokens_in, output_tokens=tokens_out)


@pytest.mark.parametrize("value", [-1, 1.5, "1", True, 10**13])
def test_prices_are_integers_within_bounds(value: object) -> None:
    with pytest.raises(ValidationError):
        Price.model_validate({"input_micro_usd_per_mtok": value, "output_micro_usd_per_mtok": 1})
