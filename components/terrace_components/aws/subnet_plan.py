"""Address arithmetic of a VPC: which subnet has which range, and how many pods fit.

A VPC's range is cut into eight equal blocks. Blocks 0 to 5 are the private subnets of the zones a
to f; block 6 is left for what comes later (pod subnets, sandbox nodes); block 7 is cut into the
small public subnets, again by the zone's letter. A range depends on the VPC's range and the zone's
letter only, so adding or removing a zone moves no other subnet.
"""

import ipaddress
import math
from collections.abc import Sequence
from dataclasses import dataclass

ZONE_LETTERS = "abcdef"
PUBLIC_BLOCK = 7
BLOCK_BITS = 3
# A load balancer refuses a subnet smaller than this: it needs 8 free addresses.
SMALLEST_SUBNET = 27
LARGEST_VPC, SMALLEST_VPC = 16, 28  # what AWS takes
PRIVATE_RANGES = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")

RESERVED_BY_AWS = 5  # in every subnet: first four addresses and the last
# Endpoints (up to 10 interfaces), a load balancer (8), the control plane, the database, NAT.
OTHER_INTERFACES = 32
# The VPC CNI takes one address per pod, one for the node itself, and keeps one interface's worth
# warm. Counted on `large` instances, the smallest that Core runs on: 3 interfaces of 10 addresses.
PODS_PER_NODE = 29
ADDRESSES_PER_NODE = 11


@dataclass(frozen=True)
class SubnetPlan:
    """Ranges by zone letter; ``public`` is empty where no public subnets are wanted."""

    private: dict[str, str]
    public: dict[str, str]


def check_vpc_range(cidr: str) -> None:
    """Raises ``ValueError`` if a VPC may not, or should not, have the range ``cidr``."""
    network = ipaddress.IPv4Network(cidr)
    if not LARGEST_VPC <= network.prefixlen <= SMALLEST_VPC:
        raise ValueError(f"must have a prefix from /{LARGEST_VPC} to /{SMALLEST_VPC}, AWS's limits")
    if not any(network.subnet_of(ipaddress.IPv4Network(r)) for r in PRIVATE_RANGES):
        raise ValueError(f"must be a private range, within {', '.join(PRIVATE_RANGES)}")


def subnet_plan(cidr: str, letters: Sequence[str], *, public: bool) -> SubnetPlan:
    """Subnets of the VPC ``cidr`` in the zones ``letters``.

    Raises ``ValueError`` if the range is too small for them, and says which prefix would do.
    """
    network = ipaddress.IPv4Network(cidr)
    prefix = network.prefixlen + BLOCK_BITS
    public_prefix = _public_prefix(network.prefixlen)
    slots = max(ZONE_LETTERS.index(letter) for letter in letters) + 1
    if not _fits(network.prefixlen, slots, public=public):
        largest = max(
            p for p in range(SMALLEST_VPC + 1) if _fits(p, slots, public=public)
        )  # the smallest range that does
        kinds = "private and public" if public else "private"
        raise ValueError(
            f"is too small for {kinds} subnets of at least /{SMALLEST_SUBNET} in zones up to "
            f"{ZONE_LETTERS[slots - 1]}; a /{largest} or larger has room, such as "
            f"{_widened(cidr, largest)}"
        )
    blocks = list(network.subnets(new_prefix=prefix))
    small = list(blocks[PUBLIC_BLOCK].subnets(new_prefix=public_prefix)) if public else []
    slot_of = {letter: ZONE_LETTERS.index(letter) for letter in letters}
    return SubnetPlan(
        private={letter: str(blocks[slot]) for letter, slot in slot_of.items()},
        public={letter: str(small[slot]) for letter, slot in slot_of.items()} if public else {},
    )


def pods_that_fit(subnets: Sequence[str]) -> int:
    """How many pods the private ``subnets`` hold beside the nodes and everything else."""
    return sum(_pods_in(ipaddress.IPv4Network(s).prefixlen) for s in subnets)


def check_pods(pods: int, cidr: str, zones: int) -> None:
    """Raises ``ValueError`` if ``pods`` do not fit into ``zones`` private subnets of the VPC
    ``cidr``; it says what fits and which prefix would do."""
    prefix = ipaddress.IPv4Network(cidr).prefixlen
    fit = zones * _pods_in(prefix + BLOCK_BITS)
    if pods <= fit:
        return
    enough = [p for p in range(LARGEST_VPC, prefix) if zones * _pods_in(p + BLOCK_BITS) >= pods]
    advice = (
        f"a /{enough[-1]} or larger would do, such as {_widened(cidr, enough[-1])}"
        if enough
        else f"no VPC range holds that many in {zones} zones: a /{LARGEST_VPC} has room for "
        f"{zones * _pods_in(LARGEST_VPC + BLOCK_BITS)}"
    )
    raise ValueError(
        f"is too small for pods={pods}: its {zones} private /{prefix + BLOCK_BITS} subnets hold "
        f"{fit} ({explain_pods(pods)}); {advice}"
    )


def explain_pods(pods: int) -> str:
    """The arithmetic behind ``pods_that_fit``, for messages."""
    nodes = math.ceil(pods / PODS_PER_NODE)
    return (
        f"{pods} pods take {pods + nodes * ADDRESSES_PER_NODE} addresses: one each, and "
        f"{ADDRESSES_PER_NODE} for each of {nodes} nodes of {PODS_PER_NODE} pods; every subnet "
        f"loses {RESERVED_BY_AWS + OTHER_INTERFACES} to AWS, endpoints and load balancers"
    )


def _pods_in(prefix: int) -> int:
    free = 2 ** (32 - prefix) - RESERVED_BY_AWS - OTHER_INTERFACES
    nodes, rest = divmod(max(free, 0), PODS_PER_NODE + ADDRESSES_PER_NODE)
    return nodes * PODS_PER_NODE + max(rest - ADDRESSES_PER_NODE, 0)


def _public_prefix(vpc_prefix: int) -> int:
    """Eight small subnets in one block, or as many of the smallest size as it holds."""
    return max(min(vpc_prefix + 2 * BLOCK_BITS, SMALLEST_SUBNET), vpc_prefix + BLOCK_BITS)


def _fits(vpc_prefix: int, slots: int, *, public: bool) -> bool:
    block = vpc_prefix + BLOCK_BITS
    if block > SMALLEST_SUBNET:
        return False
    return not public or 2 ** (_public_prefix(vpc_prefix) - block) >= slots


def _widened(cidr: str, prefix: int) -> str:
    return str(ipaddress.IPv4Interface(f"{cidr.partition('/')[0]}/{prefix}").network)
