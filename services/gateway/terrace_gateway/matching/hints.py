"""What a request asks of a model beside its name: ``auto?vision&context=100000`` or the header
``x-terrace-hints: vision&context=100000``."""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, cast, get_args
from urllib.parse import unquote_plus

from terrace_common.governance.catalogue import AUTO, LatencyClass, ModelFeature
from terrace_gateway.frozen import frozen

if TYPE_CHECKING:
    from terrace_gateway.matching.candidates import Considered

MAX_HINT_BYTES = 1024

LATENCIES: tuple[LatencyClass, ...] = get_args(LatencyClass)
"""From the quickest to the slowest."""
_FEATURES: dict[str, ModelFeature] = {
    **{feature: feature for feature in cast("tuple[ModelFeature, ...]", get_args(ModelFeature))},
    "vision": "images",
}
_COUNTS = ("context", "output")
_CEILINGS = ("max_input_usd_per_mtok", "max_output_usd_per_mtok", "max_usd")
_TEXTS = ("latency", "residency", "provider")
_VALID = ", ".join([*_FEATURES, *_COUNTS, *_CEILINGS, *_TEXTS])
_COUNT = re.compile(r"([0-9]{1,9})([kM]?)")
_USD = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?")
_REGION = re.compile(r"[a-z]{2}(-[a-z]+)*(-[0-9]|-\*)")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_TIMES = {"": 1, "k": 1000, "M": 1_000_000}


class NoCandidateError(Exception):
    """Nothing may serve the request.

    ``code`` is one of the edge's: ``invalid_request`` (hints), ``not_servable``, ``unpriced``,
    ``model_not_found``, ``model_not_allowed``, ``policy_denied``, ``killed``, ``rate_limited`` (by
    the provider, or a cap of the model or provider), ``model_unavailable`` (its health).
    ``considered`` has each model with why not, for operators only.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        retry_after_seconds: int | None = None,
        considered: "tuple[Considered, ...]" = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after_seconds = retry_after_seconds
        self.considered = considered


@frozen
class Hints:
    """Checked hints; ``None`` and empty: no wish."""

    features: frozenset[str] = frozenset()
    context_tokens: int | None = None
    """Least context, in tokens."""
    output_tokens: int | None = None
    """Least longest output, in tokens."""
    latency: LatencyClass | None = None
    max_input_micro_usd_per_mtok: int | None = None
    max_output_micro_usd_per_mtok: int | None = None
    max_micro_usd: int | None = None
    """The most that one call may be estimated to cost."""
    residency: tuple[str, ...] = ()
    provider: str | None = None


NO_HINTS = Hints()


def parse_hints(text: str) -> dict[str, str]:
    """The pairs of ``a&b=c``; a hint without a value has the value ``true``.

    Raises ``NoCandidateError`` (``invalid_request``) for one that is given twice.
    """
    if len(text) > MAX_HINT_BYTES:
        raise _invalid(f"hints are longer than {MAX_HINT_BYTES} characters")
    found: dict[str, str] = {}
    for part in text.split("&"):
        name, given, value = part.partition("=")
        name = unquote_plus(name).strip()
        if not name and not given:
            continue
        if name in found:
            raise _invalid(f"hint {name[:64]!r} is given twice")
        found[name] = unquote_plus(value).strip() if given else "true"
    return found


def split_asked(asked: str) -> tuple[bool, dict[str, str]]:
    """Whether ``asked`` is ``auto``, and the hints in it."""
    if asked == AUTO:
        return True, {}
    if asked.startswith(AUTO + "?"):
        return True, parse_hints(asked[len(AUTO) + 1 :])
    return False, {}


def read_hints(pairs: Mapping[str, str]) -> Hints:
    """Checks pairs of names and values. Raises ``NoCandidateError`` that lists what is valid."""
    if not pairs:
        return NO_HINTS
    features: set[str] = set()
    counts: dict[str, int] = {}
    prices: dict[str, int] = {}
    for name, value in pairs.items():
        if name in _FEATURES:
            if value not in ("true", "false"):
                raise _invalid(f"hint {name} is true or false, not {value[:64]!r}")
            if value == "true":
                features.add(_FEATURES[name])
        elif name in _COUNTS:
            matched = _COUNT.fullmatch(value)
            if matched is None:
                raise _invalid(f"hint {name} is a number of tokens such as 100000 or 100k")
            counts[name] = int(matched[1]) * _TIMES[matched[2]]
        elif name in _CEILINGS:
            if _USD.fullmatch(value) is None:
                raise _invalid(f"hint {name} is an amount in US dollars such as 3 or 0.25")
            prices[name] = int(Decimal(value) * 1_000_000)
        elif name not in _TEXTS:
            raise _invalid(f"unknown hint {name[:64]!r}; valid: {_VALID}")
    return Hints(
        features=frozenset(features),
        context_tokens=counts.get("context"),
        output_tokens=counts.get("output"),
        latency=_latency(pairs.get("latency")),
        max_input_micro_usd_per_mtok=prices.get("max_input_usd_per_mtok"),
        max_output_micro_usd_per_mtok=prices.get("max_output_usd_per_mtok"),
        max_micro_usd=prices.get("max_usd"),
        residency=_residency(pairs.get("residency")),
        provider=_provider(pairs.get("provider")),
    )


def _latency(value: str | None) -> LatencyClass | None:
    if value is None:
        return None
    for latency in LATENCIES:
        if value == latency:
            return latency
    raise _invalid(f"hint latency is one of {', '.join(LATENCIES)}, not {value[:64]!r}")


def _residency(value: str | None) -> tuple[str, ...]:
    if value is None:
        return ()
    regions = tuple(region.strip() for region in value.split(","))
    if not all(_REGION.fullmatch(region) for region in regions):
        raise _invalid("hint residency is a list of regions such as eu-west-1 or eu-*")
    return regions


def _provider(value: str | None) -> str | None:
    if value is not None and _NAME.fullmatch(value) is None:
        raise _invalid("hint provider is the name of a provider")
    return value


def _invalid(message: str) -> NoCandidateError:
    return NoCandidateError("invalid_request", message)
