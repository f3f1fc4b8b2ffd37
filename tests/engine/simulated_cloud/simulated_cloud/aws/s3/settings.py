"""Settings of a bucket: versioning, encryption, Object Lock, public access, policy, lifecycle,
ownership, logging.

A bucket has each setting once. AWS lets the last writer win; two resources for one setting are
refused here.
"""

import json
from collections.abc import Iterable
from typing import Any

from ...inventory import Item
from ...models import CloudError, Link, Problem
from ...rules import between, length, one_of
from ...values import UNKNOWN, Properties, first, known
from ...world import World
from ..iam.documents import check_document
from ..kms import refuse_missing_key
from ..model import ArnOf, AwsModel
from .buckets import BUCKET, LOCK

VERSIONING = "aws:s3/bucketVersioning:BucketVersioning"
PUBLIC_ACCESS = "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock"
_CLASSES = (
    "STANDARD_IA",
    "ONEZONE_IA",
    "INTELLIGENT_TIERING",
    "GLACIER",
    "GLACIER_IR",
    "DEEP_ARCHIVE",
)


class _Setting(AwsModel):
    level = "partition"
    links = (Link("bucket", BUCKET, not_found="NoSuchBucket"),)
    replace_on = frozenset({"bucket", "expectedBucketOwner"})
    duplicate_code = "SimulatedConflict"

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return str(inputs["bucket"])


class BucketVersioning(_Setting):
    token = VERSIONING
    rules = (
        one_of("versioningConfiguration.status", "Enabled", "Suspended", "Disabled"),
        one_of("versioningConfiguration.mfaDelete", "Enabled", "Disabled"),
    )

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        status = first(inputs, "versioningConfiguration.status")
        bucket = world.get(inputs["bucket"], BUCKET)
        if (
            status != "Enabled"
            and bucket
            and (bucket["objectLockEnabled"] or world.get(bucket.id, LOCK))
        ):
            raise CloudError(
                "InvalidBucketState",
                f"{bucket.id} has Object Lock, so versioning cannot be {status}",
            )


class BucketServerSideEncryptionConfiguration(_Setting):
    token = "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration"
    rules = (
        one_of(
            "rules[].applyServerSideEncryptionByDefault.sseAlgorithm",
            "AES256",
            "aws:kms",
            "aws:kms:dsse",
        ),
        length("rules", 1, 1),
    )
    arns = (
        ArnOf(
            "rules[].applyServerSideEncryptionByDefault.kmsMasterKeyId",
            "kms",
            "(key|alias)/.+",
            here=True,
            or_name=True,
        ),
    )

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        for where, key in known(
            inputs, "rules[].applyServerSideEncryptionByDefault.kmsMasterKeyId"
        ):
            refuse_missing_key(key, where, world)

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        for where, rule in known(inputs, "rules[].applyServerSideEncryptionByDefault"):
            if rule.get("sseAlgorithm") == "AES256" and rule.get("kmsMasterKeyId") is not None:
                yield Problem(f"{where}.kmsMasterKeyId", "is not allowed with AES256; use aws:kms")


class BucketObjectLockConfiguration(_Setting):
    token = LOCK
    rules = (
        one_of("objectLockEnabled", "Enabled"),
        one_of("rule.defaultRetention.mode", "GOVERNANCE", "COMPLIANCE"),
        between("rule.defaultRetention.days", 1, 36500),
        between("rule.defaultRetention.years", 1, 100),
    )
    defaults = {"objectLockEnabled": "Enabled"}

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        retention = first(inputs, "rule.defaultRetention")
        if isinstance(retention, dict):
            given = [name for name in ("days", "years") if retention.get(name) is not None]
            if len(given) != 1:
                yield Problem(
                    "rule.defaultRetention.days", "exactly one of days and years is required"
                )
            if retention.get("mode") is None:
                yield Problem("rule.defaultRetention.mode", "is required: GOVERNANCE or COMPLIANCE")

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        bucket = world.get(inputs["bucket"], BUCKET)
        versioning = world.get(inputs["bucket"], VERSIONING)
        versioned = (
            versioning and first(versioning.outputs, "versioningConfiguration.status") == "Enabled"
        )
        if bucket and not bucket["objectLockEnabled"] and not versioned:
            raise CloudError(
                "InvalidBucketState",
                f"versioning must be Enabled on {bucket.id} to apply an Object Lock configuration",
            )


class BucketPublicAccessBlock(_Setting):
    token = PUBLIC_ACCESS
    defaults = {
        "blockPublicAcls": False,
        "blockPublicPolicy": False,
        "ignorePublicAcls": False,
        "restrictPublicBuckets": False,
    }


class BucketPolicy(_Setting):
    token = "aws:s3/bucketPolicy:BucketPolicy"

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        yield from check_document(inputs.get("policy"), "policy", kind="resource")

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        document = (
            json.loads(inputs["policy"]) if isinstance(inputs["policy"], str) else inputs["policy"]
        )
        arn = f"arn:{world.place.partition}:s3:::{inputs['bucket']}"
        statements = (
            document["Statement"]
            if isinstance(document["Statement"], list)
            else [document["Statement"]]
        )
        blocked = world.get(inputs["bucket"], PUBLIC_ACCESS)
        for index, statement in enumerate(statements):
            for resource in _listed(statement.get("Resource")):
                if resource != arn and not str(resource).startswith(f"{arn}/"):
                    raise CloudError(
                        "MalformedPolicy",
                        f"policy: Statement[{index}] has the invalid resource {resource!r}; this"
                        f" bucket is {arn}",
                    )
            open_to_all = statement.get("Effect") == "Allow" and statement.get("Principal") in (
                "*",
                {"AWS": "*"},
            )
            if (
                open_to_all
                and not statement.get("Condition")
                and blocked
                and blocked["blockPublicPolicy"]
            ):
                raise CloudError(
                    "AccessDenied",
                    f"policy: Statement[{index}] makes {inputs['bucket']} public, which"
                    " blockPublicPolicy prevents",
                )


class BucketLifecycleConfiguration(_Setting):
    token = "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration"
    rules = (
        one_of("rules[].status", "Enabled", "Disabled"),
        length("rules[].id", 1, 255),
        one_of("rules[].transitions[].storageClass", *_CLASSES),
        one_of("rules[].noncurrentVersionTransitions[].storageClass", *_CLASSES),
        between("rules[].expiration.days", 1, 2**31 - 1),
        between("rules[].noncurrentVersionExpiration.noncurrentDays", 1, 2**31 - 1),
        between("rules[].abortIncompleteMultipartUpload.daysAfterInitiation", 1, 2**31 - 1),
    )

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        seen: set[Any] = set()
        actions = (
            "expiration",
            "transitions",
            "noncurrentVersionExpiration",
            "noncurrentVersionTransitions",
            "abortIncompleteMultipartUpload",
        )
        for where, rule in known(inputs, "rules[]"):
            if rule.get("id") is not UNKNOWN and rule.get("id") in seen:
                yield Problem(f"{where}.id", f"{rule['id']!r} is given twice")
            seen.add(rule.get("id"))
            if not any(rule.get(action) is not None for action in actions):
                yield Problem(where, f"at least one action is required: {', '.join(actions)}")
            for place, step in known(rule, "transitions[]"):
                days = step.get("days")
                if (
                    step.get("storageClass") in ("STANDARD_IA", "ONEZONE_IA")
                    and isinstance(days, int)
                    and days < 30
                ):
                    yield Problem(
                        f"{where}.{place}.days",
                        f"{days} is below 30, the least for {step['storageClass']}",
                    )


class BucketOwnershipControls(_Setting):
    token = "aws:s3/bucketOwnershipControls:BucketOwnershipControls"
    rules = (
        one_of(
            "rule.objectOwnership", "BucketOwnerEnforced", "BucketOwnerPreferred", "ObjectWriter"
        ),
    )


class BucketLogging(_Setting):
    token = "aws:s3/bucketLogging:BucketLogging"
    links = (
        *_Setting.links,
        Link("targetBucket", BUCKET, not_found="InvalidTargetBucketForLogging"),
    )


MODELS = (
    BucketVersioning,
    BucketServerSideEncryptionConfiguration,
    BucketObjectLockConfiguration,
    BucketPublicAccessBlock,
    BucketPolicy,
    BucketLifecycleConfiguration,
    BucketOwnershipControls,
    BucketLogging,
)


def _listed(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]
