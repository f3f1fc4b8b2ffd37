"""The policy that lets a pod read named secrets."""

import json
from typing import Any

import pulumi

import terrace_components as components

from .iam_lint import problems

SECRET = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:db-AbCdEf"
KEY = "arn:aws:kms:eu-west-1:123456789012:key/11111111-2222-4333-8444-555555555555"


def policy(render: Any, *args: list[str]) -> dict[str, Any]:
    def program() -> None:
        outputs = [[pulumi.Output.from_input(arn) for arn in arns] for arns in args]
        pulumi.export("policy", components.secret_reading_policy(*outputs))

    text = render(program).outputs["policy"]
    assert problems(text) == []
    return {s["Sid"]: s for s in json.loads(text)["Statement"]}


def test_these_secrets_and_no_others(render: Any) -> None:
    statements = policy(render, [SECRET])
    assert set(statements) == {"ReadSecrets"}
    assert statements["ReadSecrets"]["Action"] == ["secretsmanager:GetSecretValue"]
    assert statements["ReadSecrets"]["Resource"] == [SECRET]


def test_a_key_opens_these_secrets_and_nothing_else(render: Any) -> None:
    decrypt = policy(render, [SECRET], [KEY])["DecryptSecrets"]
    assert (decrypt["Action"], decrypt["Resource"]) == (["kms:Decrypt"], [KEY])
    assert decrypt["Condition"] == {"StringEquals": {"kms:EncryptionContext:SecretARN": [SECRET]}}
