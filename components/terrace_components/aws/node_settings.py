"""The checked settings of a group of nodes, and whether what must run there fits."""

import re
from typing import Annotated, Any, cast

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from terrace_components.arguments import Arguments
from terrace_components.aws.arguments import Different, one_of
from terrace_components.aws.cluster_settings import KUBERNETES_VERSION, KubernetesVersion
from terrace_components.aws.instance_types import (
    KNOWN,
    InstanceType,
    Room,
    instance_type,
    larger,
)
from terrace_components.aws.quantities import mebibytes, millicores

AMI_RELEASE = "1.35.7-20260911"
CORE_LABELS = {"terrace.dev/nodes": "core"}
CORE_TAINTS = ({"key": "CriticalAddonsOnly", "value": "true", "effect": "NoSchedule"},)
EFFECTS = {
    "NoSchedule": "NO_SCHEDULE",
    "NoExecute": "NO_EXECUTE",
    "PreferNoSchedule": "PREFER_NO_SCHEDULE",
}
# Two replicas each of Karpenter (1 CPU, 1Gi), CoreDNS (100m, 70Mi), metrics-server (100m, 200Mi),
# the EBS CSI controller (60m, 240Mi) and the load balancer controller (100m, 128Mi).
RESERVE_CPU = "2720m"
RESERVE_MEMORY = "3324Mi"
RESERVE_PODS = 10
NESTED = (
    "managed node groups ignore nested virtualisation in their launch template "
    "(aws/containers-roadmap#2784): nodes for microVMs are Karpenter's, or bare metal"
)
MICROVM = re.compile(r"(^|[./-])(kata|katacontainers|firecracker)", re.IGNORECASE)


def _cpu(value: str) -> str:
    millicores(value)
    return value


def _memory(value: str) -> str:
    mebibytes(value)
    return value


def _release(value: str) -> str:
    if not re.fullmatch(r"1\.\d{2}\.\d+-\d{8}", value):
        raise ValueError(
            f"must be one release of the EKS AL2023 image, such as {AMI_RELEASE}; "
            "an alias or latest would change nodes on a day that nobody chose"
        )
    return value


def _label_key(value: dict[str, str]) -> dict[str, str]:
    part = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
    for key, text in value.items():
        if not re.fullmatch(rf"([a-z0-9.-]{{1,253}}/)?{part}", key):
            raise ValueError(f"{key!r} is not a label's key")
        if text and not re.fullmatch(part, text):
            raise ValueError(f"{text!r} is not a label's value ({key})")
        if re.search(r"(^|\.)(kubernetes|k8s)\.io/", key):
            raise ValueError(f"{key}: labels of kubernetes.io and k8s.io are not for users to set")
        if key.startswith("eks.amazonaws.com/"):
            raise ValueError(f"{key}: labels of eks.amazonaws.com are EKS's own")
    return value


Cpu = Annotated[str, AfterValidator(_cpu)]
Memory = Annotated[str, AfterValidator(_memory)]


class Taint(Arguments):
    """Checked ``NodeTaintArgs``."""

    key: Annotated[str, Field(min_length=1, max_length=63)]
    value: Annotated[str, Field(max_length=63)] = ""
    effect: Annotated[str, one_of(*EFFECTS)]


class Reserve(Arguments):
    """Checked ``NodeReserveArgs``."""

    cpu: Cpu = RESERVE_CPU
    memory: Memory = RESERVE_MEMORY
    pods: Annotated[int, Field(ge=0, le=1000)] = RESERVE_PODS

    @property
    def room(self) -> Room:
        return Room(millicores(self.cpu), mebibytes(self.memory), self.pods)


class InstanceCapacity(Arguments):
    """Checked ``InstanceCapacityArgs``."""

    vcpus: Annotated[int, Field(ge=1, le=1024)]
    memory_gib: Annotated[float, Field(gt=0, le=65536)]
    network_interfaces: Annotated[int, Field(ge=1, le=64)]
    addresses_per_interface: Annotated[int, Field(ge=2, le=128)]
    arm64: bool = False


class NodeSettings(Arguments):
    """What a person chooses about the nodes. Order matters: each check sees the fields above."""

    kubernetes_version: KubernetesVersion = KUBERNETES_VERSION
    ami_release_version: Annotated[str, AfterValidator(_release), Field(validate_default=True)] = (
        AMI_RELEASE
    )
    instance_capacity: InstanceCapacity | None = None
    instance_types: Annotated[
        list[str], Different, Field(min_length=1, max_length=20, validate_default=True)
    ] = Field(default_factory=lambda: ["m7i.xlarge"])
    labels: Annotated[dict[str, str], AfterValidator(_label_key)] = Field(
        default_factory=lambda: dict(CORE_LABELS)
    )
    taints: list[Taint] = Field(
        default_factory=lambda: [Taint.model_validate(taint) for taint in CORE_TAINTS]
    )
    min_size: Annotated[int, Field(ge=1, le=450)] = 3
    max_size: Annotated[int, Field(ge=1, le=450, validate_default=True)] = 6
    autoscaled: bool = False
    disk_gib: Annotated[int, Field(ge=20, le=16384)] = 80
    prefix_delegation: bool = True
    reserve: Annotated[Reserve, Field(validate_default=True)] = Field(default_factory=Reserve)

    @model_validator(mode="before")
    @classmethod
    def no_microvms_here(cls, value: Any) -> Any:
        """Names what people look for here and says where it is."""
        if isinstance(value, dict):
            for key in ("nested_virtualization", "nested_virtualisation", "cpu_options"):
                if key in value:
                    raise ValueError(f"{key} is not for a managed node group: {NESTED}")
        return cast(Any, value)

    @field_validator("ami_release_version")
    @classmethod
    def of_the_same_kubernetes(cls, value: str, info: ValidationInfo) -> str:
        version = info.data.get("kubernetes_version")
        if version is not None and not value.startswith(f"{version}."):
            raise ValueError(f"is for another Kubernetes; must begin with {version}.")
        return value

    @field_validator("instance_types")
    @classmethod
    def in_the_table(cls, value: list[str], info: ValidationInfo) -> list[str]:
        found = [_type(name, info.data.get("instance_capacity")) for name in value]
        if len({one.arm64 for one in found}) > 1:
            raise ValueError("must be of one architecture: the image is for arm64 or for x86")
        return value

    @field_validator("labels")
    @classmethod
    def labels_of_what_can_run(cls, value: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        _no_microvms(value, info)
        return value

    @field_validator("taints")
    @classmethod
    def taints_of_what_can_run(cls, value: list[Taint], info: ValidationInfo) -> list[Taint]:
        _no_microvms([taint.key for taint in value], info)
        if len({(taint.key, taint.effect) for taint in value}) < len(value):
            raise ValueError("must have each pair of key and effect once")
        return value

    @field_validator("max_size")
    @classmethod
    def not_below_the_least(cls, value: int, info: ValidationInfo) -> int:
        least = info.data.get("min_size", 1)
        if value < least:
            raise ValueError(f"must be at least min_size, {least}")
        return value

    @field_validator("reserve")
    @classmethod
    def fits(cls, value: Reserve, info: ValidationInfo) -> Reserve:
        data = info.data
        if not {"instance_types", "min_size", "prefix_delegation"} <= data.keys():
            return value  # one of them is wrong already, and is reported
        types = [_type(name, data.get("instance_capacity")) for name in data["instance_types"]]
        prefixes = data["prefix_delegation"]
        nodes = max(1, data["min_size"] - 1)
        room = _room(types, prefixes=prefixes)
        if not room.times(nodes).holds(value.room):
            raise ValueError(_what_would_fit(types, value.room, data["min_size"], prefixes))
        return value

    @property
    def types(self) -> list[InstanceType]:
        return [_type(name, self.instance_capacity) for name in self.instance_types]

    @property
    def max_pods(self) -> int:
        """Pods per node, of the smallest type."""
        return min(one.max_pods(prefixes=self.prefix_delegation) for one in self.types)

    @property
    def left(self) -> Room:
        """What ``min_size`` nodes have for workloads, daemons and ``reserve`` taken off."""
        room = _room(self.types, prefixes=self.prefix_delegation)
        return room.times(self.min_size).less(self.reserve.room)


def _type(name: str, capacity: InstanceCapacity | None) -> InstanceType:
    found = instance_type(name)
    if found is not None:
        return found
    if capacity is None or not re.fullmatch(r"[a-z0-9-]+\.[a-z0-9-]+", name):
        raise ValueError(
            f"{name} is not in the table of instance types, which has {KNOWN}. "
            "For another, give instance_capacity"
        )
    return InstanceType(
        name,
        capacity.vcpus,
        capacity.memory_gib,
        capacity.network_interfaces,
        capacity.addresses_per_interface,
        capacity.arm64,
    )


def _room(types: list[InstanceType], *, prefixes: bool) -> Room:
    """Of the smallest type in each respect: EKS may give any of them."""
    room = types[0].room(prefixes=prefixes)
    for one in types[1:]:
        room = room.smallest_with(one.room(prefixes=prefixes))
    return room


def _no_microvms(keys: Any, info: ValidationInfo) -> None:
    names: list[str] = info.data.get("instance_types", [])
    named = [key for key in keys if MICROVM.search(key)]
    if named and not all(".metal" in name for name in names):
        raise ValueError(f"{named[0]} says that microVMs run here, but {NESTED}")


def _what_would_fit(types: list[InstanceType], wanted: Room, min_size: int, prefixes: bool) -> str:
    room = _room(types, prefixes=prefixes)
    nodes = max(1, min_size - 1)
    smallest = min(types, key=lambda one: (one.vcpus, one.memory_gib))
    message = (
        f"does not fit: {nodes} of {min_size} nodes ({smallest.name}) must hold it, so that the "
        f"loss of one stops nothing. It is {wanted}; they have {room.times(nodes)}. "
    )
    enough = next((n for n in range(nodes + 1, 101) if room.times(n).holds(wanted)), None)
    options = [] if enough is None else [f"min_size {enough + 1}"]
    options += [
        f"instance type {one.name}"
        for one in (larger(smallest.name) if instance_type(smallest.name) else [])
        if one.room(prefixes=prefixes).times(nodes).holds(wanted)
    ][:1]
    return message + (
        f"What would fit: {' or '.join(options)}" if options else "Nothing of this family would fit"
    )
