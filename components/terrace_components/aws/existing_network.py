"""A VPC and subnets that are there already: what can be known about them is checked at preview."""

import ipaddress
from dataclasses import dataclass
from typing import Annotated, NotRequired, TypedDict

import pulumi
import pulumi_aws as aws
from pydantic import Field, field_validator
from pydantic_core.core_schema import ValidationInfo

from terrace_components.arguments import Arguments, late
from terrace_components.aws.arguments import (
    SUBNET_ID,
    SUBNET_ID_TEXT,
    Ipv4Range,
    Texts,
    VpcId,
    list_of,
)
from terrace_components.aws.subnet_plan import explain_pods, pods_that_fit

MIN_ZONES = 2  # EKS, Aurora and load balancers refuse subnets of one zone

_Subnets = Annotated[Texts, list_of(SUBNET_ID, SUBNET_ID_TEXT, MIN_ZONES, known_length=True)]
_AnySubnets = Annotated[Texts, list_of(SUBNET_ID, SUBNET_ID_TEXT, 0, known_length=True)]


class ExistingNetworkArgs(TypedDict):
    """A VPC that exists; nothing is made in it."""

    vpc_id: pulumi.Input[str]
    """Such as ``vpc-0a1b2c3d``. DNS support and DNS hostnames must be on."""
    cidr: NotRequired[str]
    """One of the VPC's ranges, which all its private subnets are in; default the VPC's first."""
    private_subnet_ids: list[pulumi.Input[str]]
    """At least two, in different zones, with a way to AWS (NAT or endpoints)."""
    public_subnet_ids: NotRequired[list[pulumi.Input[str]]]
    """Needed for a load balancer on the internet only."""


class ExistingNetwork(Arguments):
    """Checked ``ExistingNetworkArgs``."""

    vpc_id: VpcId
    cidr: Ipv4Range | None = None
    private_subnet_ids: _Subnets
    public_subnet_ids: _AnySubnets = Field(default_factory=list)

    @field_validator("public_subnet_ids")
    @classmethod
    def _private_or_public(cls, value: Texts, info: ValidationInfo) -> Texts:
        private = [s for s in info.data.get("private_subnet_ids", []) if isinstance(s, str)]
        for subnet in value:
            if isinstance(subnet, str) and subnet in private:
                raise ValueError(f"must not have {subnet}, which private_subnet_ids has")
        return value


@dataclass(frozen=True)
class FoundNetwork:
    """What was given and found. Nothing of it is known before the checks have passed."""

    vpc_id: pulumi.Output[str]
    cidr: pulumi.Output[str]
    private_subnet_ids: pulumi.Output[list[str]]
    public_subnet_ids: pulumi.Output[list[str]]
    zones: pulumi.Output[list[str]]


@dataclass(frozen=True)
class _Found:
    vpc: "aws.ec2.GetVpcResult"
    private: "list[aws.ec2.GetSubnetResult]"
    public: "list[aws.ec2.GetSubnetResult]"
    cidr: str


def find_network(given: ExistingNetwork, pods: int | None, parent: pulumi.Resource) -> FoundNetwork:
    """Looks the network up and checks it: subnets of this VPC, private ones in ``cidr``, two zones,
    none on another, room for ``pods``. Raises ``InputPropertyError`` (``existing.<property>``,
    ``pods``) in preview."""
    opts = pulumi.InvokeOutputOptions(parent=parent)

    def subnets(ids: Texts, property_name: str) -> "pulumi.Output[list[aws.ec2.GetSubnetResult]]":
        asked = [aws.ec2.get_subnet_output(id=i, opts=opts) for i in ids]
        return pulumi.Output.all(*[late(subnet, property_name) for subnet in asked])

    asked = pulumi.Output.all(
        late(aws.ec2.get_vpc_output(id=given.vpc_id, opts=opts), "existing.vpc_id"),
        subnets(given.private_subnet_ids, "existing.private_subnet_ids"),
        subnets(given.public_subnet_ids, "existing.public_subnet_ids"),
    )
    found = late(asked.apply(lambda looked_up: _checked(given, pods, *looked_up)))
    return FoundNetwork(
        vpc_id=found.apply(lambda f: f.vpc.id),
        cidr=found.apply(lambda f: f.cidr),
        private_subnet_ids=found.apply(lambda f: [s.id for s in f.private]),
        public_subnet_ids=found.apply(lambda f: [s.id for s in f.public]),
        zones=found.apply(lambda f: sorted({s.availability_zone for s in f.private})),
    )


def _checked(
    given: ExistingNetwork,
    pods: int | None,
    vpc: "aws.ec2.GetVpcResult",
    private: "list[aws.ec2.GetSubnetResult]",
    public: "list[aws.ec2.GetSubnetResult]",
) -> _Found:
    cidr = _check_vpc(given, vpc)
    _check_subnets("existing.private_subnet_ids", vpc.id, private)
    _check_subnets("existing.public_subnet_ids", vpc.id, public)
    _check_inside(vpc, cidr, private)
    for property_name, subnets in (
        ("existing.private_subnet_ids", private),
        ("existing.public_subnet_ids", public),
    ):
        zones = sorted({subnet.availability_zone for subnet in subnets})
        if subnets and len(zones) < MIN_ZONES:
            raise pulumi.InputPropertyError(
                property_name,
                f"must be in at least {MIN_ZONES} zones; all are in {', '.join(zones)}",
            )
    _check_overlaps(private, public)
    for subnet in private:
        if subnet.map_public_ip_on_launch:
            raise pulumi.InputPropertyError(
                "existing.private_subnet_ids",
                f"{subnet.id} gives every machine a public address: it is a public subnet",
            )
    if pods is not None:
        fit = pods_that_fit([subnet.cidr_block for subnet in private])
        if pods > fit:
            ranges = ", ".join(sorted(subnet.cidr_block for subnet in private))
            raise pulumi.InputPropertyError(
                "pods",
                f"{pods} do not fit into the private subnets {ranges}, which hold {fit} "
                f"({explain_pods(pods)}); add private subnets or ask for at most {fit}",
            )
    return _Found(vpc, private, public, cidr)


def _check_vpc(given: ExistingNetwork, vpc: "aws.ec2.GetVpcResult") -> str:
    if not (vpc.enable_dns_support and vpc.enable_dns_hostnames):
        raise pulumi.InputPropertyError(
            "existing.vpc_id",
            f"{vpc.id} must have DNS support and DNS hostnames on: EKS nodes and private DNS of "
            "endpoints need both",
        )
    ranges = [vpc.cidr_block, *(a.cidr_block for a in vpc.cidr_block_associations or [])]
    if given.cidr is not None and given.cidr not in ranges:
        raise pulumi.InputPropertyError(
            "existing.cidr",
            f"must be a range of {vpc.id}: {', '.join(sorted(set(ranges)))}; got {given.cidr!r}",
        )
    return given.cidr or vpc.cidr_block


def _check_subnets(
    property_name: str, vpc_id: str, subnets: "list[aws.ec2.GetSubnetResult]"
) -> None:
    for subnet in subnets:
        if subnet.vpc_id != vpc_id:
            raise pulumi.InputPropertyError(
                property_name,
                f"{subnet.id} is a subnet of {subnet.vpc_id}, not of {vpc_id}",
            )


def _check_inside(
    vpc: "aws.ec2.GetVpcResult", cidr: str, private: "list[aws.ec2.GetSubnetResult]"
) -> None:
    """Load balancer and NetworkPolicies let pods and database of this range through only."""
    for subnet in private:
        network = ipaddress.IPv4Network(subnet.cidr_block)
        if network.subnet_of(ipaddress.IPv4Network(cidr)):
            continue
        ranges = [a.cidr_block for a in vpc.cidr_block_associations or []]
        own = [r for r in ranges if network.subnet_of(ipaddress.IPv4Network(r))]
        hint = f"; if all are in {own[0]}, set existing.cidr to it" if own else ""
        raise pulumi.InputPropertyError(
            "existing.private_subnet_ids",
            f"{subnet.id} ({subnet.cidr_block}) is outside {cidr}, the one range that the load "
            f"balancer and the network policies let through{hint}",
        )


def _check_overlaps(
    private: "list[aws.ec2.GetSubnetResult]", public: "list[aws.ec2.GetSubnetResult]"
) -> None:
    seen: list[aws.ec2.GetSubnetResult] = []
    for property_name, subnets in (
        ("existing.private_subnet_ids", private),
        ("existing.public_subnet_ids", public),
    ):
        for subnet in subnets:
            network = ipaddress.IPv4Network(subnet.cidr_block)
            for other in seen:
                if network.overlaps(ipaddress.IPv4Network(other.cidr_block)):
                    raise pulumi.InputPropertyError(
                        property_name,
                        f"{subnet.id} ({subnet.cidr_block}) overlaps {other.id} "
                        f"({other.cidr_block}): each subnet must be named once",
                    )
            seen.append(subnet)
