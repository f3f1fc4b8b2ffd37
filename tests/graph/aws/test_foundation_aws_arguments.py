"""FoundationAws: settings that do not go together are refused, and the property is named."""

import typing
from typing import Any

import pulumi
import pytest

from terrace_components import FoundationAwsArguments
from terrace_components.aws import foundation_args

from .cloud import Cloud
from .every_answer import answer_everything
from .foundation_sets import ALL_EXISTING, BALANCER, DATABASE, KEY, NETWORK, SMALLEST, make


@pytest.fixture(autouse=True)
def _account(cloud: Cloud) -> None:
    answer_everything(cloud)


# What nodes call in a VPC without NAT.
FOR_NODES = ["ec2", "ecr.api", "ecr.dkr", "eks", "eks-auth", "secretsmanager", "sts"]
SECTIONS = {
    "network": "FoundationNetworkArgs",
    "keys": "FoundationKeysArgs",
    "cluster": "FoundationClusterArgs",
    "add_ons": "FoundationAddOnsArgs",
    "nodes": "FoundationNodesArgs",
    "database": "FoundationDatabaseArgs",
    "objects": "FoundationObjectsArgs",
    "registry": "FoundationRegistryArgs",
    "certificate": "FoundationCertificateArgs",
    "load_balancer": "FoundationLoadBalancerArgs",
}


@pytest.mark.parametrize(("section", "public"), SECTIONS.items())
def test_the_checked_section_takes_what_the_public_one_names(section: str, public: str) -> None:
    annotation = FoundationAwsArguments.model_fields[section].annotation
    candidates = [annotation, *typing.get_args(annotation)]
    model = next(c for c in candidates if isinstance(c, type) and c is not type(None))
    refused = {"load_balancer_logs"}  # of a bucket, which FoundationAws has another one for
    assert set(typing.cast(Any, model).model_fields) - refused == set(
        getattr(foundation_args, public).__annotations__
    )


def test_there_is_no_other_section() -> None:
    assert {*SECTIONS, "tags"} == set(foundation_args.FoundationAwsArgs.__annotations__)
    assert {*SECTIONS, "tags"} == set(FoundationAwsArguments.model_fields)


@pytest.mark.parametrize(
    ("more", "path", "reason"),
    [
        ({"cluster": {"api_access_cidrs": []}}, "cluster.api_access_cidrs", "private_api: true"),
        (
            {"cluster": {"api_access_cidrs": [], "private_api": True}},
            "cluster.private_api_cidrs",
            "at least one range",
        ),
        ({"network": {"cidr": "10.20.0.0/29"}}, "network.cidr", "/28"),
        ({"network": {"cidr": "10.20.0.0/20", "pods": 5000}}, "network.cidr", "5000"),
        ({"network": {"cidr": "172.20.0.0/16"}}, "cluster.service_cidr", "overlaps"),
        ({"cluster": {"service_cidr": "10.20.128.0/20"}}, "cluster.service_cidr", "overlaps"),
        ({"network": NETWORK, "cluster": {"service_cidr": "10.50.0.0/20"}}, "cluster.service_cidr",
         "10.50.0.0/16"),
        ({"nodes": {"kubernetes_version": "1.36", "ami_release_version": "1.36.1-20261101"}},
         "nodes.kubernetes_version", "up to 3 older"),
        ({"cluster": {"kubernetes_version": "1.34"}}, "add_ons.versions", "v1.34.x"),
        ({"cluster": {"kubernetes_version": "1.34"},
          "add_ons": {"versions": {"kube-proxy": "v1.34.6-eksbuild.25"}}},
         "nodes.ami_release_version", "begin with 1.34."),
        ({"nodes": {"instance_types": ["m7i.large"], "min_size": 2}}, "nodes.reserve",
         "does not fit"),
        ({"nodes": {"prefix_delegation": False}}, "nodes.prefix_delegation", "that of add_ons"),
        ({"network": {"nat": "none", "endpoints": []}}, "network.endpoints", "must have ec2"),
        ({"network": {"nat": "none", "endpoints": ["bedrock-runtime", "ec2"]}},
         "network.endpoints", "must have ecr.api"),
        ({**BALANCER, "network": {"nat": "none", "endpoints": FOR_NODES}}, "network.endpoints",
         "must have elasticloadbalancing"),
        ({"add_ons": {"skip": ["vpc-cni"]}}, "add_ons.skip", "vpc-cni on a new cluster"),
        ({"add_ons": {"skip": ["metrics-server", "coredns"]}}, "add_ons.skip", "coredns"),
        ({"add_ons": {"skip": ["eks-pod-identity-agent"]}}, "add_ons.skip", "identity"),
        ({"nodes": {"taints": [{"key": "core", "effect": "NoSchedule"}]}}, "nodes.taints",
         "add_ons.tolerations"),
        ({"nodes": {"taints": [{"key": "core", "value": "a", "effect": "NoExecute"}]},
          "add_ons": {"tolerations": [{"key": "core", "value": "b"}]}}, "nodes.taints", "core=a:"),
        ({**BALANCER, "certificate": {"domain": "a.example.com", "zone": {"id": "Z0123456789"}},
          "load_balancer": BALANCER["load_balancer"] | {"domain": "b.example.com"}},
         "load_balancer.domain", "must be certificate.domain, a.example.com"),
        ({**BALANCER, "load_balancer": BALANCER["load_balancer"] | {
            "internal": False, "allowed_cidrs": ["0.0.0.0/1", "128.0.0.0/1"]}},
         "load_balancer.allowed_cidrs", "wider than /8"),
        ({**BALANCER, "load_balancer": BALANCER["load_balancer"] | {
            "allowed_cidrs": ["0.0.0.0/1", "128.0.0.0/1"]}},
         "load_balancer.allowed_cidrs", "means nothing when internal"),
        ({"database": {"database_name": "select"}}, "database.database_name", "reserves"),
        ({"database": {"database_name": "db"}}, "database.database_name", "reserves"),
        ({"database": {"max_capacity": 8, "max_connections": 1670}}, "database.max_connections",
         "at most 1669"),
        ({"database": {"min_capacity": 0.5, "max_capacity": 64, "max_connections": 2001}},
         "database.max_connections", "at most 2000"),
        ({"tags": {"owner": "a*b"}}, "tags", "'*'"),
        ({"tags": {"cost#": "x"}}, "tags", "'#'"),
        ({"nodes": "three"}, "nodes", "dictionary"),
        ({"nodes": {"minsize": 3}}, "nodes.minsize", "'min_size'"),
        ({"add_ons": {"versions": {"coredns": "latest"}}}, "add_ons.versions", "not latest"),
        ({"database": {"min_capacity": 3, "max_capacity": 2}}, "database.max_capacity", "at least"),
        ({"database": {"existing": {**DATABASE["existing"], "open_to_cluster": False}}},
         "database.existing", "how clients get in"),
        ({"database": {"existing": {**DATABASE["existing"], "security_group_id": "sg-0d0d0d0d"}}},
         "database.existing", "one of the two"),
        ({"database": {**DATABASE, "instances": 2}}, "database.instances", "existing"),
        ({"objects": {"lifecycle_days": 1, "object_lock_days": 30}}, "objects.lifecycle_days",
         "object_lock_days"),
        ({"objects": {"load_balancer_logs": True}}, "objects.load_balancer_logs",
         "access_log_days"),
        ({**BALANCER, "load_balancer": BALANCER["load_balancer"] | {
            "access_log_days": 30, "access_log_bucket": "their-bucket"}},
         "load_balancer.access_log_bucket", "access_log_days"),
        ({"registry": {"repositories": []}}, "registry.repositories", "at least 1"),
        ({"keys": {"existing": {"disks": KEY}}}, "keys.existing", "secrets, database, objects"),
        ({"keys": {"existing": {"images": KEY}}}, "keys.existing", "has images"),
        ({"keys": {"existing": {"secrets": "x"}}}, "keys.existing.secrets", "KMS key"),
        ({"keys": {"deletion_window_days": 5}}, "keys.deletion_window_days", "greater"),
        ({"keys": {"deletion_window_days": 9, "existing": dict.fromkeys(
            ["secrets", "database", "objects", "logs"], KEY)}}, "keys.deletion_window_days",
         "made"),
        ({"keys": {"retain": True, "existing": dict.fromkeys(
            ["secrets", "database", "objects", "logs"], KEY)}}, "keys.retain", "made"),
        ({"keys": {"retain": False}}, "keys.retain", "database.final_snapshot: false"),
        ({"keys": {"retain": False}, "database": DATABASE}, "keys.retain", "objects.retain: false"),
        ({"keys": {"captures": False, "existing": {"captures": KEY}}}, "keys.existing",
         "has captures"),
        ({"keys": {"captures": True, "retain": False, "existing": {"database": KEY}},
          "objects": {"retain": False}}, "keys.retain", "database.final_snapshot: false"),
        ({"load_balancer": BALANCER["load_balancer"] | {"domain": "models.example.com"}},
         "certificate", "in the clear"),
        ({**BALANCER, "load_balancer": BALANCER["load_balancer"] | {"internal": False},
          "network": {"nat": "none"}}, "network.public_subnets", "must be true"),
        ({**BALANCER, "load_balancer": BALANCER["load_balancer"] | {"internal": False},
          "network": NETWORK}, "network.existing.public_subnet_ids", "must be given"),
        ({**BALANCER, "load_balancer": {"target_port": 8080}}, "load_balancer.allowed_cidrs",
         "is required"),
        ({"certificate": {"domain": "models.example.com"}}, "certificate.zone", "create"),
        ({"cluster": {"existing": {"name": "theirs"}}}, "cluster.api_access_cidrs", "existing"),
        ({"tags": {"aws:x": "y"}}, "tags", "aws:"),
        ({"netwrok": {}}, "netwrok", "'network'"),
    ],
)  # fmt: skip
def test_parts_that_do_not_go_together_are_refused_by_name(
    refused: Any, more: dict[str, Any], path: str, reason: str
) -> None:
    assert reason in refused(make(SMALLEST, more), path)


@pytest.mark.parametrize(
    "args",
    [
        {"network": {"nat": "none", "endpoints": FOR_NODES}},
        {
            "network": {
                "nat": "none",
                "endpoints": [f"com.amazonaws.eu-west-1.{s}" for s in FOR_NODES],
            }
        },
        {"network": {"nat": "shared", "endpoints": []}},
        {"add_ons": {"skip": ["metrics-server", "aws-ebs-csi-driver"]}},
        {"nodes": {"taints": [{"key": "core", "effect": "PreferNoSchedule"}]}},
        {
            "nodes": {"taints": [{"key": "core", "value": "a", "effect": "NoExecute"}]},
            "add_ons": {"tolerations": [{"operator": "Exists"}]},
        },
        {**BALANCER, "load_balancer": BALANCER["load_balancer"] | {"domain": "other.example.com"}},
        {"database": {"min_capacity": 1, "max_capacity": 8, "max_connections": 1669}},
        {"database": {"min_capacity": 1, "max_capacity": 64, "max_connections": 6000}},
        {"tags": {"kosten stelle": "Größe 1.2_a:/=+-@"}},
    ],
)
def test_parts_that_go_together_are_taken(args: dict[str, Any]) -> None:
    FoundationAwsArguments.of({**SMALLEST, **args})


def test_admins_of_another_partition_are_refused(render: Any) -> None:
    admins = ["arn:aws-cn:iam::123456789012:role/Admin"]
    with pytest.raises(Exception, match="must be of partition aws,") as raised:
        render(make(SMALLEST, {"cluster": {"admins": admins}}))
    assert "cluster.admins" in str(raised.value)


@pytest.mark.parametrize(
    ("args", "path", "reason"),
    [
        ({}, "cluster", "is required"),
        ({"cluster": {"existing": {"name": "theirs"}}}, "network.existing", "is required"),
        (
            {**ALL_EXISTING, "keys": {"existing": {"secrets": KEY}}},
            "keys.existing",
            "nothing is encrypted",
        ),
    ],
)
def test_settings_are_checked_without_pulumi(args: dict[str, Any], path: str, reason: str) -> None:
    with pytest.raises(pulumi.InputPropertyError) as raised:
        FoundationAwsArguments.of(args)
    assert raised.value.property_path == path
    assert reason in raised.value.reason


def test_a_range_that_only_aws_knows_is_compared_when_it_is_known(
    render: Any, cloud: Cloud
) -> None:
    unnamed = {key: value for key, value in NETWORK["existing"].items() if key != "cidr"}
    vpc = cloud.answers["aws:ec2/getVpc:getVpc"]
    cloud.answers["aws:ec2/getVpc:getVpc"] = {**vpc, "cidrBlock": "10.50.0.0/16"}
    clash = {"cluster": {"service_cidr": "10.50.0.0/20"}, "network": {"existing": unnamed}}
    with pytest.raises(Exception, match="overlaps") as raised:
        render(make(SMALLEST, clash))
    assert "cluster.service_cidr" in str(raised.value)


@pytest.mark.parametrize("name", ["Upper", "a-name-that-is-too-long", "1st"])
def test_a_name_that_aws_would_refuse_is_refused(render: Any, name: str) -> None:
    with pytest.raises(ValueError, match="1 to 19 lower-case"):
        render(make(SMALLEST, name=name))
