"""Money between people (US dollars) and Terrace (whole micro-dollars); no float on the way."""

import re
from decimal import Decimal

from terrace_cli.errors import UsageError

MICRO_PER_USD = 1_000_000
_PLAIN_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?")


def parse_usd(text: str) -> int:
    """Micro-USD of a plain decimal such as `1.5`, exactly.

    Raises UsageError for anything else: signs, exponents, separators, or more than the six decimals
    that the ledger can hold (rounding somebody's cap silently would be a lie).
    """
    if not _PLAIN_DECIMAL.fullmatch(text):
        raise UsageError(
            f"{text!r} is not an amount in US dollars. Right would be digits with at most six "
            "decimals and a point, for example 1.5 or 0.000250."
        )
    return int(Decimal(text) * MICRO_PER_USD)


def format_usd(micro_usd: int) -> str:
    """`1500000` -> `$1.500000`; all six decimals, because single calls cost fractions of a cent."""
    sign = "-" if micro_usd < 0 else ""
    whole, micro = divmod(abs(micro_usd), MICRO_PER_USD)
    return f"{sign}${whole}.{micro:06d}"
