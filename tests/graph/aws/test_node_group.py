"""AwsNodeGroup: a pinned image, a closed metadata service, and room for what must run."""

import base64
import re
import typing
from typing import Any

import pulumi
import pytest
from hypothesis import given
from hypothesis import strategies as st

import terrace_components as components
from terrace_components.aws.node_settings import NodeSettings

from .cloud import Cloud, documents
from .contract import check_component
from .eks_answers import answer_clusters

KEY = "arn:aws:kms:eu-west-1:123456789012:key/0a1b2c3d-0000-4000-8000-000000000000"
NEEDED: dict[str, Any] = {
    "cluster_name": "a-cluster",
    "subnet_ids": ["subnet-0a1b2c3d", "subnet-0a1b2c3e"],
}
CAPACITY: dict[str, Any] = {
    "vcpus": 8, "memory_gib": 64, "network_interfaces": 4, "addresses_per_interface": 15
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "least": NEEDED,
    "every": {
        **NEEDED,
        "kubernetes_version": "1.34",
        "ami_release_version": "1.34.9-20260911",
        "instance_types": ["x2gd.2xlarge", "m7g.2xlarge"],
        "instance_capacity": {**CAPACITY, "arm64": True},
        "min_size": 4,
        "max_size": 9,
        "autoscaled": True,
        "reserve": {"cpu": "3", "memory": "4Gi", "pods": 12},
        "prefix_delegation": False,
        "disk_gib": 100,
        "disk_key_arn": KEY,
        "labels": {"terrace.dev/nodes": "other"},
        "taints": [{"key": "other", "value": "yes", "effect": "NoExecute"}],
        "tags": {"team": "platform"},
    },
}


@pytest.fixture(autouse=True)
def _eks(cloud: Cloud) -> None:
    answer_clusters(cloud)


def make(**changes: Any) -> Any:
    args = {**NEEDED, **changes}
    args = {key: value for key, value in args.items() if value is not None}
    return lambda: components.AwsNodeGroup("it", typing.cast(Any, args))


def group_of(render: Any, **changes: Any) -> dict[str, Any]:
    [group] = [r for r in render(make(**changes)).of("NodeGroup")]
    return group.inputs


def template_of(render: Any, **changes: Any) -> dict[str, Any]:
    return render(make(**changes)).of("LaunchTemplate")[0].inputs


def test_the_image_is_pinned(render: Any) -> None:
    group = group_of(render)
    assert group["amiType"] == "AL2023_x86_64_STANDARD"
    assert re.fullmatch(r"1\.35\.\d+-\d{8}", group["releaseVersion"])
    assert group["version"] == "1.35"
    assert "imageId" not in template_of(render)


def test_graviton_gets_its_image(render: Any) -> None:
    assert group_of(render, instance_types=["m7g.xlarge"])["amiType"] == "AL2023_ARM_64_STANDARD"


def test_pods_cannot_reach_the_metadata_service(render: Any) -> None:
    options = template_of(render)["metadataOptions"]
    assert options["httpTokens"] == "required"
    assert options["httpPutResponseHopLimit"] == 1


@pytest.mark.parametrize("key", [None, KEY])
def test_disks_are_encrypted(render: Any, key: str | None) -> None:
    [device] = template_of(render, disk_gib=123, disk_key_arn=key)["blockDeviceMappings"]
    assert device["ebs"]["encrypted"] == "true"
    assert (device["ebs"]["volumeType"], device["ebs"]["volumeSize"]) == ("gp3", 123)
    assert device["ebs"].get("kmsKeyId") == key


def test_instances_and_disks_carry_the_tags(render: Any) -> None:
    specifications = template_of(render, tags={"team": "a"})["tagSpecifications"]
    assert {s["resourceType"] for s in specifications} == {
        "instance", "volume", "network-interface"
    }  # fmt: skip
    assert all(s["tags"]["team"] == "a" and s["tags"]["Name"] == "it" for s in specifications)


@pytest.mark.parametrize(("prefixes", "pods"), [(True, 110), (False, 58)])
def test_nodes_take_as_many_pods_as_the_cni_has_addresses_for(
    render: Any, prefixes: bool, pods: int
) -> None:
    template = template_of(
        render, instance_types=["m7i.2xlarge", "m7i.xlarge"], prefix_delegation=prefixes
    )
    assert f"maxPods: {pods}\n" in base64.b64decode(template["userData"]).decode()


def test_the_role_joins_and_pulls_and_no_more(render: Any, cloud: Cloud) -> None:
    cloud.answers["aws:index/getPartition:getPartition"] = {
        "id": "aws-cn", "partition": "aws-cn", "dnsSuffix": "amazonaws.com.cn",
        "reverseDnsPrefix": "cn.com.amazonaws",
    }  # fmt: skip
    graph = render(make())
    assert {r.inputs["policyArn"] for r in graph.of("RolePolicyAttachment")} == {
        "arn:aws-cn:iam::aws:policy/AmazonEKSWorkerNodePolicy",
        "arn:aws-cn:iam::aws:policy/AmazonEC2ContainerRegistryPullOnly",
    }
    assert not graph.of("RolePolicy")
    [trust] = documents(graph)
    assert trust["Statement"][0]["Principal"] == {"Service": "ec2.amazonaws.com.cn"}


def test_rights_come_before_nodes_and_go_after_them(render: Any) -> None:
    graph = render(make())
    [group] = graph.of("NodeGroup")
    assert {r.name for r in graph.of("RolePolicyAttachment")} <= graph.needs(group)


def test_core_is_labelled_and_closed_to_what_does_not_say_so(render: Any) -> None:
    group = group_of(render)
    assert group["labels"] == {"terrace.dev/nodes": "core"}
    assert group["taints"] == [
        {"key": "CriticalAddonsOnly", "value": "true", "effect": "NO_SCHEDULE"}
    ]


@pytest.mark.parametrize(
    ("kubernetes", "eks"),
    [
        ("NoSchedule", "NO_SCHEDULE"),
        ("NoExecute", "NO_EXECUTE"),
        ("PreferNoSchedule", "PREFER_NO_SCHEDULE"),
    ],
)
def test_effects_are_spelt_as_eks_does(render: Any, kubernetes: str, eks: str) -> None:
    [taint] = group_of(render, taints=[{"key": "a", "effect": kubernetes}])["taints"]
    assert taint == {"key": "a", "value": "", "effect": eks}


def test_the_number_of_nodes_is_pulumis_unless_autoscaled(render: Any) -> None:
    [fixed] = render(make(min_size=4, max_size=9)).of("NodeGroup")
    assert fixed.inputs["scalingConfig"] == {"minSize": 4, "maxSize": 9, "desiredSize": 4}
    assert "ignoreChanges" not in fixed.options
    [free] = render(make(autoscaled=True)).of("NodeGroup")
    assert free.options["ignoreChanges"] == ["scalingConfig.desiredSize"]


def test_updates_take_one_node_at_a_time_and_sick_nodes_are_replaced(render: Any) -> None:
    group = group_of(render)
    assert group["updateConfig"] == {"maxUnavailable": 1}
    assert group["nodeRepairConfig"] == {"enabled": True}
    assert group["capacityType"] == "ON_DEMAND"
    assert "forceUpdateVersion" not in group


def test_a_type_that_the_table_does_not_have_is_described(render: Any) -> None:
    group = group_of(render, instance_types=["x2gd.2xlarge"], instance_capacity=CAPACITY)
    assert group["instanceTypes"] == ["x2gd.2xlarge"]


def test_what_is_left_is_what_nodes_have_less_the_reserve(render: Any) -> None:
    def program(reserve: dict[str, Any]) -> Any:
        def body() -> None:
            made = make(reserve=reserve)()
            pulumi.export("cpu", made.free_millicores)
            pulumi.export("memory", made.free_memory_mib)
            pulumi.export("pods", made.free_pods)

        return body

    less = render(program({"cpu": "1", "memory": "1Gi", "pods": 5})).outputs
    more = render(program({"cpu": "2", "memory": "2Gi", "pods": 15})).outputs
    assert less["cpu"] - more["cpu"] == 1000
    assert less["memory"] - more["memory"] == 1024
    assert less["pods"] - more["pods"] == 10
    assert min(more.values()) > 0


@pytest.mark.parametrize(
    ("changes", "would_fit"),
    [
        # One node of two must hold 2720m.
        ({"instance_types": ["m7i.large"], "min_size": 2}, ("min_size 3", "m7i.xlarge")),
        ({"instance_types": ["t3.large"], "min_size": 1}, ("min_size 3", "t3.xlarge")),
        ({"reserve": {"memory": "200Gi"}}, ("min_size 17", "m7i.8xlarge")),
        ({"reserve": {"pods": 300}, "prefix_delegation": False}, ("min_size 7", "m7i.8xlarge")),
    ],
)
def test_what_must_run_and_does_not_fit_is_refused_with_what_would(
    refused: Any, changes: dict[str, Any], would_fit: tuple[str, ...]
) -> None:
    reason = refused(make(**changes), "reserve")
    assert "does not fit" in reason
    assert all(option in reason for option in would_fit), reason


@given(
    size=st.sampled_from(["m7i.large", "m7i.xlarge", "c7g.large", "t3.large", "r6a.xlarge"]),
    nodes=st.integers(1, 6),
    cpu=st.integers(1, 20_000),
    memory=st.integers(1, 60_000),
    pods=st.integers(0, 700),
)
def test_what_the_error_says_would_fit_does(
    size: str, nodes: int, cpu: int, memory: int, pods: int
) -> None:
    """Follow the advice: it is accepted. And one node less than advised is refused."""
    settings: dict[str, Any] = {
        "instance_types": [size], "min_size": nodes, "max_size": 450,
        "reserve": {"cpu": f"{cpu}m", "memory": f"{memory}Mi", "pods": pods},
    }  # fmt: skip
    reason = _refusal(settings)
    for more_nodes, larger in re.findall(
        r"min_size (\d+)|instance type ([a-z0-9.-]+)", reason or ""
    ):
        if more_nodes:
            assert _refusal({**settings, "min_size": int(more_nodes)}) is None
            assert _refusal({**settings, "min_size": int(more_nodes) - 1}) is not None
        else:
            assert _refusal({**settings, "instance_types": [larger]}) is None


def _refusal(settings: dict[str, Any]) -> str | None:
    try:
        NodeSettings.of(settings)
    except pulumi.InputPropertyError as error:
        return f"{error.property_path}: {error.reason}"
    return None


def test_a_preview_registers_all(render: Any) -> None:
    known, unknown = render(make()), render(make(), preview=True)
    assert sorted((r.type, r.name) for r in unknown.resources) == sorted(
        (r.type, r.name) for r in known.resources
    )


def test_the_component_keeps_the_contract(render: Any, snapshot: Any, house_rules: Any) -> None:
    check_component(render, snapshot, house_rules, "AwsNodeGroup", VARIANTS)


def test_house_rules(render: Any, house_rules: Any) -> None:
    house_rules(render(make(tags={"team": "a"})), "it", tags={"team": "a"})


@pytest.mark.parametrize(
    ("changes", "path", "reason"),
    [
        ({"cluster_name": None}, "cluster_name", "is required"),
        ({"cluster_name": ""}, "cluster_name", "not empty"),
        ({"subnet_ids": []}, "subnet_ids", "at least 1"),
        ({"ami_release_version": "latest"}, "ami_release_version", "an alias or latest"),
        ({"ami_release_version": "al2023@latest"}, "ami_release_version", "1.35.7-2026"),
        ({"ami_release_version": "1.34.1-20260101"}, "ami_release_version", "begin with 1.35."),
        ({"kubernetes_version": "1.34"}, "ami_release_version", "begin with 1.34."),
        ({"kubernetes_version": "newest"}, "kubernetes_version", "such as 1.35"),
        ({"instance_types": []}, "instance_types", "at least 1"),
        ({"instance_types": ["m7i.xlarge"] * 2}, "instance_types", "once"),
        ({"instance_types": ["m7i.xlarge", "m7g.xlarge"]}, "instance_types", "one architecture"),
        ({"instance_types": ["z1d.large"]}, "instance_types", "instance_capacity"),
        ({"instance_types": ["big"]}, "instance_types", "instance_capacity"),
        ({"instance_capacity": {**CAPACITY, "vcpus": 0}}, "instance_capacity.vcpus", "greater"),
        ({"min_size": 0}, "min_size", "greater"),
        ({"min_size": 4, "max_size": 3}, "max_size", "at least min_size, 4"),
        ({"disk_gib": 5}, "disk_gib", "greater"),
        ({"disk_key_arn": "alias/x"}, "disk_key_arn", "not of an alias"),
        ({"labels": {"not a key": "x"}}, "labels", "label's key"),
        ({"labels": {"a": "not a value"}}, "labels", "label's value"),
        ({"labels": {"node.kubernetes.io/x": "y"}}, "labels", "not for users"),
        ({"labels": {"eks.amazonaws.com/x": "y"}}, "labels", "EKS's own"),
        ({"labels": {"katacontainers.io/kata-runtime": "true"}}, "labels", "nested virtual"),
        ({"taints": [{"key": "kata", "effect": "NoSchedule"}]}, "taints", "nested virtual"),
        ({"taints": [{"key": "a", "effect": "NO_SCHEDULE"}]}, "taints.0.effect", "NoSchedule"),
        ({"taints": [{"key": "a", "effect": "NoExecute"}] * 2}, "taints", "once"),
        ({"taints": [{"effect": "NoExecute"}]}, "taints.0.key", "is required"),
        ({"reserve": {"cpu": "much"}}, "reserve.cpu", "such as 500m"),
        ({"reserve": {"memory": "much"}}, "reserve.memory", "such as 500Mi"),
        ({"reserve": {"pods": -1}}, "reserve.pods", "greater"),
        ({"reserve": {"gpu": 1}}, "reserve.gpu", "cpu, memory, pods"),
        ({"nested_virtualization": True}, "args", "Karpenter's, or bare metal"),
        ({"cpu_options": {"nested_virtualization": "enabled"}}, "args", "Karpenter's"),
        ({"autoscaled": "often"}, "autoscaled", "boolean"),
        ({"instance_type": "m7i.large"}, "instance_type", "'instance_types'"),
    ],
)
def test_nonsense_is_refused_by_name(
    refused: Any, changes: dict[str, Any], path: str, reason: str
) -> None:
    assert reason in refused(make(**changes), path)


def test_bare_metal_may_run_microvms(render: Any) -> None:
    metal: dict[str, Any] = {**CAPACITY, "vcpus": 96, "memory_gib": 384}
    group = group_of(
        render,
        instance_types=["c5.metal"],
        instance_capacity=metal,
        labels={"katacontainers.io/kata-runtime": "true"},
    )
    assert group["labels"] == {"katacontainers.io/kata-runtime": "true"}
