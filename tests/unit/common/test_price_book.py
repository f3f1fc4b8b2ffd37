"""Quotes with every kind of rate, and the book that they come from."""

from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from terrace_common.prices import (
    Price,
    PriceBook,
    PriceBookError,
    Quote,
    Units,
    UnpricedError,
    load_price_book,
)
from terrace_common.prices.arithmetic import CacheWrites

RATES = st.integers(0, 10**9)
COUNTS = st.integers(0, 10**6)
RATE_FIELDS = ("input", "output", "cache_read", "cache_write", "cache_write_1h")


@st.composite
def prices(draw: st.DrawFn) -> Price:
    optional = [name for name in RATE_FIELDS[2:] if draw(st.booleans())]
    fields = ["input", "output", *optional]
    rates = {name: draw(RATES) for name in fields}

    def document(now: dict[str, int]) -> dict[str, Any]:
        return {f"{name}_micro_usd_per_mtok": rate for name, rate in now.items()}

    first = document(rates)
    tiers = []
    for above in sorted(draw(st.sets(st.integers(1, 10**6), max_size=3))):
        rates = {name: rate + draw(st.integers(0, 10**8)) for name, rate in rates.items()}
        tiers.append({"above_input_tokens": above, **document(rates)})
    units = {
        f"micro_usd_per_{unit}": draw(st.integers(0, 10**6))
        for unit in ("image", "second", "guardrail_unit", "request")
        if draw(st.booleans())
    }
    return Price.model_validate({**first, **units, "tiers": tuple(tiers)})


PREMIUMS = st.lists(st.integers(-10_000, 20_000), max_size=2).map(tuple)
QUOTES = st.builds(Quote, st.just("v"), prices(), PREMIUMS)
UNITS = st.builds(
    Units, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS,
    images=st.integers(0, 50), seconds=st.integers(0, 50), guardrail_units=st.integers(0, 50),
)  # fmt: skip


def exact(quote: Quote, units: Units) -> Fraction:
    """The cost said another way: rate by rate, in fractions."""
    price = quote.price
    here: Any = price
    for tier in price.tiers:
        if units.all_input_tokens > tier.above_input_tokens:
            here = tier
    plain = here.input_micro_usd_per_mtok
    write = here.cache_write_micro_usd_per_mtok
    write = plain if write is None else write
    hour = here.cache_write_1h_micro_usd_per_mtok
    read = here.cache_read_micro_usd_per_mtok
    per_million = [
        (units.input_tokens, plain),
        (units.output_tokens, here.output_micro_usd_per_mtok),
        (units.cache_read_tokens, plain if read is None else read),
        (units.cache_write_tokens, write),
        (units.cache_write_1h_tokens, write if hour is None else hour),
    ]
    total = sum((Fraction(count * rate, 10**6) for count, rate in per_million), Fraction(0))
    total += price.micro_usd_per_request
    total += units.images * (price.micro_usd_per_image or 0)
    total += units.seconds * (price.micro_usd_per_second or 0)
    total += units.guardrail_units * (price.micro_usd_per_guardrail_unit or 0)
    for premium in quote.premiums_basis_points:
        total *= Fraction(10_000 + premium, 10_000)
    return total


@given(QUOTES, UNITS)
def test_cost_is_the_exact_figure_rounded_up_once(quote: Quote, units: Units) -> None:
    cost = quote.cost(units)
    assert exact(quote, units) <= cost < exact(quote, units) + 1


@given(QUOTES, UNITS, st.sampled_from(["none", "5m", "1h"]), st.data())
def test_no_usage_within_the_bound_costs_more_than_the_worst_case(
    quote: Quote, bound: Units, writes: CacheWrites, data: st.DataObject
) -> None:
    price = quote.price
    images = bound.images
    seconds = bound.seconds if price.micro_usd_per_second is not None else 0
    guardrail = bound.guardrail_units if price.micro_usd_per_guardrail_unit is not None else 0
    worst = quote.worst_case(
        input_tokens=bound.all_input_tokens,
        output_tokens=bound.output_tokens,
        images=images,
        tokens_per_image=1,  # part of the bound
        seconds=seconds,
        guardrail_units=guardrail,
        cache_writes=writes,
    )
    left = bound.all_input_tokens
    parts = []
    for allowed in (True, True, writes != "none", writes == "1h"):
        parts.append(data.draw(st.integers(0, left)) if allowed else 0)
        left -= parts[-1]
    used = Units(
        parts[0],
        data.draw(st.integers(0, bound.output_tokens)),
        parts[1],
        parts[2],
        parts[3],
        images=data.draw(st.integers(0, images)),
        seconds=data.draw(st.integers(0, seconds)),
        guardrail_units=data.draw(st.integers(0, guardrail)),
    )
    assert quote.cost(used) <= worst


@given(QUOTES, UNITS, UNITS)
def test_more_of_anything_never_costs_less(quote: Quote, units: Units, more: Units) -> None:
    names = Units.__slots__
    both = Units(**{name: getattr(units, name) + getattr(more, name) for name in names})
    assert quote.cost(both) >= quote.cost(units)


@given(prices(), UNITS)
def test_what_has_no_price_is_named(price: Price, units: Units) -> None:
    found = Quote("v", price).unpriced(units)
    if not found:
        assert not units.cache_write_tokens or price.cache_write_micro_usd_per_mtok is not None
    if units.cache_write_1h_tokens and price.cache_write_1h_micro_usd_per_mtok is None:
        assert "cache_write_1h" in found
    if units.seconds and price.micro_usd_per_second is None:
        assert "seconds" in found


def test_what_has_no_price_cannot_be_reserved() -> None:
    quote = Quote("v", Price(input_micro_usd_per_mtok=1, output_micro_usd_per_mtok=1))
    apart: dict[str, int] = {"images": 1, "tokens_per_image": 0}
    for asked in ({"seconds": 1}, {"guardrail_units": 1}, {"images": 1}, apart):
        with pytest.raises(UnpricedError) as caught:
            quote.worst_case(input_tokens=1, output_tokens=1, **asked)
        assert caught.value.feature in asked
    assert quote.worst_case(input_tokens=9, output_tokens=0, images=1, tokens_per_image=9) == 1
    priced = Quote("v", quote.price.model_copy(update={"micro_usd_per_image": 7}))
    assert priced.worst_case(input_tokens=0, output_tokens=0, **apart) == 7
    with pytest.raises(ValueError, match="negative"):
        quote.worst_case(input_tokens=-1, output_tokens=1)
    with pytest.raises(ValueError, match="negative"):
        Units(output_tokens=-1)


def test_known_figures_of_a_tiered_price_with_caches() -> None:
    price = Price.model_validate(
        {
            "input_micro_usd_per_mtok": 3_000_000,
            "output_micro_usd_per_mtok": 15_000_000,
            "cache_read_micro_usd_per_mtok": 300_000,
            "cache_write_micro_usd_per_mtok": 3_750_000,
            "cache_write_1h_micro_usd_per_mtok": 6_000_000,
            "tiers": [
                {
                    "above_input_tokens": 200_000,
                    "input_micro_usd_per_mtok": 6_000_000,
                    "output_micro_usd_per_mtok": 22_500_000,
                    "cache_read_micro_usd_per_mtok": 600_000,
                    "cache_write_micro_usd_per_mtok": 7_500_000,
                    "cache_write_1h_micro_usd_per_mtok": 12_000_000,
                }
            ],
        }
    )
    quote = Quote("v", price)
    assert quote.cost(Units(200_000, 0)) == 600_000
    assert quote.cost(Units(200_001, 0)) == 1_200_006  # the whole request, not the part above
    assert quote.cost(Units(100_000, 10, cache_read_tokens=100_001)) == 660_226  # 660,225.6
    assert quote.cost(Units(20, 5, 100, 7, 3)) == 210  # 60 + 75 + 30 + 26.25 + 18
    assert quote.worst_case(input_tokens=1000, output_tokens=0) == 6000
    assert quote.worst_case(input_tokens=1000, output_tokens=0, cache_writes="5m") == 3750
    assert quote.worst_case(input_tokens=1000, output_tokens=0, cache_writes="none") == 3000
    regional = Quote("v", price, (1000,))
    assert regional.cost(Units(1000, 0)) == 3300
    assert Quote("v", price, (1000, -5000)).cost(Units(1000, 0)) == 1650


TIER = {
    "above_input_tokens": 10, "input_micro_usd_per_mtok": 2, "output_micro_usd_per_mtok": 2,
}  # fmt: skip
PLAIN = {"input_micro_usd_per_mtok": 2, "output_micro_usd_per_mtok": 2}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"tiers": [{**TIER, "input_micro_usd_per_mtok": 1}]}, "must not be below"),
        ({"tiers": [TIER, TIER]}, "rising above_input_tokens"),
        ({"tiers": [{**TIER, "cache_read_micro_usd_per_mtok": 1}]}, "every tier has cache_read"),
        ({"cache_read_micro_usd_per_mtok": 1, "tiers": [TIER]}, "every tier has cache_read"),
        ({"micro_usd_per_second": 1.5}, "valid integer"),
        ({"micro_usd_per_image": -1}, "greater than or equal"),
        ({"free": True}, "Extra inputs"),
    ],
)
def test_wrong_prices(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Price.model_validate({**PLAIN, **more})


NEW_YEAR = datetime(2027, 1, 1, tzinfo=UTC)
TEXT = """
version: "2027-01"
entries:
  - {provider: p, model: m, effective_from: 2026-01-01T00:00:00Z,
     price: {input_micro_usd_per_mtok: 1, output_micro_usd_per_mtok: 1}}
  - {provider: p, model: m, effective_from: "2027-01-01T01:00:00+01:00",
     price: {input_micro_usd_per_mtok: 2, output_micro_usd_per_mtok: 2}}
  - {provider: "*", model: m, effective_from: 2026-01-01T00:00:00Z,
     price: {input_micro_usd_per_mtok: 3, output_micro_usd_per_mtok: 3}}
"""


def test_the_entry_in_force_is_the_newest_that_has_begun() -> None:
    book = load_price_book(TEXT, "book.yaml")

    def rate(provider: str, at: datetime, *models: str) -> int | None:
        entry = book.entry(provider=provider, models=models or ("m",), at=at)
        return None if entry is None else entry.price.input_micro_usd_per_mtok

    assert rate("p", NEW_YEAR - timedelta(microseconds=1)) == 1
    assert rate("p", NEW_YEAR) == 2
    assert rate("q", NEW_YEAR) == 3
    assert rate("p", NEW_YEAR, "profile", "m") == 2
    assert rate("p", NEW_YEAR, "other") is None
    assert rate("p", datetime(2025, 1, 1, tzinfo=UTC)) is None
    assert book.next_change(datetime(2026, 6, 1, tzinfo=UTC)) == NEW_YEAR
    assert book.next_change(NEW_YEAR) is None
    assert PriceBook.model_validate(book.model_dump(mode="json")) == book


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ('"2027-01"', '"-"', 2, "pattern"),
        ("2027-01-01T01:00:00+01:00", "2026-01-01T00:00:00Z", 6, "two prices from one moment"),
        ("2026-01-01T00:00:00Z", "2026-01-01", 4, "timezone"),
        ("input_micro_usd_per_mtok: 2", "input_micro_usd_per_mtok: 2.5", 7, "valid integer"),
        ("version:", "verzion:", 2, "Extra inputs"),
        ("entries:", "entries: [", 4, "expected"),
    ],
)
def test_a_wrong_book_names_file_and_line(old: str, new: str, line: int, message: str) -> None:
    assert old in TEXT
    with pytest.raises(PriceBookError) as caught:
        load_price_book(TEXT.replace(old, new, 1), "book.yaml")
    assert f"book.yaml:{line}: " in str(caught.value)
    assert message in str(caught.value)


@given(st.text(max_size=30), st.integers(0, len(TEXT)), st.integers(0, 30))
def test_any_edit_loads_or_is_an_error(text: str, at: int, cut: int) -> None:
    try:
        assert load_price_book(TEXT[:at] + text + TEXT[at + cut :], "b").entries
    except PriceBookError as error:
        message = str(error)
        assert message.startswith("b:")
