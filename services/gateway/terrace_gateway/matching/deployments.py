"""The catalogue as the matcher reads it: everything that does not change per request, worked out
once per version of the spec and of the prices."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from terrace_common.governance import BedrockProvider, Governance, Model, OpenAIProvider
from terrace_common.prices import Quote
from terrace_common.prices.arithmetic import BASIS_POINTS
from terrace_common.prices.price import TOKENS_PER_PRICE_UNIT
from terrace_gateway.prices import Prices

MOST_PREMIUMS = 2  # of the region and of batches
DIVISOR = TOKENS_PER_PRICE_UNIT * BASIS_POINTS**MOST_PREMIUMS


@dataclass(frozen=True, slots=True)
class Deployment:
    """One model of the spec with its provider and price."""

    index: int
    name: str
    model: Model
    """With the price in force: what a request may ask for goes by it, as its settlement does."""
    provider: OpenAIProvider | BedrockProvider
    quote: Quote
    able: frozenset[str]
    surfaces: frozenset[str]
    regions: tuple[str, ...]
    steps: tuple[tuple[int, int, int], ...]
    """(above input tokens, input rate, output rate) of each tier, premiums multiplied in."""
    flat: int
    context: int
    """Tokens of input and output together."""
    most_output: int
    """0 for embeddings."""

    def weigh(self, input_tokens: int, output_tokens: int) -> int:
        """The exact cost of plain tokens in parts of ``DIVISOR`` of a micro-USD, to compare by:
        this runs per model and call."""
        steps = self.steps
        _, input_rate, output_rate = steps[0]
        if len(steps) > 1:
            for above, step_input, step_output in steps:
                if input_tokens > above:
                    input_rate, output_rate = step_input, step_output
        return self.flat + input_tokens * input_rate + output_tokens * output_rate

    def estimate(self, input_tokens: int, output_tokens: int) -> int:
        """``quote.cost`` of plain tokens, in micro-USD."""
        return -(-self.weigh(input_tokens, output_tokens) // DIVISOR)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The deployments of one version of the spec at the prices of one moment."""

    governance: Governance
    deployments: tuple[Deployment, ...]
    by_name: Mapping[str, Deployment]
    """By model name; aliases are resolved by ``governance.find_model``."""
    prices_version: int
    valid_until: datetime | None
    """When a price changes."""

    def chain(self, deployment: Deployment) -> list[Deployment]:
        """It and its fallbacks: its own in their order, then theirs, each model once."""
        found = {deployment.name: deployment}
        waiting = [deployment]
        for one in waiting:
            for name in one.model.fallbacks:
                if name not in found and name in self.by_name:
                    found[name] = self.by_name[name]
                    waiting.append(found[name])
        return waiting


def compile_catalogue(governance: Governance, prices: Prices, *, at: datetime) -> Catalogue:
    """The catalogue with the prices that hold at ``at`` (database time)."""
    deployments = tuple(
        _deployment(index, model, governance.provider_of(model), prices, at)
        for index, model in enumerate(governance.models)
    )
    return Catalogue(
        governance=governance,
        deployments=deployments,
        by_name={deployment.name: deployment for deployment in deployments},
        prices_version=prices.version,
        valid_until=prices.next_change(at),
    )


def _deployment(
    index: int,
    model: Model,
    provider: OpenAIProvider | BedrockProvider,
    prices: Prices,
    at: datetime,
) -> Deployment:
    quote = prices.quote(model, provider, at=at)
    price = quote.price
    factor = BASIS_POINTS ** (MOST_PREMIUMS - len(quote.premiums_basis_points))
    for premium in quote.premiums_basis_points:
        factor *= BASIS_POINTS + premium
    plain = (-1, price.input_micro_usd_per_mtok, price.output_micro_usd_per_mtok)
    tiers = (
        (tier.above_input_tokens, tier.input_micro_usd_per_mtok, tier.output_micro_usd_per_mtok)
        for tier in price.tiers
    )
    return Deployment(
        index=index,
        name=model.name,
        model=model if model.price == price else model.model_copy(update={"price": price}),
        provider=provider,
        quote=quote,
        able=frozenset(model.able),
        surfaces=frozenset(model.served_on(provider)),
        regions=model.processed_in(provider),
        steps=tuple((above, i * factor, o * factor) for above, i, o in (plain, *tiers)),
        flat=price.micro_usd_per_request * TOKENS_PER_PRICE_UNIT * factor,
        context=model.context_tokens,
        most_output=model.max_output_tokens if model.kind == "chat" else 0,
    )
