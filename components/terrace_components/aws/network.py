"""The VPC that the platform stands in."""

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from terrace_components.arguments import LateArgumentError
from terrace_components.aws import arns
from terrace_components.aws.existing_network import find_network
from terrace_components.aws.flow_logs import flow_logs
from terrace_components.aws.network_settings import (
    DEFAULT_RETENTION_DAYS,
    NONE,
    PER_ZONE,
    SHARED,
    AwsNetworkArgs,
    NetworkArguments,
    NetworkSettings,
)
from terrace_components.aws.vpc_endpoints import gateway_endpoint, interface_endpoints

__all__ = ["AwsNetwork", "AwsNetworkArgs", "NetworkSettings"]

ANYWHERE = "0.0.0.0/0"
# Zones in which EKS puts no control plane (EKS user guide, network requirements).
NOT_FOR_EKS = ["use1-az3", "usw1-az2", "cac1-az3"]


@dataclass(frozen=True)
class _PublicSide:
    subnets: "dict[str, aws.ec2.Subnet]"
    nats: "dict[str, aws.ec2.NatGateway]"
    addresses: list[pulumi.Output[str]]


class AwsNetwork(pulumi.ComponentResource):
    """A VPC over several zones with private subnets, or one that exists.

    Creates, unless it exists: VPC, its closed default security group, subnets and route tables,
    NAT gateways with their addresses and an internet gateway (where asked for), the S3 gateway
    endpoint, interface endpoints with a security group, flow logs with log group and role.
    """

    vpc_id: pulumi.Output[str]
    """Id of the VPC."""
    cidr: pulumi.Output[str]
    """Range of the VPC."""
    private_subnet_ids: pulumi.Output[list[str]]
    """Private subnets in the order of the zones; known when their routes and endpoints stand."""
    public_subnet_ids: pulumi.Output[list[str]]
    """Public subnets, in the same order; empty where there are none."""
    zones: pulumi.Output[list[str]]
    """Names of the zones."""
    nat_addresses: pulumi.Output[list[str]]
    """Public addresses that the platform's calls come from; empty without a NAT of ours."""

    def __init__(
        self,
        name: str,
        args: AwsNetworkArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("terrace:index:AwsNetwork", name, None, opts)
        self._name = name
        self._given = given = NetworkArguments.of(args)
        self._child = pulumi.ResourceOptions(parent=self)
        if given.existing is not None:
            found = find_network(given.existing, given.pods, self)
            self.vpc_id, self.cidr, self.zones = found.vpc_id, found.cidr, found.zones
            self.private_subnet_ids = found.private_subnet_ids
            self.public_subnet_ids = found.public_subnet_ids
            self.nat_addresses = pulumi.Output.from_input([])
        else:
            self._make()
        self.register_outputs(
            {
                "vpcId": self.vpc_id,
                "cidr": self.cidr,
                "privateSubnetIds": self.private_subnet_ids,
                "publicSubnetIds": self.public_subnet_ids,
                "zones": self.zones,
                "natAddresses": self.nat_addresses,
            }
        )

    def _make(self) -> None:
        name, given = self._name, self._given
        vpc = aws.ec2.Vpc(
            f"{name}-vpc",
            cidr_block=given.cidr,
            enable_dns_support=True,
            enable_dns_hostnames=True,  # EKS nodes and private DNS of endpoints need both
            tags=self._tags("vpc"),
            opts=self._child,
        )
        aws.ec2.DefaultSecurityGroup(
            f"{name}-default-group",
            vpc_id=vpc.id,
            ingress=[],
            egress=[],
            tags=self._tags("default-closed"),
            opts=self._child,
        )
        zones = _zones_by_letter(given, self)
        public = self._public_side(vpc, zones)
        private = self._subnets(vpc, zones, given.plan.private, "internal-elb", "private")
        shared = next(iter(public.nats.values()), None)
        ready: list[pulumi.CustomResource] = []
        tables: list[aws.ec2.RouteTable] = []
        for letter, subnet in private.items():
            # A table per zone whatever the NAT: shared to per-zone then changes a route only.
            what = f"private-{letter}"
            table = aws.ec2.RouteTable(
                f"{name}-{what}", vpc_id=vpc.id, tags=self._tags(what), opts=self._child
            )
            tables.append(table)
            ready.append(self._associate(table, subnet, what))
            nat = public.nats.get(letter, shared)
            if nat is not None:
                ready.append(
                    aws.ec2.Route(
                        f"{name}-private-{letter}-out",
                        route_table_id=table.id,
                        destination_cidr_block=ANYWHERE,
                        nat_gateway_id=nat.id,
                        opts=self._child,
                    )
                )
        ready.append(
            gateway_endpoint(
                name,
                vpc_id=vpc.id,
                route_tables=[table.id for table in tables],
                tags=given.tags,
                parent=self,
            )
        )
        ready += interface_endpoints(
            name,
            given.services,
            vpc_id=vpc.id,
            cidr=vpc.cidr_block,
            subnets=list(private.values()),
            tags=given.tags,
            parent=self,
        )
        if given.flow_logs is not False:
            flow_logs(
                name,
                vpc.id,
                retention_days=given.flow_log_retention_days or DEFAULT_RETENTION_DAYS,
                key_arn=given.flow_log_key_arn,
                tags=given.tags,
                parent=self,
            )
        self.vpc_id, self.cidr = vpc.id, vpc.cidr_block
        self.zones = pulumi.Output.all(*[s.availability_zone for s in private.values()])
        self.private_subnet_ids = pulumi.Output.all(
            pulumi.Output.all(*[s.id for s in private.values()]), [r.id for r in ready]
        ).apply(lambda known: known[0])
        self.public_subnet_ids = pulumi.Output.all(*[s.id for s in public.subnets.values()])
        self.nat_addresses = pulumi.Output.all(*public.addresses)

    def _public_side(
        self, vpc: "aws.ec2.Vpc", zones: Mapping[str, pulumi.Output[str]]
    ) -> _PublicSide:
        name, given = self._name, self._given
        if not given.with_public:
            return _PublicSide({}, {}, [])
        internet = aws.ec2.InternetGateway(
            f"{name}-internet", vpc_id=vpc.id, tags=self._tags("internet"), opts=self._child
        )
        subnets = self._subnets(vpc, zones, given.plan.public, "elb", "public")
        table = aws.ec2.RouteTable(
            f"{name}-public", vpc_id=vpc.id, tags=self._tags("public"), opts=self._child
        )
        out = aws.ec2.Route(
            f"{name}-public-out",
            route_table_id=table.id,
            destination_cidr_block=ANYWHERE,
            gateway_id=internet.id,
            opts=self._child,
        )
        for letter, subnet in subnets.items():
            self._associate(table, subnet, f"public-{letter}")
        letters = {PER_ZONE: given.letters, SHARED: given.letters[:1], NONE: []}[given.nat]
        nats: dict[str, aws.ec2.NatGateway] = {}
        addresses: list[pulumi.Output[str]] = []
        for letter in letters:
            address = aws.ec2.Eip(
                f"{name}-nat-{letter}",
                domain="vpc",
                tags=self._tags(f"nat-{letter}"),
                opts=self._child,
            )
            addresses.append(address.public_ip)
            nats[letter] = aws.ec2.NatGateway(
                f"{name}-nat-{letter}",
                subnet_id=subnets[letter].id,
                allocation_id=address.allocation_id,
                tags=self._tags(f"nat-{letter}"),
                # The gateway works, and its address can be given back, while there is a way out.
                opts=pulumi.ResourceOptions(parent=self, depends_on=[out]),
            )
        return _PublicSide(subnets, nats, addresses)

    def _subnets(
        self,
        vpc: "aws.ec2.Vpc",
        zones: Mapping[str, pulumi.Output[str]],
        ranges: Mapping[str, str],
        role: str,
        kind: str,
    ) -> "dict[str, aws.ec2.Subnet]":
        """One per zone. ``role`` is how load balancer controllers find them."""
        chosen_by_us = self._given.zones is None
        return {
            letter: aws.ec2.Subnet(
                f"{self._name}-{kind}-{letter}",
                vpc_id=vpc.id,
                availability_zone=zones[letter],
                cidr_block=cidr,
                map_public_ip_on_launch=False,  # NAT gateways and load balancers have their own
                tags=self._tags(f"{kind}-{letter}", **{f"kubernetes.io/role/{role}": "1"}),
                opts=pulumi.ResourceOptions(
                    parent=self,
                    # A zone that AWS opens or closes to us later must not replace a subnet.
                    ignore_changes=["availabilityZone"] if chosen_by_us else None,
                ),
            )
            for letter, cidr in ranges.items()
        }

    def _associate(
        self, table: "aws.ec2.RouteTable", subnet: "aws.ec2.Subnet", what: str
    ) -> "aws.ec2.RouteTableAssociation":
        return aws.ec2.RouteTableAssociation(
            f"{self._name}-{what}", route_table_id=table.id, subnet_id=subnet.id, opts=self._child
        )

    def _tags(self, what: str, **more: str) -> dict[str, str]:
        named = f"{self._name}-{what}"
        return arns.tags(self._name, self._given.tags, Name=named, **more)


def _zones_by_letter(
    given: NetworkSettings, parent: pulumi.Resource
) -> dict[str, pulumi.Output[str]]:
    """Zone letter -> name of a zone of the region that EKS can use. Raises
    ``InputPropertyError`` for ``zones`` or ``zone_count`` once the region's zones are known."""
    offered = aws.get_availability_zones_output(
        state="available",
        exclude_zone_ids=NOT_FOR_EKS,
        # No Local Zones or Wavelength Zones.
        filters=[{"name": "opt-in-status", "values": ["opt-in-not-required"]}],
        opts=pulumi.InvokeOutputOptions(parent=parent),
    ).names.apply(sorted)

    chosen = offered.apply(lambda names: _chosen_zones(given, names))
    return {
        letter: chosen.apply(lambda zones, index=index: zones[index])
        for index, letter in enumerate(given.letters)
    }


def _chosen_zones(given: NetworkSettings, offered: list[str]) -> list[str]:
    """In the order of ``given.letters``."""
    if given.zones is None:
        if len(given.letters) > len(offered):
            raise LateArgumentError(
                "zone_count",
                f"must be at most {len(offered)}: the region has {', '.join(offered)} for EKS",
            )
        return offered[: len(given.letters)]
    unknown = [zone for zone in given.zones if zone not in offered]
    if unknown:
        raise LateArgumentError(
            "zones",
            f"{', '.join(unknown)}: EKS can use no such zone in the provider's region; it can use "
            f"{', '.join(offered)}",
        )
    return given.zones
