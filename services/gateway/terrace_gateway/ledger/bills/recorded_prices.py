"""What an attempt's usage cost at the price version that it was reserved at, whatever holds now."""

import asyncio
from typing import LiteralString

from terrace_common.governance import Governance, GovernanceError, load_governance
from terrace_common.prices import PriceBook, Quote
from terrace_gateway.calls.ports import Usage
from terrace_gateway.database import Database
from terrace_gateway.ledger.bills.bill_sources import Candidate
from terrace_gateway.prices.quotes import quote_of, units_of
from terrace_gateway.prices.store import PriceStore, UnreadableBookError

KEPT = 8
# The price version is a word of the text; which of these texts says it is found by reading them.
_NAMING: LiteralString = """
SELECT version FROM governance_version WHERE strpos(text, %s) > 0
ORDER BY applied_at <= %s DESC, version DESC LIMIT 4
"""
_TEXT: LiteralString = "SELECT text FROM governance_version WHERE version = %s"


class RecordedPrices:
    """Reads price books and governance versions; neither ever changes, so the last few are kept."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._store = PriceStore(database)
        self._books: dict[str, PriceBook] = {}
        self._specs: dict[int, Governance | None] = {}

    async def cost(self, attempt: Candidate, usage: Usage) -> int | None:
        """Micro-USD of one call with this usage and the request's images; ``None``: the price that
        the attempt was reserved at cannot be found.

        Raises ``AuthorityUnavailableError``.
        """
        quote = await self._quote(attempt)
        return None if quote is None else quote.cost(units_of(usage, images=attempt.images))

    async def _quote(self, attempt: Candidate) -> Quote | None:
        if attempt.price_version is None:
            return None
        book = await self._book(attempt.price_version)
        named = (attempt.price_version, attempt.opened_at)
        if attempt.policy_version is not None:
            quote = _quote_by(await self._spec(attempt.policy_version), book, attempt)
            if quote is not None:
                return quote
        async with self._database.connection() as connection:
            rows = await (await connection.execute(_NAMING, named)).fetchall()
        for (version,) in rows:
            quote = _quote_by(await self._spec(version), book, attempt)
            if quote is not None:
                return quote
        return None

    async def _book(self, version: str) -> PriceBook | None:
        if version not in self._books:
            try:
                book = await self._store.find(version)
            except UnreadableBookError:  # of a release that knew other keys
                return None
            if book is None:
                return None
            self._books = {**dict(list(self._books.items())[1 - KEPT :]), version: book}
        return self._books[version]

    async def _spec(self, version: int) -> Governance | None:
        if version not in self._specs:
            async with self._database.connection() as connection:
                row = await (await connection.execute(_TEXT, (version,))).fetchone()
            if row is None:
                return None
            spec = await asyncio.to_thread(_read, str(row[0]), f"governance version {version}")
            self._specs = {**dict(list(self._specs.items())[1 - KEPT :]), version: spec}
        return self._specs[version]


def _read(text: str, source: str) -> Governance | None:
    try:
        return load_governance(text, source)
    except GovernanceError:  # of a release that knew other keys
        return None


def _quote_by(spec: Governance | None, book: PriceBook | None, attempt: Candidate) -> Quote | None:
    """The attempt's price by this spec, if it is the one of the recorded version."""
    model = None if spec is None else spec.find_model(attempt.model)
    if spec is None or model is None or model.provider != attempt.provider:
        return None
    if model.upstream_model != attempt.deployment:
        return None
    provider = next(p for p in spec.providers if p.name == model.provider)
    quote = quote_of(model, provider, book, spec.price_version, at=attempt.opened_at)
    return quote if quote.version == attempt.price_version else None
