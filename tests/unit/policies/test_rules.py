"""Every rule: complete as data, broken by each of its bad fixtures and by no good one."""

import re

import pytest
from policy_trials import broken, check, resource

from terrace_policies.book import find_rule, rules
from terrace_policies.configuration import RULE_ID
from terrace_policies.fixtures import Case, cases
from terrace_policies.model import Rule
from terrace_policies.resources import Stack

EVERY = [rule for rule in rules() if rule.id != RULE_ID]


def named(case: Case) -> str:
    number = [c for c in cases() if c.rule == case.rule and c.good == case.good].index(case)
    return f"{case.rule}-{'good' if case.good else 'bad'}-{number}"


@pytest.mark.parametrize("preview", [True, False], ids=["preview", "state"])
@pytest.mark.parametrize("case", cases(), ids=named)
def test_a_bad_fixture_breaks_its_rule_and_no_other(case: Case, preview: bool) -> None:
    results = check(case.stack(preview=preview))
    assert broken(results) == (set() if case.good else {case.rule}), [r.text for r in results]


@pytest.mark.parametrize("rule", EVERY, ids=lambda rule: rule.id)
def test_every_rule_has_a_good_and_a_bad_fixture(rule: Rule) -> None:
    kinds = {case.good for case in cases() if case.rule == rule.id}
    assert kinds == {True, False}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.id)
def test_every_rule_says_what_it_is(rule: Rule) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", rule.id)
    assert len([r for r in rules() if r.id == rule.id]) == 1
    assert rule.references
    assert all(r.framework and r.reference for r in rule.references)
    for sentence in (rule.why, rule.remediation):
        assert sentence.endswith(".")
    assert not rule.description.endswith(".")
    if rule.id != RULE_ID:
        assert (rule.resource is None) != (rule.stack is None)
        assert bool(rule.types) == (rule.resource is not None)


def test_there_are_rules_on_all_three_subjects() -> None:
    assert len(rules()) >= 60
    assert len([rule for rule in rules() if rule.admission]) >= 15


def test_every_fixture_is_of_a_rule_that_exists() -> None:
    assert all(find_rule(case.rule) for case in cases())


@pytest.mark.parametrize("case", [c for c in cases() if not c.good], ids=named)
def test_a_violation_names_resource_property_and_remedy(case: Case) -> None:
    results = [r for r in check(case.stack(preview=True)) if not r.unchecked]
    assert results
    for result in results:
        assert result.resource is not None
        assert result.text.startswith(f"{result.resource.name}: ")
        assert result.rule.remediation in result.text
        assert "{" not in result.says.property


def test_a_fixed_name_may_carry_the_name_of_the_stack() -> None:
    kind = "aws:iam/role:Role"
    own = resource(kind, "a", name="trial-gateway", assumeRolePolicy="{}")
    other = resource(kind, "b", name="gateway", assumeRolePolicy="{}")
    given = resource(kind, "c", name="gateway", assumeRolePolicy="{}", __defaults=["name"])
    results = check(Stack([own, other, given]))
    assert [r.resource.name for r in results if r.resource] == ["b"]


@pytest.mark.parametrize(
    ("first", "last", "protocol", "closed"),
    [
        (443, 443, "tcp", False),
        (5000, 6000, "tcp", True),
        (0, 0, "-1", True),
        (None, None, "tcp", True),
        (8000, 8080, "tcp", False),
        (8081, 8081, "tcp", True),
    ],
)
def test_a_range_of_ports_is_open_if_an_administration_port_is_in_it(
    first: int | None, last: int | None, protocol: str, closed: bool
) -> None:
    rule = resource(
        "aws:ec2/securityGroupRule:SecurityGroupRule", "r", type="ingress", protocol=protocol,
        fromPort=first, toPort=last, ipv6CidrBlocks=["::/0"],
    )  # fmt: skip
    expected = {"security-group-admin-ports-closed"} if closed else set()
    assert broken(check(Stack([rule]))) == expected
