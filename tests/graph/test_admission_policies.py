"""Admission policies: one object per manifest, under names that do not move."""

from collections.abc import Callable
from typing import Any

import pulumi
import pytest

from terrace_components import AdmissionPolicies


def policy(name: str, expression: str = "true") -> dict[str, Any]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/part-of": "terrace"}},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": ["apps"],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE", "UPDATE"],
                        "resources": ["deployments"],
                    }
                ]
            },
            "validations": [{"expression": expression, "messageExpression": "'no'"}],
        },
    }


def binding(name: str, of: str) -> dict[str, Any]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {
            "policyName": of,
            "validationActions": ["Deny", "Audit"],
            "matchResources": {
                "namespaceSelector": {"matchLabels": {"app.kubernetes.io/part-of": "terrace"}}
            },
        },
    }


def program(*manifests: dict[str, Any]) -> Callable[[], None]:
    def run() -> None:
        made = AdmissionPolicies("rules", {"policies": list(manifests)})
        pulumi.export("names", made.names)

    return run


def test_manifests_arrive_as_they_are(render: Any) -> None:
    graph = render(program(policy("a"), binding("b", "a")))
    for kind, manifest in (
        ("ValidatingAdmissionPolicy", policy("a")),
        ("ValidatingAdmissionPolicyBinding", binding("b", "a")),
    ):
        made = graph.one(kind)
        assert made.type == f"kubernetes:admissionregistration.k8s.io/v1:{kind}"
        assert made.inputs["metadata"] == manifest["metadata"]
        assert made.inputs["spec"] == manifest["spec"]


def test_a_binding_comes_after_its_policy_wherever_it_stands(render: Any) -> None:
    graph = render(program(binding("b", "a"), policy("a")))
    made = graph.one("ValidatingAdmissionPolicyBinding")
    assert graph.one("ValidatingAdmissionPolicy").name in graph.needs(made)


def test_names_are_those_of_the_manifests_and_not_of_their_order(render: Any) -> None:
    one = render(program(policy("a"), policy("c"), binding("b", "a")))
    other = render(program(policy("c", "false"), binding("b", "a"), policy("a")))
    names = {(r.type, r.name) for r in one.resources}
    assert names == {(r.type, r.name) for r in other.resources}
    assert one.outputs["names"] == ["a", "c"]


def test_a_policy_and_its_binding_may_have_one_name(render: Any) -> None:
    graph = render(program(policy("a"), binding("a", "a")))
    assert len({r.name for r in graph.resources if r.custom}) == 2


@pytest.mark.parametrize("kind", ["ValidatingWebhookConfiguration", "Pod", None])
def test_nothing_else_can_be_made_with_it(render: Any, kind: str | None) -> None:
    with pytest.raises(pulumi.InputPropertyError) as raised:
        render(program(policy("a"), {**policy("b"), "kind": kind}))
    assert "manifest 1 must be a ValidatingAdmissionPolicy" in raised.value.reason
