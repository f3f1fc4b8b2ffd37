"""Which AWS services the VPC reaches without the internet, and the endpoints for them."""

from collections.abc import Mapping, Sequence

import pulumi
import pulumi_aws as aws

from terrace_components.arguments import LateArgumentError
from terrace_components.aws import arns

# What stage 1 calls from inside the VPC, and who calls it. Not here, because nobody does:
# kms (S3, Secrets Manager and EKS call it on their side; for the gateway, which calls it where it
# seals captured prompts, ``FoundationAws`` adds it beside their key), logs (the control plane, flow
# logs and Bedrock deliver on theirs), ssm, autoscaling (EKS scales the node group on its side).
STAGE_ONE: Mapping[str, str] = {
    "bedrock-runtime": "the gateway calls models",
    "ec2": "the VPC CNI attaches interfaces; the load balancer controller looks up pods' subnets",
    "ecr.api": "kubelet gets its token for the registry",
    "ecr.dkr": "containerd pulls manifests; layers come from S3, through the gateway endpoint",
    "eks": "a node that joins reads its cluster",
    "eks-auth": "the Pod Identity agent exchanges a pod's token for credentials",
    "elasticloadbalancing": "the load balancer controller registers pods as targets",
    "secretsmanager": "the secret bootstrap reads provider keys and the database's password",
    "sts": "SDKs ask who they are, and charts that know no Pod Identity assume their role",
}
HTTPS = 443


def gateway_endpoint(
    name: str,
    *,
    vpc_id: pulumi.Input[str],
    route_tables: Sequence[pulumi.Input[str]],
    tags: Mapping[str, str],
    parent: pulumi.Resource,
) -> "aws.ec2.VpcEndpoint":
    """The S3 gateway endpoint: it costs nothing, and keeps image layers out of the NAT's bill."""
    return aws.ec2.VpcEndpoint(
        f"{name}-s3",
        vpc_id=vpc_id,
        vpc_endpoint_type="Gateway",
        service_name=_service("s3", "Gateway", parent).service_name,
        route_table_ids=list(route_tables),
        tags=arns.tags(name, tags, Name=f"{name}-s3"),
        opts=pulumi.ResourceOptions(parent=parent),
    )


def interface_endpoints(
    name: str,
    services: Sequence[str],
    *,
    vpc_id: pulumi.Input[str],
    cidr: pulumi.Input[str],
    subnets: "Sequence[aws.ec2.Subnet]",
    tags: Mapping[str, str],
    parent: pulumi.Resource,
) -> "list[aws.ec2.VpcEndpoint]":
    """An endpoint per service with private DNS, open to HTTPS from the VPC only.

    A service may be missing in a zone: its endpoint stands in the zones that have it. None in
    common raises ``InputPropertyError`` for ``endpoints`` once that is known.
    """
    if not services:
        return []
    child = pulumi.ResourceOptions(parent=parent)
    group = aws.ec2.SecurityGroup(
        f"{name}-endpoints",
        description="HTTPS from the VPC to the endpoints of AWS services",
        vpc_id=vpc_id,
        tags=arns.tags(name, tags, Name=f"{name}-endpoints"),
        opts=child,
    )
    aws.vpc.SecurityGroupIngressRule(
        f"{name}-endpoints-https",
        security_group_id=group.id,
        description="HTTPS from the VPC",
        cidr_ipv4=cidr,
        ip_protocol="tcp",
        from_port=HTTPS,
        to_port=HTTPS,
        tags=arns.tags(name, tags),
        opts=child,
    )
    endpoints: list[aws.ec2.VpcEndpoint] = []
    for service in services:
        offer = _service(service, "Interface", parent)
        where = pulumi.Output.all(
            offer.availability_zones,
            pulumi.Output.all(*[subnet.availability_zone for subnet in subnets]),
            pulumi.Output.all(*[subnet.id for subnet in subnets]),
        ).apply(lambda given, service=service: _in_offered_zones(service, *given))
        endpoint_name = f"{name}-{service.replace('.', '-')}"
        endpoints.append(
            aws.ec2.VpcEndpoint(
                endpoint_name,
                vpc_id=vpc_id,
                vpc_endpoint_type="Interface",
                service_name=offer.service_name,
                private_dns_enabled=True,
                subnet_ids=where,
                security_group_ids=[group.id],
                tags=arns.tags(name, tags, Name=endpoint_name),
                opts=child,
            )
        )
    return endpoints


def _service(
    service: str, kind: str, parent: pulumi.Resource
) -> "pulumi.Output[aws.ec2.GetVpcEndpointServiceResult]":
    """Looked up rather than put together: names differ in China (``cn.com.amazonaws...``)."""
    opts = pulumi.InvokeOutputOptions(parent=parent)
    if service.startswith(("com.", "cn.com.")):
        return aws.ec2.get_vpc_endpoint_service_output(
            service_name=service, service_type=kind, opts=opts
        )
    return aws.ec2.get_vpc_endpoint_service_output(service=service, service_type=kind, opts=opts)


def _in_offered_zones(
    service: str, offered: Sequence[str], zones: Sequence[str], subnet_ids: Sequence[str]
) -> list[str]:
    chosen = [
        subnet for zone, subnet in zip(zones, subnet_ids, strict=True) if zone in set(offered)
    ]
    if not chosen:
        raise LateArgumentError(
            "endpoints",
            f"{service} is offered in {', '.join(sorted(offered))}, and in none of the network's "
            f"zones {', '.join(sorted(zones))}",
        )
    return chosen
