"""A VPC that exists: used as it is, once what can be known about it has been checked."""

from typing import Any

import pulumi
import pytest

from .contract import make
from .networks import EXISTING, VPC, existing_vpc, exports


@pytest.fixture(autouse=True)
def vpc(cloud: Any) -> dict[str, Any]:
    return existing_vpc(cloud)


def test_an_existing_network_is_only_looked_up(render: Any) -> None:
    graph = render(exports({"existing": {**EXISTING, "cidr": "10.50.0.0/16"}}))
    assert not [r for r in graph.resources if r.custom]
    assert graph.outputs == {
        "vpc_id": VPC,
        "cidr": "10.50.0.0/16",
        "private_subnet_ids": EXISTING["private_subnet_ids"],
        "public_subnet_ids": EXISTING["public_subnet_ids"],
        "zones": ["eu-west-1a", "eu-west-1b"],
        "nat_addresses": [],
    }
    private = {k: v for k, v in EXISTING.items() if k != "public_subnet_ids"}
    assert render(exports({"existing": private})).outputs["public_subnet_ids"] == []


def test_private_subnets_in_another_range_of_the_vpc_need_its_name(
    render: Any, refused: Any, cloud: Any
) -> None:
    """Load balancer and policies open one range: pods elsewhere would come up and hear nothing."""
    second = {
        "subnet-000000c1": ("eu-west-1a", "100.64.0.0/20"),
        "subnet-000000c2": ("eu-west-1b", "100.64.16.0/20"),
    }
    cloud.set_subnets(VPC, second)
    existing = {**EXISTING, "private_subnet_ids": [*second]}
    reason = refused(make("AwsNetwork", {"existing": existing}), "existing.private_subnet_ids")
    assert "subnet-000000c1 (100.64.0.0/20) is outside 10.50.0.0/16" in reason
    assert "set existing.cidr" in reason
    named = {**existing, "cidr": "100.64.0.0/16"}  # public subnets may be in another range
    assert render(exports({"existing": named})).outputs["cidr"] == "100.64.0.0/16"


@pytest.mark.parametrize("cidr", ["10.50.0.0/16", "100.64.0.0/16"])
def test_private_subnets_in_two_ranges_are_refused(refused: Any, cloud: Any, cidr: str) -> None:
    cloud.set_subnets(VPC, {"subnet-000000c2": ("eu-west-1b", "100.64.16.0/20")})
    private = ["subnet-0000000a", "subnet-000000c2"]
    existing = {"vpc_id": VPC, "private_subnet_ids": private, "cidr": cidr}
    reason = refused(make("AwsNetwork", {"existing": existing}), "existing.private_subnet_ids")
    assert f"is outside {cidr}" in reason


def test_existing_ids_may_come_from_another_resource(render: Any) -> None:
    def program() -> None:
        given = {
            "vpc_id": pulumi.Output.from_input(VPC),
            "private_subnet_ids": [
                pulumi.Output.from_input(i) for i in EXISTING["private_subnet_ids"]
            ],
        }
        exports({"existing": given})()

    outputs = render(program).outputs
    assert outputs["private_subnet_ids"] == EXISTING["private_subnet_ids"]


OTHERS = {
    "subnet-000000ff": ("vpc-ffffffff", "eu-west-1c", "10.50.32.0/20"),
    "subnet-000000aa": (VPC, "eu-west-1a", "10.50.32.0/20"),
    "subnet-000000bb": (VPC, "eu-west-1c", "10.50.0.0/24"),
}


@pytest.mark.parametrize(
    ("private", "public", "path", "reason"),
    [
        (["subnet-0000000a", "subnet-000000ff"], [], "private", "subnet of vpc-ffffffff"),
        (["subnet-0000000a", "subnet-000000aa"], [], "private", "all are in eu-west-1a"),
        (["subnet-0000000a", "subnet-000000bb"], [], "private", "overlaps subnet-0000000a"),
        (None, ["subnet-0000001a", "subnet-000000ff"], "public", "subnet of vpc-ffffffff"),
        (None, ["subnet-0000001a"], "public", "at least 2 zones; all are in eu-west-1a"),
        (None, ["subnet-0000001b", "subnet-000000bb"], "public", "overlaps subnet-0000000a"),
    ],
)
def test_foreign_and_overlapping_subnets_are_refused(
    refused: Any,
    cloud: Any,
    *,
    private: list[str] | None,
    public: list[str],
    path: str,
    reason: str,
) -> None:
    for subnet, (vpc_id, zone, cidr) in OTHERS.items():
        cloud.set_subnets(vpc_id, {subnet: (zone, cidr)})
    existing = {
        "vpc_id": VPC,
        "private_subnet_ids": private or EXISTING["private_subnet_ids"],
        "public_subnet_ids": public,
    }
    program = make("AwsNetwork", {"existing": existing})
    assert reason in refused(program, f"existing.{path}_subnet_ids")


def test_a_subnet_that_gives_public_addresses_is_not_private(refused: Any, cloud: Any) -> None:
    find = cloud.answers["aws:ec2/getSubnet:getSubnet"]
    cloud.answers["aws:ec2/getSubnet:getSubnet"] = lambda args: {
        **find(args),
        "mapPublicIpOnLaunch": True,
    }
    program = make("AwsNetwork", {"existing": EXISTING})
    assert "is a public subnet" in refused(program, "existing.private_subnet_ids")


@pytest.mark.parametrize("off", ["enableDnsSupport", "enableDnsHostnames"])
def test_a_vpc_without_dns_is_refused(refused: Any, vpc: dict[str, Any], off: str) -> None:
    vpc[off] = False
    assert "DNS" in refused(make("AwsNetwork", {"existing": EXISTING}), "existing.vpc_id")


def test_pods_must_fit_into_existing_subnets(render: Any, refused: Any) -> None:
    reason = refused(make("AwsNetwork", {"existing": EXISTING, "pods": 9000}), "pods")
    fit = int(reason.rpartition("at most ")[2])
    assert "10.50.0.0/20, 10.50.16.0/20" in reason
    render(make("AwsNetwork", {"existing": EXISTING, "pods": fit}))
    refused(make("AwsNetwork", {"existing": EXISTING, "pods": fit + 1}), "pods")


@pytest.mark.parametrize(
    ("args", "path", "reason"),
    [
        ({"existing": {**EXISTING, "vpc_id": "mine"}}, "existing.vpc_id", "vpc-0a1b2c3d"),
        ({"existing": {**EXISTING, "cidr": "10.51.0.0/16"}}, "existing.cidr", "100.64.0.0/16"),
        ({"existing": {**EXISTING, "cidr": "10.50.0.1/16"}}, "existing.cidr", "10.50.0.0/16"),
        (
            {"existing": {**EXISTING, "private_subnet_ids": ["subnet-0000000a"]}},
            "existing.private_subnet_ids",
            "at least 2",
        ),
        (
            {"existing": {**EXISTING, "public_subnet_ids": ["subnet-0000000a"]}},
            "existing.public_subnet_ids",
            "which private_subnet_ids has",
        ),
        ({"existing": {"vpc_id": VPC}}, "existing.private_subnet_ids", "is required"),
        ({"existing": {**EXISTING, "subnets": []}}, "existing.subnets", "unknown property"),
    ],
)
def test_nonsense_is_refused_by_name(
    refused: Any, args: dict[str, Any], path: str, reason: str
) -> None:
    assert reason in refused(make("AwsNetwork", args), path)
