"""The controller registers pods as targets, and may make no load balancer of its own."""

import json
from typing import Any

import pulumi
import pytest

from .contract import check_component, make
from .iam_lint import problems

GROUP = "arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/gateway/0123456789abcdef"
IMAGE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/lbc:v2.13.4@sha256:" + "a" * 64
LEAST: dict[str, Any] = {
    "cluster_name": "a-cluster",
    "vpc_id": "vpc-0a1b2c3d",
    "region": "eu-west-1",
    "chart_version": "1.13.4",
    "target_group_arns": [GROUP],
}
VARIANTS = {
    "every": {
        **LEAST,
        "replicas": 3,
        "image": IMAGE,
        "namespace": "load-balancing",
        "node_selector": {"terrace.dev/nodes": "core"},
        "tolerations": [{"key": "other", "operator": "Exists"}],
        "timeout_seconds": 300,
        "tags": {"team": "platform"},
    },
    "least": LEAST,
}
NAME = "AwsLoadBalancerController"


@pytest.fixture
def statements(render: Any) -> dict[str, Any]:
    text = render(make(NAME, LEAST)).one("RolePolicy").inputs["policy"]
    assert problems(text) == []
    return {s["Sid"]: s for s in json.loads(text)["Statement"]}


def test_the_component_keeps_the_contract(render: Any, snapshot: Any, house_rules: Any) -> None:
    check_component(render, snapshot, house_rules, NAME, VARIANTS)


def test_it_may_only_read_and_register_targets(statements: dict[str, Any]) -> None:
    assert set(statements) == {"Read", "Targets", "LetTheLoadBalancerIn"}
    assert all(":Describe" in action for action in statements["Read"]["Action"])
    assert statements["Targets"]["Action"] == [
        "elasticloadbalancing:DeregisterTargets",
        "elasticloadbalancing:RegisterTargets",
    ]
    assert statements["Targets"]["Resource"] == [GROUP]


def test_it_opens_security_groups_of_its_own_cluster_only(statements: dict[str, Any]) -> None:
    statement = statements["LetTheLoadBalancerIn"]
    assert statement["Resource"] == ["arn:aws:ec2:eu-west-1:123456789012:security-group/*"]
    assert statement["Condition"] == {
        "StringEquals": {"aws:ResourceTag/kubernetes.io/cluster/a-cluster": "owned"}
    }


def test_the_chart_is_pinned_and_an_installation_that_fails_is_undone(render: Any) -> None:
    release = render(make(NAME, VARIANTS["every"])).one("Release").inputs
    assert (release["chart"], release["version"]) == ("aws-load-balancer-controller", "1.13.4")
    assert release["repositoryOpts"] == {"repo": "https://aws.github.io/eks-charts"}
    assert (release["atomic"], release["cleanupOnFail"], release["timeout"]) == (True, True, 300)
    assert release["namespace"] == "load-balancing"


def test_pods_are_made_after_their_rights(render: Any) -> None:
    graph = render(make(NAME, LEAST))
    release = graph.one("Release")
    association = graph.one("PodIdentityAssociation")
    assert association.name in graph.needs(release)
    account = release.inputs["values"]["serviceAccount"]["name"]
    assert association.inputs["serviceAccount"] == account
    assert association.inputs["namespace"] == release.inputs["namespace"] == "kube-system"


def test_it_serves_no_ingress_and_no_service(render: Any) -> None:
    values = render(make(NAME, LEAST)).one("Release").inputs["values"]
    assert values["createIngressClassResource"] is False
    assert values["disableIngressClassAnnotation"] is True
    assert values["enableServiceMutatorWebhook"] is False
    assert values["enableBackendSecurityGroup"] is False
    assert values["controllerConfig"]["featureGates"] == {"EnableServiceController": False}


def test_it_asks_no_metadata_service_and_fits_the_core_nodes(render: Any) -> None:
    values = render(make(NAME, LEAST)).one("Release").inputs["values"]
    assert (values["clusterName"], values["vpcId"], values["region"]) == (
        "a-cluster",
        "vpc-0a1b2c3d",
        "eu-west-1",
    )
    assert values["tolerations"] == [{"key": "CriticalAddonsOnly", "operator": "Exists"}]
    assert values["replicaCount"] == 2
    assert values["resources"]["limits"]["memory"]


def test_the_image_goes_by_tag_and_digest(render: Any) -> None:
    image = render(make(NAME, VARIANTS["every"])).one("Release").inputs["values"]["image"]
    assert f"{image['repository']}:{image['tag']}" == IMAGE
    assert image["tag"].startswith("v2.13.4@sha256:")


def test_outputs_of_other_parts_are_taken(render: Any) -> None:
    def program() -> None:
        known = pulumi.Output.from_input
        make(
            NAME, LEAST, cluster_name=known("a-cluster"), vpc_id=known("vpc-0a1b2c3d"),
            region=known("eu-west-1"), target_group_arns=[known(GROUP)],
        )()  # fmt: skip

    assert render(program).rows() == render(make(NAME, LEAST)).rows()


@pytest.mark.parametrize(
    ("changes", "path", "reason"),
    [
        ({"chart_version": "^1.13"}, "chart_version", "one exact version"),
        ({"chart_version": "latest"}, "chart_version", "one exact version"),
        ({"image": "lbc:v2"}, "image", "tag and digest"),
        ({"image": "lbc@sha256:" + "a" * 64}, "image", "tag and digest"),
        ({"region": "europe"}, "region", "AWS region such as"),
        ({"vpc_id": "a-vpc"}, "vpc_id", "a VPC's id"),
        ({"target_group_arns": []}, "target_group_arns", "at least 1"),
        ({"target_group_arns": ["arn:x"]}, "target_group_arns.0", "the ARN of a target group"),
        ({"replicas": 0}, "replicas", "greater than"),
        ({"timeout_seconds": 5}, "timeout_seconds", "60"),
        ({"namespace": "Kube System"}, "namespace", "pattern"),
    ],
)
def test_nonsense_is_refused_by_name(
    refused: Any, changes: dict[str, Any], path: str, reason: str
) -> None:
    assert reason in refused(make(NAME, LEAST, **changes), path)
