"""Why a request goes where it goes, of every model; and the refusal when it goes nowhere."""

from dataclasses import dataclass

from terrace_gateway.calls.ports import MatchRequest
from terrace_gateway.matching.candidates import Candidate, Considered, Via
from terrace_gateway.matching.deployments import Catalogue, Deployment
from terrace_gateway.matching.hints import NoCandidateError
from terrace_gateway.matching.judgement import (
    Ask,
    estimate,
    in_words,
    output_tokens,
    size_reason,
    standing_reason,
)
from terrace_gateway.matching.refusal import refusal_of

MOST_CANDIDATES = 8


@dataclass(frozen=True, slots=True)
class Found:
    """What a search came to, before it is an answer or an explanation."""

    ranked: tuple[tuple[Deployment, Via], ...]
    waits: dict[str, float]
    """Seconds until a model that is out for its health may be back; 0: not known."""
    reasons: dict[str, str]
    """Why a model is out, of those that were looked at."""
    strict: bool = False
    """Whether only models that surely fit were taken."""


def considered_models(catalogue: Catalogue, ask: Ask, found: Found) -> tuple[Considered, ...]:
    """Every model of the catalogue, the candidates first, with why it is in or out."""
    places: dict[str, tuple[int, Via]] = {
        one.name: (rank, via) for rank, (one, via) in enumerate(found.ranked, 1)
    }
    rows = [_row(one, ask, found, places.get(one.name)) for one in catalogue.deployments]
    return tuple(sorted(rows, key=lambda row: row.rank or len(rows) + 1))


def refusal(
    catalogue: Catalogue, request: MatchRequest, ask: Ask, found: Found
) -> NoCandidateError:
    """What the caller is told, with what became of each model for the operator."""
    model = None if ask.auto else catalogue.governance.find_model(request.asked)
    first = None if model is None else catalogue.by_name[model.name]
    reasons = dict(found.reasons)
    if not (ask.auto and reasons):
        looked_at = catalogue.deployments if ask.auto else ((first,) if first else ())
        for one in looked_at:
            reason = standing_reason(one, ask)
            if reason is not None:
                reasons.setdefault(one.name, reason)
    return refusal_of(
        ask,
        asked=request.asked,
        first=first,
        reasons=reasons,
        waits=found.waits,
        considered=considered_models(catalogue, ask, found),
    )


def _row(one: Deployment, ask: Ask, found: Found, place: tuple[int, Via] | None) -> Considered:
    reason = None
    detail = "it may serve the request"
    if place is None:
        reason = found.reasons.get(one.name) or standing_reason(one, ask)
        if reason is None and ask.auto:
            reason = size_reason(one, ask, strict=found.strict)
        if ask.denied_features:
            reason = "feature_denied"
            detail = f"the policy does not allow {', '.join(sorted(ask.denied_features))}"
        elif reason is not None:
            detail = in_words(reason, one, ask)
        elif ask.auto:
            reason, detail = "dearer", f"{MOST_CANDIDATES} candidates go before it"
        else:
            reason, detail = "not_asked", "it was not asked for and is no fallback"
    return Considered(
        model=one.name,
        provider=one.provider.name,
        reason=reason,
        detail=detail,
        estimated_micro_usd=estimate(one, ask),
        price_version=one.quote.version,
        rank=None if place is None else place[0],
        via=None if place is None else place[1],
    )


def candidates_of(found: Found, ask: Ask) -> tuple[Candidate, ...]:
    """What was ranked, as candidates."""
    return tuple(
        Candidate(
            model=one.model,
            provider=one.provider.name,
            provider_spec=one.provider,
            quote=one.quote,
            output_tokens=output_tokens(one, ask),
            estimated_micro_usd=estimate(one, ask),
            purpose="call" if rank == 0 else "fallback",
            via=via,
        )
        for rank, (one, via) in enumerate(found.ranked)
    )
