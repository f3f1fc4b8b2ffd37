"""What a model charges. Integers only: micro-USD per million tokens, or per unit."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

TOKENS_PER_PRICE_UNIT = 1_000_000
MAX_PRICE_MICRO_USD_PER_MTOK = 10**12  # a million USD per million tokens; keeps sums inside 64 bits
MAX_PRICE_MICRO_USD_PER_UNIT = 10**9  # a thousand USD for one image, second, request or unit

PerMtok = Annotated[int, Field(ge=0, le=MAX_PRICE_MICRO_USD_PER_MTOK)]
PerUnit = Annotated[int, Field(ge=0, le=MAX_PRICE_MICRO_USD_PER_UNIT)]

_RATES = (
    "input_micro_usd_per_mtok",
    "output_micro_usd_per_mtok",
    "cache_read_micro_usd_per_mtok",
    "cache_write_micro_usd_per_mtok",
    "cache_write_1h_micro_usd_per_mtok",
)


class _Rates(BaseModel):
    """Prices of tokens, in micro-USD per million ($0.15 per million = 150_000)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    input_micro_usd_per_mtok: PerMtok
    output_micro_usd_per_mtok: PerMtok
    cache_read_micro_usd_per_mtok: PerMtok | None = None
    """``None``: reads are charged as input, which no provider exceeds."""
    cache_write_micro_usd_per_mtok: PerMtok | None = None
    """Of a write that lives for 5 minutes. ``None``: a request's marks of one are taken off; what
    is written all the same is charged as input, and told."""
    cache_write_1h_micro_usd_per_mtok: PerMtok | None = None
    """Of a write that lives for an hour. ``None``: as above; what is written all the same is
    charged as a write for 5 minutes, and without a price of those as input."""


class PriceTier(_Rates):
    """Prices of the whole request when its input, of every kind, is above a number of tokens."""

    above_input_tokens: int = Field(ge=1, le=100_000_000)


class Price(_Rates):
    """What a model charges. What has no price here is refused, or charged as input; never free."""

    tiers: tuple[PriceTier, ...] = Field(default=(), strict=False)
    """By rising ``above_input_tokens``; no price of a tier is below that of the tier before."""
    micro_usd_per_image: PerUnit | None = None
    """On top of the tokens that an image counts as. ``None``: its tokens alone; where it counts as
    none, a request with one is refused."""
    micro_usd_per_second: PerUnit | None = None
    micro_usd_per_request: PerUnit = 0
    micro_usd_per_guardrail_unit: PerUnit | None = None

    @model_validator(mode="after")
    def _tiers_rise(self) -> "Price":
        before: _Rates = self
        for tier in self.tiers:
            if (
                isinstance(before, PriceTier)
                and tier.above_input_tokens <= before.above_input_tokens
            ):
                raise _problem("tiers must be in the order of a rising above_input_tokens")
            for rate in _RATES:
                lower: int | None = getattr(before, rate)
                upper: int | None = getattr(tier, rate)
                if (lower is None) != (upper is None):
                    raise _problem(f"either every tier has {rate} or none has")
                if lower is not None and upper is not None and upper < lower:
                    raise _problem(f"{rate} of a tier must not be below that of the tier before")
            before = tier
        return self


def _problem(message: str) -> PydanticCustomError:
    return PydanticCustomError("price", "{message}", {"message": message})
