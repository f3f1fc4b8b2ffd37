"""VPC endpoints and flow logs."""

from collections.abc import Iterable
from typing import Final

from ...inventory import Item
from ...models import CloudError, Link, Problem
from ...rules import one_of, only_one
from ...values import UNKNOWN, Properties
from ...world import World
from ..iam.documents import check_document
from ..model import ArnOf, AwsModel, derived_id, digest
from .network import LINK_SUBNETS, LINK_VPC, SECURITY_GROUP, SUBNET, VPC
from .routes import ENDPOINT, ROUTE_TABLE
from .security_groups import refuse_groups_of_other_network

GATEWAY_SERVICES: Final = ("s3", "dynamodb")
INTERFACE_SERVICES: Final = (
    "s3",
    "dynamodb",
    "secretsmanager",
    "kms",
    "logs",
    "monitoring",
    "sts",
    "sqs",
    "sns",
    "ssm",
    "ssmmessages",
    "ec2",
    "ec2messages",
    "ecr.api",
    "ecr.dkr",
    "eks",
    "eks-auth",
    "elasticloadbalancing",
    "autoscaling",
    "rds",
    "rds-data",
    "bedrock",
    "bedrock-runtime",
    "bedrock-agent",
    "bedrock-agent-runtime",
    "bedrock-agentcore",
    "bedrock-mantle",
    "execute-api",
    "events",
    "lambda",
    "elasticfilesystem",
    "wafv2",
    "xray",
    "aps-workspaces",
    "sagemaker.api",
    "sagemaker.runtime",
    "email-smtp",
    "guardduty-data",
    "codeartifact.api",
)
"""The service names known here, after `com.amazonaws.<region>.`."""


def service_name(service: str, region: str) -> str:
    """The full endpoint service name of a region."""
    prefix = (
        "cn.com.amazonaws"
        if region.startswith("cn-") and service not in GATEWAY_SERVICES
        else "com.amazonaws"
    )
    return f"{prefix}.{region}.{service}"


def offered_zones(service: str, zones: list[str]) -> list[str]:
    """The zones in which an interface endpoint can be put: not every service is in every zone."""
    narrow = service.startswith("bedrock") and len(zones) > 3
    return [zone for zone in zones if not (narrow and zone.endswith("e"))]


def short_name(full: str, region: str) -> str | None:
    """`ecr.api` of `com.amazonaws.us-east-1.ecr.api`; None when it is not an AWS service of this
    region."""
    for service in (*GATEWAY_SERVICES, *INTERFACE_SERVICES):
        if full in (service_name(service, region), f"com.amazonaws.{region}.{service}"):
            return service
    return None


class VpcEndpoint(AwsModel):
    token = ENDPOINT
    id_prefix = "vpce"
    rules = (
        one_of(
            "vpcEndpointType",
            "Gateway",
            "Interface",
            "GatewayLoadBalancer",
            "Resource",
            "ServiceNetwork",
        ),
        one_of("ipAddressType", "ipv4", "dualstack", "ipv6"),
    )
    links = (
        LINK_VPC,
        LINK_SUBNETS,
        Link("securityGroupIds[]", SECURITY_GROUP, holds=True, not_found="InvalidGroup.NotFound"),
        Link("routeTableIds[]", ROUTE_TABLE, not_found="InvalidRouteTableId.NotFound"),
    )
    replace_on = frozenset({"vpcId", "serviceName", "vpcEndpointType", "serviceRegion"})
    defaults = {"vpcEndpointType": "Gateway", "state": "available", "requesterManaged": False}

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        kind = inputs.get("vpcEndpointType") or "Gateway"
        if kind == "Gateway" and inputs.get("subnetIds") is not None:
            yield Problem(
                "subnetIds",
                "a Gateway endpoint has route tables, not subnets; set vpcEndpointType Interface",
            )
        if kind == "Interface" and inputs.get("routeTableIds") is not None:
            yield Problem("routeTableIds", "an Interface endpoint has subnets, not route tables")
        yield from check_document(inputs.get("policy"), "policy", kind="resource")

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        kind = inputs.get("vpcEndpointType") or "Gateway"
        service = short_name(str(inputs.get("serviceName")), world.place.region)
        if service is None or (kind == "Gateway" and service not in GATEWAY_SERVICES):
            raise CloudError(
                "InvalidServiceName",
                f"the VPC endpoint service {inputs.get('serviceName')} ({kind}) does not exist",
            )
        subnets = [world.get(id, SUBNET) for id in inputs.get("subnetIds") or []]
        zones = [subnet["availabilityZone"] for subnet in subnets if subnet]
        if len(set(zones)) != len(zones):
            raise CloudError(
                "DuplicateSubnetsInSameZone", "found another subnet in the same availability zone"
            )
        for subnet in subnets:
            if subnet and subnet["vpcId"] != inputs["vpcId"]:
                raise CloudError("InvalidParameter", f"{subnet.id} is not in {inputs['vpcId']}")
            if subnet and subnet["availabilityZone"] not in offered_zones(
                service, world.place.zones()
            ):
                raise CloudError(
                    "InvalidParameter",
                    f"the VPC endpoint service {inputs['serviceName']} does not support"
                    f" {subnet['availabilityZone']}",
                )
        refuse_groups_of_other_network(
            inputs.get("securityGroupIds") or [], inputs["vpcId"], world, "securityGroupIds"
        )
        self._refuse_private_dns(inputs, world, existing)

    def _refuse_private_dns(self, inputs: Properties, world: World, existing: Item | None) -> None:
        if not inputs.get("privateDnsEnabled"):
            return
        vpc = world.get(inputs["vpcId"], VPC)
        if vpc and not (vpc["enableDnsSupport"] and vpc["enableDnsHostnames"]):
            raise CloudError(
                "InvalidParameter", f"private DNS needs DNS support and DNS hostnames of {vpc.id}"
            )
        for other in world.find(
            self.token, vpcId=inputs["vpcId"], serviceName=inputs["serviceName"]
        ):
            if other["privateDnsEnabled"] and (existing is None or other.id != existing.id):
                raise CloudError(
                    "InvalidParameter",
                    f"private-dns-enabled conflicts with {other.id} in the same VPC",
                )

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        gateway = (inputs.get("vpcEndpointType") or "Gateway") == "Gateway"
        service = str(inputs.get("serviceName")).split(".")[-1]
        dns = f"{id}-{digest(id)}.{service}.{world.place.region}.vpce.{world.place.dns_suffix}"
        return {
            "arn": self.arn_in(world, "ec2", f"vpc-endpoint/{id}"),
            "ownerId": world.place.account,
            "prefixListId": derived_id("pl", service, world.place.region) if gateway else "",
            "cidrBlocks": ["52.216.0.0/15"] if gateway else [],
            "networkInterfaceIds": (
                [] if gateway else [derived_id("eni", id, s) for s in inputs.get("subnetIds") or []]
            ),
            "dnsEntries": [] if gateway else [{"dnsName": dns, "hostedZoneId": "Z7HUB22UULQXV"}],
        }


class FlowLog(AwsModel):
    token = "aws:ec2/flowLog:FlowLog"
    id_prefix = "fl"
    rules = (
        one_of("trafficType", "ACCEPT", "REJECT", "ALL"),
        one_of("logDestinationType", "cloud-watch-logs", "s3", "kinesis-data-firehose"),
        one_of("maxAggregationInterval", 60, 600),
        only_one("eniId", "subnetId", "vpcId", "transitGatewayId", "transitGatewayAttachmentId"),
    )
    links = (
        Link("vpcId", VPC, not_found="InvalidVpcId.NotFound"),
        Link("subnetId", SUBNET, not_found="InvalidSubnetId.NotFound"),
        Link("iamRoleArn", "aws:iam/role:Role"),
    )
    arns = (ArnOf("iamRoleArn", "iam", "role/.+"),)
    replace_on = frozenset(
        {
            "vpcId",
            "subnetId",
            "eniId",
            "trafficType",
            "logDestination",
            "logDestinationType",
            "iamRoleArn",
            "logFormat",
            "maxAggregationInterval",
            "destinationOptions",
        }
    )
    unique = (("vpcId", "trafficType", "logDestination"),)
    duplicate_code = "FlowLogAlreadyExists"
    defaults = {"maxAggregationInterval": 600, "logDestinationType": "cloud-watch-logs"}

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        kind = inputs.get("logDestinationType") or "cloud-watch-logs"
        if inputs.get("trafficType") is None and inputs.get("transitGatewayId") is None:
            yield Problem("trafficType", "is required: ACCEPT, REJECT or ALL")
        if kind == "cloud-watch-logs" and inputs.get("iamRoleArn") is None:
            yield Problem("iamRoleArn", "is required when logs go to CloudWatch")
        if kind == "s3" and inputs.get("iamRoleArn") is not None:
            yield Problem("iamRoleArn", "is not allowed when logs go to S3")
        destination = inputs.get("logDestination")
        wanted = {"cloud-watch-logs": ":logs:", "s3": ":s3:"}.get(str(kind))
        if (
            isinstance(destination, str)
            and destination is not UNKNOWN
            and wanted
            and wanted not in destination
        ):
            yield Problem("logDestination", f"{destination!r} is not an ARN for {kind}")

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        return {"arn": self.arn_in(world, "ec2", f"vpc-flow-log/{id}")}


MODELS = (VpcEndpoint, FlowLog)
