"""Prices, and money as integer micro-USD. Everything that others use of it is exported here."""

from terrace_common.prices.arithmetic import (
    CacheWrites,
    Quote,
    Units,
    UnpricedError,
    cost_micro_usd,
    worst_case_input_tokens,
    worst_case_micro_usd,
)
from terrace_common.prices.book import PriceBook, PriceBookError, PriceEntry, load_price_book
from terrace_common.prices.price import (
    MAX_PRICE_MICRO_USD_PER_MTOK,
    TOKENS_PER_PRICE_UNIT,
    Price,
    PriceTier,
)

__all__ = [
    "MAX_PRICE_MICRO_USD_PER_MTOK",
    "TOKENS_PER_PRICE_UNIT",
    "CacheWrites",
    "Price",
    "PriceBook",
    "PriceBookError",
    "PriceEntry",
    "PriceTier",
    "Quote",
    "Units",
    "UnpricedError",
    "cost_micro_usd",
    "load_price_book",
    "worst_case_input_tokens",
    "worst_case_micro_usd",
]
