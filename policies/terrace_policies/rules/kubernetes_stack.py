"""Rules about Kubernetes objects that need each other."""

from collections.abc import Iterator

from terrace_policies.checks import each_resource
from terrace_policies.model import Finding, Parameters, Reference, Rule, Says, Severity
from terrace_policies.resources import Resource, Stack, UnknownValue

SYSTEM = {"kube-system", "kube-public", "kube-node-lease"}


def _default_deny(stack: Stack, given: Parameters) -> Iterator[Says]:
    del given
    policies = [p for p in stack.kinds("NetworkPolicy") if _denies_all(p)]

    def check(namespace: Resource) -> Iterator[Says]:
        name = namespace.get("metadata.name")
        if name in SYSTEM:
            return
        if not any(_lies_in(stack, policy, namespace, name) for policy in policies):
            yield Finding("", f"namespace {name} has no NetworkPolicy that denies all traffic")

    yield from each_resource(stack.kinds("Namespace"), check)


def _lies_in(stack: Stack, policy: Resource, namespace: Resource, name: str) -> bool:
    try:
        return policy.get("metadata.namespace") == name
    except UnknownValue:
        return stack.refers(policy, "metadata.namespace", namespace)


def _denies_all(policy: Resource) -> bool:
    spec = policy.at("spec").value
    if not isinstance(spec, dict):
        return False
    both = set(spec.get("policyTypes") or []) == {"Ingress", "Egress"}
    return both and not any(spec.get(key) for key in ("podSelector", "ingress", "egress"))


RULES = (
    Rule(
        id="namespace-denies-by-default",
        description="Every namespace has a NetworkPolicy that denies all traffic, in and out",
        why="Without it every pod may reach every other, the API server and the internet.",
        remediation="Use SecureNamespace, or add a NetworkPolicy with an empty podSelector and both"
        " policyTypes.",
        severity=Severity.HIGH,
        references=(
            Reference("CIS Kubernetes Benchmark 1.9", "5.3.2"),
            Reference("NSA/CISA Kubernetes Hardening Guide", "network separation"),
        ),
        stack=_default_deny,
    ),
)
