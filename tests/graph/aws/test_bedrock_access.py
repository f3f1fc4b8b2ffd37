"""Rights to exactly the models and guardrails of the spec: ids, profiles, regions, partitions."""

import json
from collections.abc import Sequence
from typing import Any

import pulumi
import pytest

from .bedrock_answers import (
    APPLICATION,
    CLAUDE,
    NOVA,
    TITAN,
    answer_for_bedrock,
    foundation,
    profile_arn,
)
from .cloud import ACCOUNT, PARTITION, Cloud
from .contract import check_component, make
from .iam_lint import problems

INVOKE = ["bedrock:InvokeModel", "bedrock:InvokeModelWithResponseStream"]
# Of another account: its own resource policy must allow it as well.
SHARED = f"arn:{PARTITION}:bedrock:us-east-1:999999999999:guardrail/shared1"


def spec(
    *models: tuple[str, str],
    credentials: str = "ambient",
    guardrails: Sequence[tuple[str, str]] = (),
) -> str:
    """One model per (provider's region, upstream model), one guardrail per (region, id)."""
    regions = sorted({region for region, _ in (*models, *guardrails)})
    return json.dumps(
        {
            "version": 1,
            "price_version": "1",
            "providers": [
                {"name": r, "kind": "bedrock", "region": r, "credentials": credentials}
                for r in regions
            ]
            + [{"name": "other", "kind": "openai", "api_base": "https://models.example.com/v1"}],
            "models": [
                {
                    "name": f"model-{number}",
                    "provider": region,
                    "upstream_model": upstream,
                    "context_tokens": 1000,
                    "max_output_tokens": 100,
                    "price": {"input_micro_usd_per_mtok": 1, "output_micro_usd_per_mtok": 1},
                    **({"base_model": CLAUDE} if upstream == APPLICATION else {}),
                }
                for number, (region, upstream) in enumerate(models or [("other", "any")])
            ],
            "guardrails": [{"name": "ours", "kind": "secrets"}]
            + [
                {
                    "name": f"guardrail-{number}",
                    "kind": "bedrock",
                    "provider": region,
                    "guardrail_id": identifier,
                    "guardrail_version": str(number + 1),
                    "price": {"content": 1, "topic": 1, "sensitive_information": 1},
                }
                for number, (region, identifier) in enumerate(guardrails)
            ],
        }
    )


EVERY = [("eu-west-1", NOVA), ("eu-west-1", f"eu.{CLAUDE}"), ("us-east-1", f"us.{CLAUDE}"),
         ("eu-west-1", APPLICATION)]  # fmt: skip
GUARDRAILS = [("us-east-1", SHARED), ("eu-west-1", "abc123"), ("eu-west-1", "abc123")]
VARIANTS = {
    "every": {
        "governance": spec(*EVERY, guardrails=GUARDRAILS),
        "cluster_name": "a-cluster",
        "namespace": "terrace-gateway",
        "service_account": "gateway",
        "tags": {"team": "platform"},
    },
    "guard": {
        "governance": spec(),
        "cluster_name": "a-cluster",
        "namespace": "terrace-gateway",
        "service_account": "gateway",
        "captures_key_arn": f"arn:{PARTITION}:kms:eu-west-1:{ACCOUNT}:key/0a1b2c3d",
        "earlier_captures_key_arns": [f"arn:{PARTITION}:kms:eu-west-1:{ACCOUNT}:key/00000000"],
        "anchors": {
            "bucket": "evidence",
            "key_arn": f"arn:{PARTITION}:kms:eu-west-1:{ACCOUNT}:key/3d2c1b0a",
            "retention": True,
        },
    },
}


def guardrail(region: str, identifier: str, partition: str = PARTITION) -> str:
    return f"arn:{partition}:bedrock:{region}:{ACCOUNT}:guardrail/{identifier}"


@pytest.fixture(autouse=True)
def bedrock(cloud: Cloud) -> Cloud:
    answer_for_bedrock(cloud)
    return cloud


@pytest.fixture
def policy(render: Any) -> Any:
    """The policy for these models."""

    def of(*models: tuple[str, str], preview: bool = False, **more: Any) -> dict[str, Any]:
        governance = spec(*models, **more)
        graph = render(
            make("BedrockAccess", VARIANTS["every"], governance=governance), preview=preview
        )
        text = graph.one("RolePolicy").inputs["policy"]
        assert problems(text) == []
        return {s["Sid"]: s for s in json.loads(text)["Statement"]}

    return of


def test_the_component_keeps_the_contract(render: Any, snapshot: Any, house_rules: Any) -> None:
    check_component(render, snapshot, house_rules, "BedrockAccess", VARIANTS)


def test_a_foundation_model_is_allowed_in_its_region_only(policy: Any) -> None:
    assert policy(("eu-west-1", NOVA), ("eu-west-1", TITAN)) == {
        "FoundationModels": {
            "Sid": "FoundationModels",
            "Effect": "Allow",
            "Action": INVOKE,
            "Resource": sorted([foundation("eu-west-1", NOVA), foundation("eu-west-1", TITAN)]),
        }
    }


def test_a_profile_is_allowed_with_its_destinations_and_only_through_it(policy: Any) -> None:
    arn = profile_arn("eu-west-1", f"eu.{CLAUDE}")
    statements = policy(("eu-west-1", f"eu.{CLAUDE}"))
    assert set(statements) == {"InferenceProfiles", "ThroughProfile1"}
    assert statements["InferenceProfiles"]["Resource"] == [arn]
    assert "Condition" not in statements["InferenceProfiles"]
    through = statements["ThroughProfile1"]
    assert through["Resource"] == [
        foundation(region, CLAUDE) for region in ("eu-central-1", "eu-north-1", "eu-west-1")
    ]
    assert through["Condition"] == {"ArnEquals": {"bedrock:InferenceProfileArn": arn}}


def test_a_global_profile_leads_to_a_model_without_a_region(policy: Any) -> None:
    through = policy(("eu-west-1", f"global.{CLAUDE}"))["ThroughProfile1"]
    assert through["Resource"] == [foundation("", CLAUDE), foundation("eu-west-1", CLAUDE)]


def test_an_application_profile_is_allowed_by_its_arn(policy: Any) -> None:
    statements = policy(("eu-west-1", APPLICATION))
    assert statements["InferenceProfiles"]["Resource"] == [APPLICATION]
    through = statements["ThroughProfile1"]
    assert through["Condition"] == {"ArnEquals": {"bedrock:InferenceProfileArn": APPLICATION}}
    assert through["Resource"] == [
        foundation("eu-central-1", CLAUDE),
        foundation("eu-west-1", CLAUDE),
    ]


def test_each_profile_has_destinations_of_its_own(policy: Any) -> None:
    """One statement for all would let the EU profile's calls go to the United States."""
    statements = policy(("eu-west-1", f"eu.{CLAUDE}"), ("us-east-1", f"us.{CLAUDE}"))
    for statement in statements.values():
        if "Condition" in statement:
            geography = statement["Condition"]["ArnEquals"]["bedrock:InferenceProfileArn"]
            prefix = "us-" if "/us." in geography else "eu-"
            assert all(arn.split(":")[3].startswith(prefix) for arn in statement["Resource"])


def test_nothing_is_a_wildcard_and_nothing_else_is_allowed(policy: Any) -> None:
    for statement in policy(*EVERY).values():
        assert statement["Action"] == INVOKE
        assert not [arn for arn in statement["Resource"] if "*" in arn]


def test_the_order_of_the_spec_does_not_matter(policy: Any) -> None:
    assert policy(*EVERY) == policy(*reversed(EVERY))


def test_two_models_through_one_profile_are_one_statement(policy: Any) -> None:
    models = ("eu-west-1", f"eu.{CLAUDE}")
    assert policy(models, models) == policy(models)


def test_a_preview_knows_the_policy(policy: Any) -> None:
    """AWS is asked at preview as well, so that policies can judge what will be allowed."""
    assert policy(*EVERY, preview=True) == policy(*EVERY)


@pytest.mark.parametrize("preview", [False, True])
def test_guardrails_are_allowed_by_region_and_id_and_nothing_else_of_them(
    policy: Any, preview: bool
) -> None:
    statements = policy(*EVERY, guardrails=GUARDRAILS, preview=preview)
    assert statements.pop("Guardrails") == {
        "Sid": "Guardrails",
        "Effect": "Allow",
        "Action": ["bedrock:ApplyGuardrail"],
        "Resource": sorted([SHARED, guardrail("eu-west-1", "abc123")]),
    }
    assert statements == policy(*EVERY)
    assert "Guardrails" not in statements


def test_guardrails_alone_need_rights_as_well(policy: Any, cloud: Cloud) -> None:
    [statement] = policy(guardrails=[("eu-west-1", "abc123")]).values()
    assert statement["Resource"] == [guardrail("eu-west-1", "abc123")]
    assert not [token for token, _ in cloud.calls if "edrock" in token]


def test_a_guardrail_that_is_asked_with_keys_gives_the_role_nothing(render: Any) -> None:
    text = json.loads(spec(("eu-west-1", NOVA), guardrails=[("us-east-1", "abc123")]))
    del text["providers"][1]["credentials"]
    graph = render(make("BedrockAccess", VARIANTS["every"], governance=json.dumps(text)))
    [statement] = json.loads(graph.one("RolePolicy").inputs["policy"])["Statement"]
    assert statement["Sid"] == "FoundationModels"


@pytest.mark.parametrize("partition", ["aws-us-gov", "aws-cn"])
def test_guardrails_are_of_the_partition(
    cloud: Cloud, policy: Any, refused: Any, partition: str
) -> None:
    token = "aws:index/getPartition:getPartition"
    known: Any = cloud.answers[token]
    cloud.answers[token] = {**known, "partition": partition}
    [statement] = policy(guardrails=[("us-gov-west-1", "abc123")]).values()
    assert statement["Resource"] == [guardrail("us-gov-west-1", "abc123", partition)]
    foreign = spec(guardrails=[("us-east-1", SHARED)])
    assert (
        f"guardrail guardrail-0: {SHARED} is of partition aws, and this account of {partition}"
        in refused(make("BedrockAccess", VARIANTS["every"], governance=foreign), "governance")
    )


@pytest.mark.parametrize("partition", ["aws-us-gov", "aws-cn"])
def test_arns_are_of_the_partition(cloud: Cloud, policy: Any, partition: str) -> None:
    answer_for_bedrock(cloud, partition=partition)
    statements = policy(("eu-west-1", NOVA), ("eu-west-1", f"eu.{CLAUDE}"))
    arns = [arn for statement in statements.values() for arn in statement["Resource"]]
    assert arns
    assert all(arn.startswith(f"arn:{partition}:bedrock:") for arn in arns)


def test_outputs_say_what_may_be_called(render: Any) -> None:
    def program() -> None:
        access = make("BedrockAccess", VARIANTS["every"])()
        pulumi.export("models", access.model_arns)
        pulumi.export("role", access.role_arn)

    outputs = render(program).outputs
    assert outputs["models"] == sorted(
        {
            foundation("eu-west-1", NOVA),
            profile_arn("eu-west-1", f"eu.{CLAUDE}"),
            *(foundation(r, CLAUDE) for r in ("eu-west-1", "eu-central-1", "eu-north-1")),
            profile_arn("us-east-1", f"us.{CLAUDE}"),
            *(foundation(r, CLAUDE) for r in ("us-east-1", "us-west-2")),
            APPLICATION,
        }
    )
    assert ":role/" in outputs["role"]


def test_the_rights_are_of_one_service_account(render: Any) -> None:
    association = render(make("BedrockAccess", VARIANTS["every"])).one("PodIdentityAssociation")
    assert (association.inputs["namespace"], association.inputs["serviceAccount"]) == (
        "terrace-gateway",
        "gateway",
    )


def test_a_region_is_asked_once(render: Any, cloud: Cloud) -> None:
    models = [("eu-west-1", NOVA), ("eu-west-1", TITAN), ("eu-west-1", f"eu.{CLAUDE}")]
    render(make("BedrockAccess", VARIANTS["every"], governance=spec(*models)))
    asked = [token for token, _ in cloud.calls if "edrock" in token]
    assert len(asked) == len(set(asked)) == 2


@pytest.mark.parametrize(
    ("region", "upstream", "reason"),
    [
        (
            "eu-west-1",
            CLAUDE,
            f"model model-0: {CLAUDE} is not offered in eu-west-1 on demand, only through an"
            f" inference profile; set upstream_model to eu.{CLAUDE} or global.{CLAUDE}",
        ),
        (
            "eu-west-1",
            f"us.{CLAUDE}",
            f"model model-0: us.{CLAUDE} is not offered in eu-west-1; there it is eu.{CLAUDE},"
            f" global.{CLAUDE}",
        ),
        (
            "us-east-1",
            "amazon.nova-lite-v2:0",
            f"amazon.nova-lite-v2:0 is not offered in us-east-1; there it is {NOVA}",
        ),
        (
            "us-east-1",
            "unheard.of-v1",
            "model model-0: unheard.of-v1 is not offered in us-east-1; offered there:",
        ),
        (
            "eu-west-1",
            f"arn:aws:bedrock:eu-west-1:999999999999:inference-profile/eu.{CLAUDE}",
            f"to this account; there it is {profile_arn('eu-west-1', f'eu.{CLAUDE}')}",
        ),
        (
            "eu-west-1",
            f"arn:aws-cn:bedrock:eu-west-1::foundation-model/{NOVA}",
            f"is not offered in eu-west-1; there it is {foundation('eu-west-1', NOVA)}",
        ),
    ],
)
def test_what_a_region_does_not_offer_is_named_with_what_it_does(
    refused: Any, region: str, upstream: str, reason: str
) -> None:
    program = make("BedrockAccess", VARIANTS["every"], governance=spec((region, upstream)))
    assert reason in refused(program, "governance")


@pytest.mark.parametrize("state", [{"status": "CREATING"}, {"models": []}])
def test_an_application_profile_that_leads_nowhere_is_refused(
    cloud: Cloud, refused: Any, state: dict[str, Any]
) -> None:
    token = "aws:bedrock/getInferenceProfile:getInferenceProfile"
    before: Any = cloud.answers[token]
    cloud.answers[token] = lambda args: {**before(args), **state}
    program = make("BedrockAccess", VARIANTS["every"], governance=spec(("eu-west-1", APPLICATION)))
    assert "model-0: its application inference profile in eu-west-1 is not active" in refused(
        program, "governance"
    )


def test_a_profile_that_is_not_active_is_not_offered(cloud: Cloud, refused: Any) -> None:
    token = "aws:bedrock/getInferenceProfiles:getInferenceProfiles"
    before: Any = cloud.answers[token]

    def inactive(args: dict[str, Any]) -> dict[str, Any]:
        answer = before(args)
        found = [{**p, "status": "X"} for p in answer["inferenceProfileSummaries"]]
        return {**answer, "inferenceProfileSummaries": found}

    cloud.answers[token] = inactive
    program = make(
        "BedrockAccess", VARIANTS["every"], governance=spec(("eu-west-1", f"eu.{CLAUDE}"))
    )
    assert "is not offered in eu-west-1" in refused(program, "governance")


@pytest.mark.parametrize(
    ("changes", "path", "reason"),
    [
        ({"governance": "version: 1"}, "governance", "governance:1"),
        (
            {"governance": spec(("eu-west-1", NOVA), credentials="keys")},
            "governance",
            "no model on a Bedrock provider with credentials: ambient, and no guardrail",
        ),
        ({"namespace": "Not A Name"}, "namespace", "pattern"),
        ({"service_account": ""}, "service_account", "pattern"),
        ({"cluster_name": ""}, "cluster_name", "not empty"),
        ({"tags": {"aws:x": "y"}}, "tags", "not begin with aws:"),
    ],
)
def test_nonsense_is_refused_by_name(
    refused: Any, changes: dict[str, Any], path: str, reason: str
) -> None:
    assert reason in refused(make("BedrockAccess", VARIANTS["every"], **changes), path)


def test_models_of_other_providers_need_no_rights(render: Any) -> None:
    text = json.loads(spec(("eu-west-1", NOVA)))
    text["models"].append({**text["models"][0], "name": "elsewhere", "provider": "other"})
    graph = render(make("BedrockAccess", VARIANTS["every"], governance=json.dumps(text)))
    [statement] = json.loads(graph.one("RolePolicy").inputs["policy"])["Statement"]
    assert statement["Resource"] == [foundation("eu-west-1", NOVA)]


def test_the_linter_would_find_a_wrong_document() -> None:
    wrong = {"Effect": "Allow", "Action": ["bedrock:InvokeModell"], "Resource": ["*"]}
    assert problems({"Version": "2012-10-17", "Statement": [wrong]})
    misplaced = {"Effect": "Allow", "Action": INVOKE, "Resource": ["arn:aws:s3:::bucket"]}
    assert problems({"Version": "2012-10-17", "Statement": [misplaced]})
