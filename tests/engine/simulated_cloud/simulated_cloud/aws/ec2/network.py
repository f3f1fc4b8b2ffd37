"""VPCs, subnets, gateways and addresses."""

import ipaddress
from collections.abc import Iterable

from ...inventory import Item
from ...models import CloudError, Link, Problem
from ...rules import cidr, one_of, one_required, only_one
from ...values import Properties, known
from ...world import World
from ..model import AwsModel, derived_id, digest

VPC = "aws:ec2/vpc:Vpc"
SUBNET = "aws:ec2/subnet:Subnet"
SECURITY_GROUP = "aws:ec2/securityGroup:SecurityGroup"
EIP = "aws:ec2/eip:Eip"
INTERNET_GATEWAY = "aws:ec2/internetGateway:InternetGateway"

LINK_VPC = Link("vpcId", VPC, holds=True, not_found="InvalidVpcID.NotFound")
LINK_SUBNETS = Link("subnetIds[]", SUBNET, holds=True, not_found="InvalidSubnetID.NotFound")


class Vpc(AwsModel):
    """Makes its default security group too, as AWS does."""

    token = VPC
    id_prefix = "vpc"
    rules = (
        cidr("cidrBlock", 16, 28),
        one_of("instanceTenancy", "default", "dedicated"),
        one_required("cidrBlock", "ipv4IpamPoolId"),
    )
    replace_on = frozenset({"cidrBlock", "ipv4IpamPoolId", "ipv4NetmaskLength", "instanceTenancy"})
    defaults = {
        "enableDnsSupport": True,
        "enableDnsHostnames": False,
        "instanceTenancy": "default",
        "enableNetworkAddressUsageMetrics": False,
    }

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        main_table = derived_id("rtb", id)
        return {
            "arn": self.arn_in(world, "ec2", f"vpc/{id}"),
            "ownerId": world.place.account,
            "defaultSecurityGroupId": default_security_group_id(id),
            "defaultRouteTableId": main_table,
            "mainRouteTableId": main_table,
            "defaultNetworkAclId": derived_id("acl", id),
            "dhcpOptionsId": derived_id("dopt", world.place.account, world.place.region),
            "ipv6CidrBlock": "",
            "ipv6AssociationId": "",
        }

    def created(self, item: Item, world: World) -> None:
        put_service_group(item, default_security_group_id(item.id), "default", item.id, world)


def default_security_group_id(vpc_id: str) -> str:
    return derived_id("sg", vpc_id, "default")


def put_service_group(owner: Item, id: str, name: str, vpc_id: str, world: World) -> None:
    """A security group that a service makes for `owner` and that goes with it."""
    if world.get(id):
        return
    inputs = {
        "__owner": owner.id,
        "name": name,
        "vpcId": vpc_id,
        "description": f"made by AWS for {owner.id}",
    }
    outputs = {
        **{key: value for key, value in inputs.items() if not key.startswith("__")},
        "arn": world.place.arn("ec2", f"security-group/{id}"),
        "ownerId": world.place.account,
    }
    world.inventory.put(
        Item(SECURITY_GROUP, world.place.scope("region"), id, name, inputs, outputs)
    )


class Subnet(AwsModel):
    token = SUBNET
    id_prefix = "subnet"
    rules = (cidr("cidrBlock", 16, 28), only_one("availabilityZone", "availabilityZoneId"))
    links = (LINK_VPC,)
    replace_on = frozenset(
        {"vpcId", "cidrBlock", "availabilityZone", "availabilityZoneId", "ipv6Native", "outpostArn"}
    )
    defaults = {"mapPublicIpOnLaunch": False, "assignIpv6AddressOnCreation": False}

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        zones = world.place.zones()
        for where, zone in known(inputs, "availabilityZone"):
            if zone not in zones:
                yield Problem(
                    where,
                    f"{zone!r} is not a zone of {world.place.region}; valid: {', '.join(zones)}",
                )

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        if existing:
            return
        vpc = world.get(inputs["vpcId"], VPC)
        mine = ipaddress.IPv4Network(inputs["cidrBlock"])
        if vpc and vpc["cidrBlock"] and not _inside_vpc(mine, vpc, world):
            raise CloudError(
                "InvalidSubnet.Range",
                f"the CIDR {mine} is invalid: it is not inside {vpc.id} ({vpc['cidrBlock']})",
            )
        for other in world.find(SUBNET, vpcId=inputs["vpcId"]):
            if mine.overlaps(ipaddress.IPv4Network(other["cidrBlock"])):
                raise CloudError(
                    "InvalidSubnet.Conflict",
                    f"the CIDR {mine} conflicts with {other.id} ({other['cidrBlock']})",
                )

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        zones = world.place.zones()
        zone = inputs.get("availabilityZone") or zones[int(digest(id), 16) % len(zones)]
        return {
            "arn": self.arn_in(world, "ec2", f"subnet/{id}"),
            "ownerId": world.place.account,
            "availabilityZone": zone,
            "availabilityZoneId": zone_id(zone),
            "ipv6CidrBlockAssociationId": "",
        }


def zone_id(zone: str) -> str:
    """The id of a zone, e.g. `use1-az1` for us-east-1a (real accounts shuffle the letters)."""
    region, letter = zone[:-1], zone[-1]
    area, *direction, number = region.split("-")
    short = area + "".join("gov" if part == "gov" else part[0] for part in direction)
    return f"{short}{number}-az{ord(letter) - ord('a') + 1}"


def _inside_vpc(network: ipaddress.IPv4Network, vpc: Item, world: World) -> bool:
    blocks = [vpc["cidrBlock"]] + [
        item["cidrBlock"]
        for item in world.find(
            "aws:ec2/vpcIpv4CidrBlockAssociation:VpcIpv4CidrBlockAssociation", vpcId=vpc.id
        )
    ]
    return any(network.subnet_of(ipaddress.IPv4Network(block)) for block in blocks)


class VpcIpv4CidrBlockAssociation(AwsModel):
    token = "aws:ec2/vpcIpv4CidrBlockAssociation:VpcIpv4CidrBlockAssociation"
    id_prefix = "vpc-cidr-assoc"
    rules = (cidr("cidrBlock", 16, 28),)
    links = (LINK_VPC,)
    replace_on = frozenset({"vpcId", "cidrBlock"})


class InternetGateway(AwsModel):
    token = INTERNET_GATEWAY
    id_prefix = "igw"
    links = (LINK_VPC,)
    unique = (("vpcId",),)
    duplicate_code = "Resource.AlreadyAssociated"

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        return {
            "arn": self.arn_in(world, "ec2", f"internet-gateway/{id}"),
            "ownerId": world.place.account,
        }


class Eip(AwsModel):
    token = EIP
    id_prefix = "eipalloc"
    rules = (one_of("domain", "vpc"),)
    replace_on = frozenset({"domain", "networkBorderGroup", "publicIpv4Pool"})

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        address = str(ipaddress.IPv4Address(0x34000000 + int(digest(id, length=6), 16)))
        return {
            "arn": self.arn_in(world, "ec2", f"elastic-ip/{id}"),
            "allocationId": id,
            "domain": "vpc",
            "publicIp": address,
            "publicDns": f"ec2-{address.replace('.', '-')}.compute-1.{world.place.dns_suffix}",
        }


class NatGateway(AwsModel):
    token = "aws:ec2/natGateway:NatGateway"
    id_prefix = "nat"
    rules = (one_of("connectivityType", "public", "private"),)
    links = (
        Link("subnetId", SUBNET, holds=True, not_found="InvalidSubnetID.NotFound"),
        Link("allocationId", EIP, holds=True, not_found="InvalidAllocationID.NotFound"),
    )
    replace_on = frozenset({"allocationId", "subnetId", "connectivityType", "privateIp", "vpcId"})
    defaults = {"connectivityType": "public"}

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        private = inputs.get("connectivityType") == "private"
        if (
            not private
            and inputs.get("allocationId") is None
            and inputs.get("availabilityMode") != "regional"
        ):
            yield Problem("allocationId", "is required for a public NAT gateway")
        if private and inputs.get("allocationId") is not None:
            yield Problem("allocationId", "is not allowed for a private NAT gateway")

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        if existing:
            return
        for other in world.all(self.token):
            if inputs.get("allocationId") and other["allocationId"] == inputs["allocationId"]:
                raise CloudError(
                    "Resource.AlreadyAssociated", f"{inputs['allocationId']} belongs to {other.id}"
                )
        subnet = world.get(inputs["subnetId"], SUBNET) if inputs.get("subnetId") else None
        if (
            subnet
            and inputs.get("connectivityType") != "private"
            and not world.find(INTERNET_GATEWAY, vpcId=subnet["vpcId"])
        ):
            raise CloudError(
                "Gateway.NotAttached", f"network {subnet['vpcId']} has no Internet gateway attached"
            )

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        address = world.get(inputs["allocationId"], EIP) if inputs.get("allocationId") else None
        return {
            "publicIp": address["publicIp"] if address else "",
            "privateIp": inputs.get("privateIp") or "10.0.0.4",
            "networkInterfaceId": derived_id("eni", id),
            "associationId": derived_id("eipassoc", id),
        }


MODELS = (Vpc, Subnet, VpcIpv4CidrBlockAssociation, InternetGateway, Eip, NatGateway)
