"""LiteLLM's cost map, read as prices of ours, and compared with them. No I/O.

The map is in USD per token as decimal fractions; it seeds a price book and is a second opinion. It
is not the truth: it lags behind the providers and leaves out cache prices now and then.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Literal

from pydantic import ValidationError

from terrace_common.prices.price import Price, PriceTier

DEFAULT_TOLERANCE_PERCENT = Decimal(1)

_FIELDS = {
    "input_cost_per_token": "input_micro_usd_per_mtok",
    "output_cost_per_token": "output_micro_usd_per_mtok",
    "cache_read_input_token_cost": "cache_read_micro_usd_per_mtok",
    "cache_creation_input_token_cost": "cache_write_micro_usd_per_mtok",
    "cache_creation_input_token_cost_above_1hr": "cache_write_1h_micro_usd_per_mtok",
}
_TIER = re.compile(r"(.+)_above_(\d{1,6})k_tokens")
_UNITS = {
    "input_cost_per_request": "micro_usd_per_request",
    "input_cost_per_image": "micro_usd_per_image",
    "input_cost_per_second": "micro_usd_per_second",
    "guardrail_cost_per_unit": "micro_usd_per_guardrail_unit",
}
_NO_RATES = frozenset({"input_micro_usd_per_mtok", "output_micro_usd_per_mtok"})

DriftKind = Literal["not_in_map", "differs", "missing", "not_in_price_map"]


@dataclass(frozen=True, slots=True)
class Drift:
    """One difference. ``what`` is a field of ``Price``, with ``above N`` for a tier."""

    model: str
    kind: DriftKind
    what: str
    ours: int | None
    theirs: int | None

    @property
    def percent(self) -> Decimal | None:
        """How far ours is from theirs, in percent of theirs; ``None``: there is nothing to say."""
        if not self.theirs or self.ours is None:
            return None
        return Decimal(100) * (self.ours - self.theirs) / self.theirs

    def as_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        percent = self.percent
        return {
            "model": self.model,
            "kind": self.kind,
            "what": self.what,
            "ours": self.ours,
            "theirs": self.theirs,
            "percent": None if percent is None else f"{percent:+.2f}",
        }


def price_of_entry(entry: Mapping[str, object]) -> Price | None:
    """An entry of the map as a price, rounded up to whole micro-USD per million tokens; ``None``:
    it has no price per token, or one that cannot be (a tier below the one before it)."""
    rates: dict[str, int] = {}
    tiers: dict[int, dict[str, int]] = {}
    for name, value in entry.items():
        number = _number(value)
        if number is None:
            continue
        if name in _FIELDS:
            rates[_FIELDS[name]] = _whole(number * 10**12)
        elif name in _UNITS:
            rates[_UNITS[name]] = _whole(number * 10**6)
        elif (tier := _TIER.fullmatch(name)) is not None and tier[1] in _FIELDS:
            tiers.setdefault(int(tier[2]) * 1000, {})[_FIELDS[tier[1]]] = _whole(number * 10**12)
    if not rates.keys() >= _NO_RATES:
        return None
    steps: list[PriceTier] = []
    below = {field: rates[field] for field in _FIELDS.values() if field in rates}
    try:
        for above in sorted(tiers):
            # What a tier does not name keeps its price.
            below |= {field: rate for field, rate in tiers[above].items() if field in below}
            steps.append(PriceTier.model_validate({"above_input_tokens": above, **below}))
        return Price.model_validate({**rates, "tiers": tuple(steps)})
    except ValidationError:
        return None


def compare(
    model: str,
    ours: Price,
    entry: Mapping[str, object],
    *,
    context_tokens: int,
    tolerance_percent: Decimal = DEFAULT_TOLERANCE_PERCENT,
) -> Iterator[Drift]:
    """Differences between a price of ours and the map's entry (empty: not in the map).

    Tiers that a request within ``context_tokens`` cannot reach do not count.
    """
    theirs = price_of_entry(entry)
    if theirs is None:
        yield Drift(model, "not_in_map", "price", None, None)
        return
    our_rates = _flat(ours, context_tokens)
    their_rates = _flat(theirs, context_tokens)
    for what in sorted(our_rates.keys() | their_rates.keys()):
        drift = Drift(model, "differs", what, our_rates.get(what), their_rates.get(what))
        if drift.ours is None:
            yield Drift(model, "missing", what, None, drift.theirs)
        elif drift.theirs is None:
            yield Drift(model, "not_in_price_map", what, drift.ours, None)
        elif drift.ours != drift.theirs:
            percent = drift.percent
            if percent is None or abs(percent) > tolerance_percent:
                yield drift


def _flat(price: Price, context_tokens: int) -> dict[str, int]:
    fields = (*_FIELDS.values(), *_UNITS.values())
    found: dict[str, int] = {}
    for field in fields:
        rate: int | None = getattr(price, field)
        if rate is not None and (rate or field in _FIELDS.values()):
            found[field] = rate
    for tier in price.tiers:
        if tier.above_input_tokens >= context_tokens:
            break
        for field in _FIELDS.values():
            rate = getattr(tier, field)
            if rate is not None:
                found[f"{field} above {tier.above_input_tokens}"] = rate
    return found


def _number(value: object) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, Decimal | int | float):
        return None
    number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    return number if number.is_finite() and number >= 0 else None


def _whole(number: Decimal) -> int:
    return int(number.to_integral_value(ROUND_CEILING))
