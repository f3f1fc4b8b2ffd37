"""The plan: a diff of two specs and its effect on live keys, running budgets and prices."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terrace_common.governance import (
    Governance,
    UnknownSubjectError,
    Window,
    compile_governance,
    effects,
    load_governance,
)
from terrace_common.governance.compile import CompiledGovernance, Standing
from terrace_common.governance.effects import PreparedChange, plan_change
from terrace_common.governance.plan import (
    BLOCKING,
    CODES,
    CapSpend,
    Facts,
    LiveKey,
    LiveKill,
    plan_text,
)

from .governance_specs import CATALOGUE, WHOLE, policy_lists, with_policies

OLD = load_governance(WHOLE, "old.yaml")
MONTH = Window("calendar", unit="month", zone="Europe/Berlin")
SPENT = CapSpend("org", "acme", "micro_usd", MONTH, settled=7_000_000, outstanding=500_000)
KEYS = (
    LiveKey("key_bot", "search", key="bot-prod"),
    LiveKey("key_ads", "ads", models=frozenset({"large", "small"})),
    LiveKey("key_jo", "search", user="jo"),
)
FACTS = Facts(KEYS, (SPENT,))


def changed(old: str, new: str) -> tuple[Governance, str]:
    assert old in WHOLE
    text = WHOLE.replace(old, new)
    return load_governance(text, "new.yaml"), text


@pytest.mark.parametrize(
    ("old", "new", "findings"),
    [
        ("- {name: ads, org: acme}\n", "- {name: adz, org: acme}\n", {"key-orphaned": ["key_ads"]}),
        (
            "  - {name: bot-prod, app: bot, models: [small, claude], policies: [small-only]}",
            "  - {name: other, app: bot}",
            {"key-orphaned": ["key_bot"], "policy-unused": ["small-only"]},
        ),
        ("models: [tiny]", "models: [large]", {
            "key-loses-all-models": ["key_bot", "small"], "key-without-models": ["bot-prod"],
        }),
        ("{name: ads, org: acme}", "{name: ads, org: acme, policies: [small-only]}", {
            "key-loses-models": ["key_ads", "large"],
        }),
        ("{name: ads, org: acme}", "{name: ads, org: acme, policies: [in-europe]}", {
            "key-loses-all-models": ["key_ads", "large, small"],
        }),
        ("usd: 12.50", "usd: 7.49", {"cap-below-spend": ["$7.490000", "$7.000000", "$0.500000"]}),
        ("usd: 12.50", "usd: 7.50", {}),
        ("usd: 12.50", "usd: 7.49, mode: audit", {"cap-below-spend": ["acme"]}),
        ("per: month, usd", "per: week, usd", {"cap-restarts": ["org 'acme'", "Europe/Berlin"]}),
        (", quotas: [{dimension: concurrency, amount: 3}]", "", {
            "cap-removed": ["app 'bot'", "concurrency"],
        }),
        ("input_micro_usd_per_mtok: 1,", "input_micro_usd_per_mtok: 3,", {
            "price-version-unchanged": ["claude, large, small"],
        }),
        ('price_version: "1"', 'price_version: "2"', {}),
        ("http://east/v1", "http://elsewhere/v1", {"provider-moves": ["http://elsewhere/v1"]}),
        ("region: eu-west-1", "region: eu-west-2", {"provider-moves": ["eu-west-2"]}),
        ("team: search", "team: ads", {"key-moves-team": ["key_bot", "'search' to 'ads'"]}),
        (", policies: [trial]", "", {"policy-unused": ["trial"]}),
    ],
)  # fmt: skip
def test_effects(old: str, new: str, findings: dict[str, list[str]]) -> None:
    spec, text = changed(old, new)
    plan = plan_change(OLD, spec, FACTS, new_text=text)
    told = plan_change(OLD, OLD, FACTS).findings  # what the old spec has of its own
    found = {f.code: f.message for f in plan.findings if f.message not in {t.message for t in told}}
    assert found.keys() == findings.keys()
    for code, words in findings.items():
        assert all(word in found[code] for word in words), (code, found[code])
    assert plan.changes
    blocking = set(findings) & BLOCKING
    assert set(plan.blocking) == (set() if "audit" in new else blocking)
    assert {finding.code for finding in plan.refused([])} == set(plan.blocking)
    assert plan.refused(plan.blocking) == ()
    assert set(findings) <= set(CODES)


def test_a_model_that_is_renamed_and_keeps_its_name_as_an_alias_is_lost_by_nobody() -> None:
    renamed = WHOLE.replace("name: small, provider", "name: mini, provider")
    kept = load_governance(renamed.replace("[tiny],", "[tiny, small],"), "new.yaml")
    assert plan_change(OLD, kept, FACTS).blocking == ()
    gone = load_governance(renamed.replace("[small, claude]", "[mini, claude]"), "new.yaml")
    assert plan_change(OLD, gone, FACTS).blocking == ("key-loses-models",)


def test_a_kill_switch_is_lost_with_the_last_that_it_stops() -> None:
    renamed = WHOLE.replace("name: small, provider", "name: mini, provider").replace(
        "[small, claude]", "[mini, claude]"
    )
    gone = load_governance(renamed, "new.yaml")
    kept = load_governance(renamed.replace("[tiny],", "[tiny, small],"), "new.yaml")
    kills = tuple(
        LiveKill(kind, target)
        for kind, target in (
            ("model", "small"),
            ("model", "never-was"),
            ("key", "key_jo"),
            ("all", ""),
        )
    )

    def told(old: Governance | None, new: Governance) -> list[tuple[str, bool]]:
        found = plan_change(old, new, Facts(kills=kills)).findings
        return [(f.code, f.blocking) for f in found if f.code.startswith("kill-")]

    assert told(OLD, OLD) == told(None, gone) == told(gone, gone) == []
    assert told(OLD, gone) == [("kill-switch-lost", True)]
    assert told(OLD, kept) == [("kill-switch-moves", False)]
    assert told(kept, kept) == []
    assert told(kept, gone) == [("kill-switch-lost", True)]


def test_a_stopped_model_that_would_be_called_again_blocks_and_another_switch_frees_it() -> None:
    renamed = WHOLE.replace("name: small, provider", "name: mini, provider").replace(
        "[small, claude]", "[mini, claude]"
    )
    old = load_governance(renamed.replace("[tiny],", "[tiny, small],"), "old.yaml")
    gone = load_governance(renamed, "new.yaml")
    moved = load_governance(
        renamed.replace("name: claude,", "name: claude, aliases: [small],"), "n"
    )
    assert old.find_model("small") is old.find_model("mini")
    assert moved.find_model("small") is moved.find_model("claude")

    def told(new: Governance, *targets: str) -> list[tuple[str, bool]]:
        kills = tuple(LiveKill("model", target) for target in targets)
        found = plan_change(old, new, Facts(kills=kills)).findings
        return [(f.code, f.blocking) for f in found if f.code.startswith("kill-")]

    for new in (moved, gone):
        assert told(new, "small") == [("kill-switch-lost", True)]
        assert told(new, "small", "mini") == [("kill-switch-moves", False)]
        assert told(new, "mini") == []


@pytest.mark.parametrize(
    ("was", "now", "who"),
    [
        ("team: search", "team: ads", ["app 'bot'", "user 'jo'"]),
        ("provider: west", "provider: east", ["model 'claude'"]),
    ],
)
def test_who_leaves_what_is_stopped_is_told(was: str, now: str, who: list[str]) -> None:
    stays = "  - {name: claude-2, provider: 'west', upstream_model: anthropic.claude-3-v1:0,"
    stays += " context_tokens: 1000, max_output_tokens: 100,"
    stays += " price: {input_micro_usd_per_mtok: 1, output_micro_usd_per_mtok: 2}}\n"
    with_two = WHOLE.replace("  - {name: claude,", stays + "  - {name: claude,")
    old = load_governance(with_two, "old.yaml")
    new = load_governance(with_two.replace(was, now), "new.yaml")
    left, taken = (LiveKill(*text.split(": ")) for text in (was, now))
    for kills, expected in (((left,), len(who)), ((left, taken), 0)):
        found = plan_change(old, new, Facts(kills=kills)).findings
        told = [f for f in found if f.code == "kill-switch-moves"]
        assert len(told) == expected
        assert not any(f.blocking for f in told)
        assert all(any(one in f.message for f in told) for one in who[:expected])


def test_findings_name_the_line_of_the_new_file() -> None:
    spec, text = changed("usd: 12.50", "usd: 1")
    [finding] = [f for f in plan_change(OLD, spec, FACTS, new_text=text).findings if f.blocking]
    assert finding.line is not None
    assert "usd: 1," in text.splitlines()[finding.line - 1]
    assert all(f.line is None for f in plan_change(OLD, spec, FACTS).findings)


@pytest.mark.parametrize(
    ("quota", "blocks"),
    [("usd: 12.50", True), ("usd: 5", False), ("usd: 4", False), ("usd: 4, mode: audit", True)],
)
def test_a_cap_that_was_set_at_runtime_is_not_loosened_unseen(quota: str, blocks: bool) -> None:
    """It was set while the spec had none, in an incident perhaps."""
    spec, text = changed("usd: 12.50", quota)
    without = spec.model_copy(
        update={"orgs": tuple(org.model_copy(update={"quotas": ()}) for org in spec.orgs)}
    )
    emergency = CapSpend("org", "acme", "micro_usd", MONTH, 0, 0, runtime=5_000_000)
    for old in (None, without):
        plan = plan_change(old, spec, Facts((), (emergency,)), new_text=text)
        found = [one for one in plan.findings if one.code == "cap-set-at-runtime"]
        assert bool(found) is blocks
        assert ("cap-set-at-runtime" in plan.blocking) is blocks
        for one in found:
            assert "$5.000000" in one.message
    declared = CapSpend("org", "acme", "micro_usd", MONTH, 0, 0)
    assert plan_change(without, spec, Facts((), (declared,))).blocking == ()


def test_a_cap_that_was_passed_before_blocks_no_other_change() -> None:
    over = Facts((), (CapSpend("org", "acme", "micro_usd", MONTH, 20_000_000, 0),))
    spec, _ = changed('price_version: "1"', 'price_version: "2"')
    assert plan_change(OLD, spec, over).blocking == ()
    raised, _ = changed("usd: 12.50", "usd: 15")
    assert plan_change(OLD, raised, over).blocking == ()
    lowered, _ = changed("usd: 12.50", "usd: 12")
    assert plan_change(OLD, lowered, over).blocking == ("cap-below-spend",)


def test_a_key_that_is_refused_already_blocks_nothing() -> None:
    orphan = Facts((LiveKey("key_x", "nobody"),))
    assert plan_change(OLD, OLD, orphan).blocking == ()
    assert plan_change(None, OLD, orphan).blocking == ("key-orphaned",)
    assert plan_change(load_governance(CATALOGUE, "c"), OLD, orphan).blocking == ("key-orphaned",)


def test_many_keys_are_counted_and_a_few_named() -> None:
    many = Facts(tuple(LiveKey(f"key_{n:03}", "gone") for n in range(200)))
    [finding] = [f for f in plan_change(None, OLD, many).findings if f.blocking]
    assert "200 live keys" in finding.message
    assert "and 195 more" in finding.message
    assert len(finding.message) < 250


def test_the_diff_says_what_was_added_changed_and_removed() -> None:
    spec, _ = changed("models: [tiny]", "max_output_tokens: 7")
    text = plan_change(OLD, spec, Facts()).text()
    assert "~ policy small-only\n    max_output_tokens: unset -> 7\n    models: - tiny\n" in text
    assert text.endswith("\n")
    assert "0 added, 1 changed, 0 removed." in text
    first = plan_change(None, OLD, Facts())
    assert {change.action for change in first.changes} == {"added"}
    last = plan_change(OLD, load_governance(CATALOGUE, "c"), Facts())
    assert {change.action for change in last.changes} == {"removed"}
    defaults, _ = changed(
        'price_version: "1"', 'price_version: "2"\ndefaults: {max_output_tokens: 9}'
    )
    assert [(c.kind, c.name) for c in plan_change(OLD, defaults, Facts()).changes] == [
        ("setting", "defaults"),
        ("setting", "price_version"),
    ]


def test_no_change_is_no_change() -> None:
    plan = plan_change(OLD, OLD, FACTS)
    assert plan.changes == ()
    assert plan.blocking == ()
    assert plan.text().startswith("Nothing changes.\n")


def test_a_plan_of_a_newer_gateway_is_shown_as_well() -> None:
    finding = {"code": "of-tomorrow", "message": "hm", "blocking": True}
    document = {"changes": [], "findings": [finding], "blocking": ["of-tomorrow"]}
    assert "blocks: hm [of-tomorrow]" in plan_text(document)


def test_a_text_of_the_spec_forges_no_line_of_the_plan_and_no_terminal_obeys_it() -> None:
    change = {
        "action": "changed", "kind": "guardrail", "name": "x\x1b[2K",
        "detail": ["message: a\x1b[1A\nNothing changes.", "label: d\u00fcrr"],
    }  # fmt: skip
    assert plan_text({"changes": [change], "findings": []}).splitlines()[:4] == [
        "~ guardrail x\\x1b[2K",
        "    message: a\\x1b[1A\\nNothing changes.",
        "    label: d\u00fcrr",
        "",
    ]


# --- any change at all ----------------------------------------------------------------------------

OWNERS: list[dict[str, Any]] = [
    {"team": "search"},
    {"team": "ads"},
    {"team": "search", "user": "jo"},
    {"team": "search", "app": "bot"},
    {"team": "search", "key": "bot-prod"},
    {"team": "gone"},
]


@st.composite
def specs(draw: Any) -> Governance:
    """The organisation of WHOLE with policies hung anywhere, and some subjects and caps gone."""
    policies = draw(policy_lists(most=3))
    names = [policy.name for policy in policies]
    spec = with_policies(OLD, policies)
    some = st.lists(st.sampled_from(names), unique=True).map(tuple)
    update: dict[str, Any] = {}
    for section in ("orgs", "teams", "users", "apps", "keys"):
        update[section] = tuple(
            subject.model_copy(update={"policies": draw(some)})
            for subject in getattr(spec, section)
        )
    if draw(st.booleans()):
        update["keys"] = ()
    if draw(st.booleans()):
        amount = draw(st.integers(0, 20_000_000))
        [org] = update["orgs"]
        quota = org.quotas[0].model_copy(update={"usd": None, "amount": amount})
        update["orgs"] = (org.model_copy(update={"quotas": (quota,)}),)
    return spec.model_copy(update=update)


FACTS_OF_ANY = st.builds(
    Facts,
    st.lists(
        st.tuples(st.sampled_from(OWNERS), st.sampled_from([None, frozenset({"small", "large"})])),
        max_size=6,
    ).map(
        lambda made: tuple(
            LiveKey(f"key_{n}", **owner, models=models) for n, (owner, models) in enumerate(made)
        )
    ),
    st.builds(
        lambda settled, outstanding: (
            CapSpend("org", "acme", "micro_usd", MONTH, settled, outstanding),
        ),
        st.integers(0, 20_000_000),
        st.integers(0, 1_000_000),
    ),
)


def callable_models(spec: Governance, key: LiveKey) -> frozenset[str] | None:
    """The slow way: what a key can call; ``None``: it is orphaned."""
    try:
        standing = compile_governance(spec).standing(
            team=key.team, user=key.user, app=key.app, key=key.key, models=key.models
        )
    except UnknownSubjectError:
        return None
    regions = {"small": "", "large": "", "claude": "eu-west-1"}
    return frozenset(
        model.name
        for model in spec.models
        if standing.policy.allows_model(model.name, model.provider)
        and standing.policy.allows_region(regions[model.name])
    )


@given(specs(), specs(), FACTS_OF_ANY)
def test_what_blocks_nothing_takes_nothing_away(
    old: Governance, new: Governance, facts: Facts
) -> None:
    plan = plan_change(old, new, facts)
    lost: set[str] = set()
    for key in facts.keys:
        before, after = callable_models(old, key), callable_models(new, key)
        if before is None:
            continue
        if after is None:
            lost.add("key-orphaned")
        elif before - after:
            lost.add("key-loses-models" if after else "key-loses-all-models")
    [spent] = facts.spend
    cap, was = new.orgs[0].quotas[0].whole_amount(), old.orgs[0].quotas[0].whole_amount()
    if cap < was and spent.settled + spent.outstanding > cap:
        lost.add("cap-below-spend")
    assert set(plan.blocking) == lost


@given(specs(), specs(), FACTS_OF_ANY, st.integers())
def test_the_same_input_gives_the_same_plan(
    old: Governance, new: Governance, facts: Facts, seed: int
) -> None:
    keys = list(facts.keys)
    random.Random(seed).shuffle(keys)
    plan = plan_change(old, new, facts)
    again = plan_change(old, new, Facts(tuple(keys), facts.spend))
    assert plan == again
    assert plan.text() == again.text() == plan_text(json.loads(json.dumps(plan.to_json())))
    assert plan_change(new, new, facts).changes == ()


@given(specs(), specs(), FACTS_OF_ANY, FACTS_OF_ANY)
def test_a_prepared_change_plans_on_facts_that_changed(
    old: Governance, new: Governance, before: Facts, now: Facts
) -> None:
    change = PreparedChange(compile_governance(old), compile_governance(new))
    for facts in (before, now, before):
        assert change.plan(facts) == plan_change(old, new, facts)


def test_a_second_plan_looks_only_at_keys_that_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made under the lock that kill switches take."""
    change = PreparedChange(compile_governance(OLD), compile_governance(OLD), new_text=WHOLE)
    change.plan(FACTS)
    asked: list[str] = []
    real = CompiledGovernance.standing

    def standing(self: CompiledGovernance, *, team: str, **more: Any) -> Standing:
        asked.append(team)
        return real(self, team=team, **more)

    monkeypatch.setattr(CompiledGovernance, "standing", standing)
    for name in ("compile_governance", "differences", "read_lined_yaml"):
        monkeypatch.delattr(effects, name)
    change.plan(Facts((*KEYS, LiveKey("key_new", "ads")), ()))
    assert asked == ["ads", "ads"]  # by the old spec and by the new one
