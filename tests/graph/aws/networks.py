"""A VPC that exists, and what a network says of itself."""

from typing import Any

import pulumi

import terrace_components as components

VPC = "vpc-0a1b2c3d"
EXISTING = {
    "vpc_id": VPC,
    "private_subnet_ids": ["subnet-0000000a", "subnet-0000000b"],
    "public_subnet_ids": ["subnet-0000001a", "subnet-0000001b"],
}


def existing_vpc(cloud: Any) -> dict[str, Any]:
    """Puts a VPC with two private and two public subnets into the account; its answer."""
    found = {
        "id": VPC,
        "cidrBlock": "10.50.0.0/16",
        "cidrBlockAssociations": [
            {"cidrBlock": "10.50.0.0/16"},
            {"cidrBlock": "100.64.0.0/16"},
        ],
        "enableDnsSupport": True,
        "enableDnsHostnames": True,
    }
    cloud.answers["aws:ec2/getVpc:getVpc"] = found
    cloud.set_subnets(
        VPC,
        {
            "subnet-0000000a": ("eu-west-1a", "10.50.0.0/20"),
            "subnet-0000000b": ("eu-west-1b", "10.50.16.0/20"),
            "subnet-0000001a": ("eu-west-1a", "10.50.240.0/24"),
            "subnet-0000001b": ("eu-west-1b", "10.50.241.0/24"),
        },
    )
    return found


def exports(args: dict[str, Any]) -> Any:
    """A program that exports every output of a network."""

    def body() -> None:
        network = components.AwsNetwork("it", args)
        for output in (
            "vpc_id", "cidr", "private_subnet_ids", "public_subnet_ids", "zones", "nat_addresses",
        ):  # fmt: skip
            pulumi.export(output, getattr(network, output))

    return body
