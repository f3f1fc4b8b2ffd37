"""Whether one model may and can serve one request. Each way of asking, of one model or of all, for
an answer or for an explanation, goes through these functions."""

from collections.abc import Iterable

from terrace_common.governance.regions import region_allowed
from terrace_common.prices import TOKENS_PER_PRICE_UNIT
from terrace_gateway.calls.ports import EffectivePolicy, MatchRequest, Needs
from terrace_gateway.frozen import frozen
from terrace_gateway.matching.candidates import Excluded
from terrace_gateway.matching.deployments import DIVISOR, Deployment
from terrace_gateway.matching.hints import LATENCIES, Hints

TYPICAL_BYTES_PER_TOKEN = 4
"""For estimates."""
MOST_BYTES_PER_TOKEN = 8
"""A request that would not fit at so many bytes per token is not sent to a model of a given name.
A smaller one may still be too long: then the provider refuses it, unbilled."""

FORBIDDEN = frozenset({"model_not_allowed", "provider_not_allowed", "residency"})
"""Codes of what the caller's policy forbids."""
KILLED = frozenset({"model_killed", "provider_killed"})
UNHEALTHY = frozenset(
    {"breaker_open", "provider_breaker_open", "throttled", "cap", "provider_cap", "frozen"}
)


NO_LIMIT = 10**12


@frozen
class Ask:
    """A request with everything that one judgement needs."""

    needs: Needs
    hints: Hints
    policy: EffectivePolicy
    excluded: Excluded
    bedrock_only: bool
    auto: bool
    features: frozenset[str]
    """What the model must be able to do."""
    input_bound: int
    """The most input tokens."""
    estimated_input: int
    """Input tokens at a typical number of bytes per token."""
    asked_output: int
    """0: the client did not say."""
    wanted_output: int
    """As asked, else the default."""
    output_limit: int
    """Of the policy."""

    @property
    def denied_features(self) -> frozenset[str]:
        """What it asks for and the policy denies."""
        return self.features & self.policy.denied_features


def make_ask(
    request: MatchRequest,
    hints: Hints,
    policy: EffectivePolicy,
    excluded: Excluded,
    *,
    auto: bool,
    default_output_tokens: int,
) -> Ask:
    """A request, ready to be judged."""
    needs = request.needs
    asked, limit = needs.output_tokens, policy.max_output_tokens
    return Ask(
        needs=needs,
        hints=hints,
        policy=policy,
        excluded=excluded,
        bedrock_only=request.bedrock_only,
        auto=auto,
        features=needs.features | hints.features,
        input_bound=needs.input_bound_tokens,
        estimated_input=-(-needs.input_bound_tokens // TYPICAL_BYTES_PER_TOKEN),
        asked_output=0 if asked is None else asked,
        wanted_output=default_output_tokens if asked is None else asked,
        output_limit=NO_LIMIT if limit is None else limit,
    )


def permission_reason(deployment: Deployment, policy: EffectivePolicy) -> str | None:
    """Why the policy keeps the model from its caller; ``None``: it does not."""
    if policy.models is not None and deployment.name not in policy.models:
        return "model_not_allowed"
    if policy.providers is not None and deployment.provider.name not in policy.providers:
        return "provider_not_allowed"
    if policy.residency and not residency_allows(deployment.regions, policy.residency):
        return "residency"
    return None


def residency_allows(regions: tuple[str, ...], sets: Iterable[tuple[str, ...]]) -> bool:
    """Whether every set allows every region; regions that are not known are not allowed."""
    return bool(regions) and all(
        region_allowed(region, allowed) for allowed in sets for region in regions
    )


def standing_reason(deployment: Deployment, ask: Ask) -> str | None:
    """Why the model is out for every request of this kind: the same caller, surface, features and
    hints, whatever its size and whatever the time."""
    hints, model = ask.hints, deployment.model
    wanted_output = hints.output_tokens or 0
    denied = permission_reason(deployment, ask.policy)
    checks: tuple[tuple[bool, str], ...] = (
        (ask.bedrock_only and deployment.provider.kind != "bedrock", "not_bedrock"),
        (ask.auto and model.hidden, "hidden"),
        (ask.needs.surface not in deployment.surfaces, "surface"),
        (not ask.features <= deployment.able, "features"),
        (
            "images" in ask.features
            and not deployment.quote.bounds_images(model.max_tokens_per_image),
            "unpriced",
        ),
        (
            hints.provider is not None and hints.provider != deployment.provider.name,
            "hint_provider",
        ),
        (
            bool(hints.residency) and not residency_allows(deployment.regions, (hints.residency,)),
            "hint_residency",
        ),
        (
            hints.latency is not None
            and LATENCIES.index(model.latency) > LATENCIES.index(hints.latency),
            "hint_latency",
        ),
        (
            hints.context_tokens is not None and model.context_tokens < hints.context_tokens,
            "hint_context",
        ),
        (model.max_output_tokens < wanted_output, "hint_output"),
        (
            _above(deployment.steps[-1][1], hints.max_input_micro_usd_per_mtok)
            or _above(deployment.steps[-1][2], hints.max_output_micro_usd_per_mtok),
            "hint_price",
        ),
    )
    return denied or next((code for failed, code in checks if failed), None)


def output_tokens(deployment: Deployment, ask: Ask) -> int:
    """``max_tokens`` of a call: as asked or the default, within the policy and the model."""
    return min(ask.wanted_output, deployment.most_output, ask.output_limit)


def estimate(deployment: Deployment, ask: Ask) -> int:
    """What a call is estimated to cost, in micro-USD."""
    return deployment.estimate(ask.estimated_input, output_tokens(deployment, ask))


def size_reason(deployment: Deployment, ask: Ask, *, strict: bool) -> str | None:
    """Why a request of this size does not fit.

    ``strict``: it must fit whatever its tokens turn out to be, and get all the output that it asks
    for and may have. Else the output is clamped and the input is taken at its least (of a model
    that was named) or as estimated (of one that is chosen).
    """
    output = output_tokens(deployment, ask)
    least = least_output(ask, strict=strict)
    if deployment.most_output and min(deployment.most_output, ask.output_limit) < least:
        return "output"
    return "context" if input_size(ask, strict=strict) + output > deployment.context else None


def least_output(ask: Ask, *, strict: bool) -> int:
    """The output that a model must be able to give."""
    if ask.policy.over_output == "refuse":
        return ask.asked_output
    return min(ask.asked_output, ask.output_limit) if strict else 0


def input_size(ask: Ask, *, strict: bool) -> int:
    """The input tokens that must fit."""
    if strict:
        return ask.input_bound
    return ask.estimated_input if ask.auto else ask.input_bound // MOST_BYTES_PER_TOKEN


def killed_reason(deployment: Deployment, excluded: Excluded) -> str | None:
    """Whether a kill switch is on."""
    if deployment.name in excluded.models:
        return "model_killed"
    return "provider_killed" if deployment.provider.name in excluded.providers else None


def in_words(code: str, deployment: Deployment, ask: Ask) -> str:
    """A reason for a person who runs the gateway."""
    model = deployment.model
    missing = ", ".join(sorted(ask.features - deployment.able))
    words = {
        "model_not_allowed": "the policy does not allow this model",
        "provider_not_allowed": f"the policy does not allow provider {deployment.provider.name}",
        "residency": f"the policy's residency does not cover {_regions(deployment)}",
        "not_bedrock": "this surface has models on Bedrock only",
        "hidden": "hidden models are not chosen by auto",
        "surface": f"it is not served on {ask.needs.surface}",
        "features": f"it has no {missing}",
        "unpriced": "what images cost has no bound (max_tokens_per_image, a price per image if 0)",
        "hint_provider": f"its provider is {deployment.provider.name}",
        "hint_residency": f"it may process in {_regions(deployment)}",
        "hint_latency": f"its latency class is {model.latency}",
        "hint_context": f"its context is {model.context_tokens} tokens",
        "hint_output": f"its longest output is {model.max_output_tokens} tokens",
        "hint_price": "a price is above the wished ceiling",
        "hint_cost": "the call is estimated to cost more than the wished ceiling",
        "output": f"its longest output is {output_tokens(deployment, ask)} tokens here",
        "context": f"input and output may not fit into {model.context_tokens} tokens",
        "model_killed": "the kill switch of the model is on",
        "provider_killed": "the kill switch of its provider is on",
        "breaker_open": "its breaker is open after failed calls",
        "provider_breaker_open": "its provider's breaker is open after failed calls",
        "throttled": "its provider throttles it",
        "cap": "a cap of the model is used up",
        "provider_cap": "a cap of its provider is used up",
        "frozen": "a bill was above its reservation; frozen until its price changes",
    }
    return words[code]


def _above(rate: int, ceiling: int | None) -> bool:
    # Rates have their premiums multiplied in, and so has the divisor.
    return ceiling is not None and rate * TOKENS_PER_PRICE_UNIT > ceiling * DIVISOR


def _regions(deployment: Deployment) -> str:
    return ", ".join(deployment.regions) or "regions that are not known"
