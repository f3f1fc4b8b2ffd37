"""What past attempts would have cost under another price book. Counters do not move: a cap that was
held was held at the price of its day."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from terrace_common.governance import Governance
from terrace_common.prices import PriceBook, Units
from terrace_gateway.prices.quotes import quote_of


@dataclass(frozen=True, slots=True)
class PastAttempt:
    """What the ledger says of one attempt whose usage is known, corrections added up."""

    attempt_id: str
    opened_at: datetime
    model: str
    provider: str
    deployment: str
    units: Units
    amount_micro_usd: int
    """With its corrections and earlier re-ratings."""
    billed: bool = True
    """False: it used nothing and cost nothing, as one that was refused or not sent."""


@dataclass(frozen=True, slots=True)
class Rerating:
    """The difference that one attempt's entry is about."""

    attempt: PastAttempt
    price_version: str
    amount_micro_usd: int
    """What it would have cost."""

    @property
    def delta_micro_usd(self) -> int:
        """What goes into the ledger: signed."""
        return self.amount_micro_usd - self.attempt.amount_micro_usd


def rerate(
    attempts: Iterable[PastAttempt], governance: Governance, book: PriceBook
) -> Iterator[tuple[PastAttempt, Rerating | None]]:
    """Each attempt at the price that ``book`` had for it when it was opened; ``None``: the spec no
    longer says how to find the price (another deployment under the model's name, say), or the book
    has none for it, or for its images."""
    providers = {provider.name: provider for provider in governance.providers}
    for attempt in attempts:
        model = governance.find_model(attempt.model)
        provider = providers.get(attempt.provider)
        if (
            model is None
            or provider is None
            or model.provider != attempt.provider
            or model.upstream_model != attempt.deployment
        ):
            yield attempt, None
            continue
        quote = quote_of(model, provider, book, governance.price_version, at=attempt.opened_at)
        apart = attempt.units.images and model.max_tokens_per_image == 0
        if quote.version != book.version or (apart and not quote.bounds_images(0)):
            yield attempt, None
            continue
        cost = quote.cost(attempt.units) if attempt.billed else 0
        yield attempt, Rerating(attempt, book.version, cost)
