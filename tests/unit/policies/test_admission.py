"""The admission policies: their own text, evaluated as the API server does."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from cel_expr_python import cel
from policy_trials import configured

from terrace_policies.admission import manifests
from terrace_policies.cel import CelRule, cel_rules, compiled, shared_variables
from terrace_policies.fixtures import Case, cases

ROOT = Path(__file__).resolve().parents[3]
# Of Kubernetes' own CEL libraries; CEL elsewhere has none of them.
KUBERNETES_ONLY = (
    "isSorted|sum|min|max|indexOf|lastIndexOf|find|findAll|url|isURL|getScheme|quantity|isQuantity"
    "|ip|isIP|cidr|isCIDR|authorizer|format|semver|isSemver|optional|orValue|join|split|replace"
    "|lowerAscii|upperAscii|substring|trim|flatten|distinct|all_exists"
)
POLICIES = {m["metadata"]["name"]: m for m in manifests() if m["kind"].endswith("Policy")}
ADMITTED = [cel for cel in cel_rules() if cel.rule.admission]


def judged(policy: dict[str, Any], obj: dict[str, Any]) -> str | None:
    """What the API server says of an object: ``None`` if it is admitted."""
    spec = policy["spec"]
    variables: dict[str, Any] = {}
    for variable in spec["variables"]:
        data = {"object": obj, "variables": variables}
        result = compiled(variable["expression"]).eval(data=data)
        variables[variable["name"]] = result.plain_value()
    data = {"object": obj, "variables": variables}
    for validation in spec["validations"]:
        if compiled(validation["expression"]).eval(data=data).plain_value() is not True:
            return str(compiled(validation["messageExpression"]).eval(data=data).plain_value())
    return None


def fixtures_of(cel: CelRule, *, good: bool) -> list[dict[str, Any]]:
    return [
        dict(example.properties)
        for case in cases()
        if case.rule == cel.rule.id and case.good is good
        for example in case.examples
        if example.shown and f"kubernetes:*:{example.type.rpartition(':')[2]}" in cel.rule.types
    ]


@pytest.mark.parametrize("rule", cel_rules(), ids=lambda rule: rule.rule.id)
def test_every_rule_is_standard_cel(rule: CelRule) -> None:
    for text in (rule.offenders, *shared_variables().values()):
        compiled(text)
        assert not re.search(rf"(\.|\b)({KUBERNETES_ONLY})\(", text)
        assert ".?" not in text


def test_text_that_is_not_cel_is_an_error() -> None:
    with pytest.raises(ValueError, match="not CEL"):
        compiled("object.a ==")


@pytest.mark.parametrize("cel", ADMITTED, ids=lambda cel: cel.rule.id)
def test_a_policy_refuses_the_bad_fixtures_and_admits_the_good(cel: CelRule) -> None:
    policy = POLICIES[f"terrace-{cel.rule.id}"]
    good, bad = fixtures_of(cel, good=True), fixtures_of(cel, good=False)
    assert good
    assert bad
    assert [judged(policy, obj) for obj in good] == [None] * len(good)
    for obj in bad:
        message = judged(policy, obj)
        assert message is not None
        assert cel.rule.id in message
        assert cel.rule.remediation in message


@pytest.mark.parametrize("case", [c for c in cases() if c.good], ids=lambda c: c.rule)
def test_a_good_object_passes_every_policy_on_its_kind(case: Case) -> None:
    for example in case.examples:
        kind = f"kubernetes:*:{example.type.rpartition(':')[2]}"
        for rule in (one.rule for one in ADMITTED):
            if kind in rule.types and example.type.startswith("kubernetes:"):
                assert judged(POLICIES[f"terrace-{rule.id}"], dict(example.properties)) is None


def test_a_debug_container_is_expectedlike_any_other() -> None:
    pod = next(
        e.properties for c in cases() for e in c.examples if e.name == "pod" and c.good
    )  # fmt: skip
    debug = {"name": "debugger", "image": "busybox:latest", "securityContext": {"privileged": True}}
    obj = json.loads(json.dumps(pod))
    obj["spec"]["ephemeralContainers"] = [debug]
    for rule in ("pod-not-privileged", "pod-image-pinned", "pod-drops-capabilities"):
        assert "debugger" in str(judged(POLICIES[f"terrace-{rule}"], obj))
    # Kubernetes refuses resources on such a container, so they cannot be asked for.
    assert judged(POLICIES["terrace-pod-resources-set"], obj) is None


def test_only_an_init_container_that_can_do_nothing_else_may_be_root() -> None:
    (good,) = (
        e.properties for c in cases() for e in c.examples
        if c.rule == "pod-runs-as-non-root" and c.good and e.shown
        and "initContainers" in e.properties["spec"]["template"]["spec"]
    )  # fmt: skip
    policy = POLICIES["terrace-pod-runs-as-non-root"]
    assert judged(policy, dict(good)) is None
    more = json.loads(json.dumps(good))
    own = more["spec"]["template"]["spec"]["initContainers"][0]
    own["securityContext"]["capabilities"]["add"] = ["CHOWN", "SETUID"]
    assert judged(policy, more) is not None
    moved = json.loads(json.dumps(good))
    pod = moved["spec"]["template"]["spec"]
    pod["containers"] += pod.pop("initContainers")
    assert "own-volume" in str(judged(policy, moved))


def test_every_policy_fails_closed_and_is_bound_twice() -> None:
    made = manifests()
    bindings = [m for m in made if m["kind"].endswith("Binding")]
    assert len(made) == 3 * len(ADMITTED)
    assert len({m["metadata"]["name"] for m in made}) == len(made)
    for policy in POLICIES.values():
        assert policy["spec"]["failurePolicy"] == "Fail"
        condition, *more = policy["spec"]["matchConditions"]
        assert condition["expression"] == "!has(object.metadata.deletionTimestamp)"
        rules = policy["spec"]["matchConstraints"]["resourceRules"]
        of_pods = any("pods" in rule["resources"] for rule in rules)
        assert [c["name"] for c in more] == (["pod-created-or-changed"] if of_pods else [])
        own = [b for b in bindings if b["spec"]["policyName"] == policy["metadata"]["name"]]
        assert len(own) == 2
        assert all(b["spec"]["validationActions"] == ["Deny"] for b in own)
    assert all(re.fullmatch(r"[a-z0-9-]{1,253}", m["metadata"]["name"]) for m in made)


def test_a_rule_that_is_advisory_warns() -> None:
    text = """
version: 1
advisory: [{rule: pod-image-pinned, reason: Migration, expires: 2027-02-01}]
parameters:
  service-not-exposed:
    allowed-node-ports: {value: [30999], reason: Migration, expires: 2027-02-01}
"""
    made = {m["metadata"]["name"]: m for m in manifests(configured(text), [30400])}
    binding = made["terrace-pod-image-pinned-labelled"]
    assert binding["spec"]["validationActions"] == ["Warn", "Audit"]
    assert made["terrace-pod-has-seccomp-named"]["spec"]["validationActions"] == ["Deny"]
    variables = made["terrace-service-not-exposed"]["spec"]["variables"]
    assert {"name": "allowed_node_ports", "expression": "[30400, 30999]"} in variables


def test_the_platform_that_stands_is_admitted() -> None:
    rows = json.loads((ROOT / "tests/graph/snapshots/stage-1-local.json").read_text())
    made = manifests(allowed_node_ports=[30400, 30401, 30480, 30490])
    policies = {m["metadata"]["name"]: m for m in made}
    judgements = [
        judged(policies[f"terrace-{cel.rule.id}"], row["inputs"])
        for row in rows
        for cel in ADMITTED
        if row["type"].startswith("kubernetes:")
        and f"kubernetes:*:{row['type'].rpartition(':')[2]}" in cel.rule.types
    ]
    assert len(judgements) > 50
    assert [judgement for judgement in judgements if judgement] == []


@pytest.mark.parametrize(
    ("operation", "change", "expected"),
    [
        ("CREATE", {}, True),
        ("UPDATE", {"metadata": {"name": "app", "labels": {"a": "b"}}}, False),
        ("UPDATE", {"spec": {"containers": [{"name": "app", "image": "busybox:latest"}]}}, True),
        ("UPDATE", {"kind": "Deployment"}, True),
    ],
)
def test_a_pod_is_expectedwhen_it_is_made_or_its_spec_changes(
    operation: str, change: dict[str, Any], expected: bool
) -> None:
    pod = {"kind": "Pod", "metadata": {"name": "app"}, "spec": {"containers": [{"name": "app"}]}}
    data = {"request": {"operation": operation}, "object": pod | change, "oldObject": pod}
    text = POLICIES["terrace-pod-image-pinned"]["spec"]["matchConditions"][1]["expression"]
    environment = cel.NewEnv(variables={name: cel.Type.DYN for name in data})
    assert environment.compile(text).eval(data=data).plain_value() is expected


def test_every_kind_that_holds_a_pod_is_matched_when_it_is_changed() -> None:
    rules = POLICIES["terrace-pod-image-pinned"]["spec"]["matchConstraints"]["resourceRules"]
    matched = {name for rule in rules for name in rule["resources"]}
    assert {"pods", "podtemplates", "replicationcontrollers", "pods/ephemeralcontainers"} <= matched
    assert all(rule["operations"] == ["CREATE", "UPDATE"] for rule in rules)
