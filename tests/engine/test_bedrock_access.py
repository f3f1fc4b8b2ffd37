"""Rights on Bedrock in the real engine: what the account offers decides, at preview already."""

import json
from collections.abc import Sequence
from typing import Any

from harness import Cloud, Engine, Stack
from harness.accounts import with_network

CLAUDE = "anthropic.claude-sonnet-4-5-20250929-v1:0"
NOVA = "amazon.nova-lite-v1:0"
PROGRAM = """
import pulumi
import pulumi_aws as aws
import terrace_components as parts

access = parts.BedrockAccess("bedrock", {
    "governance": pulumi.Config().require("governance"),
    "cluster_name": "shared",
    "namespace": "terrace-gateway",
    "service_account": "gateway",
})
logs = parts.BedrockInvocationLogs("calls", {"log_retention_days": 90})
pulumi.export("models", access.model_arns)
pulumi.export("log", logs.log_group)
"""
PROFILE_OF_OUR_OWN = """
import pulumi
import pulumi_aws as aws

profile = aws.bedrock.InferenceProfile(
    "team-a", name="team-a", model_source={"copy_from": pulumi.Config().require("source")}
)
pulumi.export("arn", profile.arn)
"""


def spec(*upstream: str, region: str = "us-east-1", guardrails: Sequence[str] = ()) -> str:
    model = {
        "provider": "bedrock",
        "context_tokens": 1000,
        "max_output_tokens": 100,
        "price": {"input_micro_usd_per_mtok": 1, "output_micro_usd_per_mtok": 1},
    }
    return json.dumps(
        {
            "version": 1,
            "price_version": "1",
            "providers": [
                {"name": "bedrock", "kind": "bedrock", "region": region, "credentials": "ambient"}
            ],
            "models": [
                {
                    **model,
                    "name": f"model-{n}",
                    "upstream_model": name,
                    **({"base_model": CLAUDE} if ":application-inference-profile/" in name else {}),
                }
                for n, name in enumerate(upstream)
            ],
            "guardrails": [
                {
                    "name": f"guardrail-{n}",
                    "kind": "bedrock",
                    "provider": "bedrock",
                    "guardrail_id": identifier,
                    "guardrail_version": "1",
                    "price": {"content": 1, "topic": 1, "sensitive_information": 1},
                }
                for n, identifier in enumerate(guardrails)
            ],
        }
    )


def access(engine: Engine, cloud: Cloud, governance: str) -> Stack:
    with_network(cloud)
    trust = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": "eks.amazonaws.com"},
                "Action": "sts:AssumeRole",
            }
        ],
    }
    cloud.add(
        "aws:iam/role:Role", "cluster", {"name": "cluster", "assumeRolePolicy": json.dumps(trust)}
    )
    cloud.add(
        "aws:eks/cluster:Cluster",
        "shared",
        {
            "name": "shared",
            "roleArn": "arn:aws:iam::123456789012:role/cluster",
            "vpcConfig": {"subnetIds": [f"subnet-0123456789abcdef{n}" for n in range(2)]},
        },
    )
    config: dict[str, Any] = {"aws:region": "us-east-1", "trial:governance": governance}
    return Stack.of_program(engine, "bedrock", PROGRAM, **config)


def test_rights_are_those_of_the_account_and_stay_as_they_are(engine: Engine, cloud: Cloud) -> None:
    own = Stack.of_program(
        engine,
        "own",
        PROFILE_OF_OUR_OWN,
        **{
            "aws:region": "us-east-1",
            "trial:source": f"arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.{CLAUDE}",
        },
    )
    own.up().must_work()
    arn = own.outputs()["arn"]
    stack = access(engine, cloud, spec(f"us.{CLAUDE}", f"global.{CLAUDE}", arn))
    stack.preview().must_work()
    stack.up().must_work()
    stack.must_be_steady()
    models = stack.outputs()["models"]
    assert arn in models
    assert f"arn:aws:bedrock:::foundation-model/{CLAUDE}" in models
    assert not [model for model in models if "eu-" in model]
    [role] = [
        item
        for item in cloud.items("aws:iam/rolePolicy:RolePolicy")
        if "Invoke" in item.inputs["policy"]
    ]
    allowed = [s["Resource"] for s in json.loads(role.inputs["policy"])["Statement"]]
    assert sorted({arn for resources in allowed for arn in resources}) == models
    stack.destroy().must_work()
    own.destroy().must_work()
    assert cloud.items("aws:iam/rolePolicy") == cloud.items("aws:bedrock") == []


def test_guardrails_are_allowed_as_long_as_the_spec_names_them(
    engine: Engine, cloud: Cloud
) -> None:
    stack = access(engine, cloud, spec(NOVA, guardrails=["abc123", "def456"]))
    stack.up().must_work()
    stack.must_be_steady()
    assert guardrails_of(cloud) == [
        f"arn:aws:bedrock:us-east-1:123456789012:guardrail/{name}" for name in ("abc123", "def456")
    ]
    stack.change(trial__governance=spec(NOVA))
    stack.up().must_work()
    assert guardrails_of(cloud) == []
    stack.destroy().must_work()


def guardrails_of(cloud: Cloud) -> list[str]:
    """What the only role of a service account may apply."""
    [policy] = [
        item.inputs["policy"]
        for item in cloud.items("aws:iam/rolePolicy:RolePolicy")
        if "Invoke" in item.inputs["policy"]
    ]
    return [
        arn
        for statement in json.loads(policy)["Statement"]
        if "bedrock:ApplyGuardrail" in statement["Action"]
        for arn in statement["Resource"]
    ]


def test_a_model_that_the_region_does_not_offer_stops_the_preview(
    engine: Engine, cloud: Cloud
) -> None:
    stack = access(engine, cloud, spec(f"eu.{CLAUDE}"))
    refused = stack.preview().must_fail()
    assert f"model model-0: eu.{CLAUDE} is not offered in us-east-1" in refused.errors
    assert f"there it is global.{CLAUDE}, us.{CLAUDE}" in refused.errors
    assert "Traceback" not in refused.errors
    stack.change(trial__governance=spec(CLAUDE))
    refused = stack.preview().must_fail()
    assert "only through an inference profile; set upstream_model to " in refused.errors
    assert cloud.items("aws:iam/rolePolicy") == []
