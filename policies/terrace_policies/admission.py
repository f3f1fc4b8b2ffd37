"""The Kubernetes rules as ValidatingAdmissionPolicies: what dodges Pulumi meets the API server.

The CEL is that of ``rules/kubernetes*.yaml``, word for word. A policy fails closed: an object that
a rule cannot be evaluated on is refused. Objects that are being deleted pass, so that a rule can
never keep the finalizers of an old object from being removed.
"""

import json
from collections.abc import Iterable
from typing import Any

from terrace_common.names import (
    LABEL_PART_OF,
    NAMESPACE_FOUNDATION,
    NAMESPACE_GATEWAY,
    NAMESPACE_OBSERVABILITY,
    NAMESPACE_PROVIDERS,
    PART_OF,
)
from terrace_policies.cel import CelRule, cel_rules, parameter_variables, shared_variables
from terrace_policies.configuration import Configuration
from terrace_policies.model import Level

API_VERSION = "admissionregistration.k8s.io/v1"
NAME = "terrace-{rule}"
NODE_PORTS = "service-not-exposed"
# Also without the label, which whoever may write to a namespace can take away.
NAMES = (NAMESPACE_FOUNDATION, NAMESPACE_GATEWAY, NAMESPACE_OBSERVABILITY, NAMESPACE_PROVIDERS)

_Match = dict[str, Any]
# A pod's image can be changed; its labels and finalizers may be, whatever the pod is like.
_CONDITIONS = {
    "not-being-deleted": "!has(object.metadata.deletionTimestamp)",
    "pod-created-or-changed": "request.operation != 'UPDATE' || object.kind != 'Pod'"
    " || dyn(object).spec != dyn(oldObject).spec",
}


def _match(group: str, version: str, *resources: str) -> _Match:
    return {
        "apiGroups": [group],
        "apiVersions": [version],
        "operations": ["CREATE", "UPDATE"],
        "resources": [*resources],
    }


_MATCHES: dict[str, list[_Match]] = {
    "pods": [
        _match("", "v1", "pods", "podtemplates", "replicationcontrollers"),
        _match("", "v1", "pods/ephemeralcontainers"),
        _match("apps", "v1", "deployments", "replicasets", "statefulsets", "daemonsets"),
        _match("batch", "v1", "jobs", "cronjobs"),
    ],
    "config-maps": [_match("", "v1", "configmaps")],
    "services": [_match("", "v1", "services")],
    "network-policies": [_match("networking.k8s.io", "v1", "networkpolicies")],
    "roles": [_match("rbac.authorization.k8s.io", "v1", "roles")],
    "bindings": [_match("rbac.authorization.k8s.io", "v1", "rolebindings")],
    "namespaces": [_match("", "v1", "namespaces")],
}


def manifests(
    configuration: Configuration | None = None, allowed_node_ports: Iterable[int] = ()
) -> list[dict[str, Any]]:
    """A ValidatingAdmissionPolicy and its two bindings for every rule that has ``admission``.

    ``configuration`` makes rules advisory (they warn) and sets parameters;
    ``allowed_node_ports`` are added to the rule on Services, for the local substrate.
    """
    given = configuration or Configuration()
    made: list[dict[str, Any]] = []
    for cel in cel_rules():
        if not cel.rule.admission:
            continue
        parameters = given.parameters_of(cel.rule)
        if cel.rule.id == NODE_PORTS:
            ports = {*parameters["allowed-node-ports"], *allowed_node_ports}
            parameters["allowed-node-ports"] = sorted(ports)
        made.append(_policy(cel, parameters))
        advisory = given.level_of(cel.rule, None) is Level.ADVISORY
        made += [
            _binding(cel, advisory, "labelled", {"matchLabels": {LABEL_PART_OF: PART_OF}}),
            _binding(cel, advisory, "named", {"matchExpressions": [
                {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [*NAMES]}
            ]}),
        ]  # fmt: skip
    return made


def _policy(cel: CelRule, parameters: dict[str, Any]) -> dict[str, Any]:
    rule = cel.rule
    shared = shared_variables()
    variables = [{"name": name, "expression": shared[name]} for name in cel.variables]
    variables += [
        # JSON lists, numbers, texts and booleans are CEL literals.
        {"name": name, "expression": json.dumps(value)}
        for name, value in parameter_variables(parameters, rule).items()
    ]
    variables.append({"name": "offenders", "expression": cel.offenders})
    says = json.dumps(f" {cel.message}. To do: {rule.remediation} (Terrace rule {rule.id})")
    place = cel.place.replace("{pod}.", "").split("{offender}")
    where = " + string(variables.offenders[0]) + ".join(json.dumps(part) for part in place)
    return {
        "apiVersion": API_VERSION,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {
            "name": NAME.format(rule=rule.id),
            "labels": {LABEL_PART_OF: PART_OF},
            "annotations": {
                "terrace.dev/description": rule.description,
                "terrace.dev/references": "; ".join(map(str, rule.references)),
                "terrace.dev/severity": rule.severity.value,
            },
        },
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": _MATCHES[cel.about]},
            "matchConditions": [
                {"name": name, "expression": expression}
                for name, expression in _CONDITIONS.items()
                if cel.about == "pods" or name == "not-being-deleted"
            ],
            "variables": variables,
            "validations": [
                {
                    "expression": "size(variables.offenders) == 0",
                    "messageExpression": f"{where} + {says}",
                    "reason": "Forbidden",
                }
            ],
        },
    }


def _binding(
    cel: CelRule, advisory: bool, which: str, namespaces: dict[str, Any]
) -> dict[str, Any]:
    name = NAME.format(rule=cel.rule.id)
    return {
        "apiVersion": API_VERSION,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": f"{name}-{which}", "labels": {LABEL_PART_OF: PART_OF}},
        "spec": {
            "policyName": name,
            "validationActions": ["Warn", "Audit"] if advisory else ["Deny"],
            "matchResources": {"namespaceSelector": namespaces},
        },
    }
