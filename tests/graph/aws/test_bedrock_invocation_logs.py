"""Bedrock's own log: who called what and for how many tokens, and no prompt unless asked."""

import json
from typing import Any

import pulumi
import pytest

from .contract import check_component, make
from .iam_lint import problems

NAME = "BedrockInvocationLogs"
KEY = "arn:aws:kms:eu-west-1:123456789012:key/11111111-2222-4333-8444-555555555555"
VARIANTS: dict[str, dict[str, Any]] = {
    "every": {
        "log_retention_days": 365,
        "key_arn": KEY,
        "bucket": "a-bucket",
        "capture_content": True,
        "tags": {"team": "platform"},
    }
}
DELIVERIES = ("text", "image", "embedding", "video")


def setting(graph: Any) -> dict[str, Any]:
    return graph.one("InvocationLoggingConfiguration").inputs["loggingConfig"]


def test_the_component_keeps_the_contract(render: Any, snapshot: Any, house_rules: Any) -> None:
    check_component(render, snapshot, house_rules, NAME, VARIANTS)


def test_by_default_no_content_is_recorded(render: Any) -> None:
    config = setting(render(make(NAME, {})))
    assert [config[f"{kind}DataDeliveryEnabled"] for kind in DELIVERIES] == [False] * 4
    assert "s3Config" not in config


def test_content_is_recorded_when_asked_for(render: Any) -> None:
    config = setting(render(make(NAME, VARIANTS["every"])))
    assert [config[f"{kind}DataDeliveryEnabled"] for kind in DELIVERIES] == [True] * 4
    assert config["s3Config"] == {"bucketName": "a-bucket"}


def test_bedrock_may_write_to_this_log_and_only_of_this_account(render: Any) -> None:
    graph = render(make(NAME, {}))
    text = graph.one("RolePolicy").inputs["policy"]
    assert problems(text) == []
    [statement] = json.loads(text)["Statement"]
    assert statement["Action"] == ["logs:CreateLogStream", "logs:PutLogEvents"]
    [resource] = statement["Resource"]
    assert resource.endswith(":log-stream:aws/bedrock/modelinvocations")
    assert ":log-group:it-log" in resource
    [trust] = json.loads(graph.one("Role").inputs["assumeRolePolicy"])["Statement"]
    assert trust["Principal"] == {"Service": "bedrock.amazonaws.com"}
    assert trust["Condition"] == {
        "StringEquals": {"aws:SourceAccount": "123456789012"},
        "ArnLike": {"aws:SourceArn": "arn:aws:bedrock:eu-west-1:123456789012:*"},
    }


def test_the_setting_comes_after_the_right_to_write(render: Any) -> None:
    graph = render(make(NAME, {}))
    needed = graph.needs(graph.one("InvocationLoggingConfiguration"))
    assert {graph.one("RolePolicy").name, graph.one("LogGroup").name} <= needed


def test_records_are_kept_as_long_as_asked_and_encrypted(render: Any) -> None:
    group = render(make(NAME, VARIANTS["every"])).one("LogGroup").inputs
    assert (group["retentionInDays"], group["kmsKeyId"]) == (365, KEY)
    assert render(make(NAME, {})).one("LogGroup").inputs["retentionInDays"] == 30


def test_the_output_is_the_log_that_is_written(render: Any) -> None:
    def program() -> None:
        pulumi.export("log", make(NAME, {})().log_group)

    graph = render(program)
    assert graph.outputs["log"] == setting(graph)["cloudwatchConfig"]["logGroupName"]


@pytest.mark.parametrize(
    ("changes", "path", "reason"),
    [
        ({"log_retention_days": 31}, "log_retention_days", "must be one of 1, 3, 5, 7, 14, 30"),
        ({"log_retention_days": 0}, "log_retention_days", "must be one of"),
        ({"key_arn": "alias/logs"}, "key_arn", "the ARN of a KMS key"),
        ({"bucket": "A Bucket"}, "bucket", "the name of a bucket"),
    ],
)
def test_nonsense_is_refused_by_name(
    refused: Any, changes: dict[str, Any], path: str, reason: str
) -> None:
    assert reason in refused(make(NAME, VARIANTS["every"], **changes), path)
