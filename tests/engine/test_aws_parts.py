"""The network, keys, buckets, registry, certificate and load balancers, each taken alone: in the
real engine, against the simulated account, under the policy pack."""

import json
from pathlib import Path
from typing import Any

from harness import Cloud, Engine, Stack
from harness.accounts import with_network

ROOT = Path(__file__).resolve().parents[2]
PACK = ROOT / "policies" / "terrace-policies"
EVERYTHING = """
import pulumi
import terrace_components as parts

keys = parts.AwsKeys(
    "keys", {"purposes": ["logs", "objects", "images"], "retain": False, "deletion_window_days": 7}
)
network = parts.AwsNetwork("net", {"flow_log_key_arn": keys.arns["logs"], "pods": 5000})
parts.AwsNetwork("closed", {"zone_count": 2, "nat": "none", "cidr": "10.30.0.0/20"})
parts.AwsBucket(
    "heads", {"object_lock_days": 30, "key_arn": keys.arns["objects"], "retain": False}
)
logs = parts.AwsBucket("logs", {"load_balancer_logs": True, "retain": False, "lifecycle_days": 90})
parts.AwsRegistry("images", {"repositories": ["gateway"], "key_arn": keys.arns["images"]})
certificate = parts.AwsCertificate(
    "cert", {"domain": "models.example.com", "zone": {"create": "example.com"}}
)
both = {
    "vpc_id": network.vpc_id,
    "certificate_arn": certificate.arn,
    "domain": "models.example.com",
    "target_port": 8080,
    "health_path": "/readyz",
}
inside = parts.AwsLoadBalancer("inside", {
    **both,
    "subnet_ids": network.private_subnet_ids,
    "allowed_cidrs": ["10.0.0.0/8"],
    "target_cidrs": [network.cidr],
    "zone_id": certificate.zone_id,
    "access_log_bucket": logs.name,
})
parts.AwsLoadBalancer("outside", {
    **both,
    "subnet_ids": network.public_subnet_ids,
    "internal": False,
    "allowed_cidrs": ["0.0.0.0/0"],
    "waf": {},
})
pulumi.export("url", inside.url)
pulumi.export("nat", network.nat_addresses)
"""
NETWORK = """
import pulumi
import terrace_components as parts

network = parts.AwsNetwork("net", pulumi.Config().require_object("network"))
pulumi.export("subnets", network.private_subnet_ids)
"""
DATA = """
import terrace_components as parts

keys = parts.AwsKeys("keys", {"purposes": ["objects"]})
parts.AwsBucket("heads", {"object_lock_days": 30, "key_arn": keys.arns["objects"]})
"""


def network_stack(engine: Engine, network: dict[str, Any], region: str = "eu-west-1") -> Stack:
    config = {"aws:region": region, "trial:network": json.dumps(network)}
    return Stack.of_program(engine, "network", NETWORK, **config)


def test_the_parts_go_up_stay_as_they_are_and_leave_nothing(engine: Engine, cloud: Cloud) -> None:
    stack = Stack.of_program(engine, "parts", EVERYTHING, **{"aws:region": "eu-west-1"})
    stack.preview("--policy-pack", str(PACK)).must_work()
    stack.up().must_work()
    stack.must_be_steady()
    outputs = stack.outputs()
    assert outputs["url"] == "https://models.example.com"
    assert len(set(outputs["nat"])) == 3
    stack.refresh("--expect-no-changes").must_work()
    stack.destroy().must_work()
    cloud.must_be_empty()


def test_a_network_grows_without_moving_anything(engine: Engine) -> None:
    stack = network_stack(engine, {"zones": ["eu-west-1a", "eu-west-1c"], "nat": "shared"})
    stack.up().must_work()
    before = stack.ids("aws:ec2/subnet:Subnet")
    zones = ["eu-west-1a", "eu-west-1b", "eu-west-1c"]
    stack.change(trial__network=json.dumps({"zones": zones, "nat": "per-zone"}))
    grown = stack.up().must_work()
    assert grown.replaced == []
    assert [step for step in grown.changes if step.op == "delete"] == []
    after = stack.ids("aws:ec2/subnet:Subnet")
    assert before.items() <= after.items()
    assert set(after) - set(before) == {"net-private-b", "net-public-b"}
    # The second old zone gets a gateway of its own, and its table is led to it in place.
    assert [step.name for step in grown.of("update", "aws:ec2/route:Route")] == [
        "net-private-c-out"
    ]


def test_data_and_the_key_to_it_outlive_the_stack(engine: Engine, cloud: Cloud) -> None:
    stack = Stack.of_program(engine, "data", DATA, **{"aws:region": "eu-west-1"})
    stack.up().must_work()
    stack.destroy().must_work()
    assert stack.resources() == []
    counts = cloud.counts()
    assert counts["aws:kms/key:Key"] == counts["aws:s3/bucket:Bucket"] == 1
    assert counts["aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock"] == 1
    assert counts["aws:s3/bucketPolicy:BucketPolicy"] == 1


def test_an_existing_network_is_checked_in_preview(engine: Engine, cloud: Cloud) -> None:
    with_network(cloud)
    subnets = [f"subnet-0123456789abcdef{index}" for index in range(3)]
    existing = {"vpc_id": "vpc-0123456789abcdef0", "private_subnet_ids": subnets}
    stack = network_stack(engine, {"existing": existing, "pods": 5000}, "us-east-1")
    stack.preview().must_work()
    stack.change(trial__network=json.dumps({"existing": existing, "pods": 50000}))
    refused = stack.preview().must_fail()
    assert "pods" in refused.errors
    assert "10.40.0.0/20, 10.40.16.0/20, 10.40.32.0/20, which hold" in refused.errors
