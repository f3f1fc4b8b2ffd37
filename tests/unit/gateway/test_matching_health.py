"""Models and providers leave the candidates and come back, on a clock that the test moves."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from terrace_common.governance.catalogue import Breaker
from terrace_gateway.calls.ports import Cap, CapRefusal, Window
from terrace_gateway.matching import Candidate, Matcher, NoCandidateError
from terrace_gateway.matching.breaker import PROBE_SECONDS, CircuitBreaker

from .matching_world import ANYTHING, FakeClock, asking, matcher_of, model, names, spec

TWO = (model("cheap", price=(1, 1)), model("dear", price=(9, 9), provider="q"))


def first(matcher: Matcher, **more: Any) -> Candidate:
    return matcher.match(asking(**more), ANYTHING, request_id="r").candidates[0]


def refusal(scope: str, dimension: str, *, needed: int, remaining: int, retry: int | None) -> Any:
    cap = Cap(1, scope, "x", dimension, Window("calendar", unit="month"), 100)  # type: ignore[arg-type]
    return CapRefusal(cap, needed, remaining, retry)


def test_unknown_outcomes_open_the_breaker_and_one_probe_closes_it() -> None:
    clock = FakeClock()
    matcher = matcher_of(*TWO, clock=clock, unknowns=3, open_seconds=10)
    cheap = first(matcher)
    for _ in range(2):
        assert matcher.begin(cheap)
        matcher.failed(cheap, "unknown")
    assert names(matcher, asking()) == ["cheap", "dear"]
    matcher.failed(cheap, "unknown")
    assert names(matcher, asking()) == ["dear"]
    clock.seconds += 9.9
    assert not matcher.begin(cheap)
    clock.seconds += 0.1
    assert names(matcher, asking()) == ["cheap", "dear"]
    assert matcher.begin(cheap)
    assert not matcher.begin(cheap)
    assert names(matcher, asking()) == ["dear"]
    matcher.succeeded(cheap)
    assert names(matcher, asking()) == ["cheap", "dear"]
    assert matcher.begin(cheap)
    assert matcher.begin(cheap)
    assert matcher.health.troubled == set()


def test_a_success_between_them_keeps_the_breaker_closed() -> None:
    matcher = matcher_of(*TWO, unknowns=3, least_calls=1000)
    cheap = first(matcher)
    for _ in range(20):
        matcher.failed(cheap, "unknown")
        matcher.failed(cheap, "unknown")
        matcher.succeeded(cheap)
    assert names(matcher, asking())[0] == "cheap"


def test_failed_probes_double_the_wait_up_to_eightfold() -> None:
    clock = FakeClock()
    matcher = matcher_of(*TWO, clock=clock, unknowns=1, open_seconds=10)
    cheap = first(matcher)
    matcher.failed(cheap, "unknown")
    for wait in (10, 20, 40, 80, 80):
        clock.seconds += wait - 0.5
        assert names(matcher, asking()) == ["dear"]
        clock.seconds += 0.5
        assert matcher.begin(cheap)
        matcher.failed(cheap, "error")


def test_a_probe_without_an_outcome_does_not_keep_the_model_out_for_ever() -> None:
    clock = FakeClock()
    matcher = matcher_of(*TWO, clock=clock, unknowns=1)
    cheap = first(matcher)
    matcher.failed(cheap, "unknown")
    clock.seconds += 10
    assert matcher.begin(cheap)
    clock.seconds += PROBE_SECONDS - 1
    assert not matcher.begin(cheap)
    clock.seconds += 1
    assert matcher.begin(cheap)
    matcher.abandoned(cheap)
    assert matcher.begin(cheap)


def test_the_share_of_errors_opens_it_from_enough_calls_on_and_only_within_the_window() -> None:
    clock = FakeClock()
    matcher = matcher_of(
        *TWO, clock=clock, unknowns=1000, error_percent=50, least_calls=10, window_seconds=30
    )
    cheap = first(matcher)
    for _ in range(9):
        matcher.failed(cheap, "error")
    assert names(matcher, asking())[0] == "cheap"
    clock.seconds += 31  # these no longer count
    for _ in range(6):
        matcher.succeeded(cheap)
    for _ in range(5):
        matcher.failed(cheap, "error")
    assert names(matcher, asking())[0] == "cheap"  # 5 of 11
    matcher.failed(cheap, "error")
    assert names(matcher, asking()) == ["dear"]  # 6 of 12


def test_a_provider_leaves_when_several_of_its_models_fail_and_not_for_one() -> None:
    breaker = {"unknowns": 1000, "least_calls": 10, "error_percent": 60}
    three = [model("a", price=(1, 1)), model("b", price=(2, 2)), model("c", price=(3, 3))]
    matcher = matcher_of(*three, model("d", provider="q"), **breaker)
    a, b, _, _ = matcher.match(asking(), ANYTHING, request_id="r").candidates
    for _ in range(15):
        matcher.failed(a, "error")
    assert names(matcher, asking()) == ["b", "c", "d"]
    for _ in range(3):
        matcher.failed(b, "error")
    assert names(matcher, asking()) == ["d"]


def test_a_throttled_model_is_left_alone_for_as_long_as_it_says() -> None:
    clock = FakeClock()
    matcher = matcher_of(*TWO, clock=clock)
    matcher.throttled(first(matcher), 30)
    clock.seconds += 29.9
    assert names(matcher, asking()) == ["dear"]
    with pytest.raises(NoCandidateError) as caught:
        matcher.match(asking("cheap"), ANYTHING, request_id="r")
    assert (caught.value.code, caught.value.retry_after_seconds) == ("rate_limited", 1)
    clock.seconds += 0.2
    assert names(matcher, asking()) == ["cheap", "dear"]


@pytest.mark.parametrize("said", [None, 0, -5, 10**9])
def test_a_provider_that_says_nonsense_is_asked_again(said: int | None) -> None:
    clock = FakeClock()
    matcher = matcher_of(*TWO, clock=clock)
    matcher.throttled(first(matcher), said)
    assert names(matcher, asking()) == ["dear"]
    clock.seconds += 601
    assert names(matcher, asking()) == ["cheap", "dear"]


def test_a_provider_over_its_budget_leaves_instead_of_failing_callers() -> None:
    clock = FakeClock()
    matcher = matcher_of(*TWO, clock=clock)
    full = refusal("provider", "micro_usd", needed=50, remaining=0, retry=86_400)
    matcher.refused(first(matcher), full)
    assert names(matcher, asking()) == ["dear"]
    clock.seconds += 61  # a cap may have been raised: it is asked again
    assert names(matcher, asking()) == ["cheap", "dear"]


def test_one_large_call_that_does_not_fit_takes_nothing_from_small_ones() -> None:
    matcher = matcher_of(model("cheap", price=(1_000_000, 1_000_000)), model("dear", provider="q"))
    cheap = first(matcher)
    full = refusal("provider", "micro_usd", needed=100_000, remaining=4000, retry=None)
    matcher.refused(cheap, full)
    assert names(matcher, asking(size=4000, output=100))[0] == "cheap"
    assert names(matcher, asking(size=40_000, output=100)) == ["dear"]
    matcher.refused(cheap, refusal("key", "micro_usd", needed=1, remaining=0, retry=None))
    assert names(matcher, asking(size=4000, output=100))[0] == "cheap"


@pytest.mark.parametrize("dimension", ["requests", "concurrency", "input_tokens", "total_tokens"])
def test_each_dimension_of_a_full_cap_keeps_calls_away_for_a_while(dimension: str) -> None:
    clock = FakeClock()
    matcher = matcher_of(*TWO, clock=clock)
    full = refusal("model", dimension, needed=1, remaining=0, retry=7)
    matcher.refused(first(matcher), full)
    assert names(matcher, asking()) == ["dear"]
    clock.seconds += 1 if dimension == "concurrency" else 7
    assert names(matcher, asking()) == ["cheap", "dear"]
    assert matcher.health.troubled == set()


def test_an_overrun_freezes_the_deployment_for_these_features_until_its_price_changes() -> None:
    matcher = matcher_of(*TWO)
    cheap = first(matcher)
    matcher.froze(cheap, frozenset({"tools"}))
    assert names(matcher, asking(features=frozenset({"streaming"})))[0] == "cheap"
    assert names(matcher, asking(features=frozenset({"tools", "streaming"}))) == ["dear"]
    matcher.froze(cheap, frozenset())
    assert names(matcher, asking()) == ["dear"]
    again = spec(*TWO)
    matcher.use(again)
    assert names(matcher, asking()) == ["dear"]  # the same price: still frozen
    matcher._prices.use(price_version="v2", book=None)
    assert names(matcher, asking()) == ["cheap", "dear"]


def test_an_operator_may_thaw() -> None:
    matcher = matcher_of(*TWO)
    matcher.froze(first(matcher), frozenset())
    assert matcher.health.thaw("cheap")
    assert not matcher.health.thaw("cheap")
    assert not matcher.health.thaw("never-heard-of")
    assert names(matcher, asking()) == ["cheap", "dear"]


def test_health_outlives_a_new_spec_and_is_forgotten_with_its_model() -> None:
    matcher = matcher_of(*TWO, unknowns=1)
    matcher.failed(first(matcher), "unknown")
    matcher.use(spec(*TWO, unknowns=1))
    assert names(matcher, asking()) == ["dear"]
    matcher.use(spec(TWO[1]))
    matcher.use(spec(*TWO, unknowns=1))
    assert names(matcher, asking()) == ["cheap", "dear"]


class BreakerMachine(RuleBasedStateMachine):
    """At most one probe at a time, no call while it is open, and it always comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.breaker = CircuitBreaker(Breaker(unknowns=3, least_calls=5), lambda: self.now)
        self.running = 0
        self.probes: list[float] = []

    @rule(seconds=st.floats(0, 40, allow_nan=False))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def begin(self) -> None:
        closed, may = self.breaker.is_closed, self.breaker.wait_seconds() == 0
        began = self.breaker.begin()
        assert began == may
        if began:
            self.running += 1
        if began and not closed:
            assert all(self.now - probe >= PROBE_SECONDS for probe in self.probes)
            self.probes = [self.now]
            assert not self.breaker.begin()

    @precondition(lambda self: self.running)
    @rule(outcome=st.sampled_from(["ok", "unknown", "error", "abandoned"]))
    def end(self, outcome: str) -> None:
        self.running -= 1
        self.probes.clear()
        if outcome == "ok":
            self.breaker.succeeded()
        elif outcome == "abandoned":
            self.breaker.abandoned()
        else:
            self.breaker.failed("m", unknown=outcome == "unknown")

    @invariant()
    def nobody_waits_for_ever(self) -> None:
        assert self.breaker.wait_seconds() <= max(80, PROBE_SECONDS)


TestBreaker = BreakerMachine.TestCase
TestBreaker.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
