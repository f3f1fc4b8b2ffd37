"""Which price holds for a deployment now: the applied book's entry, else the model's own."""

from datetime import datetime

from terrace_common.bedrock import parse_model
from terrace_common.governance import BedrockProvider, Model, OpenAIProvider
from terrace_common.prices import Price, PriceBook, Quote, Units
from terrace_gateway.calls.ports import Usage


class Prices:
    """The prices in force. ``use`` replaces the book; a running call keeps its quote.

    ``version`` rises with each change, for those who keep what they computed from quotes.
    """

    def __init__(self, price_version: str, book: PriceBook | None = None) -> None:
        self._price_version = price_version
        self._book = book
        self.version = 0

    @property
    def book(self) -> PriceBook | None:
        """The applied book; ``None``: every model has its own price."""
        return self._book

    def use(self, price_version: str, book: PriceBook | None) -> None:
        """The governance spec's ``price_version`` and the book in force from now on."""
        # A version never changes, so its name says whether the book is another.
        if (price_version, _version(book)) != (self._price_version, _version(self._book)):
            self._price_version, self._book = price_version, book
            self.version += 1

    def quote(
        self, model: Model, provider: OpenAIProvider | BedrockProvider, *, at: datetime
    ) -> Quote:
        """The price of ``model`` at ``at`` (database time)."""
        return quote_of(model, provider, self._book, self._price_version, at=at)

    def next_change(self, after: datetime) -> datetime | None:
        """When the book's next entry comes into force."""
        return None if self._book is None else self._book.next_change(after)


class FixedQuote(Quote):
    """Stands for a price that is not one of tokens, where whoever makes the call knows its cost."""

    def __init__(self, version: str) -> None:
        nothing = Price(input_micro_usd_per_mtok=0, output_micro_usd_per_mtok=0)
        super().__init__(version, nothing)


def quote_of(
    model: Model,
    provider: OpenAIProvider | BedrockProvider,
    book: PriceBook | None,
    price_version: str,
    *,
    at: datetime,
) -> Quote:
    """The price of ``model`` by ``book``, else its own under the name ``price_version``."""
    names, regional = _names(model, provider)
    entry = None if book is None else book.entry(provider=provider.name, models=names, at=at)
    if book is None or entry is None:
        return Quote(price_version, model.price)
    premiums: list[int] = []
    # An entry for the profile itself says what the profile costs.
    if regional and entry.model != names[0]:
        premiums.append(entry.regional_premium_basis_points)
    if model.latency == "batch":
        premiums.append(entry.batch_premium_basis_points)
    return Quote(book.version, entry.price, tuple(premium for premium in premiums if premium))


def units_of(usage: Usage, *, images: int = 0) -> Units:
    """What an attempt used, as prices count it. Raises ``ValueError`` for negative counts."""
    # Part of the cache writes; absent where the provider does not tell the two kinds apart.
    hour: int = getattr(usage, "cache_write_1h_tokens", 0)
    return Units(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens - hour,
        cache_write_1h_tokens=hour,
        images=images,
    )


def _version(book: PriceBook | None) -> str | None:
    return None if book is None else book.version


def _names(
    model: Model, provider: OpenAIProvider | BedrockProvider
) -> tuple[tuple[str, ...], bool]:
    """The names that a book may have the model under, the closest first; and whether calls go
    through a profile of a geography."""
    if not isinstance(provider, BedrockProvider):
        return (model.upstream_model,), False
    names = [model.upstream_model]
    regional = False
    for name in (model.upstream_model, model.base_model):
        if name is None:
            continue
        found = parse_model(name)
        names += [found.name, *([found.base_model] if found.base_model else [])]
        regional = regional or (found.geography is not None and found.geography != "global")
    return tuple(dict.fromkeys(names)), regional
