"""Look-ups of the account, its zones and its networks."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from ...inventory import Item
from ...models import CloudError
from ...values import Properties
from ...world import World
from ..model import derived_id
from .endpoints import GATEWAY_SERVICES, INTERFACE_SERVICES, offered_zones, service_name, short_name
from .network import SECURITY_GROUP, SUBNET, VPC, zone_id
from .routes import ENDPOINT, ROUTE_TABLE


def get_availability_zones(arguments: Properties, world: World) -> Properties:
    excluded = set(arguments.get("excludeNames") or []) | set(arguments.get("excludeZoneIds") or [])
    names = [
        name
        for name in world.place.zones()
        if name not in excluded and zone_id(name) not in excluded
    ]
    return {
        **arguments,
        "id": world.place.region,
        "names": names,
        "zoneIds": [zone_id(name) for name in names],
        "groupNames": [world.place.region],
        "region": world.place.region,
    }


def get_availability_zone(arguments: Properties, world: World) -> Properties:
    for name in world.place.zones():
        if arguments.get("name") == name or arguments.get("zoneId") == zone_id(name):
            region = world.place.region
            return {
                **arguments,
                "id": name,
                "name": name,
                "zoneId": zone_id(name),
                "nameSuffix": name[-1],
                "region": region,
                "groupName": region,
                "groupLongName": region,
                "networkBorderGroup": region,
                "optInStatus": "opt-in-not-required",
                "state": "available",
                "zoneType": "availability-zone",
                "parentZoneId": "",
                "parentZoneName": "",
            }
    raise CloudError(
        "InvalidParameterValue", f"no matching availability zone in {world.place.region}"
    )


_FILTERS = {
    "vpc-id": "vpcId",
    "cidr": "cidrBlock",
    "cidr-block": "cidrBlock",
    "availability-zone": "availabilityZone",
    "subnet-id": "id",
    "group-name": "name",
    "group-id": "id",
    "owner-id": "ownerId",
    "service-name": "serviceName",
    "map-public-ip-on-launch": "mapPublicIpOnLaunch",
    "availability-zone-id": "availabilityZoneId",
}


def select(type: str, arguments: Properties, world: World) -> list[Item]:
    """Items that fit the `filters`, `tags` and plain properties of a look-up."""
    found = world.all(type)
    for name in (
        "vpcId",
        "cidrBlock",
        "availabilityZone",
        "availabilityZoneId",
        "name",
        "serviceName",
    ):
        if arguments.get(name):
            found = [item for item in found if item[name] == arguments[name]]
    if arguments.get("id"):
        found = [item for item in found if item.id == arguments["id"]]
    for key, value in (arguments.get("tags") or {}).items():
        found = [item for item in found if _tags(item).get(key) == value]
    for rule in arguments.get("filters") or []:
        found = [item for item in found if _fits(item, rule)]
    return found


def _tags(item: Item) -> dict[str, str]:
    tags: dict[str, str] = {**(item["tagsAll"] or {}), **(item["tags"] or {})}
    return tags


def _fits(item: Item, rule: Properties) -> bool:
    name, values = rule["name"], rule["values"]
    if name.startswith("tag:"):
        actual: Any = _tags(item).get(name[4:])
    elif name == "tag-key":
        return any(value in _tags(item) for value in values)
    elif name in _FILTERS:
        actual = item.id if _FILTERS[name] == "id" else item[_FILTERS[name]]
    else:
        raise CloudError(
            "InvalidParameterValue",
            f"the filter {name!r} is not known here; valid: {', '.join(_FILTERS)}",
        )
    shown = str(actual).lower() if isinstance(actual, bool) else actual
    return shown is not None and any(
        re.fullmatch(value.replace("*", ".*"), str(shown)) for value in values
    )


def _one(found: Iterable[Item], what: str, code: str, arguments: Properties) -> Item:
    items = list(found)
    if not items:
        raise CloudError(code, f"no matching {what} found: {arguments.get('id') or arguments}")
    if len(items) > 1:
        raise CloudError(
            code, f"multiple {what}s matched ({len(items)}); use additional constraints"
        )
    return items[0]


def get_vpc(arguments: Properties, world: World) -> Properties:
    item = _one(select(VPC, arguments, world), "EC2 VPC", "InvalidVpcID.NotFound", arguments)
    block = {
        "associationId": derived_id("vpc-cidr-assoc", item.id),
        "cidrBlock": item["cidrBlock"],
        "state": "associated",
    }
    return {
        **item.outputs,
        "id": item.id,
        "cidrBlockAssociations": [block],
        "default": False,
        "state": "available",
        "ipv6CidrBlockAssociations": [],
        "tags": _tags(item),
        "region": world.place.region,
    }


def get_subnet(arguments: Properties, world: World) -> Properties:
    item = _one(
        select(SUBNET, arguments, world), "EC2 Subnet", "InvalidSubnetID.NotFound", arguments
    )
    prefix = int(str(item["cidrBlock"]).split("/")[1])
    return {
        "ipv6CidrBlock": "",
        "customerOwnedIpv4Pool": "",
        "outpostArn": "",
        "mapCustomerOwnedIpOnLaunch": False,
        "enableDns64": False,
        "enableLniAtDeviceIndex": 0,
        "ipv6Native": False,
        "ipv6CidrBlockAssociationId": "",
        "enableResourceNameDnsARecordOnLaunch": False,
        "enableResourceNameDnsAaaaRecordOnLaunch": False,
        "privateDnsHostnameTypeOnLaunch": "ip-name",
        **item.outputs,
        "id": item.id,
        "defaultForAz": False,
        "state": "available",
        "tags": _tags(item),
        "availableIpAddressCount": 2 ** (32 - prefix) - 5,
        "region": world.place.region,
    }


def get_subnets(arguments: Properties, world: World) -> Properties:
    return {
        **arguments,
        "id": world.place.region,
        "ids": [item.id for item in select(SUBNET, arguments, world)],
        "tags": arguments.get("tags") or {},
        "region": world.place.region,
    }


def get_vpcs(arguments: Properties, world: World) -> Properties:
    return {
        **arguments,
        "id": world.place.region,
        "ids": [item.id for item in select(VPC, arguments, world)],
        "tags": arguments.get("tags") or {},
        "region": world.place.region,
    }


def get_security_group(arguments: Properties, world: World) -> Properties:
    item = _one(
        select(SECURITY_GROUP, arguments, world),
        "EC2 Security Group",
        "InvalidGroup.NotFound",
        arguments,
    )
    return {**item.outputs, "id": item.id, "tags": _tags(item), "region": world.place.region}


def get_route_tables(arguments: Properties, world: World) -> Properties:
    found = select(ROUTE_TABLE, arguments, world)
    return {
        **arguments,
        "id": world.place.region,
        "ids": [item.id for item in found],
        "tags": arguments.get("tags") or {},
        "region": world.place.region,
    }


def get_vpc_endpoint(arguments: Properties, world: World) -> Properties:
    item = _one(
        select(ENDPOINT, arguments, world),
        "EC2 VPC Endpoint",
        "InvalidVpcEndpointId.NotFound",
        arguments,
    )
    return {**item.outputs, "id": item.id, "tags": _tags(item), "region": world.place.region}


def get_vpc_endpoint_service(arguments: Properties, world: World) -> Properties:
    """Where an endpoint service can be used; one that does not exist in the region is refused."""
    region = world.place.region
    given = str(arguments.get("service") or arguments.get("serviceName") or "")
    service = (
        given if given in (*GATEWAY_SERVICES, *INTERFACE_SERVICES) else short_name(given, region)
    )
    gateway = arguments.get("serviceType") == "Gateway"
    if service is None or (gateway and service not in GATEWAY_SERVICES):
        raise CloudError(
            "InvalidServiceName", f"the VPC endpoint service {given!r} does not exist in {region}"
        )
    full = service_name(service, region)
    private = f"{service.split('.')[-1]}.{region}.{world.place.dns_suffix}"
    return {
        **arguments,
        "id": full,
        "serviceName": full,
        "service": service,
        "serviceId": derived_id("vpce-svc", service),
        "serviceType": "Gateway" if gateway else "Interface",
        "availabilityZones": offered_zones(service, world.place.zones()),
        "acceptanceRequired": False,
        "arn": world.place.arn("ec2", f"vpc-endpoint-service/{derived_id('vpce-svc', service)}"),
        "baseEndpointDnsNames": [f"{service}.{region}.vpce.{world.place.dns_suffix}"],
        "managesVpcEndpoints": False,
        "owner": "amazon",
        "privateDnsName": "" if gateway else private,
        "privateDnsNames": [] if gateway else [private],
        "region": region,
        "serviceRegion": region,
        "serviceRegions": [region],
        "supportedIpAddressTypes": ["ipv4"],
        "tags": {},
        "vpcEndpointPolicySupported": True,
    }


def get_prefix_list(arguments: Properties, world: World) -> Properties:
    name = str(arguments.get("name") or f"com.amazonaws.{world.place.region}.s3")
    id = derived_id("pl", name.rsplit(".", maxsplit=1)[-1], world.place.region)
    return {
        **arguments,
        "id": id,
        "name": name,
        "prefixListId": id,
        "cidrBlocks": ["52.216.0.0/15"],
        "region": world.place.region,
    }


FUNCTIONS: dict[str, Callable[[Properties, World], Properties]] = {
    "aws:index/getAvailabilityZones:getAvailabilityZones": get_availability_zones,
    "aws:index/getAvailabilityZone:getAvailabilityZone": get_availability_zone,
    "aws:ec2/getVpc:getVpc": get_vpc,
    "aws:ec2/getVpcs:getVpcs": get_vpcs,
    "aws:ec2/getSubnet:getSubnet": get_subnet,
    "aws:ec2/getSubnets:getSubnets": get_subnets,
    "aws:ec2/getSecurityGroup:getSecurityGroup": get_security_group,
    "aws:ec2/getRouteTables:getRouteTables": get_route_tables,
    "aws:ec2/getVpcEndpoint:getVpcEndpoint": get_vpc_endpoint,
    "aws:ec2/getVpcEndpointService:getVpcEndpointService": get_vpc_endpoint_service,
    "aws:ec2/getPrefixList:getPrefixList": get_prefix_list,
}
