"""Route tables, their routes and associations."""

from collections.abc import Iterable

from ...inventory import Item
from ...models import CloudError, Link, Problem
from ...rules import cidr, only_one
from ...values import Properties
from ...world import World
from ..model import AwsModel, digest
from .network import INTERNET_GATEWAY, LINK_VPC, SUBNET, VPC

ROUTE_TABLE = "aws:ec2/routeTable:RouteTable"
ENDPOINT = "aws:ec2/vpcEndpoint:VpcEndpoint"
NAT_GATEWAY = "aws:ec2/natGateway:NatGateway"
_DESTINATIONS = ("destinationCidrBlock", "destinationIpv6CidrBlock", "destinationPrefixListId")
_TARGETS = (
    "gatewayId",
    "natGatewayId",
    "networkInterfaceId",
    "transitGatewayId",
    "vpcEndpointId",
    "vpcPeeringConnectionId",
    "egressOnlyGatewayId",
    "carrierGatewayId",
    "localGatewayId",
    "coreNetworkArn",
    "odbNetworkArn",
)


class RouteTable(AwsModel):
    token = ROUTE_TABLE
    id_prefix = "rtb"
    links = (
        LINK_VPC,
        Link("routes[].natGatewayId", NAT_GATEWAY, not_found="InvalidNatGatewayID.NotFound"),
        Link("routes[].gatewayId", INTERNET_GATEWAY, not_found="InvalidGatewayID.NotFound"),
    )
    rules = (cidr("routes[].cidrBlock"),)
    replace_on = frozenset({"vpcId"})

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        return {
            "arn": self.arn_in(world, "ec2", f"route-table/{id}"),
            "ownerId": world.place.account,
            "routes": inputs.get("routes") or [],
            "propagatingVgws": inputs.get("propagatingVgws") or [],
        }


class Route(AwsModel):
    token = "aws:ec2/route:Route"
    rules = (cidr("destinationCidrBlock"), only_one(*_DESTINATIONS), only_one(*_TARGETS))
    links = (
        Link("routeTableId", ROUTE_TABLE, not_found="InvalidRouteTableID.NotFound"),
        Link("natGatewayId", NAT_GATEWAY, not_found="InvalidNatGatewayID.NotFound"),
        Link("gatewayId", INTERNET_GATEWAY, not_found="InvalidGatewayID.NotFound"),
        Link("vpcEndpointId", ENDPOINT, not_found="InvalidVpcEndpointId.NotFound"),
    )
    replace_on = frozenset({"routeTableId", *_DESTINATIONS})
    duplicate_code = "RouteAlreadyExists"

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        if all(inputs.get(name) is None for name in _DESTINATIONS):
            yield Problem("destinationCidrBlock", f"one of {', '.join(_DESTINATIONS)} is required")
        if all(inputs.get(name) is None for name in _TARGETS):
            yield Problem("gatewayId", f"one of {', '.join(_TARGETS)} is required")

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        destination = next(inputs[key] for key in _DESTINATIONS if inputs.get(key))
        return f"r-{inputs['routeTableId']}{int(digest(destination), 16)}"

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        table = world.get(inputs["routeTableId"], ROUTE_TABLE)
        gateway = (
            world.get(inputs["gatewayId"], INTERNET_GATEWAY) if inputs.get("gatewayId") else None
        )
        if table and gateway and gateway["vpcId"] != table["vpcId"]:
            raise CloudError(
                "InvalidParameterValue", f"{table.id} and {gateway.id} belong to different networks"
            )

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        return {"origin": "CreateRoute", "state": "active"}


class RouteTableAssociation(AwsModel):
    token = "aws:ec2/routeTableAssociation:RouteTableAssociation"
    id_prefix = "rtbassoc"
    rules = (only_one("subnetId", "gatewayId"),)
    links = (
        Link("subnetId", SUBNET, not_found="InvalidSubnetID.NotFound"),
        Link("routeTableId", ROUTE_TABLE, holds=True, not_found="InvalidRouteTableID.NotFound"),
    )
    replace_on = frozenset({"subnetId", "gatewayId"})
    unique = (("subnetId",),)
    duplicate_code = "Resource.AlreadyAssociated"

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        subnet = world.get(inputs["subnetId"], SUBNET) if inputs.get("subnetId") else None
        table = world.get(inputs["routeTableId"], ROUTE_TABLE)
        if subnet and table and subnet["vpcId"] != table["vpcId"]:
            raise CloudError(
                "InvalidParameterValue", f"{table.id} and {subnet.id} belong to different networks"
            )


class MainRouteTableAssociation(AwsModel):
    token = "aws:ec2/mainRouteTableAssociation:MainRouteTableAssociation"
    id_prefix = "rtbassoc"
    links = (
        Link("vpcId", VPC, not_found="InvalidVpcID.NotFound"),
        Link("routeTableId", ROUTE_TABLE, holds=True, not_found="InvalidRouteTableID.NotFound"),
    )


MODELS = (RouteTable, Route, RouteTableAssociation, MainRouteTableAssociation)
