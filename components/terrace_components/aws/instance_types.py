"""What fits on an EC2 instance as an EKS node: CPU, memory and pods after the system's share.

Sources: EC2's instance type tables (vCPU, memory, network interfaces and addresses per interface),
the kubelet reservations of the EKS AL2023 image, and the VPC CNI's count of pods.
"""

import re
from dataclasses import dataclass

# Of each family: GiB of memory per vCPU. The general families share one table of sizes.
_MEMORY_PER_VCPU = {"c": 2, "m": 4, "r": 8}
_GENERATION = re.compile(r"(?P<kind>[cmr])(?P<generation>[5-8])(?P<maker>[aig]?)(?P<more>d?n?)$")
_FLEX = re.compile(r"(?P<kind>[cmr])(?P<generation>[78])i-flex$")
# size: vCPU, network interfaces, addresses of each
_SIZES = {
    "medium": (1, 2, 4),
    "large": (2, 3, 10),
    "xlarge": (4, 4, 15),
    "2xlarge": (8, 4, 15),
    "4xlarge": (16, 8, 30),
    "8xlarge": (32, 8, 30),
    "12xlarge": (48, 8, 30),
    "16xlarge": (64, 15, 50),
    "24xlarge": (96, 15, 50),
}
_FLEX_SIZES = ("large", "xlarge", "2xlarge", "4xlarge", "8xlarge", "12xlarge", "16xlarge")
# size: vCPU, GiB, network interfaces, addresses of each
_BURSTABLE = {
    "medium": (2, 4, 3, 6),
    "large": (2, 8, 3, 12),
    "xlarge": (4, 16, 4, 15),
    "2xlarge": (8, 32, 4, 15),
}
_BURSTABLE_FAMILIES = ("t3", "t3a", "t4g")

KNOWN = (
    "c, m and r of generation 5 to 8 (such as m7i, c7g, r6a, m7i-flex), medium to 24xlarge; "
    "t3, t3a and t4g, medium to 2xlarge"
)

# The hypervisor's share of an instance's nominal memory; Karpenter takes the same.
_VM_OVERHEAD = 0.075
_EVICTION_MIB = 100
# What runs on every node: aws-node with its policy agent, kube-proxy, the EBS CSI node plugin, the
# Pod Identity agent. Requests of the add-ons' own manifests.
_DAEMONS_MILLICORES = 180
_DAEMONS_MIB = 120
_DAEMONS_PODS = 4
_MOST_PODS_SMALL = 110  # Kubernetes' advice below 30 vCPU; EKS caps managed nodes there too
_MOST_PODS_LARGE = 250
_ADDRESSES_PER_PREFIX = 16


@dataclass(frozen=True)
class InstanceType:
    """An EC2 instance type, as EC2 describes it."""

    name: str
    vcpus: int
    memory_gib: float
    interfaces: int
    """Network interfaces it may have."""
    addresses: int
    """IPv4 addresses of each interface, its own among them."""
    arm64: bool

    def max_pods(self, *, prefixes: bool) -> int:
        """Pods that the VPC CNI has addresses for, capped as the kubelet of a managed node is.
        Two pods use the host's network and need none."""
        slots = self.addresses - 1
        addressed = self.interfaces * slots * (_ADDRESSES_PER_PREFIX if prefixes else 1)
        most = _MOST_PODS_SMALL if self.vcpus < 30 else _MOST_PODS_LARGE
        return min(addressed + 2, most)

    def room(self, *, prefixes: bool) -> "Room":
        """What one node of this type has for pods, the daemons of every node already taken off."""
        pods = self.max_pods(prefixes=prefixes)
        memory = int(self.memory_gib * 1024 * (1 - _VM_OVERHEAD))
        return Room(
            millicores=self.vcpus * 1000 - _reserved_millicores(self.vcpus) - _DAEMONS_MILLICORES,
            memory_mib=memory - (255 + 11 * pods) - _EVICTION_MIB - _DAEMONS_MIB,
            pods=pods - _DAEMONS_PODS,
        )


@dataclass(frozen=True)
class Room:
    """CPU in millicores, memory in MiB, and pods."""

    millicores: int
    memory_mib: int
    pods: int

    def times(self, nodes: int) -> "Room":
        return Room(self.millicores * nodes, self.memory_mib * nodes, self.pods * nodes)

    def less(self, other: "Room") -> "Room":
        return Room(
            self.millicores - other.millicores,
            self.memory_mib - other.memory_mib,
            self.pods - other.pods,
        )

    def smallest_with(self, other: "Room") -> "Room":
        """The smaller of each."""
        return Room(
            min(self.millicores, other.millicores),
            min(self.memory_mib, other.memory_mib),
            min(self.pods, other.pods),
        )

    def holds(self, other: "Room") -> bool:
        left = self.less(other)
        return min(left.millicores, left.memory_mib, left.pods) >= 0

    def __str__(self) -> str:
        return f"{self.millicores}m CPU, {self.memory_mib}Mi memory and {self.pods} pods"


def instance_type(name: str) -> InstanceType | None:
    """The instance type, or None for one that this table does not have (see ``KNOWN``)."""
    family, _, size = name.partition(".")
    if family in _BURSTABLE_FAMILIES and size in _BURSTABLE:
        vcpus, memory, interfaces, addresses = _BURSTABLE[size]
        return InstanceType(name, vcpus, memory, interfaces, addresses, family == "t4g")
    flex = _FLEX.match(family)
    match = flex or _GENERATION.match(family)
    if match is None or size not in (_FLEX_SIZES if flex else _SIZES):
        return None
    maker = "i" if flex else match["maker"]
    if size == "medium" and maker != "g" and family[1:3] not in {"7a", "8a"}:
        return None  # only Graviton and the newer AMD families have this size
    vcpus, interfaces, addresses = _SIZES[size]
    memory = vcpus * _MEMORY_PER_VCPU[match["kind"]]
    return InstanceType(name, vcpus, memory, interfaces, addresses, maker == "g")


def larger(name: str) -> list[InstanceType]:
    """Larger types of the same family, smallest first."""
    family, _, size = name.partition(".")
    sizes = list(_BURSTABLE if family in _BURSTABLE_FAMILIES else _SIZES)
    names = [f"{family}.{bigger}" for bigger in sizes[sizes.index(size) + 1 :]]
    return [found for found in map(instance_type, names) if found is not None]


def _reserved_millicores(vcpus: int) -> int:
    """The kubelet's own share: 6 % of the first core, 1 % of the second, 0.5 % of the third and
    fourth, 0.25 % of each further one."""
    shares = [60, 10, 5, 5]
    return int(sum(shares[:vcpus]) + 2.5 * max(0, vcpus - len(shares)))
