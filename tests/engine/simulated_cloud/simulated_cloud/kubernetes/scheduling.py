"""Where pods fit: nodes with labels, taints, room; and why a pod stays pending.

A simple scheduler: node selector, required node affinity, taints, CPU, memory and number of pods,
first fit. Preferences, spreading, priorities and what daemon sets take are left out.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .objects import Manifest, containers, quantity

_GIBIBYTE = 1 << 30
# GiB of memory per vCPU, by the letter of the family; t3.medium and smaller have their own.
_MEMORY = {"c": 2.0, "m": 4.0, "r": 8.0, "t": 4.0}
_SIZES = {"medium": 1, "large": 2, "xlarge": 4}
_INSTANCE = re.compile(r"([a-z]+)\d+[a-z-]*\.(?:(\d+)xlarge|(medium|large|xlarge|metal))")


@dataclass
class Node:
    """A node, and what is still free on it."""

    name: str
    labels: Mapping[str, str]
    taints: Sequence[Mapping[str, Any]] = ()
    free: dict[str, float] = field(default_factory=dict[str, float])


def capacity(instance_type: str) -> dict[str, float]:
    """Allocatable cores, bytes and pods of an EC2 instance type, roughly as EKS leaves them.

    By the family's ratio and the size's name; metal counts as 96 cores. What the family does not
    tell (burstable sizes below large) is taken as 2 cores and 4 GiB.
    """
    found = _INSTANCE.fullmatch(instance_type)
    if not found or found.group(3) == "medium":
        cores, memory = 2.0, 4.0
    else:
        size = found.group(3)
        cores = float(found.group(2) or 0) * 4 or float(_SIZES.get(size, 96))
        memory = cores * _MEMORY.get(found.group(1)[0], 4.0)
    pods = 29.0 if cores <= 2 else 58.0 if cores <= 8 else 234.0
    # The kubelet and the system keep a little of each; 11 MiB per possible pod is EKS' rule.
    kept = 0.355 + 11 * pods / 1024
    return {"cpu": cores - 0.08, "memory": (memory - kept) * _GIBIBYTE, "pods": pods}


def unlimited_node() -> Node:
    """The node of a cluster that is not in the simulated AWS: it takes everything."""
    room = {"cpu": 1e6, "memory": 1e18, "pods": 1e6}
    return Node("node", {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}, (), room)


def place(pod_spec: Manifest, replicas: int, nodes: Sequence[Node]) -> str | None:
    """Put ``replicas`` pods on nodes, taking their room. Why one is left pending, or None."""
    if not nodes:
        return "no nodes available to schedule pods"
    wanted = _requests(pod_spec)
    for _ in range(replicas):
        reasons: Counter[str] = Counter()
        for node in nodes:
            reason = _unfit(pod_spec, node) or _short(wanted, node)
            if reason is None:
                for name, amount in wanted.items():
                    node.free[name] = node.free.get(name, 0.0) - amount
                break
            reasons[reason] += 1
        else:
            said = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
            return f"0/{len(nodes)} nodes are available: {said}"
    return None


def _requests(spec: Manifest) -> dict[str, float]:
    """What the scheduler counts: the sum of the containers, or the largest init container."""
    total: dict[str, float] = {"pods": 1.0}
    largest: dict[str, float] = {}
    for path, container in containers(spec):
        resources = container.get("resources") or {}
        requests = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        amounts = {name: quantity(value) or 0.0 for name, value in requests.items()}
        # A sidecar is an init container that runs on.
        once = path.startswith("init") and container.get("restartPolicy") != "Always"
        for name, amount in amounts.items():
            if once:
                largest[name] = max(largest.get(name, 0.0), amount)
            else:
                total[name] = total.get(name, 0.0) + amount
    return {name: max(total.get(name, 0.0), largest.get(name, 0.0)) for name in {*total, *largest}}


def _short(wanted: Mapping[str, float], node: Node) -> str | None:
    for name, amount in sorted(wanted.items()):
        # Storage and extended resources that a node does not name are not simulated.
        if name in ("cpu", "memory", "pods") and amount > node.free.get(name, 0.0) + 1e-9:
            return "Too many pods" if name == "pods" else f"Insufficient {name}"
    return None


def _unfit(spec: Manifest, node: Node) -> str | None:
    selector = spec.get("nodeSelector") or {}
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    terms = affinity.get("nodeSelectorTerms") or []
    if any(node.labels.get(key) != value for key, value in selector.items()) or (
        terms and not any(_term_matches(term, node.labels) for term in terms)
    ):
        return "node(s) didn't match Pod's node affinity/selector"
    for taint in node.taints:
        if taint["effect"] != "PreferNoSchedule" and not _tolerated(
            taint, spec.get("tolerations") or []
        ):
            return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value') or ''}}}"
    return None


def _term_matches(term: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    for expression in term.get("matchExpressions") or []:
        value, values = labels.get(expression["key"]), expression.get("values") or []
        match expression["operator"]:
            case "In" if value not in values:
                return False
            case "NotIn" if value in values:
                return False
            case "Exists" if value is None:
                return False
            case "DoesNotExist" if value is not None:
                return False
            case _:
                continue
    return True


def _tolerated(taint: Mapping[str, Any], tolerations: Iterable[Mapping[str, Any]]) -> bool:
    for toleration in tolerations:
        if toleration.get("effect") not in (None, "", taint["effect"]):
            continue
        key, exists = toleration.get("key"), toleration.get("operator") == "Exists"
        if not key and exists:
            return True
        same_value = (toleration.get("value") or "") == (taint.get("value") or "")
        if key == taint["key"] and (exists or same_value):
            return True
    return False
