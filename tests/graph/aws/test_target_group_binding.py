"""Pods of a Service as targets, let in from the load balancer and from nowhere else."""

from typing import Any

import pulumi
import pytest

import terrace_components as components

from .contract import check_component, make
from .test_load_balancer_controller import GROUP, LEAST

NAME = "TargetGroupBinding"
VARIANTS = {
    "every": {
        "namespace": "terrace-gateway",
        "service": "gateway",
        "port": 8080,
        "target_group_arn": GROUP,
        "load_balancer_security_group_id": "sg-0a1b2c3d",
    }
}


def test_the_component_keeps_the_contract(render: Any, snapshot: Any, house_rules: Any) -> None:
    check_component(render, snapshot, house_rules, NAME, VARIANTS)


def test_pods_are_targets_by_their_addresses(render: Any) -> None:
    [binding] = [r for r in render(make(NAME, VARIANTS["every"])).of(NAME) if r.custom]
    assert binding.type == "kubernetes:elbv2.k8s.aws/v1beta1:TargetGroupBinding"
    assert binding.object_name == "terrace-gateway/gateway"
    assert binding.inputs["spec"] == {
        "serviceRef": {"name": "gateway", "port": 8080},
        "targetGroupARN": GROUP,
        "targetType": "ip",
        "networking": {
            "ingress": [
                {
                    "from": [{"securityGroup": {"groupID": "sg-0a1b2c3d"}}],
                    "ports": [{"protocol": "TCP", "port": 8080}],
                }
            ]
        },
    }


def test_after_the_controller_and_before_its_end(render: Any) -> None:
    """Its kind is the controller's, and so is its finalizer."""

    def program() -> None:
        controller = components.AwsLoadBalancerController("lbc", LEAST)  # type: ignore[arg-type]
        components.TargetGroupBinding(
            "it",
            VARIANTS["every"],
            pulumi.ResourceOptions(depends_on=[controller]),  # type: ignore[arg-type]
        )

    graph = render(program)
    [binding] = [r for r in graph.of(NAME) if r.custom]
    assert graph.one("Release").name in graph.needs(binding)


def test_outputs_of_other_parts_are_taken(render: Any) -> None:
    def program() -> None:
        known = pulumi.Output.from_input
        make(
            NAME, VARIANTS["every"], namespace=known("terrace-gateway"),
            target_group_arn=known(GROUP), load_balancer_security_group_id=known("sg-0a1b2c3d"),
        )()  # fmt: skip

    assert render(program).rows() == render(make(NAME, VARIANTS["every"])).rows()


@pytest.mark.parametrize(
    ("changes", "path", "reason"),
    [
        ({"target_group_arn": "gateway"}, "target_group_arn", "the ARN of a target group"),
        ({"load_balancer_security_group_id": "sg"}, "load_balancer_security_group_id", "sg-0a1b"),
        ({"port": 0}, "port", "greater than"),
        ({"service": "The Gateway"}, "service", "pattern"),
        ({"namespace": ""}, "namespace", "not empty"),
    ],
)
def test_nonsense_is_refused_by_name(
    refused: Any, changes: dict[str, Any], path: str, reason: str
) -> None:
    assert reason in refused(make(NAME, VARIANTS["every"], **changes), path)
