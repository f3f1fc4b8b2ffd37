"""The simulated AWS and pulumi-eks under the real engine: what a program of anybody's sees."""

from collections.abc import Callable
from typing import Any

import pytest
from harness import Cloud, Engine, Stack

VPC = "aws:ec2/vpc:Vpc"
SUBNET = "aws:ec2/subnet:Subnet"

NETWORK = """
import pulumi
import pulumi_aws as aws

config = pulumi.Config()
cidr = config.get("cidr") or "10.0.0.0/16"
vpc = aws.ec2.Vpc("net", cidr_block=cidr, tags={"team": config.get("team") or "a"})
subnet = aws.ec2.Subnet("net", vpc_id=vpc.id, cidr_block=cidr.replace("/16", "/24"))
bucket = aws.s3.Bucket("data", bucket=config.get("bucket"))
pulumi.export("vpc_id", vpc.id)
pulumi.export("arn", vpc.arn)
pulumi.export("bucket", bucket.bucket)
"""

CLUSTER = """
import json
import pulumi
import pulumi_aws as aws
import pulumi_eks as eks

config = pulumi.Config()
vpc = aws.ec2.Vpc("net", cidr_block="10.0.0.0/16")
subnets = [
    aws.ec2.Subnet(
        f"net-{zone}",
        vpc_id=vpc.id,
        cidr_block=f"10.0.{index}.0/24",
        availability_zone=f"us-east-1{zone}",
    )
    for index, zone in enumerate("ab")
]
cluster = eks.Cluster(
    "core",
    vpc_id=vpc.id,
    subnet_ids=[subnet.id for subnet in subnets],
    authentication_mode=eks.AuthenticationMode.API,
    skip_default_node_group=config.get_bool("skip"),
    create_oidc_provider=True,
)
pulumi.export("kubeconfig", cluster.kubeconfig_json)
pulumi.export("endpoint", cluster.eks_cluster.endpoint)
pulumi.export("group", cluster.cluster_security_group_id)
pulumi.export("issuer", cluster.oidc_provider_url)
"""


@pytest.fixture
def network(engine: Engine) -> Callable[..., Stack]:
    def make(name: str = "dev", **config: Any) -> Stack:
        return Stack.of_program(engine, name, NETWORK, **{"aws:region": "us-east-1", **config})

    return make


def test_up_steady_drift_replace_destroy(network: Callable[..., Stack], cloud: Cloud) -> None:
    stack = network()
    preview = stack.preview()
    assert {step.op for step in preview.changes} == {"create"}
    assert not cloud.items()
    stack.up().must_work()
    stack.must_be_steady()
    before = stack.outputs()
    cloud.remove(cloud.items(SUBNET)[0])
    stack.refresh().must_work()
    assert stack.ids(SUBNET) == {}
    stack.change(trial__team="b")
    update = stack.up().must_work()
    assert [step.keys for step in update.of("update", VPC)] == [("tags",)]
    assert stack.outputs() == before
    stack.change(trial__cidr="10.1.0.0/16")
    stack.up().must_work()
    assert stack.outputs()["vpc_id"] != before["vpc_id"]
    assert cloud.counts()[VPC] == cloud.counts()[SUBNET] == 1
    stack.destroy().must_work()
    cloud.must_be_empty()


def test_a_wrong_property_stops_the_preview(engine: Engine) -> None:
    program = """
import pulumi
pulumi.CustomResource("aws:ec2/vpc:Vpc", "net", {"cidrBlok": "10.0.0.0/16"})
"""
    run = Stack.of_program(engine, "dev", program, **{"aws:region": "us-east-1"}).preview()
    assert not run.ok
    assert "did you mean 'cidrBlock'" in run.errors


def test_a_region_that_does_not_exist_stops_the_preview(network: Callable[..., Stack]) -> None:
    run = network(**{"aws:region": "us-east-9"}).preview()
    assert not run.ok
    assert "'us-east-9' is not an AWS region" in run.output


def test_two_stacks_share_an_account_until_both_want_one_name(
    network: Callable[..., Stack], cloud: Cloud
) -> None:
    name = {"trial:bucket": "the-only-one"}
    network("one", **name).up().must_work()
    run = network("two", **name).up()
    assert not run.ok
    assert "BucketAlreadyOwnedByYou" in run.errors
    assert cloud.counts()[VPC] == 2


def test_a_half_made_thing_is_in_the_state_and_a_lost_one_is_not(
    network: Callable[..., Stack], cloud: Cloud
) -> None:
    stack = network()
    cloud.fail("timeout", on=VPC)
    run = stack.up()
    assert "timeout while waiting" in run.errors
    (made,) = cloud.items(VPC)
    assert stack.ids(VPC) == {"net": made.id}
    cloud.fail("lost-answer", on=SUBNET)
    run = stack.up()
    assert "the connection was lost" in run.errors
    assert stack.ids(SUBNET) == {}
    assert [item.id for item in cloud.items(VPC)] == [made.id]
    assert len(cloud.items(SUBNET)) == 1
    assert "InvalidSubnet.Conflict" in stack.up().errors


def test_construct_of_pulumi_eks_makes_and_prints_what_it_assumes(
    engine: Engine, cloud: Cloud
) -> None:
    stack = Stack.of_program(
        engine, "dev", CLUSTER, **{"aws:region": "us-east-1", "trial:skip": "true"}
    )
    run = stack.up().must_work()
    names = {row["name"] for row in cloud.inventory.assumed()}
    assert names >= {
        "core-eksCluster",
        "core-eksRole-role",
        "core-eksClusterSecurityGroup",
        "core-oidcProvider",
    }
    for name in ("core-eksCluster", "core-oidcProvider"):
        assert f"{name} (" in run.output
    outputs = stack.outputs()
    (cluster,) = cloud.items("aws:eks/cluster:Cluster")
    assert outputs["endpoint"] == cluster["endpoint"]
    assert outputs["endpoint"] in outputs["kubeconfig"]
    assert outputs["group"] in {item.id for item in cloud.items("securityGroup")}
    assert outputs["issuer"].startswith("https://oidc.eks.us-east-1.amazonaws.com/id/")
    stack.must_be_steady()
    stack.destroy().must_work()
    cloud.must_be_empty()


def test_construct_refuses_what_it_cannot_know(engine: Engine) -> None:
    stack = Stack.of_program(
        engine, "dev", CLUSTER, **{"aws:region": "us-east-1", "trial:skip": "false"}
    )
    run = stack.preview()
    assert not run.ok
    assert "skipDefaultNodeGroup" in run.errors


def test_providers_of_other_regions_and_accounts(engine: Engine) -> None:
    program = """
import pulumi
import pulumi_aws as aws

roles = [aws.ProviderAssumeRoleArgs(role_arn="arn:aws:iam::210987654321:role/deploy")]
there = aws.Provider("there", region="eu-west-1", assume_roles=roles)
china = aws.Provider("china", region="cn-north-1")
for name, provider in (("there", there), ("china", china)):
    opts = pulumi.ResourceOptions(provider=provider)
    vpc = aws.ec2.Vpc(name, cidr_block="10.0.0.0/16", opts=opts)
    pulumi.export(name, vpc.arn)
"""
    stack = Stack.of_program(engine, "dev", program, **{"aws:region": "us-east-1"})
    stack.up().must_work()
    outputs = stack.outputs()
    assert outputs["there"].startswith("arn:aws:ec2:eu-west-1:210987654321:vpc/")
    assert outputs["china"].startswith("arn:aws-cn:ec2:cn-north-1:123456789012:vpc/")
