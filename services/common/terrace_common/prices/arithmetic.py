"""What an attempt costs, and what it can cost at most: exact, in integers, rounded up once.

``cost = ceil(sum of (count * rate) * premiums)``, with token rates in micro-USD per million.
Rounding is up and per attempt, so a sum of attempts is never below the provider's exact figure.
"""

from dataclasses import dataclass, fields
from typing import Literal

from terrace_common.prices.price import TOKENS_PER_PRICE_UNIT, Price, PriceTier

BASIS_POINTS = 10_000  # one whole, in the hundredths of a percent that premiums are given in

CacheWrites = Literal["none", "5m", "1h"]
"""The dearest write into a prompt cache that a request may cause."""


class UnpricedError(ValueError):
    """The price says nothing about something that was asked for. ``feature`` names it."""

    def __init__(self, feature: str) -> None:
        self.feature = feature
        super().__init__(f"{feature} has no price")


@dataclass(frozen=True, slots=True)
class Units:
    """What one attempt used. The kinds of input do not overlap; the request itself counts as one.

    Raises ``ValueError`` for negative counts: a provider that reports one is not believed.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    """Of writes that live for 5 minutes."""
    cache_write_1h_tokens: int = 0
    images: int = 0
    seconds: int = 0
    guardrail_units: int = 0

    def __post_init__(self) -> None:
        if any(getattr(self, name.name) < 0 for name in fields(self)):
            raise ValueError("token counts must not be negative")

    @property
    def all_input_tokens(self) -> int:
        """Input of every kind: what tiers go by."""
        return (
            self.input_tokens
            + self.cache_read_tokens
            + self.cache_write_tokens
            + self.cache_write_1h_tokens
        )


@dataclass(frozen=True, slots=True)
class Quote:
    """The price of one deployment at one moment. An attempt keeps it from reservation to
    settlement, so that a new price version changes no running call."""

    version: str
    price: Price
    premiums_basis_points: tuple[int, ...] = ()
    """Each multiplies the sum: 1000 adds a tenth, -5000 halves."""

    def cost(self, units: Units) -> int:
        """Cost of one attempt in micro-USD, rounded up. What has no price is charged as input;
        ``unpriced`` says what that was."""
        rates = self._rates(units.all_input_tokens)
        price = self.price
        plain = rates.input_micro_usd_per_mtok
        tokens = (
            units.input_tokens * plain
            + units.output_tokens * rates.output_micro_usd_per_mtok
            + units.cache_read_tokens * _or(rates.cache_read_micro_usd_per_mtok, plain)
            + units.cache_write_tokens * _or(rates.cache_write_micro_usd_per_mtok, plain)
            + units.cache_write_1h_tokens * _write_1h_rate(rates)
        )
        counted = (
            price.micro_usd_per_request
            + units.images * (price.micro_usd_per_image or 0)
            + units.seconds * (price.micro_usd_per_second or 0)
            + units.guardrail_units * (price.micro_usd_per_guardrail_unit or 0)
        )
        return self._rounded_up(tokens + counted * TOKENS_PER_PRICE_UNIT)

    def unpriced(self, units: Units) -> frozenset[str]:
        """What was used and has no price: the caller raises an alarm."""
        price = self.price
        missing = {
            "cache_write": units.cache_write_tokens
            and price.cache_write_micro_usd_per_mtok is None,
            "cache_write_1h": units.cache_write_1h_tokens
            and price.cache_write_1h_micro_usd_per_mtok is None,
            "seconds": units.seconds and price.micro_usd_per_second is None,
            "guardrail_units": units.guardrail_units and price.micro_usd_per_guardrail_unit is None,
        }
        return frozenset(name for name, absent in missing.items() if absent)

    def bounds_images(self, tokens_per_image: int | None) -> bool:
        """Whether it is known what an image costs at most: it counts as so many tokens, or as none
        (0) and has a price of its own. ``None``: nobody says as how many it counts."""
        if tokens_per_image is None:
            return False
        return tokens_per_image > 0 or self.price.micro_usd_per_image is not None

    def worst_case(
        self,
        *,
        input_tokens: int,
        output_tokens: int,
        images: int = 0,
        tokens_per_image: int | None = None,
        seconds: int = 0,
        guardrail_units: int = 0,
        cache_writes: CacheWrites = "1h",
    ) -> int:
        """The most that one attempt can cost, in micro-USD: what is reserved before it starts.

        ``input_tokens`` bounds input of every kind, that of images too, as ``tokens_per_image`` for
        each; it is taken at the dearest rate that may apply, in any tier that it can reach. With
        ``cache_writes`` at its default every write that is priced may apply. Raises
        ``UnpricedError`` for what has no price, or no bound (``bounds_images``), and
        ``ValueError`` for negative counts.
        """
        if min(input_tokens, output_tokens, images, seconds, guardrail_units) < 0:
            raise ValueError("sizes must not be negative")
        price = self.price
        if images and not self.bounds_images(tokens_per_image):
            raise UnpricedError("images")
        if seconds and price.micro_usd_per_second is None:
            raise UnpricedError("seconds")
        if guardrail_units and price.micro_usd_per_guardrail_unit is None:
            raise UnpricedError("guardrail_units")
        # Tiers only rise, so the highest that the bound reaches is the dearest of all below it.
        rates = self._rates(input_tokens)
        tokens = (
            input_tokens * self._dearest_input(rates, cache_writes)
            + output_tokens * rates.output_micro_usd_per_mtok
        )
        counted = (
            price.micro_usd_per_request
            + images * (price.micro_usd_per_image or 0)
            + seconds * (price.micro_usd_per_second or 0)
            + guardrail_units * (price.micro_usd_per_guardrail_unit or 0)
        )
        return self._rounded_up(tokens + counted * TOKENS_PER_PRICE_UNIT)

    def _rates(self, all_input_tokens: int) -> Price | PriceTier:
        found: Price | PriceTier = self.price
        for tier in self.price.tiers:
            if all_input_tokens <= tier.above_input_tokens:
                break
            found = tier
        return found

    def _dearest_input(self, rates: Price | PriceTier, writes: CacheWrites) -> int:
        dearest = max(rates.input_micro_usd_per_mtok, _or(rates.cache_read_micro_usd_per_mtok, 0))
        if writes != "none":
            dearest = max(dearest, _or(rates.cache_write_micro_usd_per_mtok, 0))
        if writes == "1h":
            dearest = max(dearest, _or(rates.cache_write_1h_micro_usd_per_mtok, 0))
        return dearest

    def _rounded_up(self, millionths: int) -> int:
        numerator, denominator = millionths, TOKENS_PER_PRICE_UNIT
        for premium in self.premiums_basis_points:
            numerator *= BASIS_POINTS + premium
            denominator *= BASIS_POINTS
        return -(-numerator // denominator)


def cost_micro_usd(price: Price, *, input_tokens: int, output_tokens: int) -> int:
    """Cost of one attempt without caches in micro-USD, rounded up.

    Raises ``ValueError`` for negative token counts: a provider that reports one is not believed.
    """
    return Quote("", price).cost(Units(input_tokens, output_tokens))


def worst_case_input_tokens(*, sent_bytes: int, overhead_tokens: int) -> int:
    """Upper bound of the input tokens of a text request.

    Byte-level tokenisers make at most one token per UTF-8 byte; ``overhead_tokens`` covers what the
    provider's chat template adds on top of the JSON that is sent.
    """
    if sent_bytes < 0 or overhead_tokens < 0:
        raise ValueError("sizes must not be negative")
    return sent_bytes + overhead_tokens


def worst_case_micro_usd(
    price: Price, *, sent_bytes: int, overhead_tokens: int, max_output_tokens: int
) -> int:
    """The most that one attempt can cost, in micro-USD: what is reserved before it starts."""
    return Quote("", price).worst_case(
        input_tokens=worst_case_input_tokens(
            sent_bytes=sent_bytes, overhead_tokens=overhead_tokens
        ),
        output_tokens=max_output_tokens,
    )


def _write_1h_rate(rates: Price | PriceTier) -> int:
    shorter = _or(rates.cache_write_micro_usd_per_mtok, rates.input_micro_usd_per_mtok)
    return _or(rates.cache_write_1h_micro_usd_per_mtok, shorter)


def _or(rate: int | None, otherwise: int) -> int:
    return otherwise if rate is None else rate
