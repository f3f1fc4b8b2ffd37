"""What the API server refuses by looking at the object alone.

Values that a preview does not know yet are no text, number, list or mapping, so every check lets
them pass.
"""

import base64
import binascii
import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..schema_check import Problem
from .objects import (
    Manifest,
    is_dns_label,
    is_dns_subdomain,
    is_label_key,
    is_label_value,
    is_service_name,
    labels_of,
    pod_template,
    selects,
)
from .pod_validation import check_pod

_CONFIG_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_MEGABYTE = 1 << 20
_POD_SECURITY = ("privileged", "baseline", "restricted")
_SERVICE_TYPES = ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName")
_PROTOCOLS = ("TCP", "UDP", "SCTP")


def check_object(manifest: Manifest) -> list[Problem]:
    """Everything that is wrong with an object by itself, as (path, reason)."""
    problems = [*_check_metadata(manifest)]
    kind = str(manifest.get("kind", ""))
    if kind in _CHECKS:
        problems += _CHECKS[kind](manifest)
    if (template := pod_template(manifest)) is not None:
        path = {"Pod": "spec", "CronJob": "spec.jobTemplate.spec.template.spec"}
        claims = [
            (claim.get("metadata") or {}).get("name")
            for claim in (manifest.get("spec") or {}).get("volumeClaimTemplates") or []
        ]
        problems += check_pod(
            template.get("spec") or {},
            path.get(kind, "spec.template.spec"),
            owner=kind,
            claims=[name for name in claims if isinstance(name, str)],
        )
    return problems


def _check_metadata(manifest: Manifest) -> Iterator[Problem]:
    metadata = manifest.get("metadata") or {}
    kind = manifest.get("kind")
    name = metadata.get("name")
    if isinstance(name, str):
        if kind == "Service" and not is_service_name(name):
            yield Problem("metadata.name", f"{name!r} is no RFC 1035 label (a-z, 0-9, -, up to 63)")
        elif kind == "Namespace" and not is_dns_label(name):
            yield Problem("metadata.name", f"{name!r} is no RFC 1123 label (a-z, 0-9, -, up to 63)")
        elif kind not in ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding") and (
            not is_dns_subdomain(name)
        ):
            yield Problem("metadata.name", f"{name!r} is no RFC 1123 subdomain (a-z, 0-9, -, .)")
    namespace = metadata.get("namespace")
    if isinstance(namespace, str) and not is_dns_label(namespace):
        yield Problem("metadata.namespace", f"{namespace!r} is no RFC 1123 label")
    yield from _check_labels(metadata.get("labels"), "metadata.labels")
    for key in metadata.get("annotations") or {}:
        if not is_label_key(str(key).lower()):
            yield Problem("metadata.annotations", f"{key!r} is no valid annotation key")
    if kind == "Namespace":
        for mode in ("enforce", "audit", "warn"):
            level = labels_of(manifest).get(f"pod-security.kubernetes.io/{mode}")
            if isinstance(level, str) and level not in _POD_SECURITY:
                valid = ", ".join(_POD_SECURITY)
                yield Problem(
                    f'metadata.labels["pod-security.kubernetes.io/{mode}"]',
                    f"{level!r} is no level; valid are {valid}",
                )


def _check_labels(labels: Any, path: str) -> Iterator[Problem]:
    for key, value in labels.items() if isinstance(labels, Mapping) else ():
        if not is_label_key(str(key)):
            yield Problem(path, f"{key!r} is no valid label key")
        if isinstance(value, str) and not is_label_value(value):
            yield Problem(
                f"{path}[{key!r}]", f"{value!r} is no label value (up to 63 of A-z 0-9 - _ .)"
            )


def _check_selector(manifest: Manifest) -> Iterator[Problem]:
    spec = manifest.get("spec") or {}
    selector = spec.get("selector")
    if selector is None:
        yield Problem("spec.selector", "is required")
        return
    if not isinstance(selector, Mapping):
        return
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        yield Problem("spec.selector", "an empty selector is not allowed")
    elif not selects(selector, labels_of(spec.get("template") or {})):
        yield Problem("spec.template.metadata.labels", "the selector does not match these labels")
    yield from _check_labels(labels_of(spec.get("template") or {}), "spec.template.metadata.labels")


def _check_service(manifest: Manifest) -> Iterator[Problem]:
    spec = manifest.get("spec") or {}
    kind = spec.get("type", "ClusterIP")
    if isinstance(kind, str) and kind not in _SERVICE_TYPES:
        yield Problem("spec.type", f"{kind!r}; valid are {', '.join(_SERVICE_TYPES)}")
    ports = spec.get("ports") or []
    if not ports and kind != "ExternalName" and spec.get("clusterIP") != "None":
        yield Problem("spec.ports", "at least one port is required")
    names: list[Any] = [port.get("name") for port in ports]
    if len(ports) > 1 and None in names:
        yield Problem("spec.ports", "with several ports each needs a name")
    if len(set(map(str, names))) < len(names):
        yield Problem("spec.ports", "port names must be unique")
    for index, port in enumerate(ports):
        path = f"spec.ports[{index}]"
        yield from _check_port(port.get("port"), f"{path}.port")
        if not isinstance(port.get("targetPort"), str):
            yield from _check_port(port.get("targetPort"), f"{path}.targetPort")
        node_port = port.get("nodePort")
        if isinstance(node_port, int | float) and not 30000 <= node_port <= 32767:
            yield Problem(f"{path}.nodePort", f"{node_port:g} is not in 30000-32767")
        if port.get("protocol", "TCP") not in _PROTOCOLS and isinstance(port["protocol"], str):
            yield Problem(f"{path}.protocol", f"valid are {', '.join(_PROTOCOLS)}")


def _check_port(value: Any, path: str) -> Iterator[Problem]:
    if isinstance(value, int | float) and not 1 <= value <= 65535:
        yield Problem(path, f"{value:g} is not in 1-65535")


def _check_data(manifest: Manifest) -> Iterator[Problem]:
    size = 0
    for section in ("data", "stringData", "binaryData"):
        for key, value in (manifest.get(section) or {}).items():
            if not _CONFIG_KEY.fullmatch(key) or len(key) > 253:
                yield Problem(f"{section}[{key!r}]", "keys are of letters, digits, -, _ and .")
            if not isinstance(value, str):
                continue
            size += len(value.encode())
            coded = section == "binaryData" or (
                section == "data" and manifest.get("kind") == "Secret"
            )
            if coded and not _is_base64(value):
                yield Problem(f"{section}[{key!r}]", "must be base64")
    if size > _MEGABYTE:
        yield Problem("data", f"{size} bytes; at most {_MEGABYTE}")


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def _check_network_policy(manifest: Manifest) -> Iterator[Problem]:
    spec = manifest.get("spec") or {}
    for kind in spec.get("policyTypes") or []:
        if isinstance(kind, str) and kind not in ("Ingress", "Egress"):
            yield Problem("spec.policyTypes", f"{kind!r}; valid are Ingress, Egress")
    for direction, peers in (("ingress", "from"), ("egress", "to")):
        for i, rule in enumerate(spec.get(direction) or []):
            for j, peer in enumerate(rule.get(peers) or []):
                path = f"spec.{direction}[{i}].{peers}[{j}]"
                block = peer.get("ipBlock")
                if block and (peer.get("podSelector") or peer.get("namespaceSelector")):
                    yield Problem(path, "ipBlock excludes podSelector and namespaceSelector")
                yield from _check_ip_block(block or {}, f"{path}.ipBlock")
            for j, port in enumerate(rule.get("ports") or []):
                yield from _check_port(port.get("port"), f"spec.{direction}[{i}].ports[{j}].port")


def _check_ip_block(block: Mapping[str, Any], path: str) -> Iterator[Problem]:
    cidr = block.get("cidr")
    if not isinstance(cidr, str):
        return
    try:
        network = ipaddress.ip_network(cidr)
    except ValueError as error:
        yield Problem(f"{path}.cidr", str(error))
        return
    for index, text in enumerate(block.get("except") or []):
        try:
            inside = ipaddress.ip_network(text)
        except (TypeError, ValueError) as error:
            yield Problem(f"{path}.except[{index}]", str(error))
            continue
        if inside.version != network.version or not inside.subnet_of(network):  # type: ignore[arg-type]
            yield Problem(f"{path}.except[{index}]", f"{text} is not inside {cidr}")


def _check_binding(manifest: Manifest) -> Iterator[Problem]:
    role = manifest.get("roleRef") or {}
    kinds = ("Role", "ClusterRole") if manifest.get("kind") == "RoleBinding" else ("ClusterRole",)
    if isinstance(role.get("kind"), str) and role["kind"] not in kinds:
        yield Problem("roleRef.kind", f"{role['kind']!r}; valid are {', '.join(kinds)}")
    for index, subject in enumerate(manifest.get("subjects") or []):
        if subject.get("kind") == "ServiceAccount" and not subject.get("namespace"):
            yield Problem(f"subjects[{index}].namespace", "is required for a ServiceAccount")


def _check_disruption_budget(manifest: Manifest) -> Iterator[Problem]:
    spec = manifest.get("spec") or {}
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        yield Problem("spec", "minAvailable and maxUnavailable exclude each other")


def _check_autoscaler(manifest: Manifest) -> Iterator[Problem]:
    spec = manifest.get("spec") or {}
    least, most = spec.get("minReplicas", 1), spec.get("maxReplicas")
    if isinstance(least, int | float) and isinstance(most, int | float) and most < max(least, 1):
        yield Problem("spec.maxReplicas", f"{most:g} is below minReplicas {least:g}")


def _check_claim(manifest: Manifest) -> Iterator[Problem]:
    spec = manifest.get("spec") or {}
    if not spec.get("accessModes"):
        yield Problem("spec.accessModes", "at least one is required")
    if not ((spec.get("resources") or {}).get("requests") or {}).get("storage"):
        yield Problem("spec.resources.requests.storage", "is required")


def _check_definition(manifest: Manifest) -> Iterator[Problem]:
    spec = manifest.get("spec") or {}
    names, group = spec.get("names") or {}, spec.get("group")
    wanted = f"{names.get('plural')}.{group}"
    name = (manifest.get("metadata") or {}).get("name")
    if isinstance(name, str) and isinstance(group, str) and name != wanted:
        yield Problem("metadata.name", f"{name!r} must be {wanted!r}")
    if sum(bool(version.get("storage")) for version in spec.get("versions") or []) != 1:
        yield Problem("spec.versions", "exactly one is the storage version")


def _check_admission_policy(manifest: Manifest) -> Iterator[Problem]:
    spec = manifest.get("spec") or {}
    if not spec.get("validations") and not spec.get("auditAnnotations"):
        yield Problem("spec.validations", "validations or auditAnnotations are required")
    rules = (spec.get("matchConstraints") or {}).get("resourceRules") or []
    if not rules:
        yield Problem("spec.matchConstraints.resourceRules", "at least one is required")


def _check_admission_binding(manifest: Manifest) -> Iterator[Problem]:
    actions = (manifest.get("spec") or {}).get("validationActions") or []
    if not actions:
        yield Problem("spec.validationActions", "is required; valid are Deny, Warn, Audit")
    if "Deny" in actions and "Warn" in actions:
        yield Problem("spec.validationActions", "Deny and Warn exclude each other")


_CHECKS: dict[str, Callable[[Manifest], Iterator[Problem]]] = {
    "ClusterRoleBinding": _check_binding,
    "ConfigMap": _check_data,
    "CustomResourceDefinition": _check_definition,
    "DaemonSet": _check_selector,
    "Deployment": _check_selector,
    "HorizontalPodAutoscaler": _check_autoscaler,
    "NetworkPolicy": _check_network_policy,
    "PersistentVolumeClaim": _check_claim,
    "PodDisruptionBudget": _check_disruption_budget,
    "RoleBinding": _check_binding,
    "Secret": _check_data,
    "Service": _check_service,
    "StatefulSet": _check_selector,
    "ValidatingAdmissionPolicy": _check_admission_policy,
    "ValidatingAdmissionPolicyBinding": _check_admission_binding,
}
