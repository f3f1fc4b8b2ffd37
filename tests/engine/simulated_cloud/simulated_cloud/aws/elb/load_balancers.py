"""Application and network load balancers."""

from collections.abc import Iterable
from typing import Final

from ...inventory import Item
from ...models import AutoName, CloudError, Link, Problem
from ...rules import between, length, matches, one_of, only_one
from ...values import Properties, known
from ...world import World
from ..ec2.network import INTERNET_GATEWAY, SECURITY_GROUP, SUBNET
from ..ec2.security_groups import refuse_groups_of_other_network
from ..model import AwsModel, digest
from ..s3.buckets import BUCKET

LOAD_BALANCER: Final = "aws:lb/loadBalancer:LoadBalancer"
LISTENER: Final = "aws:lb/listener:Listener"
HOSTED_ZONES: Final = {
    "us-east-1": "Z35SXDOTRQ7X7K",
    "us-east-2": "Z3AADJGX6KTTL2",
    "us-west-1": "Z368ELLRRE2KJ0",
    "us-west-2": "Z1H1FL5HABSF5",
    "eu-central-1": "Z215JYRZR1TBD5",
    "eu-west-1": "Z32O12XQLNTSW2",
    "eu-west-2": "ZHURV8PSTC4K8",
    "eu-west-3": "Z3Q77PNBQS71R4",
    "eu-north-1": "Z23TAZ6LKFMNIO",
    "ap-northeast-1": "Z14GRHDCWA56QT",
    "ap-southeast-1": "Z1LMS91P8CMLE5",
    "ap-southeast-2": "Z1GM3OXH4ZPM65",
    "ap-south-1": "ZP97RAFLXTNZK",
    "us-gov-west-1": "Z33AYJ8TM3BH4J",
    "cn-north-1": "Z1GDH35T77C1KE",
}
"""Hosted zone of a region's application load balancers, for alias records."""
NAME = matches(
    "name",
    r"(?!internal-)(?!-)[A-Za-z0-9-]*[A-Za-z0-9]",
    "letters, digits and hyphens, no hyphen first or last, not internal-...",
)


class LoadBalancer(AwsModel):
    token = LOAD_BALANCER
    auto_name = AutoName("name", 32)
    rules = (
        length("name", 1, 32),
        NAME,
        one_of("loadBalancerType", "application", "network", "gateway"),
        one_of("ipAddressType", "ipv4", "dualstack", "dualstack-without-public-ipv4"),
        one_of("desyncMitigationMode", "monitor", "defensive", "strictest"),
        one_of("xffHeaderProcessingMode", "append", "preserve", "remove"),
        between("idleTimeout", 1, 4000),
        between("clientKeepAlive", 60, 604800),
        only_one("subnets", "subnetMappings"),
    )
    links = (
        Link("subnets[]", SUBNET, holds=True, not_found="SubnetNotFound"),
        Link("subnetMappings[].subnetId", SUBNET, holds=True, not_found="SubnetNotFound"),
        Link("securityGroups[]", SECURITY_GROUP, holds=True, not_found="InvalidSecurityGroup"),
    )
    replace_on = frozenset(
        {"name", "namePrefix", "internal", "loadBalancerType", "customerOwnedIpv4Pool"}
    )
    defaults = {
        "loadBalancerType": "application",
        "internal": False,
        "idleTimeout": 60,
        "enableDeletionProtection": False,
        "ipAddressType": "ipv4",
        "enableHttp2": True,
        "dropInvalidHeaderFields": False,
        "desyncMitigationMode": "defensive",
        "clientKeepAlive": 3600,
        "preserveHostHeader": False,
        "xffHeaderProcessingMode": "append",
    }
    unique = (("name",),)
    duplicate_code = "DuplicateLoadBalancerName"

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        if inputs.get("subnets") is None and inputs.get("subnetMappings") is None:
            yield Problem("subnets", "one of subnets, subnetMappings is required")
        subnets = inputs.get("subnets")
        if (
            isinstance(subnets, list)
            and len(subnets) < 2
            and inputs.get("loadBalancerType") in (None, "application")
        ):
            yield Problem(
                "subnets",
                f"an application load balancer needs subnets in two zones; {len(subnets)} given",
            )

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        kind = {"application": "app", "network": "net", "gateway": "gwy"}[
            inputs.get("loadBalancerType") or "application"
        ]
        code = digest(world.place.scope("region"), inputs["name"], length=16)
        return self.arn_in(
            world, "elasticloadbalancing", f"loadbalancer/{kind}/{inputs['name']}/{code}"
        )

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        ids = inputs.get("subnets") or [
            each["subnetId"] for each in inputs.get("subnetMappings") or []
        ]
        subnets = [item for id in ids if (item := world.get(id, SUBNET))]
        if len({subnet["vpcId"] for subnet in subnets}) > 1:
            raise CloudError("InvalidConfigurationRequest", "subnets: all must be in one VPC")
        zones = [subnet["availabilityZone"] for subnet in subnets]
        if len(set(zones)) != len(zones):
            raise CloudError(
                "InvalidConfigurationRequest", "subnets: a load balancer takes one subnet per zone"
            )
        if (inputs.get("loadBalancerType") or "application") == "application" and len(
            set(zones)
        ) < 2:
            raise CloudError(
                "ValidationError",
                "subnets: at least two subnets in two different availability zones must be"
                " specified",
            )
        vpc_id = subnets[0]["vpcId"]
        refuse_groups_of_other_network(
            inputs.get("securityGroups") or [], vpc_id, world, "securityGroups"
        )
        if not inputs.get("internal") and not world.find(INTERNET_GATEWAY, vpcId=vpc_id):
            raise CloudError(
                "InvalidSubnet",
                f"subnets: {vpc_id} has no internet gateway; set internal for a private load"
                " balancer",
            )
        for kind in ("accessLogs", "connectionLogs"):
            for where, bucket in known(inputs, f"{kind}.bucket"):
                if world.get(bucket, BUCKET) is None:
                    raise CloudError(
                        "InvalidConfigurationRequest",
                        f"{where}: access denied for bucket {bucket}: it does not exist",
                    )

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        ids = inputs.get("subnets") or [
            each["subnetId"] for each in inputs.get("subnetMappings") or []
        ]
        subnet = world.get(ids[0], SUBNET) if ids else None
        prefix = "internal-" if inputs.get("internal") else ""
        number = int(digest(id), 16)
        return {
            "arn": id,
            "arnSuffix": id.split("loadbalancer/", 1)[1],
            "vpcId": subnet["vpcId"] if subnet else "",
            "dnsName": (
                f"{prefix}{inputs['name']}-{number}.{world.place.region}.elb.{world.place.dns_suffix}"
            ),
            "zoneId": HOSTED_ZONES.get(world.place.region, "Z35SXDOTRQ7X7K"),
            "subnets": ids,
            "securityGroups": inputs.get("securityGroups") or [],
        }

    def blocks_delete(self, item: Item, world: World) -> str | None:
        if item["enableDeletionProtection"]:
            return (
                f"OperationNotPermitted: load balancer {item.id} cannot be deleted because deletion"
                " protection is enabled"
            )
        return None

    def deleted(self, item: Item, world: World) -> None:
        for listener in world.find(LISTENER, loadBalancerArn=item.id):
            world.inventory.remove(listener)


MODELS = (LoadBalancer,)
