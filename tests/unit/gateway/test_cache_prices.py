"""Prompt caches by the price in force: what may be written is what is reserved and settled."""

from typing import Any

import pytest

from terrace_common.prices import Units, load_price_book
from terrace_gateway.matching.deployments import compile_catalogue
from terrace_gateway.prices import Prices

from .matching_world import NOON, model, spec
from .surface_calls import read

CLAUDE = "anthropic.claude-sonnet-4-20250514-v1:0"
BOOK = """
version: "b"
entries:
  - {provider: b, model: "CLAUDE", effective_from: 2026-01-01T00:00:00Z,
     price: {input_micro_usd_per_mtok: 3000000, output_micro_usd_per_mtok: 15000000WRITES}}
"""
FIVE_MINUTES = {"cache_write_micro_usd_per_mtok": 3_750_000}
ONE_HOUR = {**FIVE_MINUTES, "cache_write_1h_micro_usd_per_mtok": 6_000_000}


@pytest.mark.parametrize("in_book", [{}, FIVE_MINUTES, ONE_HOUR], ids=["none", "5m", "1h"])
@pytest.mark.parametrize("in_spec", [{}, FIVE_MINUTES, ONE_HOUR], ids=["none", "5m", "1h"])
@pytest.mark.parametrize("ttl", ["5m", "1h"])
@pytest.mark.parametrize("path", ["/v1/messages", "/model/m/converse"])
def test_what_is_cached_goes_by_the_price_that_it_is_settled_by(
    path: str, ttl: str, in_spec: dict[str, int], in_book: dict[str, int]
) -> None:
    """A book may lack prices that the spec has, and the other way round."""
    governance = spec(model("m", provider="b", upstream_model=CLAUDE, more_prices=in_spec))
    writes = "".join(f", {name}: {rate}" for name, rate in in_book.items())
    prices = Prices(
        "v1", load_price_book(BOOK.replace("WRITES", writes).replace("CLAUDE", CLAUDE), "book.yaml")
    )
    [one] = compile_catalogue(governance, prices, at=NOON).deployments
    assert one.quote.version == "b"
    text: dict[str, Any] = {"text": "x" * 5000}
    if path == "/v1/messages":
        marked = {"type": "text", **text, "cache_control": {"type": "ephemeral", "ttl": ttl}}
        body: dict[str, Any] = {"model": "m", "max_tokens": 9}
        body["messages"] = [{"role": "user", "content": [marked]}]
    else:
        point = {"cachePoint": {"type": "default", "ttl": ttl}}
        body = {"messages": [{"role": "user", "content": [text, point]}]}
    made = read(path, body).upstream(
        governance=governance, model=one.model, attempt_id="a", traceparent="t",
        max_output_tokens=9,
    )  # fmt: skip
    rate = one.quote.price.model_dump().get(
        "cache_write_micro_usd_per_mtok" if ttl == "5m" else "cache_write_1h_micro_usd_per_mtok"
    )
    priced = rate is not None
    assert (made.cache_writes == ttl) is priced
    assert (f'"{ttl}"'.encode() in made.body) is priced
    written = Units(
        cache_write_tokens=1000 if ttl == "5m" else 0,
        cache_write_1h_tokens=1000 if ttl == "1h" else 0,
    )
    assert bool(one.quote.unpriced(written)) is not priced
