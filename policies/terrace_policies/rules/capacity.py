"""Memory of LiteLLM, and the connections that guards may hold against what the database has."""

import re
from collections.abc import Iterator
from math import ceil
from typing import Any

from terrace_policies.checks import each, each_resource
from terrace_policies.model import (
    Finding,
    Parameter,
    Parameters,
    Reference,
    Rule,
    Says,
    Severity,
    Unchecked,
)
from terrace_policies.resources import Node, Resource, Stack
from terrace_policies.rules.database import CLUSTER

WORKLOADS = ("Deployment", "StatefulSet")
POD = "spec.template.spec"
GIB = 1024**3
FLOOR_GIB_PER_WORKER = 4  # LiteLLM's own figure: "a floor rather than a target"
MAX_CONNECTIONS = "terrace.dev/database-max-connections"  # annotation of the guards' workload
POOL = "TERRACE_DATABASE_POOL_SIZE"
GUARD_POOL = 10  # the guard's default
POSTGRES_DEFAULT = 100
ACU_BYTES = 2 * GIB
# RDS: LEAST(memory / 9531392, 5000); Aurora serverless that may shrink to half a unit: 2000.
BYTES_PER_CONNECTION = 9_531_392
RDS_MOST = 5000
SHRINKING_MOST = 2000
_UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "m": 1e-3,
          "Ki": 1024, "Mi": 1024**2, "Gi": GIB, "Ti": 1024**4}  # fmt: skip
_QUANTITY = re.compile(r"^([0-9.]+)([A-Za-z]{0,2})$")


def memory_bytes(quantity: Any) -> float:
    """Bytes of a Kubernetes quantity; 0 if it is none."""
    found = _QUANTITY.match(str(quantity or ""))
    return float(found[1]) * _UNITS.get(found[2], 0) if found else 0


def _memory(workload: Resource, given: Parameters) -> Iterator[Says]:
    if given["trial"]:
        return
    for containers in (f"{POD}.initContainers", f"{POD}.containers"):
        yield from each(workload.items(containers), _container_memory)


def _container_memory(container: Node) -> Iterator[Says]:
    name = str(container.get("name", ""))
    if name != "translator" and "litellm" not in str(container.get("image", "")).lower():
        return
    workers = _workers(container)
    for kind in ("requests", "limits"):
        path = f"resources.{kind}.memory"
        amount = container.get(path)
        if memory_bytes(amount) < FLOOR_GIB_PER_WORKER * GIB * workers:
            yield Finding(
                f"{container.path}.{path}",
                f"is {amount or 'not set'}; LiteLLM needs {FLOOR_GIB_PER_WORKER * workers}Gi for"
                f" {workers} worker{'s' if workers > 1 else ''}",
            )


def _workers(container: Node) -> int:
    words = [str(word) for word in container.get("args") or []]
    for index, word in enumerate(words[:-1]):
        if word == "--num_workers" and words[index + 1].isdecimal():
            return int(words[index + 1])
    return _number(container, "NUM_WORKERS", 1)


def _number(container: Node, variable: str, default: int) -> int:
    for entry in container.items("env"):
        if entry.get("name") == variable and str(entry.get("value", "")).isdecimal():
            return int(entry.get("value"))
    return default


def _connections(stack: Stack, given: Parameters) -> Iterator[Says]:
    def check(workload: Resource) -> Iterator[Says]:
        guards = [c for c in workload.items(f"{POD}.containers") if c.get("name") == "guard"]
        if not guards:
            return
        pool = _number(guards[0], POOL, GUARD_POOL)
        replicas, source = _most_replicas(stack, workload)
        surge = _surge(workload, replicas)
        wanted = pool * (replicas + surge)
        limit = _limit(stack, workload, given)
        if limit is None:
            yield Unchecked(
                POD,
                "not comparable: nothing says how many connections the database takes; set the"
                f" annotation {MAX_CONNECTIONS} or the parameter max-connections",
            )
            return
        usable = limit * given["percent"] // 100
        if wanted > usable:
            yield Finding(
                source,
                f"{replicas} guards and {surge} more during a rollout, {pool} connections each, are"
                f" {wanted}; the database takes {limit}, of which {usable} are for guards",
            )

    for kind in WORKLOADS:
        yield from each_resource(stack.kinds(kind), check)


def _most_replicas(stack: Stack, workload: Resource) -> tuple[int, str]:
    name, space = workload.get("metadata.name"), workload.get("metadata.namespace")
    for scaler in stack.kinds("HorizontalPodAutoscaler"):
        target = scaler.get("spec.scaleTargetRef.name"), scaler.get("spec.scaleTargetRef.kind")
        if target == (name, workload.kind) and scaler.get("metadata.namespace") == space:
            return int(scaler.get("spec.maxReplicas", 1)), f"{scaler.name}: spec.maxReplicas"
    return int(workload.get("spec.replicas", 1)), "spec.replicas"


def _surge(workload: Resource, replicas: int) -> int:
    if workload.kind == "StatefulSet" or workload.get("spec.strategy.type") == "Recreate":
        return 0
    surge = workload.get("spec.strategy.rollingUpdate.maxSurge", "25%")
    if isinstance(surge, str) and surge.endswith("%"):
        return ceil(replicas * float(surge[:-1]) / 100)
    return int(surge)


def _limit(stack: Stack, workload: Resource, given: Parameters) -> int | None:
    if given["max-connections"]:
        return int(given["max-connections"])
    annotations = workload.get("metadata.annotations", {})
    if str(annotations.get(MAX_CONNECTIONS, "")).isdecimal():
        return int(annotations[MAX_CONNECTIONS])
    for cluster in stack.of(CLUSTER):
        units = cluster.get("serverlessv2ScalingConfiguration.maxCapacity")
        if units:
            least = cluster.get("serverlessv2ScalingConfiguration.minCapacity", 0)
            most = SHRINKING_MOST if least <= 0.5 else RDS_MOST
            return min(int(units * ACU_BYTES // BYTES_PER_CONNECTION), most)
    for server in stack.kinds("StatefulSet"):
        if server.get("metadata.name") == "postgres":
            return _postgres_limit(server)
    return None


def _postgres_limit(server: Resource) -> int:
    for container in server.items(f"{POD}.containers"):
        for word in [*(container.get("command") or []), *(container.get("args") or [])]:
            found = re.search(r"max_connections\s*=\s*(\d+)", str(word))
            if found:
                return int(found[1])
    return POSTGRES_DEFAULT


_CONNECTIONS = Parameter(int, 0, "what the database takes, if not seen here", least=0, most=100_000)
_PERCENT = Parameter(
    int, 80, "share of it that guards may use, 1 to 100", "higher", least=1, most=100
)
RULES = (
    Rule(
        id="litellm-memory-floor",
        description="LiteLLM has 4 GiB of memory per worker",
        why="Below the vendor's floor its pods are killed after a day or two; no published"
        " blueprint on EKS meets it.",
        remediation="Set `translator_resources` memory (requests and limits); only a stack of"
        " `trial` may stay below.",
        severity=Severity.HIGH,
        references=(
            Reference("LiteLLM production guide", "docs/proxy/prod.md: machine specification"),
            Reference("field report", "BerriAI/litellm#27954"),
        ),
        types=tuple(f"kubernetes:*:{kind}" for kind in WORKLOADS),
        resource=_memory,
    ),
    Rule(
        id="database-connections-fit",
        description="All guards together, in a rollout too, fit the database's connections",
        why="The guard that finds no connection refuses every call, and it happens under load.",
        remediation="Lower maxReplicas, maxSurge or TERRACE_DATABASE_POOL_SIZE, or give the"
        " database more capacity.",
        severity=Severity.HIGH,
        references=(
            Reference("LiteLLM production guide", "docs/proxy/prod.md: database connections"),
            Reference("AWS Well-Architected", "REL01-BP03"),
        ),
        stack=_connections,
        parameters={
            "max-connections": _CONNECTIONS,
            "percent": _PERCENT,
        },
    ),
)
