"""What is known about the health of models and providers, fed by the outcome of every attempt."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from terrace_common.governance.catalogue import Breaker
from terrace_gateway.calls.ports import CapRefusal, Dimension
from terrace_gateway.matching.breaker import CircuitBreaker
from terrace_gateway.matching.candidates import Candidate
from terrace_gateway.matching.deployments import Deployment

THROTTLE_SECONDS = 2
"""When the provider throttles and does not say for how long."""
MOST_THROTTLE_SECONDS = 600
"""A provider that says longer is asked again after so long."""
REFUSED_SECONDS = 5
"""How long a refused cap is believed to be as full as it was. Running calls give back."""
MOST_REFUSED_SECONDS = 60
"""The same for a cap with nothing left whose window ends later."""

Trouble = Literal[
    "breaker_open", "provider_breaker_open", "throttled", "cap", "provider_cap", "frozen"
]


@dataclass(frozen=True, slots=True)
class Load:
    """The least that a call will reserve, per dimension."""

    input_tokens: int
    output_tokens: int
    micro_usd: int

    def of(self, dimension: Dimension) -> int:
        """The least amount in one dimension."""
        if dimension == "micro_usd":
            return self.micro_usd
        if dimension == "input_tokens":
            return self.input_tokens
        if dimension == "output_tokens":
            return self.output_tokens
        return self.input_tokens + self.output_tokens if dimension == "total_tokens" else 1


@dataclass(slots=True)
class _Standing:
    breaker: CircuitBreaker
    throttled_until: float = 0.0
    full: dict[Dimension, tuple[float, int]] = field(
        default_factory=dict[Dimension, tuple[float, int]]
    )
    """Per dimension: until when, and what was left."""
    frozen: set[frozenset[str]] = field(default_factory=set[frozenset[str]])
    frozen_at_price: str | None = None


class Health:
    """Health of deployments (by model name) and providers. Not for several threads."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._models: dict[str, _Standing] = {}
        self._providers: dict[str, _Standing] = {}
        self.troubled: set[str] = set()
        """Models for which ``trouble`` may say something; all others are well."""
        self.troubled_providers: set[str] = set()

    def keep(self, models: set[str], providers: set[str]) -> None:
        """Forgets models and providers that are no longer in the spec."""
        for known, wanted, troubled in (
            (self._models, models, self.troubled),
            (self._providers, providers, self.troubled_providers),
        ):
            for name in known.keys() - wanted:
                del known[name]
            troubled.intersection_update(wanted)

    def trouble(
        self, deployment: Deployment, features: frozenset[str], load: Load
    ) -> tuple[Trouble, float] | None:
        """Why the deployment must not be called now, and for how many seconds (0: not known)."""
        now = self._now()
        name, provider = deployment.name, deployment.provider.name
        found: tuple[Trouble, float] | None = None
        if name in self.troubled:
            standing = self._models[name]
            if standing.frozen_at_price != deployment.quote.version:
                standing.frozen.clear()  # the book says something else now
            if any(frozen <= features for frozen in standing.frozen):
                return "frozen", 0.0
            if standing.throttled_until > now:
                return "throttled", standing.throttled_until - now
            found = self._limits(standing, load, now, ("breaker_open", "cap"))
            if found is None and self._is_well(standing, now):
                self.troubled.discard(name)
        if found is None and provider in self.troubled_providers:
            standing = self._providers[provider]
            found = self._limits(standing, load, now, ("provider_breaker_open", "provider_cap"))
            if found is None and self._is_well(standing, now):
                self.troubled_providers.discard(provider)
        return found

    def begin(self, candidate: Candidate) -> bool:
        """Right before the reservation. ``False``: try the next candidate, another call is probing
        this one. After ``True`` exactly one of the calls below is due."""
        model, provider = self._of(candidate)
        if not model.breaker.begin():
            return False
        if not provider.breaker.begin():
            model.breaker.abandoned()
            return False
        return True

    def succeeded(self, candidate: Candidate) -> None:
        """The provider answered."""
        for standing in self._of(candidate):
            standing.breaker.succeeded()

    def failed(self, candidate: Candidate, kind: Literal["unknown", "error"]) -> None:
        """The provider failed by itself, or the outcome is unknown."""
        for standing in self._of(candidate):
            standing.breaker.failed(candidate.model.name, unknown=kind == "unknown")
        self._note(candidate)

    def throttled(self, candidate: Candidate, retry_after_seconds: int | None) -> None:
        """The provider throttles this model; it leaves the candidates for as long as it says."""
        model, provider = self._of(candidate)
        seconds = THROTTLE_SECONDS if retry_after_seconds is None else retry_after_seconds
        until = self._now() + min(max(seconds, 1), MOST_THROTTLE_SECONDS)
        model.throttled_until = max(model.throttled_until, until)
        model.breaker.abandoned()
        provider.breaker.abandoned()
        self.troubled.add(candidate.model.name)

    def refused(self, candidate: Candidate, refusal: CapRefusal) -> None:
        """A cap refused the reservation. One of the model's or provider's own keeps requests that
        need more than was left away from it for a while; others say nothing about it."""
        model, provider = self._of(candidate)
        model.breaker.abandoned()
        provider.breaker.abandoned()
        scope = refusal.cap.scope
        if scope not in ("model", "provider"):
            return
        seconds = REFUSED_SECONDS
        if refusal.remaining <= 0 and refusal.cap.dimension != "concurrency":
            seconds = min(refusal.retry_after_seconds or REFUSED_SECONDS, MOST_REFUSED_SECONDS)
        elif refusal.cap.dimension == "concurrency":
            seconds = 1  # calls end all the time
        standing = model if scope == "model" else provider
        standing.full[refusal.cap.dimension] = (self._now() + seconds, refusal.remaining)
        if scope == "model":
            self.troubled.add(candidate.model.name)
        else:
            self.troubled_providers.add(candidate.provider)

    def abandoned(self, candidate: Candidate) -> None:
        """Nothing was sent, or the request itself was at fault: this says nothing about health."""
        for standing in self._of(candidate):
            standing.breaker.abandoned()

    def froze(self, candidate: Candidate, features: frozenset[str]) -> None:
        """A bill was above its reservation: requests with (at least) these features do not go to
        this deployment until its price changes."""
        model, _ = self._of(candidate)
        if model.frozen_at_price != candidate.quote.version:
            model.frozen.clear()
            model.frozen_at_price = candidate.quote.version
        model.frozen.add(features)
        self.troubled.add(candidate.model.name)

    def is_frozen(self, model: str) -> bool:
        """Whether ``froze`` holds for some requests."""
        standing = self._models.get(model)
        return standing is not None and bool(standing.frozen)

    def thaw(self, model: str) -> bool:
        """Ends what ``froze`` began. Whether there was something."""
        standing = self._models.get(model)
        if standing is None or not standing.frozen:
            return False
        standing.frozen.clear()
        return True

    def _of(self, candidate: Candidate) -> tuple[_Standing, _Standing]:
        settings = candidate.provider_spec.breaker
        return (
            self._standing(self._models, candidate.model.name, settings, least_sources=1),
            # One bad model must not take the provider's other models away.
            self._standing(self._providers, candidate.provider, settings, least_sources=2),
        )

    def _standing(
        self, known: dict[str, _Standing], name: str, settings: Breaker, *, least_sources: int
    ) -> _Standing:
        standing = known.get(name)
        if standing is None:
            breaker = CircuitBreaker(settings, self._now, least_sources=least_sources)
            standing = known[name] = _Standing(breaker)
        standing.breaker.settings = settings
        return standing

    def _note(self, candidate: Candidate) -> None:
        model, provider = self._of(candidate)
        if not model.breaker.is_closed:
            self.troubled.add(candidate.model.name)
        if not provider.breaker.is_closed:
            self.troubled_providers.add(candidate.provider)

    def _limits(
        self, standing: _Standing, load: Load, now: float, names: tuple[Trouble, Trouble]
    ) -> tuple[Trouble, float] | None:
        wait = standing.breaker.wait_seconds()
        if wait > 0:
            return names[0], wait
        for dimension, (until, left) in standing.full.items():
            if until > now and load.of(dimension) > left:
                return names[1], until - now
        return None

    def _is_well(self, standing: _Standing, now: float) -> bool:
        standing.full = {name: full for name, full in standing.full.items() if full[0] > now}
        return (
            standing.breaker.is_closed
            and not standing.full
            and not standing.frozen
            and standing.throttled_until <= now
        )
