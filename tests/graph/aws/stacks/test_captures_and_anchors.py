"""A platform engineer names a KMS key and a bucket; guard and role have them, and no more."""

import json
from typing import Any

import pytest

from ..cloud import documents
from ..iam_lint import problems
from ..stack_programs import REGION, refused

KEY = f"arn:aws:kms:{REGION}:123456789012:key/0a1b2c3d-0000-4000-8000-000000000000"
EARLIER = f"{KEY[:-1]}1"
OWN = f"{KEY[:-1]}2"
FOREIGN = KEY.replace("arn:aws:", "arn:aws-cn:", 1)
CAPTURES = ("SealCaptures", "OpenEarlierCaptures")
ANCHORS = ("Anchors", "ListAnchors", "EncryptAnchors")


def rights(graph: Any) -> dict[str, Any]:
    """What the role of the service account ``gateway`` may do besides calling models."""
    made = {s["Sid"]: s for d in documents(graph) for s in d["Statement"] if "Sid" in s}
    for document in documents(graph):
        if any(s.get("Sid") in {*CAPTURES, *ANCHORS} for s in document["Statement"]):
            assert problems(document) == []
    return {sid: s for sid, s in made.items() if sid in {*CAPTURES, *ANCHORS}}


def environment(graph: Any) -> dict[str, str | None]:
    [guard] = graph.one("StatefulSet", "terrace-gateway/gateway").pod["containers"]
    return {entry["name"]: entry.get("value") for entry in guard["env"]}


def test_by_default_there_is_neither(platform: Any) -> None:
    graph = platform("aws-stage1")
    assert rights(graph) == {}
    told = environment(graph)
    assert "TERRACE_CAPTURE_KEY_FILE" in told
    assert not [name for name in told if "ANCHOR" in name or "KMS" in name]


def test_a_key_of_the_settings_seals(platform: Any) -> None:
    gateway = {"captureKeyArn": KEY, "earlierCaptureKeyArns": [EARLIER, KEY, EARLIER]}
    graph = platform("aws-stage1", gateway=gateway)
    told = environment(graph)
    assert told["TERRACE_CAPTURE_KMS_KEY_ARN"] == KEY
    assert "TERRACE_CAPTURE_KEY_FILE" not in told
    allowed = {sid: s["Resource"] for sid, s in rights(graph).items()}
    assert allowed == {"SealCaptures": [KEY], "OpenEarlierCaptures": [EARLIER]}


def test_a_key_of_the_substrate_seals_unless_the_settings_name_another(platform: Any) -> None:
    graph = platform("aws-stage1", told={"captures_key_arn": OWN})
    assert environment(graph)["TERRACE_CAPTURE_KMS_KEY_ARN"] == OWN
    assert {sid: s["Resource"] for sid, s in rights(graph).items()} == {"SealCaptures": [OWN]}
    graph = platform("aws-stage1", told={"captures_key_arn": OWN}, gateway={"captureKeyArn": KEY})
    assert environment(graph)["TERRACE_CAPTURE_KMS_KEY_ARN"] == KEY
    assert {sid: s["Resource"] for sid, s in rights(graph).items()} == {"SealCaptures": [KEY]}


def test_the_substrate_makes_a_key_for_captures_when_asked(
    render: Any, stack_program: Any, substrate: Any
) -> None:
    assert substrate("aws-stage1").outputs["substrate"]["captures_key_arn"] is None
    aws = {"cluster": {"apiAccessCidrs": ["203.0.113.0/24"]}, "keys": {"captures": True}}
    graph = render(stack_program("aws-stage1", aws=aws), stack="aws-stage1")
    [key] = [r for r in graph.of("Key") if r.name.endswith("-captures")]
    assert key.inputs["enableKeyRotation"] is True
    assert key.options["retainOnDelete"] is True
    told = graph.outputs["substrate"]["captures_key_arn"]
    assert told.startswith("arn:aws:kms:")
    assert told not in {v for k, v in graph.outputs["substrate"].items() if k == "logs_key_arn"}


def test_anchors_are_in_the_substrates_bucket_with_its_key(platform: Any, substrate: Any) -> None:
    objects = substrate("aws-stage1").outputs["substrate"]["objects"]
    assert objects["object_lock"] is True
    graph = platform("aws-stage1", gateway={"anchors": {}})
    told = environment(graph)
    assert told["TERRACE_ANCHOR_LOCATION"] == f"s3://{objects['bucket']}"
    assert "TERRACE_ANCHOR_RETENTION_DAYS" not in told
    allowed = rights(graph)
    assert set(allowed) == set(ANCHORS)
    assert allowed["Anchors"]["Resource"] == [f"arn:aws:s3:::{objects['bucket']}/anchors/*"]
    assert allowed["EncryptAnchors"]["Resource"] == [objects["key_arn"]]
    assert "s3:PutObjectRetention" not in json.dumps(allowed)


def test_retention_is_told_to_the_guard_and_allowed_to_its_role(platform: Any) -> None:
    graph = platform("aws-stage1", gateway={"anchors": {"retentionDays": 400}})
    assert environment(graph)["TERRACE_ANCHOR_RETENTION_DAYS"] == "400"
    assert "s3:PutObjectRetention" in rights(graph)["Anchors"]["Action"]


@pytest.mark.parametrize(("key", "sids"), [(None, ANCHORS[:2]), (KEY, ANCHORS)])
def test_another_bucket_has_the_key_that_is_named_with_it(
    platform: Any, key: str | None, sids: tuple[str, ...]
) -> None:
    anchors = {"bucket": "evidence", "retentionDays": 7} | ({} if key is None else {"keyArn": key})
    graph = platform("aws-stage1", gateway={"anchors": anchors})
    assert environment(graph)["TERRACE_ANCHOR_LOCATION"] == "s3://evidence"
    allowed = rights(graph)
    assert set(allowed) == set(sids)
    assert allowed["ListAnchors"]["Resource"] == ["arn:aws:s3:::evidence"]
    if key is not None:
        assert allowed["EncryptAnchors"]["Resource"] == [key]


def test_without_ambient_bedrock_pods_wait_for_the_role_all_the_same(
    platform: Any, governance_with: Any
) -> None:
    graph = platform(
        "aws-stage1",
        gateway={"captureKeyArn": KEY},
        governanceFile=governance_with("credentials: ambient", "credentials: keys"),
    )
    assert set(rights(graph)) == {"SealCaptures"}
    assert [r for r in graph.of("Job") if r.inputs["metadata"]["name"] == "gateway-identity"]
    [association] = [
        r for r in graph.of("PodIdentityAssociation") if r.inputs["serviceAccount"] == "gateway"
    ]
    assert {association.name, association.parent} & graph.needs(
        graph.one("StatefulSet", "terrace-gateway/gateway")
    )


def test_an_output_of_a_release_before_this_is_still_read(platform: Any, substrate: Any) -> None:
    bucket = substrate("aws-stage1").outputs["substrate"]["objects"]["bucket"]
    graph = platform(
        "aws-stage1",
        told={"objects": {"bucket": bucket}},
        gateway={"anchors": {"keyArn": KEY, "retentionDays": 7}},
    )
    assert set(rights(graph)) == set(ANCHORS)


def test_a_lock_that_the_substrates_bucket_cannot_keep_is_refused(
    platform: Any, substrate: Any
) -> None:
    objects = substrate("aws-stage1").outputs["substrate"]["objects"]
    message = refused(
        platform,
        told={"objects": {**objects, "object_lock": False}},
        gateway={"anchors": {"retentionDays": 7}},
    )
    assert message.startswith("terrace:gateway.anchors.retentionDays: the bucket of stack")
    assert "terrace:aws.objects.objectLockDays" in message


def test_earlier_keys_without_one_that_seals_now_are_refused(platform: Any) -> None:
    message = refused(platform, gateway={"earlierCaptureKeyArns": [EARLIER]})
    assert message.startswith("terrace:gateway.earlierCaptureKeyArns: needs a key that seals now")


@pytest.mark.parametrize(
    ("path", "gateway"),
    [
        ("captureKeyArn", {"captureKeyArn": FOREIGN}),
        ("earlierCaptureKeyArns", {"captureKeyArn": KEY, "earlierCaptureKeyArns": [FOREIGN]}),
        ("anchors.keyArn", {"anchors": {"keyArn": FOREIGN}}),
    ],
)
def test_a_key_of_another_partition_is_refused(platform: Any, path: str, gateway: Any) -> None:
    assert refused(platform, gateway=gateway) == (
        f"terrace:gateway.{path}: {FOREIGN} is of partition aws-cn, and the account of aws"
    )
