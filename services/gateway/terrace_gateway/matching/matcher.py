"""From a name, an alias or ``auto`` with hints to candidates in order. Pure but for what it
remembers of health and sessions; no I/O."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal

from terrace_common.governance import Governance
from terrace_gateway.calls.ports import CapRefusal, EffectivePolicy, MatchRequest
from terrace_gateway.clock import Clock
from terrace_gateway.matching.candidates import (
    Candidate,
    Excluded,
    Explanation,
    Match,
    Via,
)
from terrace_gateway.matching.choice import (
    Ranked,
    by_input_rate,
    cheapest_that_fit,
    falls_to_canary,
)
from terrace_gateway.matching.deployments import Catalogue, Deployment, compile_catalogue
from terrace_gateway.matching.explanation import (
    MOST_CANDIDATES,
    Found,
    candidates_of,
    considered_models,
    refusal,
)
from terrace_gateway.matching.health import Health, Load
from terrace_gateway.matching.hints import read_hints, split_asked
from terrace_gateway.matching.judgement import (
    Ask,
    estimate,
    killed_reason,
    make_ask,
    output_tokens,
    permission_reason,
    size_reason,
    standing_reason,
)
from terrace_gateway.matching.sessions import Sessions
from terrace_gateway.prices import Prices

MOST_POOLS = 1024
NOTHING_EXCLUDED = Excluded()
_CHOSEN = frozenset({"auto", "session", "canary"})


class Matcher:
    """Finds candidates. One per process; not for several threads."""

    def __init__(self, governance: Governance, *, prices: Prices, clock: Clock) -> None:
        self._governance = governance
        self._prices = prices
        self._clock = clock
        self._catalogue: Catalogue | None = None
        self._pools: OrderedDict[object, tuple[EffectivePolicy, list[Deployment]]] = OrderedDict()
        self._sessions = Sessions()
        self.health = Health(clock.monotonic)

    def use(self, governance: Governance) -> None:
        """The spec in force from now on. Health and sessions stay."""
        self.prepare(governance, self._prices)()

    def prepare(self, governance: Governance, prices: Prices) -> Callable[[], None]:
        """Work out the catalogue of ``governance`` at ``prices``, which are to be in force when
        what is returned puts it in force. Changes nothing by itself."""
        catalogue = compile_catalogue(governance, prices, at=self._clock.database_now())
        models = {model.name for model in governance.models}
        providers = {provider.name for provider in governance.providers}

        def switch() -> None:
            self._governance = governance
            self._catalogue = replace(catalogue, prices_version=self._prices.version)
            self._pools.clear()
            self.health.keep(models, providers)

        return switch

    def match(
        self,
        request: MatchRequest,
        policy: EffectivePolicy,
        *,
        request_id: str,
        excluded: Excluded = NOTHING_EXCLUDED,
    ) -> Match:
        """Candidates inside of what ``policy`` allows, the best first. ``request_id`` decides the
        share of canaries for a request without a session. Raises ``NoCandidateError``."""
        catalogue = self._current()
        ask = self._ask(catalogue, request, policy, excluded)
        found = self._search(catalogue, request, ask, request_id)
        if not found.ranked:
            raise refusal(catalogue, request, ask, found)
        return Match(candidates_of(found, ask), request.asked)

    def explain(
        self,
        request: MatchRequest,
        policy: EffectivePolicy,
        *,
        request_id: str,
        excluded: Excluded = NOTHING_EXCLUDED,
    ) -> Explanation:
        """What ``match`` would say and why, of every model. Remembers nothing. Raises
        ``NoCandidateError`` only for hints that are wrong."""
        catalogue = self._current()
        ask = self._ask(catalogue, request, policy, excluded)
        found = self._search(catalogue, request, ask, request_id)
        considered = considered_models(catalogue, ask, found)
        if found.ranked:
            return Explanation(request.asked, candidates_of(found, ask), considered)
        refused = refusal(catalogue, request, ask, found)
        return Explanation(
            request.asked,
            (),
            considered,
            refused.code,
            refused.message,
            refused.retry_after_seconds,
        )

    def would_deny(
        self, audit: EffectivePolicy, request: MatchRequest, candidate: Candidate
    ) -> str | None:
        """Why ``audit``, were it to block, would keep the candidate from this request; ``None``: it
        would not."""
        catalogue = self._current()
        deployment = catalogue.by_name.get(candidate.model.name)
        if deployment is None:
            return "model_not_allowed"
        ask = self._ask(catalogue, request, audit, NOTHING_EXCLUDED)
        if ask.denied_features:
            return "policy_denied"
        reason = size_reason(deployment, ask, strict=False)
        return permission_reason(deployment, audit) or ("output" if reason == "output" else None)

    def again(
        self, candidate: Candidate, request: MatchRequest, policy: EffectivePolicy
    ) -> Candidate | None:
        """A candidate of an older policy with the limits and the price that hold now; ``None``: the
        model may not serve the request any more. Health is not asked: ``begin`` does that."""
        catalogue = self._current()
        one = catalogue.by_name.get(candidate.model.name)
        # It was chosen already, so it may be hidden.
        ask = replace(self._ask(catalogue, request, policy, NOTHING_EXCLUDED), auto=False)
        if one is None or ask.denied_features:
            return None
        if standing_reason(one, ask) or size_reason(one, ask, strict=False):
            return None
        [again] = candidates_of(Found(((one, candidate.via),), {}, {}), ask)
        return replace(again, purpose=candidate.purpose)

    def visible(
        self,
        policy: EffectivePolicy,
        *,
        surfaces: frozenset[str] | None = None,
        excluded: Excluded = NOTHING_EXCLUDED,
    ) -> tuple[str, ...]:
        """Names to offer a caller: models that some call of it could be for, and not hidden.
        ``surfaces``: only those that are served on one of these."""
        denied = policy.denied_features
        return tuple(
            one.name
            for one in self._current().deployments
            if not one.model.hidden
            and (surfaces is None or not surfaces.isdisjoint(one.surfaces))
            and not (one.model.kind == "embeddings" and "embeddings" in denied)
            and permission_reason(one, policy) is None
            and killed_reason(one, excluded) is None
        )

    def begin(self, candidate: Candidate) -> bool:
        """Right before the reservation. ``False``: try the next candidate, another call is trying
        whether this one is well again. After ``True`` exactly one of ``succeeded``, ``failed``,
        ``throttled``, ``refused`` and ``abandoned`` is due."""
        return self.health.begin(candidate)

    def succeeded(self, candidate: Candidate, session: str | None = None) -> None:
        """The provider answered. A conversation that left the choice to us stays there."""
        self.health.succeeded(candidate)
        if session is not None and candidate.via in _CHOSEN:
            self._sessions.remember(session, candidate.model.name)

    def failed(self, candidate: Candidate, kind: Literal["unknown", "error"]) -> None:
        """The provider failed by itself, could not be reached, or the outcome is unknown."""
        self.health.failed(candidate, kind)

    def throttled(self, candidate: Candidate, retry_after_seconds: int | None) -> None:
        """The provider throttles this model; it leaves the candidates for as long as it says."""
        self.health.throttled(candidate, retry_after_seconds)

    def refused(self, candidate: Candidate, refusal: CapRefusal) -> None:
        """A cap refused the reservation. One of the model's or provider's own keeps requests that
        need more than was left away from it for a while; others say nothing about it."""
        self.health.refused(candidate, refusal)

    def abandoned(self, candidate: Candidate) -> None:
        """Nothing was sent, or the request itself was at fault: this says nothing about health."""
        self.health.abandoned(candidate)

    def froze(self, candidate: Candidate, features: frozenset[str]) -> None:
        """A bill was above its reservation: requests with at least these features do not go to
        this deployment until its price changes."""
        self.health.froze(candidate, features)

    def _current(self) -> Catalogue:
        catalogue = self._catalogue
        if (
            catalogue is None
            or catalogue.prices_version != self._prices.version
            or (
                catalogue.valid_until is not None
                and self._clock.database_now() >= catalogue.valid_until
            )
        ):
            at = self._clock.database_now()
            catalogue = compile_catalogue(self._governance, self._prices, at=at)
            self._catalogue = catalogue
            self._pools.clear()
        return catalogue

    def _ask(
        self,
        catalogue: Catalogue,
        request: MatchRequest,
        policy: EffectivePolicy,
        excluded: Excluded,
    ) -> Ask:
        auto, inline = split_asked(request.asked)
        return make_ask(
            request,
            read_hints({**request.hints, **inline} if inline else request.hints),
            policy,
            excluded,
            auto=auto,
            default_output_tokens=catalogue.governance.defaults.max_output_tokens,
        )

    def _search(
        self, catalogue: Catalogue, request: MatchRequest, ask: Ask, request_id: str
    ) -> Found:
        found = Found((), {}, {})
        if ask.denied_features:
            return found
        if ask.auto:
            return self._choose(catalogue, request, ask, request_id)
        model = catalogue.governance.find_model(request.asked)
        if model is None:
            return found
        first = catalogue.by_name[model.name]
        if permission_reason(first, ask.policy) is not None:
            return found  # a fallback is no way around the allow-list
        ranked: list[tuple[Deployment, Via]] = []
        for one in catalogue.chain(first):
            reason = standing_reason(one, ask) or self._now_reason(one, ask, found)
            if reason is None:
                ranked.append((one, "asked" if one is first else "fallback"))
            else:
                found.reasons[one.name] = reason
        canary = self._canary(catalogue, first, request.session or request_id, ask, found)
        if canary is not None and ranked:
            ranked = [(canary, "canary"), *(one for one in ranked if one[0] is not canary)]
        return Found(tuple(ranked[:MOST_CANDIDATES]), found.waits, found.reasons)

    def _choose(
        self, catalogue: Catalogue, request: MatchRequest, ask: Ask, request_id: str
    ) -> Found:
        found = Found((), {}, {})
        pool = self._pool(catalogue, ask)
        check = partial(self._passes, ask, found) if self._anything_special(ask) else None
        best: list[Ranked] = []
        strict = True
        for strict in (True, False):
            found.reasons.clear()
            best, out = cheapest_that_fit(
                pool, ask, strict=strict, most=MOST_CANDIDATES, passes=check
            )
            found.reasons.update(out)
            if best:
                break
        if not best:
            return found
        ranked: list[tuple[Deployment, Via]] = [(one, "auto") for _, _, one in best]
        share = request.session or request_id
        ahead: tuple[Deployment, Via] | None = None
        if (sticky := self._sticky(catalogue, request, ask, found, strict=strict)) is not None:
            ahead = (sticky, "session")
        elif (canary := self._canary(catalogue, best[0][2], share, ask, found)) is not None:
            ahead = (canary, "canary")
        if ahead is not None:
            ranked = [ahead, *(one for one in ranked if one[0] is not ahead[0])]
        return Found(tuple(ranked[:MOST_CANDIDATES]), found.waits, found.reasons, strict)

    def _pool(self, catalogue: Catalogue, ask: Ask) -> list[Deployment]:
        """The models that could serve requests of this kind, kept per kind: a policy object stands
        for a caller's permissions, so the work is done once per policy and not per call."""
        key = (id(ask.policy), ask.needs.surface, ask.features, ask.hints, ask.bedrock_only)
        kept = self._pools.get(key)
        if kept is not None and kept[0] is ask.policy:
            self._pools.move_to_end(key)
            return kept[1]
        pool = by_input_rate(
            one for one in catalogue.deployments if standing_reason(one, ask) is None
        )
        self._pools[key] = (ask.policy, pool)
        if len(self._pools) > MOST_POOLS:
            self._pools.popitem(last=False)
        return pool

    def _anything_special(self, ask: Ask) -> bool:
        """Whether anything but its size may take a model out at this moment."""
        health, excluded = self.health, ask.excluded
        return bool(
            health.troubled
            or health.troubled_providers
            or excluded.models
            or excluded.providers
            or ask.hints.max_micro_usd is not None
        )

    def _passes(self, ask: Ask, found: Found, deployment: Deployment) -> bool:
        reason = self._moment_reason(deployment, ask, found)
        if reason is not None:
            found.reasons[deployment.name] = reason
        return reason is None

    def _now_reason(self, deployment: Deployment, ask: Ask, found: Found) -> str | None:
        """Why a model that was named, or is a fallback, is out for this request now."""
        return size_reason(deployment, ask, strict=False) or self._moment_reason(
            deployment, ask, found
        )

    def _moment_reason(self, deployment: Deployment, ask: Ask, found: Found) -> str | None:
        """Why the model is out at this moment, its size apart."""
        ceiling = ask.hints.max_micro_usd
        if ceiling is not None and estimate(deployment, ask) > ceiling:
            return "hint_cost"
        excluded = ask.excluded
        if excluded.models or excluded.providers:
            reason = killed_reason(deployment, excluded)
            if reason is not None:
                return reason
        health = self.health
        if (
            deployment.name in health.troubled
            or deployment.provider.name in health.troubled_providers
        ):
            load = Load(
                ask.input_bound,
                output_tokens(deployment, ask),
                max(1, estimate(deployment, ask)),
            )
            trouble = health.trouble(deployment, ask.features, load)
            if trouble is not None:
                found.waits[deployment.name] = trouble[1]
                return trouble[0]
        return None

    def _canary(
        self, catalogue: Catalogue, first: Deployment, share: str, ask: Ask, found: Found
    ) -> Deployment | None:
        canary = first.model.canary
        if canary is None or not falls_to_canary(share, first.name, canary.percent):
            return None
        one = catalogue.by_name.get(canary.model)
        if one is None:
            return None
        named = replace(ask, auto=False)  # a canary may be hidden
        reason = standing_reason(one, named) or self._now_reason(one, named, found)
        if reason is not None:
            found.reasons[one.name] = reason
            return None
        return one

    def _sticky(
        self,
        catalogue: Catalogue,
        request: MatchRequest,
        ask: Ask,
        found: Found,
        *,
        strict: bool,
    ) -> Deployment | None:
        """The model that the conversation is with, if it may serve this request too."""
        name = None if request.session is None else self._sessions.model_of(request.session)
        one = None if name is None else catalogue.by_name.get(name)
        if one is None or standing_reason(one, replace(ask, auto=False)) is not None:
            return None
        reason = size_reason(one, ask, strict=strict) or self._moment_reason(one, ask, found)
        if reason is not None:
            found.reasons[one.name] = reason
            return None
        return one
