"""Kubernetes objects as the simulation speaks of them: kinds, keys, names, labels, quantities."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..values import UNKNOWN

Manifest = Mapping[str, Any]

CLUSTER_SCOPED = frozenset(
    {
        "APIService",
        "ClusterRole",
        "ClusterRoleBinding",
        "CSIDriver",
        "CustomResourceDefinition",
        "IngressClass",
        "MutatingWebhookConfiguration",
        "Namespace",
        "Node",
        "PersistentVolume",
        "PriorityClass",
        "RuntimeClass",
        "StorageClass",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "ValidatingWebhookConfiguration",
    }
)
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_DNS_1035_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_QUANTITY = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?\d+)?")
_SCALE = {
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
    **{f"{prefix}i": 1024.0**power for power, prefix in enumerate("KMGTPE", 1)},
}


@dataclass(frozen=True, order=True)
class Key:
    """What names an object in a cluster. ``namespace`` is empty for cluster-scoped ones."""

    group: str
    kind: str
    namespace: str
    name: str

    @classmethod
    def of(cls, manifest: Manifest, *, namespaced: bool | None = None) -> "Key":
        """The key of a manifest; a namespaced object without a namespace is in ``default``."""
        kind = str(manifest.get("kind", ""))
        metadata = manifest.get("metadata") or {}
        inside = kind not in CLUSTER_SCOPED if namespaced is None else namespaced
        namespace = str(metadata.get("namespace") or "default") if inside else ""
        return cls(group_of(manifest), kind, namespace, str(metadata.get("name", "")))

    def __str__(self) -> str:
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.kind} {self.name}{where}"


def group_of(manifest: Manifest) -> str:
    """The API group; empty for the core group."""
    group, slash, _ = str(manifest.get("apiVersion", "")).partition("/")
    return group if slash else ""


def version_of(manifest: Manifest) -> str:
    """The version inside the API group, such as ``v1beta1``."""
    return str(manifest.get("apiVersion", "")).rpartition("/")[2]


def token_parts(token: str) -> tuple[str, str]:
    """``kubernetes:apps/v1:Deployment`` -> (``apps/v1``, ``Deployment``); core is ``v1``."""
    _, module, kind = token.split(":")
    return module.removeprefix("core/"), kind


# --- names ---


def is_dns_label(text: str) -> bool:
    """RFC 1123 label: lower-case letters, digits and ``-``, at most 63 characters."""
    return len(text) <= 63 and bool(_DNS_LABEL.fullmatch(text))


def is_service_name(text: str) -> bool:
    """RFC 1035 label: as a DNS label, and begins with a letter."""
    return len(text) <= 63 and bool(_DNS_1035_LABEL.fullmatch(text))


def is_dns_subdomain(text: str) -> bool:
    """RFC 1123 subdomain: labels joined by dots, at most 253 characters."""
    return len(text) <= 253 and bool(_DNS_SUBDOMAIN.fullmatch(text))


def is_label_value(text: str) -> bool:
    """Empty, or at most 63 letters, digits, ``-``, ``_`` and ``.``, the ends alphanumeric."""
    return not text or (len(text) <= 63 and bool(_LABEL_NAME.fullmatch(text)))


def is_label_key(text: str) -> bool:
    """A label name, after an optional DNS subdomain and ``/``."""
    prefix, slash, name = text.rpartition("/")
    if slash and not is_dns_subdomain(prefix):
        return False
    return len(name) <= 63 and bool(_LABEL_NAME.fullmatch(name))


# --- quantities ---


def quantity(value: Any) -> float | None:
    """A resource quantity in cores, bytes or pieces; None where the text is none."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, str) or not (found := _QUANTITY.fullmatch(value)):
        return None
    number, suffix = found.group(1), found.group(2) or ""
    if suffix[:1] in ("e", "E") and len(suffix) > 1 and suffix != "Ei":
        return float(value)
    return float(number) * _SCALE.get(suffix, 1.0)


# --- pods ---


def pod_template(manifest: Manifest) -> Manifest | None:
    """The pod that an object makes: its template, or for a Pod the object itself."""
    spec = manifest.get("spec") or {}
    match manifest.get("kind"):
        case "Pod":
            return manifest
        case "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet" | "Job":
            return spec.get("template") or {}
        case "CronJob":
            return ((spec.get("jobTemplate") or {}).get("spec") or {}).get("template") or {}
    return None


def containers(pod_spec: Manifest) -> Iterator[tuple[str, Manifest]]:
    """(path inside the pod's spec, container) for init containers and containers."""
    for key in ("initContainers", "containers"):
        for index, container in enumerate(pod_spec.get(key) or []):
            yield f"{key}[{index}]", container


def labels_of(manifest: Manifest) -> Mapping[str, Any]:
    """The labels of an object or a pod template."""
    return (manifest.get("metadata") or {}).get("labels") or {}


def selects(selector: Mapping[str, Any], labels: Mapping[str, Any]) -> bool:
    """Whether a label selector (``matchLabels``, ``matchExpressions``) matches labels."""
    wanted = selector.get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    for term in selector.get("matchExpressions") or []:
        key, values = term.get("key"), term.get("values") or []
        match term.get("operator"):
            case "In" if labels.get(key) not in values:
                return False
            case "NotIn" if labels.get(key) in values:
                return False
            case "Exists" if key not in labels:
                return False
            case "DoesNotExist" if key in labels:
                return False
            case _:
                continue
    return True


# --- what a preview does not know ---


class Later:
    """A value that a preview does not know yet: it is in every set, equals everything, and has
    nothing in it, so that a check finds no fault with it."""

    def get(self, key: str, default: Any = None) -> "Later":
        del key, default
        return self

    def items(self) -> list[tuple[str, Any]]:
        return []

    def __getitem__(self, key: object) -> "Later":
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __contains__(self, item: object) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"<known later {id(self):x}>"


def with_later(value: Any) -> Any:
    """A copy of inputs in which each unknown value is a ``Later``."""
    if value is UNKNOWN:
        return Later()
    if isinstance(value, Mapping):
        return {key: with_later(item) for key, item in value.items()}
    if isinstance(value, list):
        return [with_later(item) for item in value]
    return value
