"""Images by the price in force: what bounds a request with them is what it is settled by."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from terrace_common.prices import PriceBook, Units, load_price_book
from terrace_gateway.calls.worst_case import worst_case
from terrace_gateway.edge.errors import ApiError
from terrace_gateway.matching import Matcher
from terrace_gateway.matching.deployments import compile_catalogue
from terrace_gateway.prices import Prices
from terrace_gateway.prices.rerating import PastAttempt, rerate
from terrace_gateway.surfaces.upstream_request import UpstreamRequest

from .matching_world import NOON, FakeClock, asking, model, names, spec
from .test_matching import refused

CLAUDE = "anthropic.claude-sonnet-4-20250514-v1:0"
IMAGES = frozenset({"images"})
NO_BOOK = "no book"


def book(per_image: int | None) -> PriceBook:
    image = "" if per_image is None else f", micro_usd_per_image: {per_image}"
    text = f"""
version: "b"
entries:
  - {{provider: b, model: "{CLAUDE}", effective_from: 2026-01-01T00:00:00Z,
     price: {{input_micro_usd_per_mtok: 1000000, output_micro_usd_per_mtok: 0{image}}}}}
"""
    return load_price_book(text, "book.yaml")


def sees(tokens: int | None, per_image: int | None, name: str = "m") -> dict[str, Any]:
    prices = {} if per_image is None else {"micro_usd_per_image": per_image}
    fields = {} if tokens is None else {"max_tokens_per_image": tokens}
    return model(
        name, provider="b", upstream_model=CLAUDE, features=["images", "streaming", "tools"],
        more_prices=prices, **fields,
    )  # fmt: skip


@pytest.mark.parametrize("in_book", [NO_BOOK, None, 0, 7], ids=str)
@pytest.mark.parametrize("in_spec", [None, 0, 5000], ids=str)
@pytest.mark.parametrize("tokens", [None, 0, 100], ids=str)
def test_images_need_a_bound_by_the_price_in_force(
    tokens: int | None, in_spec: int | None, in_book: Any
) -> None:
    """A book may lack the price that the spec has, and the other way round."""
    governance = spec(sees(tokens, in_spec))
    prices = Prices("v1", None if in_book == NO_BOOK else book(in_book))
    in_force = in_spec if in_book == NO_BOOK else in_book
    bounded = tokens is not None and (tokens > 0 or in_force is not None)
    matcher = Matcher(governance, prices=prices, clock=FakeClock())
    if bounded:
        assert names(matcher, asking("m", features=IMAGES)) == ["m"]
    else:
        assert refused(matcher, asking("m", features=IMAGES)).code == "unpriced"
    assert names(matcher, asking("m")) == ["m"]

    [one] = compile_catalogue(governance, prices, at=NOON).deployments
    candidate: Any = SimpleNamespace(model=one.model, quote=one.quote)
    snapshot: Any = SimpleNamespace(governance=governance)
    overhead = governance.defaults.reservation_overhead_tokens
    made = UpstreamRequest("/", b"", 10, 0, image_count=20, cache_writes="none")
    if not bounded:
        with pytest.raises(ApiError, match="no price for images") as caught:
            worst_case(candidate, made, snapshot)
        assert (caught.value.status, caught.value.code) == (400, "unpriced")
        return
    found = worst_case(candidate, made, snapshot)
    most = 10 + overhead + 20 * (tokens or 0)
    assert found.input_tokens == most
    assert found.micro_usd == most + 20 * (in_force or 0)
    assert one.quote.cost(Units(most, 0, images=20)) == found.micro_usd


def test_another_model_takes_the_images_that_the_book_has_no_price_for() -> None:
    governance = spec({**sees(0, 5000), "fallbacks": ["n"]}, sees(9, None, "n"))
    with_price = Matcher(governance, prices=Prices("v1"), clock=FakeClock())
    assert names(with_price, asking("m", features=IMAGES)) == ["m", "n"]
    without = Matcher(governance, prices=Prices("v1", book(None)), clock=FakeClock())
    assert names(without, asking("m", features=IMAGES)) == ["n"]


@pytest.mark.parametrize(
    ("tokens", "images", "in_book", "amount"),
    [(0, 2, 7, 1014), (0, 2, None, None), (0, 0, None, 1000), (9, 2, None, 1000),
     (None, 2, None, 1000)],
)  # fmt: skip
def test_images_are_not_rerated_to_nothing(
    tokens: int | None, images: int, in_book: int | None, amount: int | None
) -> None:
    governance = spec(sees(tokens, 5000))
    past = PastAttempt(
        "a", NOON - timedelta(days=1), "m", "b", CLAUDE, Units(1000, 0, images=images), 11_000
    )
    [(_, found)] = rerate([past], governance, book(in_book))
    assert (None if found is None else found.amount_micro_usd) == amount
