"""Dollars in, micro-dollars out: exact, or refused."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terrace_cli.errors import UsageError
from terrace_cli.money import format_usd, parse_usd


@pytest.mark.parametrize(
    ("text", "micro"),
    [("1.5", 1_500_000), ("0", 0), ("0.000001", 1), ("12", 12_000_000), ("0.29", 290_000)],
)
def test_an_amount_is_parsed_exactly(text: str, micro: int) -> None:
    assert parse_usd(text) == micro


@pytest.mark.parametrize(
    "text",
    ["", "1,5", "$1", "-1", "+1", "1e3", "NaN", "inf", "0.0000001", "1.", ".5", " 1", "1_000", "१"],
)
def test_anything_else_is_refused_with_what_would_be_right(text: str) -> None:
    with pytest.raises(UsageError, match=r"for example 1\.5"):
        parse_usd(text)


@given(st.integers(min_value=0, max_value=10**14))
def test_what_is_shown_is_what_was_meant(micro: int) -> None:
    shown = format_usd(micro)
    assert Decimal(shown.removeprefix("$")) * 1_000_000 == micro
    assert parse_usd(shown.removeprefix("$")) == micro


def test_a_credit_keeps_its_sign() -> None:
    assert format_usd(-1) == "-$0.000001"
