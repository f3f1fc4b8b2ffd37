"""A made-up catalogue and a clock that tests move."""

from datetime import UTC, datetime, timedelta
from typing import Any

from terrace_common.governance import Governance
from terrace_gateway.calls.ports import EffectivePolicy, MatchRequest, Needs
from terrace_gateway.clock import Clock
from terrace_gateway.matching import Matcher
from terrace_gateway.prices import Prices

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
ANYTHING = EffectivePolicy()


class FakeClock(Clock):
    """Both times of the guard, moved by hand."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds

    def database_now(self) -> datetime:
        return NOON + timedelta(seconds=self.seconds - 1000)


def model(name: str, **fields: Any) -> dict[str, Any]:
    """A model of the provider ``p``, unless told otherwise. ``price`` is (input, output)."""
    tokens_in, tokens_out = fields.pop("price", (1_000_000, 2_000_000))
    return {
        "name": name,
        "provider": "p",
        "upstream_model": name,
        "context_tokens": 100_000,
        "max_output_tokens": 4096,
        "price": {
            "input_micro_usd_per_mtok": tokens_in,
            "output_micro_usd_per_mtok": tokens_out,
            **fields.pop("more_prices", {}),
        },
        **fields,
    }


def spec(*models: dict[str, Any], **breaker: int) -> Governance:
    providers = [
        {"name": "p", "kind": "openai", "api_base": "http://p", "breaker": breaker},
        {"name": "q", "kind": "openai", "api_base": "http://q"},
        {"name": "b", "kind": "bedrock", "region": "eu-west-1"},
    ]
    return Governance.model_validate(
        {"version": 1, "price_version": "v1", "providers": providers, "models": list(models)}
    )


def matcher_of(*models: dict[str, Any], clock: FakeClock | None = None, **breaker: int) -> Matcher:
    return Matcher(spec(*models, **breaker), prices=Prices("v1"), clock=clock or FakeClock())


def asking(
    asked: str = "auto",
    *,
    surface: str = "chat",
    size: int = 1000,
    output: int | None = None,
    features: frozenset[str] = frozenset(),
    **more: Any,
) -> MatchRequest:
    return MatchRequest(asked, Needs(surface, size, output, features), **more)


def names(matcher: Matcher, request: MatchRequest, **more: Any) -> list[str]:
    match = matcher.match(
        request, more.pop("policy", ANYTHING), request_id=more.pop("request_id", "r"), **more
    )
    return [candidate.model.name for candidate in match.candidates]
