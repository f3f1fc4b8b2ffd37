"""The bucket: closed, versioned, locked where asked for, and not destroyed by accident."""

import json
from typing import Any

import pulumi
import pulumi_aws as aws
import pytest

import terrace_components as components

from .cloud import ACCOUNT
from .contract import check_component, make

KEY = "arn:aws:kms:eu-west-1:123456789012:key/11111111-2222-4333-8444-555555555555"
VARIANTS = {
    "locked": {
        "object_lock_days": 400,
        "object_lock_mode": "COMPLIANCE",
        "lifecycle_days": 500,
        "noncurrent_days": 450,
        "retain": True,
        "key_arn": KEY,
        "tags": {"team": "platform"},
    },
    "evaluation": {"retain": False, "delete_objects": True},
    "logs": {"load_balancer_logs": True},
    "existing": {"existing": {"name": "our-bucket"}},
}
PARTS = {
    "BucketVersioning",
    "BucketServerSideEncryptionConfiguration",
    "BucketOwnershipControls",
    "BucketPublicAccessBlock",
    "BucketPolicy",
    "BucketLifecycleConfiguration",
}


@pytest.fixture(autouse=True)
def our_bucket(cloud: Any) -> None:
    cloud.answers["aws:s3/getBucket:getBucket"] = lambda args: {
        "id": args["bucket"],
        "bucket": args["bucket"],
        "arn": f"arn:aws:s3:::{args['bucket']}",
        "region": "eu-west-1",
    }


def statements(graph: Any) -> list[dict[str, Any]]:
    return json.loads(graph.one("BucketPolicy").inputs["policy"])["Statement"]


def test_the_component_keeps_the_contract(render: Any, snapshot: Any, house_rules: Any) -> None:
    check_component(render, snapshot, house_rules, "AwsBucket", VARIANTS)


@pytest.mark.parametrize("args", [{}, VARIANTS["locked"], VARIANTS["evaluation"]])
def test_nobody_else_gets_in(render: Any, args: dict[str, Any]) -> None:
    graph = render(make("AwsBucket", args))
    closed = graph.one("BucketPublicAccessBlock").inputs
    assert all(
        closed[key]
        for key in (
            "blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets",
        )
    )  # fmt: skip
    rule = graph.one("BucketOwnershipControls").inputs["rule"]
    assert rule == {"objectOwnership": "BucketOwnerEnforced"}
    [plain, old] = statements(graph)
    assert {plain["Effect"], old["Effect"]} == {"Deny"}
    assert plain["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    assert old["Condition"] == {"NumericLessThan": {"s3:TlsVersion": "1.2"}}
    arn = plain["Resource"][0]
    assert plain["Resource"] == [arn, f"{arn}/*"] == old["Resource"]
    versioning = graph.one("BucketVersioning").inputs["versioningConfiguration"]
    assert versioning == {"status": "Enabled"}


def test_encryption_is_with_the_key_and_few_calls_of_kms(render: Any) -> None:
    [rule] = (
        render(make("AwsBucket", VARIANTS["locked"]))
        .one("BucketServerSideEncryptionConfiguration")
        .inputs["rules"]
    )
    assert rule == {
        "applyServerSideEncryptionByDefault": {"sseAlgorithm": "aws:kms", "kmsMasterKeyId": KEY},
        "bucketKeyEnabled": True,
    }
    [rule] = (
        render(make("AwsBucket", {})).one("BucketServerSideEncryptionConfiguration").inputs["rules"]
    )
    assert rule["applyServerSideEncryptionByDefault"] == {"sseAlgorithm": "AES256"}


@pytest.mark.parametrize(
    ("mode", "expected"), [(None, "GOVERNANCE"), ("GOVERNANCE",) * 2, ("COMPLIANCE",) * 2]
)
def test_a_wrong_lock_is_not_for_ever_unless_that_is_asked_for(
    render: Any, mode: str | None, expected: str
) -> None:
    graph = render(make("AwsBucket", {"object_lock_days": 30}, object_lock_mode=mode))
    assert graph.one("Bucket").inputs["objectLockEnabled"] is True
    lock = graph.one("BucketObjectLockConfiguration")
    assert lock.inputs["rule"] == {"defaultRetention": {"mode": expected, "days": 30}}
    assert "it-versioning" in graph.needs(lock)


def test_without_days_there_is_no_lock(render: Any) -> None:
    graph = render(make("AwsBucket", {}))
    assert graph.one("Bucket").inputs["objectLockEnabled"] is False
    assert not graph.of("BucketObjectLockConfiguration")


@pytest.mark.parametrize(
    ("args", "noncurrent", "expiry"),
    [
        ({}, 90, None),
        ({"object_lock_days": 30}, 90, None),
        ({"object_lock_days": 400}, 400, None),
        ({"noncurrent_days": 3, "lifecycle_days": 2}, 3, 2),
    ],
)
def test_old_versions_end_after_their_lock(
    render: Any, args: dict[str, Any], noncurrent: int, expiry: int | None
) -> None:
    rules = render(make("AwsBucket", args)).one("BucketLifecycleConfiguration").inputs["rules"]
    assert rules[0]["noncurrentVersionExpiration"] == {"noncurrentDays": noncurrent}
    assert rules[0]["abortIncompleteMultipartUpload"] == {"daysAfterInitiation": 7}
    assert [r["expiration"]["days"] for r in rules[1:]] == ([] if expiry is None else [expiry])


@pytest.mark.parametrize("args", [{}, {"retain": True}, {"object_lock_days": 5}])
def test_destroy_leaves_the_bucket_as_closed_as_it_was(render: Any, args: dict[str, Any]) -> None:
    graph = render(make("AwsBucket", args))
    bucket = graph.one("Bucket")
    assert bucket.options["retainOnDelete"] is True
    assert bucket.inputs["forceDestroy"] is False
    for part in PARTS:
        assert graph.one(part).options["retainOnDelete"] is True, part


def test_destroy_takes_the_bucket_where_that_is_asked_for(render: Any) -> None:
    graph = render(make("AwsBucket", {"retain": False}))
    assert "retainOnDelete" not in graph.one("Bucket").options
    assert graph.one("Bucket").inputs["forceDestroy"] is False
    for part in PARTS:
        assert graph.one(part).options == {"deletedWith": "it-bucket"}, part
    graph = render(make("AwsBucket", VARIANTS["evaluation"]))
    assert graph.one("Bucket").inputs["forceDestroy"] is True


def test_load_balancers_of_this_account_may_write_logs_where_asked_for(render: Any) -> None:
    [*_, logs] = statements(render(make("AwsBucket", VARIANTS["logs"])))
    assert logs["Effect"] == "Allow"
    assert logs["Action"] == ["s3:PutObject"]
    assert logs["Principal"] == {"Service": "logdelivery.elasticloadbalancing.amazonaws.com"}
    assert logs["Resource"].endswith(f"/*/AWSLogs/{ACCOUNT}/*")
    assert logs["Condition"]["ArnLike"]["aws:SourceArn"] == (
        f"arn:aws:elasticloadbalancing:eu-west-1:{ACCOUNT}:loadbalancer/*"
    )


def test_who_uses_the_name_finds_the_bucket_closed(render: Any) -> None:
    """Nothing is written before encryption, lock, policy and public access block stand."""

    def program() -> None:
        bucket = components.AwsBucket("it", VARIANTS["locked"])
        aws.s3.BucketObject("object", bucket=bucket.name, content="x")

    graph = render(program)
    assert {"it-lock", "it-closed", "it-policy", "it-encryption", "it-versioning"} <= graph.needs(
        graph.one("BucketObject")
    )


def test_an_existing_bucket_is_only_looked_up(render: Any) -> None:
    def program() -> None:
        bucket = components.AwsBucket("it", VARIANTS["existing"])
        pulumi.export("name", bucket.name)
        pulumi.export("arn", bucket.arn)

    graph = render(program)
    assert not [r for r in graph.resources if r.custom]
    assert graph.outputs == {"name": "our-bucket", "arn": "arn:aws:s3:::our-bucket"}


@pytest.mark.parametrize(
    ("args", "path", "reason"),
    [
        ({"object_lock_days": 0}, "object_lock_days", "greater than"),
        ({"object_lock_days": 4000}, "object_lock_days", "3650"),
        ({"object_lock_mode": "GOVERNANCE"}, "object_lock_mode", "needs object_lock_days"),
        (
            {"object_lock_days": 1, "object_lock_mode": "strict"},
            "object_lock_mode",
            "one of GOVERNANCE, COMPLIANCE",
        ),
        ({"object_lock_days": 30, "lifecycle_days": 29}, "lifecycle_days", "at least object_lock"),
        ({"object_lock_days": 30, "noncurrent_days": 3}, "noncurrent_days", "at least object_lock"),
        ({"lifecycle_days": 0}, "lifecycle_days", "greater than"),
        ({"delete_objects": True}, "delete_objects", "needs retain: false"),
        ({"delete_objects": True, "retain": True}, "delete_objects", "needs retain: false"),
        (
            {
                "object_lock_days": 5,
                "object_lock_mode": "COMPLIANCE",
                "retain": False,
                "delete_objects": True,
            },
            "delete_objects",
            "COMPLIANCE",
        ),
        ({"load_balancer_logs": True, "object_lock_days": 5}, "load_balancer_logs", "object_lock"),
        ({"load_balancer_logs": True, "key_arn": KEY}, "key_arn", "load_balancer_logs"),
        ({"key_arn": "alias/mine"}, "key_arn", "ARN of a KMS key"),
        ({"existing": {"name": "Ours"}}, "existing.name", "lower-case"),
        ({"existing": {"name": "ours", "nam": "x"}}, "existing.nam", "unknown property"),
        *(
            ({"existing": {"name": "ours"}, key: value}, key, "beside existing")
            for key, value in {
                "object_lock_days": 5,
                "lifecycle_days": 5,
                "noncurrent_days": 5,
                "load_balancer_logs": True,
                "retain": True,
                "delete_objects": False,
                "key_arn": KEY,
            }.items()
        ),
    ],
)
def test_nonsense_is_refused_by_name(
    refused: Any, args: dict[str, Any], path: str, reason: str
) -> None:
    assert reason in refused(make("AwsBucket", args), path)
