"""Names, aliases, auto and hints to candidates in order; and why."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from terrace_common.governance.regions import region_allowed
from terrace_common.prices import Units
from terrace_gateway.calls.ports import EffectivePolicy, MatchRequest
from terrace_gateway.matching import Candidate, Excluded, Matcher, NoCandidateError, parse_hints
from terrace_gateway.matching.deployments import compile_catalogue
from terrace_gateway.matching.hints import read_hints, split_asked
from terrace_gateway.matching.sessions import Sessions
from terrace_gateway.prices import Prices

from .matching_world import ANYTHING, NOON, FakeClock, asking, matcher_of, model, names, spec

BEDROCK = "anthropic.claude-sonnet-4-5-20250929-v1:0"


def refused(matcher: Matcher, request: MatchRequest, **more: Any) -> NoCandidateError:
    with pytest.raises(NoCandidateError) as caught:
        names(matcher, request, **more)
    return caught.value


def test_auto_is_the_cheapest_that_can_serve() -> None:
    matcher = matcher_of(
        model("dear", price=(9, 9)),
        model("sees", price=(3, 3), features=["images", "tools"], max_tokens_per_image=9),
        model("cheap", price=(1, 1), context_tokens=8000),
        model("quick", price=(5, 5), latency="interactive"),
        model("secret", price=(0, 0), hidden=True),
    )  # fmt: skip
    assert names(matcher, asking()) == ["cheap", "sees", "quick", "dear"]
    assert names(matcher, asking("auto?vision")) == ["sees"]
    assert names(matcher, asking(features=frozenset({"images"}))) == ["sees"]
    assert names(matcher, asking("auto?context=100k")) == ["sees", "quick", "dear"]
    assert names(matcher, asking("auto?latency=interactive")) == ["quick"]
    assert names(matcher, asking(hints={"json_schema": "true"})) == ["cheap", "quick", "dear"]
    assert names(matcher, asking(size=90_000)) == ["sees", "quick", "dear"]
    assert names(matcher, asking("secret")) == ["secret"]
    assert "secret" not in matcher.visible(ANYTHING)


def test_the_answer_counts_towards_the_context() -> None:
    matcher = matcher_of(model("m", context_tokens=5000, max_output_tokens=4000))
    assert names(matcher, asking("m", size=8000, output=4000)) == ["m"]
    assert refused(matcher, asking("m", size=8008, output=4000)).code == "not_servable"
    assert names(matcher, asking("m", size=8008, output=3999)) == ["m"]


def test_auto_takes_what_surely_fits_before_what_probably_does() -> None:
    matcher = matcher_of(
        model("small", price=(1, 1), context_tokens=10_000),
        model("large", price=(9, 9), context_tokens=60_000),
    )
    assert names(matcher, asking(size=20_000)) == ["large"]
    assert names(matcher, asking(size=100_000)) == ["large"]  # about 25,000 tokens
    matcher = matcher_of(model("small", context_tokens=10_000))
    assert names(matcher, asking(size=20_000)) == ["small"]
    assert refused(matcher, asking(size=40_000)).code == "not_servable"


def test_output_is_clamped_or_refused_as_the_policy_says() -> None:
    matcher = matcher_of(model("m", max_output_tokens=2000))
    clamping = EffectivePolicy(max_output_tokens=1500)
    [candidate] = matcher.match(asking("m", output=9000), clamping, request_id="r").candidates
    assert candidate.output_tokens == 1500
    [candidate] = matcher.match(asking("m"), clamping, request_id="r").candidates
    assert candidate.output_tokens == 1024
    refusing = EffectivePolicy(max_output_tokens=1500, over_output="refuse")
    assert names(matcher, asking("m", output=1500), policy=refusing) == ["m"]
    assert refused(matcher, asking("m", output=1501), policy=refusing).code == "not_servable"


def test_permissions_hold_for_names_for_auto_and_for_fallbacks() -> None:
    matcher = matcher_of(
        model("a", fallbacks=["b", "c"], aliases=["als/a"]), model("b", provider="q"), model("c")
    )
    assert names(matcher, asking("als/a")) == ["a", "b", "c"]
    only_a_c = EffectivePolicy(models=frozenset({"a", "c"}))
    assert names(matcher, asking("a"), policy=only_a_c) == ["a", "c"]
    assert names(matcher, asking("auto"), policy=only_a_c) == ["a", "c"]
    assert refused(matcher, asking("b"), policy=only_a_c).code == "model_not_allowed"
    # A fallback is no way around: the model that was asked for must be allowed itself.
    only_c = EffectivePolicy(models=frozenset({"c"}))
    assert refused(matcher, asking("a"), policy=only_c).code == "model_not_allowed"
    q = EffectivePolicy(providers=frozenset({"q"}))
    assert names(matcher, asking("auto"), policy=q) == ["b"]
    assert refused(matcher, asking("a"), policy=q).code == "policy_denied"
    nothing = EffectivePolicy(models=frozenset())
    assert refused(matcher, asking("auto"), policy=nothing).code == "model_not_allowed"
    no_tools = EffectivePolicy(denied_features=frozenset({"tools"}))
    tools = asking("a", features=frozenset({"tools"}))
    assert refused(matcher, tools, policy=no_tools).code == "policy_denied"
    assert names(matcher, asking("a"), policy=no_tools) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("upstream", "extra", "allowed", "forbidden"),
    [
        (BEDROCK, {}, ("eu-west-1",), ("us-*",)),
        (f"eu.{BEDROCK}", {}, ("eu-*",), ("eu-west-1",)),
        (f"eu.{BEDROCK}", {"regions": ["eu-west-1"]}, ("eu-west-1",), ("us-*",)),
        (f"global.{BEDROCK}", {"regions": ["eu-*"]}, ("eu-*",), ("us-*",)),
    ],
)
def test_residency_covers_every_region_that_a_model_reaches(
    upstream: str, extra: dict[str, Any], allowed: tuple[str, ...], forbidden: tuple[str, ...]
) -> None:
    matcher = matcher_of(model("m", provider="b", upstream_model=upstream, **extra))
    assert names(matcher, asking("m"), policy=EffectivePolicy(residency=(allowed,))) == ["m"]
    for sets in ((forbidden,), (allowed, forbidden)):
        assert refused(matcher, asking("m"), policy=EffectivePolicy(residency=sets)).code == (
            "policy_denied"
        )
    assert names(matcher, asking(hints={"residency": ",".join(allowed)})) == ["m"]
    assert refused(matcher, asking(hints={"residency": forbidden[0]})).code == "not_servable"


@pytest.mark.parametrize("upstream", [f"global.{BEDROCK}", f"ca.{BEDROCK}"])
def test_where_the_regions_are_not_known_residency_refuses(upstream: str) -> None:
    matcher = matcher_of(model("m", provider="b", upstream_model=upstream), model("o"))
    policy = EffectivePolicy(residency=(("eu-*", "us-*", "ca-*"),))
    assert refused(matcher, asking("m"), policy=policy).code == "policy_denied"
    assert refused(matcher, asking("o"), policy=policy).code == "policy_denied"


def test_surfaces_kinds_and_bedrock_only() -> None:
    matcher = matcher_of(
        model("chat"), model("bed", provider="b", upstream_model=BEDROCK),
        model("vec", kind="embeddings"), model("only-chat", surfaces=["chat"], price=(0, 0)),
    )  # fmt: skip
    assert names(matcher, asking(surface="embeddings")) == ["vec"]
    assert refused(matcher, asking("chat", surface="embeddings")).code == "not_servable"
    assert names(matcher, asking(surface="messages")) == ["chat", "bed"]
    assert names(matcher, asking(surface="converse", bedrock_only=True)) == ["bed"]
    wrong = refused(matcher, asking("chat", surface="converse", bedrock_only=True))
    assert wrong.code == "model_not_found"
    [vec] = matcher.match(asking("vec", surface="embeddings"), ANYTHING, request_id="r").candidates
    assert vec.output_tokens == 0


def test_images_without_a_price_are_refused() -> None:
    matcher = matcher_of(model("m", features=["images"]))
    assert refused(matcher, asking("m", features=frozenset({"images"}))).code == "unpriced"


def test_fallbacks_of_fallbacks_come_after_them_and_each_model_once() -> None:
    matcher = matcher_of(
        model("a", fallbacks=["b", "c"]), model("b", fallbacks=["d"]),
        model("c", fallbacks=["d"]), model("d"),
    )  # fmt: skip
    match = matcher.match(asking("a"), ANYTHING, request_id="r")
    assert [c.model.name for c in match.candidates] == ["a", "b", "c", "d"]
    assert [c.purpose for c in match.candidates] == ["call", "fallback", "fallback", "fallback"]


def test_kill_switches_take_models_out_and_say_so() -> None:
    matcher = matcher_of(model("a", fallbacks=["b"]), model("b", provider="q"))
    assert names(matcher, asking("a"), excluded=Excluded(models=frozenset({"a"}))) == ["b"]
    both = Excluded(models=frozenset({"a"}), providers=frozenset({"q"}))
    assert refused(matcher, asking("a"), excluded=both).code == "killed"
    assert refused(matcher, asking("auto"), excluded=both).code == "killed"


def test_a_canary_takes_its_share_the_same_everywhere() -> None:
    shares = {}
    for percent in (0, 10, 50, 100):
        matcher = matcher_of(model("a", canary={"model": "b", "percent": percent}), model("b"))
        firsts = Counter(
            names(matcher, asking("a"), request_id=f"req-{number}")[0] for number in range(4000)
        )
        shares[percent] = firsts["b"] / 4000
        other = matcher_of(model("a", canary={"model": "b", "percent": percent}), model("b"))
        for number in range(50):
            one = names(matcher, asking("a"), request_id=f"req-{number}")
            assert one == names(other, asking("a"), request_id=f"req-{number}")
    assert shares[0] == 0
    assert shares[100] == 1
    # Five standard deviations of a binomial share of 4000 calls.
    assert abs(shares[10] - 0.10) < 5 * (0.1 * 0.9 / 4000) ** 0.5
    assert abs(shares[50] - 0.50) < 5 * (0.5 * 0.5 / 4000) ** 0.5


def test_a_conversation_stays_on_its_side_of_a_canary_and_the_main_model_is_its_fallback() -> None:
    matcher = matcher_of(model("a", canary={"model": "b", "percent": 50}), model("b"))
    seen = set()
    for number in range(40):
        sides = {
            tuple(names(matcher, asking("a", session=f"s{number}"), request_id=f"r{turn}"))
            for turn in range(5)
        }
        assert len(sides) == 1
        seen |= sides
    assert seen == {("a",), ("b", "a")}


def test_a_canary_outside_of_the_permissions_gets_nothing() -> None:
    matcher = matcher_of(model("a", canary={"model": "b", "percent": 100}), model("b"))
    assert names(matcher, asking("a"), policy=EffectivePolicy(models=frozenset({"a"}))) == ["a"]


def test_a_conversation_stays_with_its_model_for_as_long_as_that_may_serve() -> None:
    matcher = matcher_of(model("cheap", price=(1, 1)), model("dear", price=(9, 9)))
    asked = asking(session="k:1")
    cheap, dear = matcher.match(asked, ANYTHING, request_id="r").candidates
    matcher.succeeded(dear, "k:1")  # the fallback served it
    assert names(matcher, asked) == ["dear", "cheap"]
    assert names(matcher, asking(session="k:2")) == ["cheap", "dear"]
    assert names(matcher, asking()) == ["cheap", "dear"]
    only = EffectivePolicy(models=frozenset({"cheap"}))
    assert names(matcher, asked, policy=only) == ["cheap"]
    matcher.explain(asking(session="k:3"), ANYTHING, request_id="r")
    assert matcher._sessions.model_of("k:3") is None
    matcher.succeeded(cheap, "k:1")
    assert names(matcher, asked) == ["cheap", "dear"]


def test_sessions_are_bounded() -> None:
    sessions = Sessions(most=100)
    for number in range(1000):
        sessions.remember(f"{number}" * 300, "m")
    assert len(sessions) == 100
    assert sessions.model_of("999" * 300) == "m"
    assert sessions.model_of("1" * 300) is None


@pytest.mark.parametrize(
    "text",
    [
        "wat", "vision=maybe", "context=", "context=-1", "context=1e9", "latency=slow",
        "vision&vision", "max_input_usd_per_mtok=1,5", "max_usd=0.0000001", "residency=*",
        "residency=", "provider=..", "context=\u0663", "=x", "x" * 2000, "%00",
    ],
)  # fmt: skip
def test_wrong_hints_are_refused(text: str) -> None:
    with pytest.raises(NoCandidateError) as caught:
        read_hints(parse_hints(text))
    assert caught.value.code == "invalid_request"


def test_the_grammar() -> None:
    text = "auto?vision&context=100000&latency=interactive&max_input_usd_per_mtok=3&residency=eu-*"
    auto, pairs = split_asked(text)
    hints = read_hints(pairs)
    assert auto
    assert hints.features == {"images"}
    assert hints.context_tokens == 100_000
    assert hints.latency == "interactive"
    assert hints.max_input_micro_usd_per_mtok == 3_000_000
    assert hints.residency == ("eu-*",)
    assert split_asked("automatic") == (False, {})
    assert read_hints(parse_hints("")) == read_hints({})


@given(st.text(max_size=40))
def test_no_text_breaks_the_grammar(text: str) -> None:
    matcher = matcher_of(model("m"))
    codes: list[str] = []
    for asked in (text, f"auto?{text}"):
        try:
            assert names(matcher, asking(asked)) == ["m"]
        except NoCandidateError as error:
            codes.append(error.code)
    assert set(codes) <= {"invalid_request", "not_servable", "model_not_found"}


FEATURES = ["tools", "images", "json_schema", "streaming", "reasoning"]
REGIONS = ["eu-west-1", "eu-*", "us-east-1", "us-*"]
NAMES = [f"m{number}" for number in range(6)]
SUBSETS = st.frozensets(st.sampled_from(FEATURES), max_size=3)


@st.composite
def catalogues(draw: st.DrawFn) -> list[dict[str, Any]]:
    found = []
    for number, name in enumerate(NAMES):
        later = NAMES[number + 1 :]
        fallbacks = draw(st.lists(st.sampled_from(later), max_size=3, unique=True)) if later else []
        fields: dict[str, Any] = {
            "provider": draw(st.sampled_from(["p", "q"])),
            "price": (draw(st.integers(0, 50)) * 10**5, draw(st.integers(0, 50)) * 10**5),
            "context_tokens": draw(st.sampled_from([5000, 20_000, 200_000])),
            "max_output_tokens": draw(st.sampled_from([500, 4000])),
            "features": sorted(draw(SUBSETS) | {"streaming"}),
            "latency": draw(st.sampled_from(["interactive", "standard", "batch"])),
            "hidden": draw(st.booleans()),
            "regions": draw(
                st.lists(st.sampled_from(REGIONS), min_size=1, max_size=2, unique=True)
            ),
            "max_tokens_per_image": 1000,
            "fallbacks": fallbacks,
        }
        if later and draw(st.booleans()):
            fields["canary"] = {
                "model": draw(st.sampled_from(later)),
                "percent": draw(st.sampled_from([0, 30, 100])),
            }
        found.append(model(name, **fields))
    return found


POLICIES = st.builds(
    EffectivePolicy,
    models=st.none() | st.frozensets(st.sampled_from(NAMES)),
    providers=st.none() | st.frozensets(st.sampled_from(["p", "q"])),
    residency=st.lists(
        st.lists(st.sampled_from(REGIONS), min_size=1, max_size=2).map(tuple), max_size=2
    ).map(tuple),
    denied_features=st.frozensets(st.sampled_from(FEATURES), max_size=1),
    max_output_tokens=st.none() | st.integers(1, 5000),
    over_output=st.sampled_from(["clamp", "refuse"]),
)
ASKED = st.sampled_from(
    ["auto", *NAMES, "auto?latency=standard", "auto?residency=eu-*", "auto?max_usd=0.01"]
)
LOG = st.integers(0, 6).map(lambda power: 10**power)


REQUESTS = st.builds(
    asking, ASKED, size=LOG, output=st.none() | st.integers(1, 6000), features=SUBSETS
)
KILLED = st.frozensets(st.sampled_from(NAMES), max_size=2)


@settings(max_examples=100, deadline=None)
@given(catalogues(), POLICIES, REQUESTS, KILLED)
def test_never_a_model_that_is_not_allowed_or_not_able_and_the_cheapest_first(
    found: list[dict[str, Any]],
    policy: EffectivePolicy,
    request: MatchRequest,
    killed_models: frozenset[str],
) -> None:
    matcher = matcher_of(*found)
    killed = Excluded(models=killed_models)
    features, output = request.needs.features, request.needs.output_tokens
    explained = matcher.explain(request, policy, request_id="r", excluded=killed)
    json.dumps(explained.as_dict())
    try:
        candidates = matcher.match(request, policy, request_id="r", excluded=killed).candidates
    except NoCandidateError as error:
        assert explained.candidates == ()
        assert (explained.code, explained.message) == (error.code, error.message)  # noqa: PT017
        return
    # The explanation is of this very answer, and every model has its line.
    assert explained.candidates == candidates
    ranked = [row.model for row in explained.considered if row.rank is not None]
    assert ranked == [candidate.model.name for candidate in candidates]
    assert {row.model for row in explained.considered} == set(NAMES)
    assert all((row.reason is None) == (row.rank is not None) for row in explained.considered)
    for candidate in candidates:
        one = candidate.model
        assert one.name not in killed.models
        assert policy.models is None or one.name in policy.models
        assert policy.providers is None or one.provider in policy.providers
        assert not features & policy.denied_features
        assert features <= one.able
        reached = one.regions or ()
        assert all(region_allowed(r, allowed) for allowed in policy.residency for r in reached)
        assert candidate.output_tokens <= one.max_output_tokens
        assert candidate.output_tokens <= (policy.max_output_tokens or 10**9)
        if policy.over_output == "refuse" and output is not None:
            assert candidate.output_tokens >= output
        assert request.needs.input_bound_tokens // 8 + candidate.output_tokens <= one.context_tokens
    chosen = [candidate for candidate in candidates if candidate.via == "auto"]
    costs = [candidate.estimated_micro_usd for candidate in chosen]
    assert costs == sorted(costs)
    if chosen and len(candidates) < 8:
        left = {
            row.model: row.estimated_micro_usd for row in explained.considered if row.rank is None
        }
        assert all(row.reason != "dearer" for row in explained.considered), left


TIERS = st.lists(st.integers(1, 10**6), max_size=2, unique=True).map(sorted)
RATE = st.integers(0, 10**7)
UNITS = st.builds(Units, st.integers(0, 10**6), st.integers(0, 10**5))


@given(RATE, RATE, TIERS, UNITS)
def test_estimates_are_the_prices_own_figures(
    rate_in: int, rate_out: int, tiers: list[int], units: Units
) -> None:
    steps = [
        {
            "above_input_tokens": above,
            "input_micro_usd_per_mtok": rate_in * (place + 2),
            "output_micro_usd_per_mtok": rate_out * (place + 2),
        }
        for place, above in enumerate(tiers)
    ]
    more = {"tiers": steps, "micro_usd_per_request": 7}
    governance = spec(model("m", price=(rate_in, rate_out), more_prices=more))
    [one] = compile_catalogue(governance, Prices("v"), at=NOON).deployments
    assert one.estimate(units.input_tokens, units.output_tokens) == one.quote.cost(units)


LINES = st.lists(st.tuples(RATE, RATE, st.integers(1, 4096)), min_size=9, max_size=40)


@settings(max_examples=60, deadline=None)
@given(LINES, st.integers(0, 40_000), st.none() | st.integers(1, 5000))
def test_of_many_models_the_eight_cheapest_are_found(
    lines: list[tuple[int, int, int]], size: int, output: int | None
) -> None:
    governance = spec(
        *(
            model(f"m{number}", price=(rate_in, rate_out), max_output_tokens=most)
            for number, (rate_in, rate_out, most) in enumerate(lines)
        )
    )
    matcher = Matcher(governance, prices=Prices("v"), clock=FakeClock())
    everything = compile_catalogue(governance, Prices("v"), at=NOON).deployments
    wanted = 1024 if output is None else output
    able = [one for one in everything if one.most_output >= (output or 0)] or list(everything)
    costs = [
        (one.weigh(-(-size // 4), min(wanted, one.most_output)), one.index, one.name)
        for one in able
    ]
    assert names(matcher, asking(size=size, output=output)) == [n for _, _, n in sorted(costs)[:8]]


def test_a_candidate_of_an_older_policy_is_judged_by_what_holds_now() -> None:
    matcher = matcher_of(model("m", price=(10, 20)), model("gone"), model("h", hidden=True))
    asked = asking("m", output=100, features=frozenset({"tools"}))

    def candidate(name: str) -> Candidate:
        return matcher.match(replace(asked, asked=name), ANYTHING, request_id="r").candidates[0]

    old, gone, hidden = candidate("m"), candidate("gone"), candidate("h")
    assert matcher.again(old, asked, ANYTHING) == old
    assert matcher.again(hidden, replace(asked, asked="auto"), ANYTHING) == hidden
    matcher.use(spec(model("m", price=(30, 40), max_output_tokens=50)))
    again = matcher.again(old, asked, EffectivePolicy(max_output_tokens=7))
    assert again is not None
    assert again.quote.cost(Units(output_tokens=1_000_000)) == 40
    assert (again.output_tokens, again.model.max_output_tokens) == (7, 50)
    assert matcher.again(gone, asked, ANYTHING) is None
    for policy in (
        EffectivePolicy(models=frozenset({"other"})),
        EffectivePolicy(providers=frozenset({"q"})),
        EffectivePolicy(denied_features=frozenset({"tools"})),
        EffectivePolicy(max_output_tokens=7, over_output="refuse"),
    ):
        assert matcher.again(old, asked, policy) is None
