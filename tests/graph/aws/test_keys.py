"""KMS keys: one per purpose, rotated, with a policy that lets nobody in by name but the account."""

import json
from typing import Any

import pulumi
import pytest

import terrace_components as components

from .cloud import ACCOUNT
from .contract import check_component, make

OURS = "arn:aws:kms:eu-west-1:123456789012:key/11111111-2222-4333-8444-555555555555"
VARIANTS = {
    "new": {
        "purposes": ["secrets", "logs"],
        "deletion_window_days": 7,
        "retain": False,
        "tags": {"team": "platform"},
    },
    "mixed": {"purposes": ["secrets", "logs"], "existing": {"secrets": OURS}},
}


def policy(graph: Any, name: str) -> list[dict[str, Any]]:
    [key] = [r for r in graph.of("Key") if r.name == name]
    return json.loads(key.inputs["policy"])["Statement"]


def test_the_component_keeps_the_contract(render: Any, snapshot: Any, house_rules: Any) -> None:
    check_component(render, snapshot, house_rules, "AwsKeys", VARIANTS)


def test_keys_rotate_and_have_an_alias_of_no_fixed_name(render: Any) -> None:
    graph = render(make("AwsKeys", VARIANTS["new"]))
    assert [k.inputs["enableKeyRotation"] for k in graph.of("Key")] == [True, True]
    assert {k.inputs["deletionWindowInDays"] for k in graph.of("Key")} == {7}
    assert sorted(a.inputs["namePrefix"] for a in graph.of("Alias")) == [
        "alias/it-logs-",
        "alias/it-secrets-",
    ]
    assert not any("name" in alias.inputs for alias in graph.of("Alias"))


def test_only_the_account_and_for_logs_the_log_service_may_use_a_key(render: Any) -> None:
    graph = render(make("AwsKeys", VARIANTS["new"]))
    [account] = policy(graph, "it-secrets")
    assert account["Principal"] == {"AWS": f"arn:aws:iam::{ACCOUNT}:root"}
    [_, service] = policy(graph, "it-logs")
    assert service["Principal"] == {"Service": "logs.eu-west-1.amazonaws.com"}
    assert service["Condition"]["StringLike"] == {
        "kms:EncryptionContext:aws:logs:arn": f"arn:aws:logs:eu-west-1:{ACCOUNT}:log-group:*"
    }
    assert not any("Create" in action or action == "kms:*" for action in service["Action"])


@pytest.mark.parametrize(
    ("partition", "suffix"), [("aws-cn", "amazonaws.com.cn"), ("aws-us-gov", "amazonaws.com")]
)
def test_policies_know_their_partition(
    render: Any, cloud: Any, partition: str, suffix: str
) -> None:
    cloud.answers["aws:index/getPartition:getPartition"] |= {
        "partition": partition,
        "dnsSuffix": suffix,
    }
    graph = render(make("AwsKeys", VARIANTS["new"]))
    [account, service] = policy(graph, "it-logs")
    assert account["Principal"]["AWS"].startswith(f"arn:{partition}:iam::")
    assert service["Principal"]["Service"] == f"logs.eu-west-1.{suffix}"


def test_existing_keys_are_used_and_not_made(render: Any) -> None:
    graph = render(lambda: pulumi.export("arns", components.AwsKeys("it", VARIANTS["mixed"]).arns))
    assert [k.name for k in graph.of("Key")] == ["it-logs"]
    assert graph.outputs["arns"]["secrets"] == OURS
    assert list(graph.outputs["arns"]) == ["secrets", "logs"]


def test_with_existing_keys_only_aws_is_not_asked(render: Any, cloud: Any) -> None:
    graph = render(make("AwsKeys", {"purposes": ["secrets"], "existing": {"secrets": OURS}}))
    assert not [r for r in graph.resources if r.custom]
    assert cloud.calls == []


@pytest.mark.parametrize(("retain", "kept"), [(None, True), (True, True), (False, False)])
def test_a_key_outlives_the_stack_as_what_it_encrypts_does(
    render: Any, retain: bool | None, kept: bool
) -> None:
    graph = render(make("AwsKeys", {"purposes": ["objects"]}, retain=retain))
    [key] = graph.of("Key")
    assert bool(key.options.get("retainOnDelete")) is kept


@pytest.mark.parametrize(
    ("args", "path", "reason"),
    [
        ({"purposes": []}, "purposes", "at least 1"),
        ({"purposes": ["a", "a"]}, "purposes", "once"),
        ({"purposes": ["Not a name"]}, "purposes.0", "pattern"),
        ({"purposes": ["a"], "deletion_window_days": 6}, "deletion_window_days", "7"),
        ({"purposes": ["a"], "deletion_window_days": 31}, "deletion_window_days", "30"),
        ({"purposes": ["a"], "existing": {"b": OURS}}, "existing", "purposes does not name: a"),
        (
            {"purposes": ["a"], "existing": {"a": "arn:aws:kms:eu-west-1:123456789012:alias/x"}},
            "existing.a",
            "not of an alias",
        ),
        (
            {"purposes": ["a"], "existing": {"a": OURS}, "deletion_window_days": 9},
            "deletion_window_days",
            "none is made",
        ),
        ({"purposes": ["a"], "existing": {"a": OURS}, "retain": True}, "retain", "none is made"),
        ({"purposes": ["a"], "tags": {"aws:x": "y"}}, "tags", "aws:"),
        ({"purposes": ["a"], "tags": {"x": "y" * 257}}, "tags", "256"),
        ({"purposes": ["a"], "tags": {str(n): "" for n in range(46)}}, "tags", "at most 45"),
    ],
)
def test_nonsense_is_refused_by_name(
    refused: Any, args: dict[str, Any], path: str, reason: str
) -> None:
    assert reason in refused(make("AwsKeys", args), path)
