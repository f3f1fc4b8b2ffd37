"""What the gateway's role may do besides calling models: one key, one folder of one bucket."""

import json
from typing import Any

import pytest

from terrace_common.names import ANCHOR_PREFIX, CAPTURE_CONTEXT

from .bedrock_answers import NOVA, answer_for_bedrock
from .cloud import ACCOUNT, Cloud
from .contract import make
from .iam_lint import problems
from .test_bedrock_access import VARIANTS, spec

KEY = f"arn:aws:kms:eu-west-1:{ACCOUNT}:key/0a1b2c3d-0000-4000-8000-000000000000"
EARLIER = f"{KEY[:-1]}1"
OF_THE_BUCKET = f"{KEY[:-1]}2"
SEALED = {"StringEquals": {f"kms:EncryptionContext:{k}": v for k, v in CAPTURE_CONTEXT.items()}}
NOT_BEDROCK = ("kms:", "s3:")


@pytest.fixture(autouse=True)
def bedrock(cloud: Cloud) -> None:
    answer_for_bedrock(cloud)


@pytest.fixture
def statements(render: Any) -> Any:
    """The statements, by Sid, of a role with these rights and one model."""

    def of(*, preview: bool = False, **rights: Any) -> dict[str, Any]:
        args = {"governance": spec(("eu-west-1", NOVA)), **rights}
        graph = render(make("BedrockAccess", VARIANTS["every"], **args), preview=preview)
        text = graph.one("RolePolicy").inputs["policy"]
        assert problems(text) == []
        return {s["Sid"]: s for s in json.loads(text)["Statement"]}

    return of


def test_without_a_key_or_a_bucket_there_is_no_right_to_any(statements: Any) -> None:
    assert set(statements()) == {"FoundationModels"}
    assert set(statements(earlier_captures_key_arns=[])) == {"FoundationModels"}


@pytest.mark.parametrize("preview", [False, True])
def test_a_key_seals_and_opens_captures_and_nothing_else(statements: Any, preview: bool) -> None:
    made = statements(captures_key_arn=KEY, preview=preview)
    assert made.pop("SealCaptures") == {
        "Sid": "SealCaptures",
        "Effect": "Allow",
        "Action": ["kms:Encrypt", "kms:Decrypt"],
        "Resource": [KEY],
        "Condition": SEALED,
    }
    assert made == statements()


def test_an_earlier_key_opens_and_seals_no_more(statements: Any) -> None:
    made = statements(captures_key_arn=KEY, earlier_captures_key_arns=[EARLIER])
    earlier = made["OpenEarlierCaptures"]
    assert (earlier["Action"], earlier["Resource"]) == (["kms:Decrypt"], [EARLIER])
    assert earlier["Condition"] == SEALED
    assert made["SealCaptures"]["Resource"] == [KEY]


def test_anchors_are_put_and_read_below_their_folder_and_never_deleted(statements: Any) -> None:
    made = statements(anchors={"bucket": "evidence"})
    assert set(made) == {"FoundationModels", "Anchors", "ListAnchors"}
    assert made["Anchors"]["Action"] == ["s3:GetObject", "s3:PutObject"]
    assert made["Anchors"]["Resource"] == [f"arn:aws:s3:::evidence/{ANCHOR_PREFIX}*"]
    assert made["ListAnchors"] == {
        "Sid": "ListAnchors",
        "Effect": "Allow",
        "Action": ["s3:ListBucket"],
        "Resource": ["arn:aws:s3:::evidence"],
        "Condition": {"StringEquals": {"s3:prefix": ANCHOR_PREFIX}},
    }


@pytest.mark.parametrize("retention", [False, True])
def test_only_who_locks_anchors_may_lock(statements: Any, retention: bool) -> None:
    made = statements(anchors={"bucket": "evidence", "retention": retention})
    assert ("s3:PutObjectRetention" in made["Anchors"]["Action"]) == retention
    actions = json.dumps([s["Action"] for s in made.values()])
    assert "Bypass" not in actions
    assert "Delete" not in actions


def test_a_buckets_key_is_for_its_anchors_alone(statements: Any) -> None:
    made = statements(anchors={"bucket": "evidence", "key_arn": OF_THE_BUCKET})
    assert made["EncryptAnchors"] == {
        "Sid": "EncryptAnchors",
        "Effect": "Allow",
        "Action": ["kms:Decrypt", "kms:GenerateDataKey"],
        "Resource": [OF_THE_BUCKET],
        "Condition": {
            "StringLike": {
                "kms:EncryptionContext:aws:s3:arn": [
                    "arn:aws:s3:::evidence",
                    f"arn:aws:s3:::evidence/{ANCHOR_PREFIX}*",
                ]
            }
        },
    }


@pytest.mark.parametrize("partition", ["aws-us-gov", "aws-cn"])
def test_buckets_are_of_the_partition(cloud: Cloud, statements: Any, partition: str) -> None:
    token = "aws:index/getPartition:getPartition"
    known: Any = cloud.answers[token]
    cloud.answers[token] = {**known, "partition": partition}
    made = statements(anchors={"bucket": "evidence", "key_arn": OF_THE_BUCKET, "retention": True})
    arns = [
        *made["Anchors"]["Resource"],
        *made["ListAnchors"]["Resource"],
        *made["EncryptAnchors"]["Condition"]["StringLike"]["kms:EncryptionContext:aws:s3:arn"],
    ]
    assert all(arn.startswith(f"arn:{partition}:s3:::evidence") for arn in arns)


def test_a_gateway_without_bedrock_has_these_rights_all_the_same(
    statements: Any, cloud: Cloud
) -> None:
    made = statements(governance=spec(), captures_key_arn=KEY, anchors={"bucket": "evidence"})
    actions = [action for statement in made.values() for action in statement["Action"]]
    assert actions
    assert all(action.startswith(NOT_BEDROCK) for action in actions)
    assert not [token for token, _ in cloud.calls if "edrock" in token]


@pytest.mark.parametrize(
    ("changes", "path", "reason"),
    [
        ({"captures_key_arn": "alias/captures"}, "captures_key_arn", "ARN of a KMS key"),
        (
            {"earlier_captures_key_arns": ["alias/captures"]},
            "earlier_captures_key_arns.0",
            "ARN of a KMS key",
        ),
        ({"anchors": {}}, "anchors.bucket", "is required"),
        ({"anchors": {"bucket": "s3://evidence"}}, "anchors.bucket", "the name of a bucket"),
        ({"anchors": {"bucket": "evidence", "days": 3}}, "anchors.days", "bucket"),
    ],
)
def test_nonsense_is_refused_by_name(
    refused: Any, changes: dict[str, Any], path: str, reason: str
) -> None:
    assert reason in refused(make("BedrockAccess", VARIANTS["every"], **changes), path)
