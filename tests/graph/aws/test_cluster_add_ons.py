"""AwsClusterAddOns: what nodes need before there are any, and what needs nodes."""

import json
import re
import typing
from typing import Any

import pulumi
import pytest

import terrace_components as components

from .cloud import Cloud, documents
from .contract import check_component

BEFORE = ["vpc-cni", "kube-proxy", "eks-pod-identity-agent"]
AFTER = ["coredns", "metrics-server", "aws-ebs-csi-driver"]
VARIANTS: dict[str, dict[str, Any]] = {
    "before-nodes": {
        "cluster_name": "a-cluster",
        "phase": "before_nodes",
        "kubernetes_version": "1.36",
        "versions": {"kube-proxy": "v1.36.1-eksbuild.2"},
        "skip": ["eks-pod-identity-agent"],
        "network_policy": False,
        "prefix_delegation": False,
        "tags": {"team": "platform"},
    },
    "after-nodes": {
        "cluster_name": "a-cluster",
        "phase": "after_nodes",
        "tolerations": [
            {"key": "core", "operator": "Equal", "value": "yes", "effect": "NoExecute"},
            {"key": "other", "operator": "Exists"},
        ],
    },
}
PHASES = {"before_nodes": BEFORE, "after_nodes": AFTER}


def make(**changes: Any) -> Any:
    args = {"cluster_name": "a-cluster", "phase": "before_nodes", **changes}
    args = {key: value for key, value in args.items() if value is not None}
    return lambda: components.AwsClusterAddOns("it", typing.cast(Any, args))


def add_ons(graph: Any) -> dict[str, dict[str, Any]]:
    return {r.inputs["addonName"]: r.inputs for r in graph.of("Addon")}


def configuration(add_on: dict[str, Any]) -> dict[str, Any]:
    return json.loads(add_on["configurationValues"])


@pytest.mark.parametrize(("phase", "names"), PHASES.items())
def test_each_phase_has_its_add_ons(render: Any, phase: str, names: list[str]) -> None:
    def program() -> None:
        pulumi.export("names", make(phase=phase)().names)

    graph = render(program)
    assert sorted(add_ons(graph)) == sorted(names)
    assert graph.outputs["names"] == names


@pytest.mark.parametrize("phase", PHASES)
def test_versions_are_pinned_and_code_wins(render: Any, phase: str) -> None:
    for name, add_on in add_ons(render(make(phase=phase))).items():
        assert re.fullmatch(r"v\d+\.\d+\.\d+-eksbuild\.\d+", add_on["addonVersion"]), name
        assert add_on["resolveConflictsOnCreate"] == "OVERWRITE"
        assert add_on["resolveConflictsOnUpdate"] == "OVERWRITE"
        assert add_on["clusterName"] == "a-cluster"


def test_a_version_can_be_chosen(render: Any) -> None:
    made = add_ons(render(make(versions={"vpc-cni": "v1.23.2-eksbuild.1"})))
    assert made["vpc-cni"]["addonVersion"] == "v1.23.2-eksbuild.1"


def test_what_somebody_else_installs_is_left_out(render: Any) -> None:
    made = add_ons(render(make(phase="after_nodes", skip=["metrics-server"])))
    assert sorted(made) == ["aws-ebs-csi-driver", "coredns"]


def test_the_network_of_running_nodes_outlives_the_component(render: Any) -> None:
    assert all(a["preserve"] is True for a in add_ons(render(make())).values())
    after = add_ons(render(make(phase="after_nodes")))
    assert all(a["preserve"] is False for a in after.values())


@pytest.mark.parametrize("on", [True, False])
def test_network_policies_are_enforced_unless_said_otherwise(render: Any, on: bool) -> None:
    cni = add_ons(render(make(network_policy=on)))["vpc-cni"]
    assert configuration(cni)["enableNetworkPolicy"] == str(on).lower()
    default = add_ons(render(make()))["vpc-cni"]
    assert configuration(default)["enableNetworkPolicy"] == "true"


@pytest.mark.parametrize(
    ("on", "environment"),
    [
        (True, {"ENABLE_PREFIX_DELEGATION": "true", "WARM_PREFIX_TARGET": "1"}),
        (False, {"ENABLE_PREFIX_DELEGATION": "false"}),
    ],
)
def test_prefixes(render: Any, on: bool, environment: dict[str, str]) -> None:
    cni = add_ons(render(make(prefix_delegation=on)))["vpc-cni"]
    assert configuration(cni)["env"] == environment


def test_what_runs_on_core_nodes_tolerates_their_taint(render: Any) -> None:
    made = add_ons(render(make(phase="after_nodes")))
    wanted = [{"key": "CriticalAddonsOnly", "operator": "Exists"}]
    assert configuration(made["coredns"])["tolerations"] == wanted
    assert configuration(made["metrics-server"])["tolerations"] == wanted
    assert configuration(made["aws-ebs-csi-driver"])["controller"]["tolerations"] == wanted


def test_other_taints_can_be_tolerated(render: Any) -> None:
    given = [{"key": "core", "value": "yes", "effect": "NoExecute"}, {"operator": "Exists"}]
    made = add_ons(render(make(phase="after_nodes", tolerations=given)))
    assert configuration(made["coredns"])["tolerations"] == [
        {"key": "core", "operator": "Equal", "value": "yes", "effect": "NoExecute"},
        {"operator": "Exists"},
    ]


@pytest.mark.parametrize(
    ("add_on", "service_account", "policy"),
    [
        ("vpc-cni", "aws-node", "AmazonEKS_CNI_Policy"),
        (
            "aws-ebs-csi-driver",
            "ebs-csi-controller-sa",
            "service-role/AmazonEBSCSIDriverPolicy",
        ),
    ],
)
def test_what_calls_aws_has_a_role_of_its_own(
    render: Any, cloud: Cloud, add_on: str, service_account: str, policy: str
) -> None:
    cloud.answers["aws:index/getPartition:getPartition"] = {
        "id": "aws-cn", "partition": "aws-cn", "dnsSuffix": "amazonaws.com.cn",
        "reverseDnsPrefix": "cn.com.amazonaws",
    }  # fmt: skip
    graph = render(make(phase="before_nodes" if add_on in BEFORE else "after_nodes"))
    [attachment] = graph.of("RolePolicyAttachment")
    assert attachment.inputs["policyArn"] == f"arn:aws-cn:iam::aws:policy/{policy}"
    [trust] = documents(graph)
    condition = trust["Statement"][0]["Condition"]["StringEquals"]
    assert condition["aws:RequestTag/kubernetes-namespace"] == "kube-system"
    assert condition["aws:RequestTag/kubernetes-service-account"] == service_account
    [identity] = add_ons(graph)[add_on]["podIdentityAssociations"]
    assert identity["serviceAccount"] == service_account
    assert identity["roleArn"]
    [made] = [r for r in graph.of("Addon") if r.inputs["addonName"] == add_on]
    assert attachment.name in graph.needs(made)
    others = {n: a for n, a in add_ons(graph).items() if n != add_on}
    assert not any("podIdentityAssociations" in a for a in others.values())


def test_older_kubernetes_with_its_kube_proxy(render: Any) -> None:
    versions = {"kube-proxy": "v1.34.6-eksbuild.25"}
    made = add_ons(render(make(kubernetes_version="1.34", versions=versions)))
    assert made["kube-proxy"]["addonVersion"] == "v1.34.6-eksbuild.25"


@pytest.mark.parametrize("phase", PHASES)
def test_a_preview_registers_all(render: Any, phase: str) -> None:
    known, unknown = render(make(phase=phase)), render(make(phase=phase), preview=True)
    assert sorted((r.type, r.name) for r in unknown.resources) == sorted(
        (r.type, r.name) for r in known.resources
    )


def test_the_component_keeps_the_contract(render: Any, snapshot: Any, house_rules: Any) -> None:
    check_component(render, snapshot, house_rules, "AwsClusterAddOns", VARIANTS)


@pytest.mark.parametrize("phase", PHASES)
def test_house_rules(render: Any, house_rules: Any, phase: str) -> None:
    graph = render(make(phase=phase, tags={"team": "a"}))
    house_rules(graph, "it", tags={"team": "a"})
    for resource in graph.resources:
        if "tags" in resource.inputs:
            assert resource.inputs["tags"]["terrace.dev/component"] == "it"


@pytest.mark.parametrize(
    ("changes", "path", "reason"),
    [
        ({"phase": None}, "phase", "is required"),
        ({"phase": "during"}, "phase", "before_nodes, after_nodes"),
        ({"cluster_name": None}, "cluster_name", "is required"),
        ({"versions": {"vpc-cni": "latest"}}, "versions", "not latest"),
        ({"versions": {"vpc-cni": "v1.22.4"}}, "versions", "eksbuild"),
        ({"versions": {"cilium": "v1.0.0-eksbuild.1"}}, "versions", "coredns"),
        ({"versions": {"kube-proxy": "v1.36.0-eksbuild.1"}}, "versions", "up to 3 older"),
        ({"versions": {"kube-proxy": "v1.31.0-eksbuild.1"}}, "versions", "up to 3 older"),
        ({"kubernetes_version": "1.34"}, "versions", "v1.34.x-eksbuild.n"),
        ({"kubernetes_version": "stable"}, "kubernetes_version", "such as 1.35"),
        ({"skip": ["cilium"]}, "skip.0", "coredns"),
        ({"skip": ["coredns", "coredns"]}, "skip", "once"),
        (
            {"skip": ["coredns"], "versions": {"coredns": "v1.13.2-eksbuild.31"}},
            "versions",
            "in skip",
        ),
        ({"tolerations": [{"operator": "Maybe"}]}, "tolerations.0.operator", "Exists"),
        ({"tolerations": [{"effect": "Never"}]}, "tolerations.0.effect", "NoSchedule"),
        ({"tolerations": [{"kee": "x"}]}, "tolerations.0.kee", "'key'"),
        ({"network_policy": "strict"}, "network_policy", "boolean"),
        ({"add_ons": []}, "add_ons", "network_policy"),
    ],
)
def test_nonsense_is_refused_by_name(
    refused: Any, changes: dict[str, Any], path: str, reason: str
) -> None:
    assert reason in refused(make(**changes), path)
