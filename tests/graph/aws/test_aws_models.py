"""What the substrate registers is what AWS's APIs take."""

from typing import Any

import pytest

from .aws_models import OPERATIONS, checked
from .cloud import Cloud
from .every_answer import answer_everything
from .foundation_sets import BALANCER, SMALLEST, VARIANTS, WAF, make

SETS: dict[str, tuple[dict[str, Any], ...]] = {
    **{name: (args,) for name, args in VARIANTS.items()},
    "waf": (
        SMALLEST,
        {**BALANCER, "load_balancer": {**BALANCER["load_balancer"], "waf": WAF}},
        {"registry": {"repositories": ["gateway"]}},
    ),
}
# Texts of which the models say something, per set that makes them; a walk that finds none of these
# checks nothing.
FOUND = {
    "aws:cloudwatch/logGroup:LogGroup": ".logGroupName",
    "aws:ecr/repository:Repository": ".imageTagMutability",
    "aws:iam/role:Role": ".description",
    "aws:iam/rolePolicy:RolePolicy": ".PolicyDocument",
    "aws:kms/key:Key": ".description",
    "aws:lb/loadBalancer:LoadBalancer": ".Type",
    "aws:wafv2/webAcl:WebAcl": ".description",
}


@pytest.fixture(autouse=True)
def _account(cloud: Cloud) -> None:
    answer_everything(cloud)


@pytest.mark.parametrize("name", SETS)
def test_every_text_is_one_that_the_api_takes(render: Any, name: str) -> None:
    wrong = [
        f"{resource.type} {resource.name}{path}: {reason}"
        for resource in render(make(*SETS[name])).resources
        if resource.type in OPERATIONS
        for path, reason in checked(resource.type, resource.inputs)
        if reason is not None
    ]
    assert not wrong, "\n".join(wrong)


def test_the_models_have_rules_for_our_texts(render: Any) -> None:
    found = {
        (resource.type, path)
        for args in SETS.values()
        for resource in render(make(*args)).resources
        if resource.type in OPERATIONS
        for path, _ in checked(resource.type, resource.inputs)
    }
    assert set(FOUND.items()) <= found


@pytest.mark.parametrize(
    ("type", "inputs", "path"),
    [
        ("aws:wafv2/webAcl:WebAcl", {"description": "limit; rules"}, ".description"),
        (
            "aws:wafv2/webAcl:WebAcl",
            {"rules": [{"visibilityConfig": {"metricName": "a b"}}]},
            ".rules[0].visibilityConfig.metricName",
        ),
        ("aws:wafv2/webAcl:WebAcl", {"scope": "GLOBAL"}, ".scope"),
        ("aws:iam/role:Role", {"tags": {"team": "a,b"}}, ".tags[0].Value"),
        ("aws:iam/role:Role", {"description": "\u2013"}, ".description"),
        ("aws:cloudwatch/logGroup:LogGroup", {"name": "a b"}, ".logGroupName"),
    ],
)
def test_what_the_api_refuses_is_found(type: str, inputs: dict[str, Any], path: str) -> None:
    [reason] = [reason for where, reason in checked(type, inputs) if where == path]
    assert reason
