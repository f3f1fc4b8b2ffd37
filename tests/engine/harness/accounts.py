"""What an account holds before Terrace comes: the things that the settings files refer to."""

import json
from collections.abc import Callable, Mapping

from harness.cloud import Cloud

ADMINISTRATORS = "platform-admin"
ZONE = "Z0123456789ABCDEFGHIJ"
CERTIFICATE = "arn:aws:acm:us-east-1:123456789012:certificate/11111111-2222-3333-4444-555555555555"
VPC = "vpc-0123456789abcdef0"
INTERNET_GATEWAY = "igw-0123456789abcdef0"
NAT_GATEWAY = "nat-0123456789abcdef0"
OFFICE = "203.0.113.7"
"""An address in the range that the settings open the Kubernetes API to."""


def with_administrators(cloud: Cloud) -> None:
    """The role that the settings name as the cluster's administrator."""
    statement = {
        "Effect": "Allow",
        "Principal": {"AWS": "arn:aws:iam::123456789012:root"},
        "Action": "sts:AssumeRole",
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    inputs = {"name": ADMINISTRATORS, "assumeRolePolicy": policy}
    cloud.add("aws:iam/role:Role", ADMINISTRATORS, inputs)


def with_zone(cloud: Cloud) -> None:
    """The public zone of stacks aws-stage1 and aws-existing-vpc."""
    cloud.add("aws:route53/zone:Zone", ZONE, {"name": "example.com"})


def with_certificate(cloud: Cloud) -> None:
    """The issued certificate of stack aws-private."""
    cloud.add(
        "aws:acm/certificate:Certificate",
        CERTIFICATE,
        {"domainName": "gateway.example.com", "validationMethod": "DNS"},
    )


def with_network(cloud: Cloud) -> None:
    """The VPC of stack aws-existing-vpc: three private subnets behind one NAT gateway."""
    cloud.add(
        "aws:ec2/vpc:Vpc",
        VPC,
        {"cidrBlock": "10.40.0.0/16", "enableDnsSupport": True, "enableDnsHostnames": True},
    )
    cloud.add("aws:ec2/internetGateway:InternetGateway", INTERNET_GATEWAY, {"vpcId": VPC})
    public = "subnet-0fedcba9876543210"
    _add_subnet(cloud, public, "10.40.255.0/24", "us-east-1a")
    address = "eipalloc-0123456789abcdef0"
    cloud.add("aws:ec2/eip:Eip", address, {"domain": "vpc"})
    cloud.add(
        "aws:ec2/natGateway:NatGateway",
        NAT_GATEWAY,
        {"subnetId": public, "allocationId": address, "connectivityType": "public"},
    )
    _add_routes(cloud, "0", public, {"gatewayId": INTERNET_GATEWAY})
    for index, zone in enumerate("abc"):
        subnet = f"subnet-0123456789abcdef{index}"
        _add_subnet(cloud, subnet, f"10.40.{index * 16}.0/20", f"us-east-1{zone}")
        _add_routes(cloud, str(index + 1), subnet, {"natGatewayId": NAT_GATEWAY})


def _add_subnet(cloud: Cloud, id: str, cidr: str, zone: str) -> None:
    inputs = {"vpcId": VPC, "cidrBlock": cidr, "availabilityZone": zone}
    cloud.add("aws:ec2/subnet:Subnet", id, inputs)


def _add_routes(cloud: Cloud, number: str, subnet: str, target: Mapping[str, str]) -> None:
    table = f"rtb-0123456789abcdef{number}"
    cloud.add(
        "aws:ec2/routeTable:RouteTable",
        table,
        {"vpcId": VPC, "routes": [{"cidrBlock": "0.0.0.0/0", **target}]},
    )
    cloud.add(
        "aws:ec2/routeTableAssociation:RouteTableAssociation",
        f"rtbassoc-0123456789abcdef{number}",
        {"routeTableId": table, "subnetId": subnet},
    )


PREPARED: Mapping[str, tuple[Callable[[Cloud], None], ...]] = {
    "aws-stage1": (with_administrators, with_zone),
    "aws-private": (with_administrators, with_certificate),
    "aws-existing-vpc": (with_administrators, with_zone, with_network),
}
"""What each stack's settings need to be there."""

ADDRESSES: Mapping[str, str] = {
    "aws-stage1": OFFICE,
    "aws-private": "10.30.0.7",  # a runner in the VPC: the API endpoint is private
    "aws-existing-vpc": OFFICE,
}
"""Where the person or runner who drives a stack sits."""
