"""Merging policies: every one must allow, whatever their order and wherever they are attached."""

from datetime import UTC, datetime, timedelta
from functools import reduce
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terrace_common.governance import (
    EffectivePolicy,
    Hours,
    Policy,
    compile_governance,
    load_governance,
)
from terrace_common.governance.merging import Restriction, merge, restriction_of
from terrace_common.governance.policies import resolve_extends

from .governance_specs import FEATURES, MODELS, WHOLE, policy_lists, with_policies

SPEC = load_governance(WHOLE, "spec.yaml")
PROVIDER_OF = {model.name: model.provider for model in SPEC.models}
EMPTY = compile_governance(SPEC)


def restrictions(policies: list[Policy]) -> list[Restriction]:
    return [
        restriction_of(
            policy,
            model_names=EMPTY.model_names,
            all_models=frozenset(PROVIDER_OF),
            all_providers=frozenset(PROVIDER_OF.values()),
        )
        for policy in resolve_extends(policies).values()
    ]


@given(policy_lists(), st.randoms(use_true_random=False))
def test_order_and_grouping_do_not_matter(policies: list[Policy], random: object) -> None:
    found = restrictions(policies)
    whole = reduce(merge, found, Restriction())
    shuffled = list(found)
    random.shuffle(shuffled)  # pyright: ignore[reportAttributeAccessIssue]
    assert reduce(merge, shuffled) == whole
    for cut in range(len(found) + 1):
        left = reduce(merge, found[:cut], Restriction())
        right = reduce(merge, found[cut:], Restriction())
        assert merge(left, right) == merge(right, left) == whole
    assert merge(whole, whole) == whole
    assert merge(whole, found[0]) == whole


@given(policy_lists(), st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1)), st.data())
def test_all_together_allow_what_each_allows(
    policies: list[Policy], when: datetime, data: st.DataObject
) -> None:
    compiled = compile_governance(with_policies(SPEC, policies))
    blocking = [p.name for p in resolve_extends(policies).values() if p.mode == "block"]
    together, _ = compiled.merged(policy.name for policy in policies)
    each = [compiled.merged([name])[0] for name in blocking]
    moment = when.replace(tzinfo=UTC)
    for model, provider in PROVIDER_OF.items():
        assert together.allows_model(model, provider) == all(
            policy.allows_model(model, provider) for policy in each
        )
    for region in ("eu-west-1", "eu-*", "us-east-1", ""):
        assert together.allows_region(region) == all(p.allows_region(region) for p in each)
    address = data.draw(st.sampled_from(["10.1.2.3", "192.168.1.9", "::ffff:10.0.0.1", "::1", "x"]))
    assert together.admits(address) == all(policy.admits(address) for policy in each)
    assert together.open_at(moment) == all(policy.open_at(moment) for policy in each)
    for feature in FEATURES:
        assert (feature in together.denied_features) == any(
            feature in policy.denied_features for policy in each
        )
    outputs = [p.max_output_tokens for p in each if p.max_output_tokens is not None]
    assert together.max_output_tokens == (min(outputs) if outputs else None)
    assert (together.outage == "closed") == any(policy.outage == "closed" for policy in each)
    assert together.names == tuple(sorted(blocking))


@given(policy_lists(most=4))
def test_where_policies_are_attached_does_not_matter(policies: list[Policy]) -> None:
    spec = with_policies(SPEC, policies)
    names = [policy.name for policy in policies]

    def attached(parts: list[list[str]]) -> tuple[EffectivePolicy, EffectivePolicy | None]:
        org, team, app, key = parts
        changed = spec.model_copy(
            update={
                "orgs": tuple(o.model_copy(update={"policies": tuple(org)}) for o in spec.orgs),
                "teams": tuple(t.model_copy(update={"policies": tuple(team)}) for t in spec.teams),
                "apps": tuple(a.model_copy(update={"policies": tuple(app)}) for a in spec.apps),
                "keys": tuple(k.model_copy(update={"policies": tuple(key)}) for k in spec.keys),
            }
        )
        standing = compile_governance(changed).standing(team="search", key="bot-prod")
        return standing.policy, standing.audit

    everything_at_the_top = attached([names, [], [], []])
    assert attached([[], [], [], names]) == everything_at_the_top
    assert attached([names[0:1], names[1:2], names[2:3], names[3:]]) == everything_at_the_top
    assert attached([names, names, names, names]) == everything_at_the_top


@given(policy_lists(), policy_lists(most=1))
def test_one_policy_more_never_allows_more(policies: list[Policy], more: list[Policy]) -> None:
    extra = more[0].model_copy(update={"name": "extra", "mode": "block"})
    compiled = compile_governance(with_policies(SPEC, [*policies, extra]))
    before, _ = compiled.merged(policy.name for policy in policies)
    after, _ = compiled.merged([*(policy.name for policy in policies), "extra"])
    for model, provider in PROVIDER_OF.items():
        assert before.allows_model(model, provider) >= after.allows_model(model, provider)
    assert before.denied_features <= after.denied_features
    assert set(before.guardrails) <= set(after.guardrails)
    assert set(before.residency) <= set(after.residency)
    assert set(before.networks) <= set(after.networks)


@given(policy_lists())
def test_the_smallest_number_wins(policies: list[Policy]) -> None:
    compiled = compile_governance(with_policies(SPEC, policies))
    together, _ = compiled.merged(policy.name for policy in policies)
    blocking = [p for p in resolve_extends(policies).values() if p.mode == "block"]
    for field, default in (
        ("outage_grace_seconds", 60),
        ("stream_grace_seconds", 60),
        ("priority", 0),
        ("max_context_tokens", None),
        ("max_output_tokens", None),
    ):
        said = [getattr(p, field) for p in blocking if getattr(p, field) is not None]
        assert getattr(together, field) == min(said, default=default)


@pytest.mark.parametrize(
    ("address", "inside"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("2001:db8::1", True),
        ("11.0.0.1", False),
        ("::ffff:11.0.0.1", False),
        ("::1", False),
        ("", False),
        ("10.1.2", False),
    ],
)
def test_networks(address: str, inside: bool) -> None:
    assert EffectivePolicy(networks=(("10.0.0.0/8", "2001:db8::/32"),)).admits(address) == inside
    assert EffectivePolicy().admits(address)


def test_what_nobody_says_is_as_the_house_has_it() -> None:
    policy, audit = EMPTY.merged([])
    assert policy == EffectivePolicy()
    assert audit is None


def test_a_policy_that_nobody_knows_denies_everything() -> None:
    policy, _ = EMPTY.merged(["forgotten"])
    assert not any(policy.allows_model(model, PROVIDER_OF[model]) for model in PROVIDER_OF)


@given(st.sampled_from(MODELS))
def test_an_alias_is_its_model(name: str) -> None:
    policy, _ = compile_governance(
        with_policies(SPEC, [Policy.model_validate({"name": "p", "models": [name]})])
    ).merged(["p"])
    found = SPEC.find_model(name)
    assert found is not None
    assert policy.models == frozenset({found.name})


@pytest.mark.parametrize("first", ["never", {"retention_days": 7}])
def test_never_wins_over_capture(first: object) -> None:
    policies = [
        Policy.model_validate({"name": "p", "capture": first}),
        Policy.model_validate({"name": "q", "capture": {"retention_days": 30}}),
    ]
    merged, _ = compile_governance(with_policies(SPEC, policies)).merged(["p", "q"])
    assert (merged.capture and merged.capture.retention_days) == (None if first == "never" else 7)


def test_extends_fills_in_and_a_named_field_replaces() -> None:
    policies = [
        Policy.model_validate(
            {"name": "base", "max_output_tokens": 10, "deny_features": ["tools"], "mode": "audit"}
        ),
        Policy.model_validate({"name": "more", "extends": "base", "max_output_tokens": 20}),
        Policy.model_validate({"name": "most", "extends": "more", "mode": "block"}),
    ]
    resolved = resolve_extends(list(reversed(policies)))
    assert resolved["more"].max_output_tokens == resolved["most"].max_output_tokens == 20
    assert resolved["most"].deny_features == ("tools",)
    assert [resolved[name].mode for name in ("base", "more", "most")] == ["audit", "audit", "block"]


@given(
    st.integers(0, 400 * 24 * 60),
    st.frozensets(st.integers(0, 6), min_size=1),
    st.integers(0, 1439),
    st.integers(0, 1440),
    st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns"]),
)
def test_hours_are_read_on_the_clock_of_their_zone(
    minutes: int, days: frozenset[int], begin: int, end: int, zone: str
) -> None:
    """Against a slow walk over the minutes that a span has, also over midnight."""
    now = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes)
    there = now.astimezone(ZoneInfo(zone))
    minute_of_week = there.weekday() * 1440 + there.hour * 60 + there.minute
    length = end - begin if begin < end else end + 1440 - begin
    inside = any((minute_of_week - day * 1440 - begin) % (7 * 1440) < length for day in days)
    assert Hours(zone, days, begin, end).contains(now) == inside
