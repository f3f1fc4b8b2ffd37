"""What a caller is told when no model may serve the request: the cause that is nearest to a cure,
and nothing about models that the caller may not use."""

from collections.abc import Callable, Mapping
from math import ceil

from terrace_gateway.matching.candidates import Considered
from terrace_gateway.matching.deployments import Deployment
from terrace_gateway.matching.hints import NoCandidateError
from terrace_gateway.matching.judgement import FORBIDDEN, KILLED, UNHEALTHY, Ask

_LACKS = {
    "surface": "is served on this surface",
    "features": "has what it needs",
    "unpriced": "has a price for what it needs",
    "hidden": "may be chosen",
    "hint_provider": "is of the wished provider",
    "hint_residency": "is processed in the wished regions",
    "hint_latency": "is quick enough",
    "hint_context": "has the wished context length",
    "hint_output": "has the wished output length",
    "hint_price": "is below the wished price",
    "hint_cost": "is below the wished cost",
    "output": "has the output length that it asks for",
    "context": "has a context that is long enough",
}


def refusal_of(
    ask: Ask,
    *,
    asked: str,
    first: Deployment | None,
    reasons: Mapping[str, str],
    waits: Mapping[str, float],
    considered: tuple[Considered, ...],
) -> NoCandidateError:
    """The refusal. ``first`` is the model that was asked for by name; ``reasons`` has the codes of
    the models that were looked at."""

    def refusal(code: str, message: str, retry: int | None = None) -> NoCandidateError:
        return NoCandidateError(code, message, retry_after_seconds=retry, considered=considered)

    denied = ask.denied_features
    own = None if first is None else reasons.get(first.name)
    codes = set(reasons.values()) - FORBIDDEN - {"not_bedrock", "hidden"}
    if not ask.auto and (first is None or own == "not_bedrock"):
        answer = refusal("model_not_found", f"model {asked[:256]!r} does not exist here")
    elif denied:
        answer = refusal("policy_denied", f"the policy does not allow {', '.join(sorted(denied))}")
    elif own == "model_not_allowed":
        answer = refusal("model_not_allowed", "this key may not use this model")
    elif own in FORBIDDEN:
        answer = refusal("policy_denied", "the policy does not allow where this model runs")
    elif codes & UNHEALTHY:
        answer = _unhealthy(codes, reasons, waits, refusal)
    elif codes and codes <= KILLED:
        answer = refusal("killed", "the model is switched off")
    elif not codes:
        answer = refusal("model_not_allowed", "this key may use no model that could be chosen")
    elif codes == {"unpriced"}:
        answer = refusal("unpriced", "images have no price on the models that this key may use")
    else:
        lacking = "; no model ".join(text for code, text in _LACKS.items() if code in codes)
        whose = "" if ask.auto else " and no fallback"
        text = f"this request cannot be served{whose}: no model {lacking}"
        answer = refusal("not_servable", text)
    return answer


def _unhealthy(
    codes: set[str],
    reasons: Mapping[str, str],
    waits: Mapping[str, float],
    refusal: Callable[[str, str, int | None], NoCandidateError],
) -> NoCandidateError:
    known = [waits[name] for name, code in reasons.items() if code in UNHEALTHY and waits[name] > 0]
    retry = max(1, ceil(min(known))) if known else None
    if "throttled" in codes:
        return refusal("rate_limited", "the model's provider is throttling", retry)
    if codes & {"cap", "provider_cap"}:
        return refusal("rate_limited", "a limit of the model or its provider is reached", retry)
    return refusal("model_unavailable", "the model is not available now", retry)
