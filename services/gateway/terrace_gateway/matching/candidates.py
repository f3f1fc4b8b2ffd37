"""What the matcher gives: candidates in order, and what became of each model."""

from dataclasses import dataclass
from typing import Literal

from terrace_common.governance import BedrockProvider, Model, OpenAIProvider
from terrace_common.prices import Quote
from terrace_gateway.frozen import frozen

Via = Literal["asked", "auto", "session", "canary", "fallback"]


@frozen
class Excluded:
    """What kill switches take out of every request's candidates, by name."""

    models: frozenset[str] = frozenset()
    providers: frozenset[str] = frozenset()


@frozen
class Candidate:
    """A model that may serve the request, at a price that holds for the whole attempt."""

    model: Model
    provider: str
    """Name of the provider."""
    provider_spec: OpenAIProvider | BedrockProvider
    quote: Quote
    output_tokens: int
    """``max_tokens`` of the call: as asked or the default, within the policy's and the model's."""
    estimated_micro_usd: int
    """What the call would cost at about four bytes per token and with all of its output; no bound:
    that is ``quote.worst_case``."""
    purpose: Literal["call", "fallback"]
    via: Via


@dataclass(frozen=True, slots=True)
class Considered:
    """One model of the catalogue and why it is in or out."""

    model: str
    provider: str
    reason: str | None
    """``None``: it may serve the request. Else a code; ``detail`` says it in words."""
    detail: str
    estimated_micro_usd: int
    price_version: str
    rank: int | None = None
    """Its place among the candidates, from 1 on."""
    via: Via | None = None


@frozen
class Match:
    """At least one candidate, the best first."""

    candidates: tuple[Candidate, ...]
    asked: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a request goes where it goes."""

    asked: str
    candidates: tuple[Candidate, ...]
    considered: tuple[Considered, ...]
    """Every model of the catalogue, the candidates first."""
    code: str | None = None
    """Of the refusal, if there is no candidate."""
    message: str | None = None
    retry_after_seconds: int | None = None

    def as_dict(self) -> dict[str, object]:
        """Plain data for an answer in JSON."""
        refusal: dict[str, object] | None = None
        if self.code is not None:
            refusal = {
                "code": self.code,
                "message": self.message,
                "retry_after_seconds": self.retry_after_seconds,
            }
        return {
            "asked": self.asked,
            "chosen": self.candidates[0].model.name if self.candidates else None,
            "refusal": refusal,
            "models": [
                {
                    "model": one.model,
                    "provider": one.provider,
                    "rank": one.rank,
                    "via": one.via,
                    "reason": one.reason,
                    "detail": one.detail,
                    "estimated_micro_usd": one.estimated_micro_usd,
                    "price_version": one.price_version,
                }
                for one in self.considered
            ],
        }
