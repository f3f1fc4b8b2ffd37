"""FoundationAws: the parts go together, are made in order, and go in the opposite one."""

from typing import Any

import pytest

from terrace_components.aws import foundation_aws

from .cloud import ACCOUNT, Cloud
from .contract import check_component
from .eks_answers import CLUSTER_GROUP
from .every_answer import PRIVATE, PUBLIC, VPC, answer_everything
from .foundation_sets import (
    ALL_EXISTING,
    BALANCER,
    DATABASE,
    KEY,
    NETWORK,
    SMALLEST,
    VARIANTS,
    exported,
    make,
    merged,
)


@pytest.fixture(autouse=True)
def _account(cloud: Cloud) -> None:
    answer_everything(cloud)


def parts(graph: Any) -> set[str]:
    return {r.type.rpartition(":")[2] for r in graph.resources if r.type.startswith("terrace:")}


def test_the_smallest_is_a_whole_substrate(render: Any) -> None:
    assert parts(render(make(SMALLEST))) == {
        "FoundationAws", "AwsNetwork", "AwsKeys", "AwsCluster", "AwsClusterAddOns", "AwsNodeGroup",
        "AwsDatabase", "AwsBucket",
    }  # fmt: skip


def test_what_is_asked_for_comes_too(render: Any) -> None:
    registry = {"registry": {"repositories": ["gateway"]}}
    assert {"AwsRegistry", "AwsCertificate", "AwsLoadBalancer"} <= parts(
        render(make(SMALLEST, BALANCER, registry))
    )


def test_what_exists_is_not_made(render: Any) -> None:
    graph = render(exported(ALL_EXISTING))
    assert {r.type for r in graph.resources if r.type.startswith(("aws:", "eks:"))} == set()
    assert graph.outputs["cluster_name"] == "theirs"
    assert graph.outputs["vpc_id"] == VPC
    assert graph.outputs["vpc_cidr"] == "10.50.0.0/16"
    assert graph.outputs["database_host"] == "db.example.com"
    assert graph.outputs["bucket_name"] == "their-bucket"
    assert graph.outputs["load_balancer_url"] is None
    assert graph.outputs["target_group_arn"] is None
    assert graph.outputs["repository_urls"] == {}


def test_nodes_and_add_ons_of_an_existing_cluster_where_asked_for(render: Any) -> None:
    nodes = {"nodes": {"min_size": 3}}
    assert "AwsNodeGroup" in parts(render(make(ALL_EXISTING, nodes)))
    assert "AwsClusterAddOns" not in parts(render(make(ALL_EXISTING, nodes)))
    both = render(make(ALL_EXISTING, nodes, {"add_ons": {"skip": ["metrics-server"]}}))
    assert "AwsClusterAddOns" in parts(both)


def test_outputs(render: Any) -> None:
    outputs = render(exported(SMALLEST, BALANCER, {"registry": {"repositories": ["gateway"]}}))
    found = outputs.outputs
    assert found["vpc_cidr"] == "10.20.0.0/16"
    assert found["api_address"] == "172.20.0.1"
    assert found["max_connections"] == 1669
    assert found["load_balancer_url"] == "https://models.example.com"
    assert found["target_group_arn"].startswith("arn:aws:elasticloadbalancing:")
    assert found["load_balancer_security_group_id"].startswith("sg-")
    assert set(found["repository_urls"]) == {"gateway"}
    assert found["master_secret_key_arn"].startswith("arn:aws:kms:")


def test_nodes_live_between_the_network_add_ons_and_the_others(render: Any) -> None:
    """What is needed is made before and deleted after."""
    graph = render(make(SMALLEST))
    [nodes] = graph.of("NodeGroup")
    before = {"it-before-nodes-vpc-cni", "it-before-nodes-kube-proxy"}
    assert before <= graph.needs(nodes)
    for add_on in graph.of("Addon"):
        after = add_on.name.startswith("it-after-nodes-")
        assert (nodes.name in graph.needs(add_on)) is after, add_on.name


def test_the_vpc_goes_when_nothing_is_in_it(render: Any) -> None:
    graph = render(make(SMALLEST, BALANCER))
    [vpc] = graph.of("Vpc")
    in_it = ["NodeGroup", "ClusterInstance", "LoadBalancer", "SubnetGroup"]
    for kind in in_it:
        for resource in (r for r in graph.of(kind) if r.custom):
            assert vpc.name in graph.needs(resource), resource.name
    for cluster in graph.of("Cluster"):
        assert vpc.name in graph.needs(cluster), cluster.name


def test_nodes_have_a_way_out_from_the_first_minute_to_the_last(render: Any) -> None:
    graph = render(make(SMALLEST))
    [nodes] = graph.of("NodeGroup")
    ways = {r.name for r in graph.resources if r.type in {"aws:ec2/route:Route"}}
    assert ways
    assert ways <= graph.needs(nodes)


def test_the_cluster_is_there_before_what_is_in_it(render: Any) -> None:
    graph = render(make(SMALLEST, {"cluster": {"admins": [f"arn:aws:iam::{ACCOUNT}:role/a"]}}))
    for kind in ("NodeGroup", "Addon", "AccessEntry"):
        for resource in graph.of(kind):
            assert "it-cluster-core" in graph.needs(resource), resource.name


def test_the_database_lets_the_nodes_in_and_who_is_named(render: Any) -> None:
    more = {"database": {"client_security_group_ids": ["sg-0a1b2c3d"]}}
    rules = render(make(SMALLEST, more)).of("SecurityGroupIngressRule")
    clients = {r.inputs.get("referencedSecurityGroupId") for r in rules}
    assert {CLUSTER_GROUP, "sg-0a1b2c3d"} <= clients


def test_an_existing_databases_group_lets_the_nodes_in(render: Any) -> None:
    theirs = {**DATABASE["existing"], "security_group_id": "sg-0d0d0d0d", "open_to_cluster": False}
    graph = render(make(SMALLEST, {"database": {"existing": theirs}}))
    [rule] = [
        r
        for r in graph.of("SecurityGroupIngressRule")
        if r.inputs["securityGroupId"] == "sg-0d0d0d0d"
    ]
    assert rule.inputs["referencedSecurityGroupId"] == CLUSTER_GROUP


@pytest.mark.parametrize(
    ("more", "purposes"),
    [
        ({}, {"secrets", "database", "objects", "logs"}),
        (
            {"registry": {"repositories": ["gateway"]}},
            {"secrets", "database", "objects", "images", "logs"},
        ),
        ({"database": DATABASE}, {"secrets", "objects", "logs"}),
        ({"objects": {"existing": {"name": "their-bucket"}}}, {"secrets", "database", "logs"}),
        ({"keys": {"captures": True}}, {"secrets", "database", "objects", "logs", "captures"}),
        ({"keys": {"existing": {"captures": KEY}}}, {"secrets", "database", "objects", "logs"}),
    ],
)
def test_there_is_a_key_for_what_is_encrypted_here(
    render: Any, more: dict[str, Any], purposes: set[str]
) -> None:
    keys = {r.name for r in render(make(SMALLEST, more)).of("Key")}
    assert keys == {f"it-keys-{purpose}" for purpose in purposes}


@pytest.mark.parametrize(
    ("keys", "network", "there"),
    [
        ({"captures": True}, {"nat": "none"}, True),
        ({"existing": {"captures": KEY}}, {"nat": "none"}, True),
        ({}, {"nat": "none"}, False),
        ({"captures": True}, {"nat": "shared"}, False),
        ({"captures": True}, {"nat": "shared", "endpoints": ["kms"]}, True),
    ],
)
def test_who_seals_captures_reaches_kms_without_the_internet(
    render: Any, keys: dict[str, Any], network: dict[str, Any], there: bool
) -> None:
    graph = render(make(SMALLEST, {"keys": keys, "network": network}))
    endpoints = {r.name for r in graph.of("VpcEndpoint")}
    assert ("it-network-kms" in endpoints) == there
    assert ("it-network-bedrock-runtime" in endpoints) == (network["nat"] == "none")


def test_each_part_gets_its_key(render: Any) -> None:
    purposes = ["secrets", "database", "objects", "images", "logs"]
    arns = {purpose: KEY[:-1] + str(n) for n, purpose in enumerate(purposes)}
    graph = render(
        make(SMALLEST, {"registry": {"repositories": ["gateway"]}, "keys": {"existing": arns}})
    )
    [eks] = [r for r in graph.of("Cluster") if r.type.startswith("eks:")]
    [aurora] = [r for r in graph.of("Cluster") if r.type.startswith("aws:")]
    [repository] = graph.of("Repository")
    assert eks.inputs["encryptionConfigKeyArn"] == arns["secrets"]
    assert aurora.inputs["kmsKeyId"] == arns["database"]
    assert arns["images"] in str(repository.inputs["encryptionConfigurations"])
    assert {r.inputs["kmsKeyId"] for r in graph.of("LogGroup")} == {arns["logs"]}
    assert any(arns["objects"] in str(r.inputs) for r in graph.resources)
    assert not graph.of("Key")


def test_versions_follow_the_cluster(render: Any) -> None:
    older: dict[str, Any] = {
        "cluster": {"kubernetes_version": "1.34"},
        "nodes": {"ami_release_version": "1.34.9-20260911"},
        "add_ons": {"versions": {"kube-proxy": "v1.34.6-eksbuild.25"}},
    }
    graph = render(make(SMALLEST, older))
    assert graph.of("NodeGroup")[0].inputs["version"] == "1.34"
    lagging = merged(SMALLEST, {"nodes": older["nodes"] | {"kubernetes_version": "1.34"}})
    assert render(make(lagging)).of("NodeGroup")[0].inputs["version"] == "1.34"


def test_prefixes_are_for_a_vpc_of_our_own(render: Any) -> None:
    for network, expected in (({}, True), ({"network": NETWORK}, False)):
        graph = render(make(SMALLEST, network))
        [cni] = [r for r in graph.of("Addon") if r.inputs["addonName"] == "vpc-cni"]
        assert ('"ENABLE_PREFIX_DELEGATION": "true"' in cni.inputs["configurationValues"]) is (
            expected
        )


def test_a_public_load_balancer_stands_in_public_subnets(render: Any) -> None:
    public = {"load_balancer": {"internal": False, "allowed_cidrs": ["203.0.113.0/24"]}}
    graph = render(
        make(
            SMALLEST,
            BALANCER,
            public,
            {"network": {"existing": {**NETWORK["existing"], "public_subnet_ids": PUBLIC}}},
        )
    )
    [balancer] = [r for r in graph.of("LoadBalancer") if r.custom]
    assert balancer.inputs["subnets"] == PUBLIC
    internal = render(make(SMALLEST, BALANCER, {"network": NETWORK}))
    [balancer] = [r for r in internal.of("LoadBalancer") if r.custom]
    assert balancer.inputs["subnets"] == PRIVATE


def test_the_record_of_a_zone(render: Any) -> None:
    zoned = {"certificate": {"domain": "models.example.com", "zone": {"create": "example.com"}}}
    balancer = {"load_balancer": BALANCER["load_balancer"]}
    graph = render(make(SMALLEST, zoned, balancer))
    [alias] = [r for r in graph.of("Record") if r.inputs["type"] == "A"]
    assert alias.inputs["name"] == "models.example.com"


def test_access_logs_have_a_bucket_of_their_own(render: Any) -> None:
    days = {"load_balancer": {"access_log_days": 30}}
    graph = render(make(SMALLEST, BALANCER, days))
    [balancer] = [r for r in graph.of("LoadBalancer") if r.custom]
    name = balancer.inputs["accessLogs"]["bucket"]
    assert name.startswith("it-access-logs")
    policies = [r for r in graph.of("BucketPolicy") if r.inputs["bucket"] == name]
    assert any("logdelivery.elasticloadbalancing" in r.inputs["policy"] for r in policies)
    given = {"load_balancer": {"access_log_bucket": "their-bucket"}}
    [theirs] = [r for r in render(make(SMALLEST, BALANCER, given)).of("LoadBalancer") if r.custom]
    assert theirs.inputs["accessLogs"]["bucket"] == "their-bucket"


def test_the_component_keeps_the_contract(render: Any, snapshot: Any, house_rules: Any) -> None:
    check_component(render, snapshot, house_rules, "FoundationAws", VARIANTS)


def test_tags_are_on_everything(render: Any, house_rules: Any) -> None:
    graph = render(make(SMALLEST, BALANCER, {"tags": {"team": "a"}}))
    house_rules(graph, "it", tags={"team": "a"})


def test_two_in_one_account_share_no_name(render: Any) -> None:
    def names(name: str) -> set[str]:
        graph = render(make(SMALLEST, BALANCER, name=name))
        return {
            str(r.inputs[key])
            for r in graph.resources
            for key in ("name", "clusterIdentifier", "bucket", "finalSnapshotIdentifier")
            if r.type.startswith(("aws:", "eks:")) and key in r.inputs
            and r.type != "aws:route53/record:Record"
        }  # fmt: skip

    assert names("one")
    assert not names("one") & names("two")


def test_a_preview_registers_all(render: Any) -> None:
    program = exported(SMALLEST, BALANCER, {"registry": {"repositories": ["gateway"]}})
    known, unknown = render(program), render(program, preview=True)
    assert sorted((r.type, r.name) for r in unknown.resources) == sorted(
        (r.type, r.name) for r in known.resources
    )


class _StopError(Exception):
    """The part has what it was given; nothing more is wanted of it."""


PARTS = {
    "network": "AwsNetwork",
    "keys": "AwsKeys",
    "cluster": "AwsCluster",
    "add_ons": "AwsClusterAddOns",
    "nodes": "AwsNodeGroup",
    "database": "AwsDatabase",
    "objects": "AwsBucket",
    "registry": "AwsRegistry",
    "certificate": "AwsCertificate",
    "load_balancer": "AwsLoadBalancer",
}


@pytest.mark.parametrize(
    ("variant", "section"),
    [(v, s) for v, args in VARIANTS.items() for s in PARTS if s in args],
)
def test_every_setting_reaches_its_part(
    render: Any, monkeypatch: pytest.MonkeyPatch, variant: str, section: str
) -> None:
    """As it was written; what another part gives is added, never put in its place."""
    given = VARIANTS[variant][section]
    reached: dict[str, Any] = {}

    def stop(_: str, args: dict[str, Any], opts: Any = None) -> None:
        reached.update(args)
        raise _StopError

    monkeypatch.setattr(foundation_aws, PARTS[section], stop)
    with pytest.raises(_StopError):
        render(make(VARIANTS[variant]))
    ours = {"access_log_days", "captures", "client_security_group_ids"}  # have tests of their own
    for key, value in given.items():
        if key not in ours:
            assert reached[key] == value, key
