"""Prices: which one holds for a call, its versions, and the re-rating of past calls."""

from terrace_gateway.prices.quotes import FixedQuote, Prices, quote_of, units_of

__all__ = ["FixedQuote", "Prices", "quote_of", "units_of"]
