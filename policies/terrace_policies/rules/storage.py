"""S3 buckets, ECR repositories, KMS keys and log groups."""

import json
from collections.abc import Callable, Iterator
from typing import Any, cast

from terrace_policies.checks import each_resource
from terrace_policies.model import (
    Finding,
    Level,
    Parameter,
    Parameters,
    Reference,
    Rule,
    Says,
    Severity,
)
from terrace_policies.resources import Resource, Stack

BUCKET = "aws:s3/bucket:Bucket"
BLOCK = "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock"
POLICY = "aws:s3/bucketPolicy:BucketPolicy"
VERSIONING = "aws:s3/bucketVersioning:BucketVersioning"
LOCK = "aws:s3/bucketObjectLockConfiguration:BucketObjectLockConfiguration"
ENCRYPTION = (
    "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration"
)
REPOSITORY = "aws:ecr/repository:Repository"
KEY = "aws:kms/key:Key"
LOAD_BALANCER = "aws:lb/loadBalancer:LoadBalancer"
LOG_DELIVERY = "logdelivery.elasticloadbalancing.amazonaws.com"
LOG_GROUP = "aws:cloudwatch/logGroup:LogGroup"
_BLOCKS = ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")

BucketCheck = Callable[[Resource, list[Resource]], Iterator[Says]]


def _buckets(companion: str, check: BucketCheck) -> Callable[[Stack, Parameters], Iterator[Says]]:
    """A stack rule: ``check(bucket, companions of this bucket)`` for every bucket."""

    def run(stack: Stack, given: Parameters) -> Iterator[Says]:
        del given
        companions = stack.of(companion)

        def of_bucket(bucket: Resource) -> Iterator[Says]:
            yield from check(bucket, [c for c in companions if stack.refers(c, "bucket", bucket)])

        yield from each_resource(stack.of(BUCKET), of_bucket)

    return run


def _public(bucket: Resource, blocks: list[Resource]) -> Iterator[Says]:
    if not blocks:
        yield Finding("", "has no BucketPublicAccessBlock")
    for block in blocks:
        off = [key for key in _BLOCKS if block.get(key) is not True]
        if off:
            yield Finding("", f"{block.name} must set {', '.join(off)} to true")


def _tls(bucket: Resource, policies: list[Resource]) -> Iterator[Says]:
    if not any(_denies_plaintext(policy.get("policy")) for policy in policies):
        yield Finding("", "has no BucketPolicy that denies requests without TLS")


def _denies_plaintext(document: Any) -> bool:
    try:
        parsed: Any = json.loads(document) if isinstance(document, str) else document
    except ValueError:
        return False
    if not isinstance(parsed, dict):
        return False
    statements: Any = cast(dict[str, Any], parsed).get("Statement") or []
    listed = cast(list[Any], statements if isinstance(statements, list) else [statements])
    return any(
        isinstance(s, dict)
        and cast(dict[str, Any], s).get("Effect") == "Deny"
        and str(s.get("Condition", {}).get("Bool", {}).get("aws:SecureTransport")).lower()
        == "false"
        for s in listed
    )


def _versioned(bucket: Resource, configurations: list[Resource]) -> Iterator[Says]:
    if not any(c.get("versioningConfiguration.status") == "Enabled" for c in configurations):
        yield Finding("", "has no BucketVersioning with status Enabled")


def _encrypted(stack: Stack, given: Parameters) -> Iterator[Says]:
    del given

    def check(bucket: Resource) -> Iterator[Says]:
        kinds = [
            rule.get("applyServerSideEncryptionByDefault.sseAlgorithm")
            for configuration in stack.of(ENCRYPTION)
            if stack.refers(configuration, "bucket", bucket)
            for rule in configuration.items("rules")
        ]
        if any(kind in {"aws:kms", "aws:kms:dsse"} for kind in kinds):
            return
        if not _takes_access_logs(stack, bucket):
            yield Finding("", "is not encrypted with a KMS key by default (sseAlgorithm aws:kms)")

    yield from each_resource(stack.of(BUCKET), check)


def _takes_access_logs(stack: Stack, bucket: Resource) -> bool:
    """Load balancers can write to buckets with S3's own keys only."""
    if any(stack.refers(b, "accessLogs.bucket", bucket) for b in stack.of(LOAD_BALANCER)):
        return True
    policies = [p for p in stack.of(POLICY) if stack.refers(p, "bucket", bucket)]
    return any(LOG_DELIVERY in str(policy.get("policy")) for policy in policies)


def _locked(bucket: Resource, configurations: list[Resource]) -> Iterator[Says]:
    purpose = bucket.get("tags", {}).get("terrace.dev/purpose", "")
    if not bucket.get("objectLockEnabled", False):
        if purpose == "ledger" or "ledger" in bucket.name:
            yield Finding("objectLockEnabled", "keeps ledger heads; must be true (only at birth)")
        return
    days = [c.get("rule.defaultRetention.days") or c.get("rule.defaultRetention.years")
            for c in configurations]  # fmt: skip
    if not any(days):
        yield Finding("", "has Object Lock but no default retention: nothing is locked")


def _repository(repository: Resource, given: Parameters) -> Iterator[Says]:
    del given
    mutability = repository.get("imageTagMutability", "MUTABLE")
    if mutability != "IMMUTABLE":
        yield Finding("imageTagMutability", f"is {mutability}; must be IMMUTABLE")


def _scanned(repository: Resource, given: Parameters) -> Iterator[Says]:
    del given
    if repository.get("imageScanningConfiguration.scanOnPush") is not True:
        yield Finding("imageScanningConfiguration.scanOnPush", "must be true")


def _rotated(key: Resource, given: Parameters) -> Iterator[Says]:
    del given
    symmetric = key.get("customerMasterKeySpec", "SYMMETRIC_DEFAULT") == "SYMMETRIC_DEFAULT"
    if symmetric and key.get("enableKeyRotation") is not True:
        yield Finding("enableKeyRotation", "must be true")


def _retention(group: Resource, given: Parameters) -> Iterator[Says]:
    days = group.get("retentionInDays", 0)
    if not 0 < days <= given["longest-days"]:
        kept = f"{days:g} days" if days else "for ever"
        yield Finding("retentionInDays", f"kept {kept}; at most {given['longest-days']} days")


_LONGEST = Parameter(
    int, 3653, "longest retention in days, 1 to 3653", "higher", least=1, most=3653
)
_CIS = "CIS AWS Foundations 3.0"
_SETTING = "Use the component AwsBucket, or add the resource for this bucket: "

RULES = (
    Rule(
        id="bucket-not-public",
        description="Every bucket blocks public access in all four ways",
        why="One policy or ACL written in haste is enough to publish a bucket.",
        remediation=_SETTING + "BucketPublicAccessBlock with all four settings true.",
        severity=Severity.CRITICAL,
        references=(Reference(_CIS, "2.1.4"),),
        stack=_buckets(BLOCK, _public),
    ),
    Rule(
        id="bucket-tls-only",
        description="Every bucket refuses requests without TLS",
        why="Ledger heads and logs must not cross a network in the clear.",
        remediation=_SETTING + "BucketPolicy with Deny when aws:SecureTransport is false.",
        severity=Severity.MEDIUM,
        references=(Reference(_CIS, "2.1.1"),),
        stack=_buckets(POLICY, _tls),
    ),
    Rule(
        id="bucket-versioned",
        description="Every bucket keeps versions",
        why="An overwritten or deleted object is gone otherwise, and with it evidence.",
        remediation=_SETTING + "BucketVersioning with status Enabled.",
        severity=Severity.MEDIUM,
        references=(Reference("AWS FSBP", "S3.14"),),
        stack=_buckets(VERSIONING, _versioned),
    ),
    Rule(
        id="bucket-encrypted-with-key",
        description="Every bucket but those of load balancers' logs is encrypted with a KMS key",
        why="With a key of its own, access to the data needs access to the key too.",
        remediation=_SETTING + "BucketServerSideEncryptionConfiguration with aws:kms.",
        severity=Severity.MEDIUM,
        references=(Reference("AWS FSBP", "S3.17"),),
        stack=_encrypted,
    ),
    Rule(
        id="ledger-bucket-locked",
        description="Buckets for ledger heads have Object Lock with a default retention",
        why="A head that can be deleted anchors nothing; Object Lock is set at birth only.",
        remediation="Set `objects.object_lock_days` (objectLockEnabled and a default retention).",
        severity=Severity.HIGH,
        references=(
            Reference("AWS FSBP", "S3.15"),
            Reference("OWASP LLM Top 10 2025", "LLM02 (audit evidence)"),
        ),
        stack=_buckets(LOCK, _locked),
    ),
    Rule(
        id="registry-tags-immutable",
        description="Image tags in ECR cannot be moved",
        why="A tag that moves runs code nobody reviewed on the next node.",
        remediation="Set imageTagMutability to IMMUTABLE (component AwsRegistry does).",
        severity=Severity.HIGH,
        references=(Reference("AWS FSBP", "ECR.2"),),
        types=(REPOSITORY,),
        resource=_repository,
    ),
    Rule(
        id="registry-scans-images",
        description="Images in ECR are scanned when pushed",
        why="Known vulnerabilities should be read before they run.",
        remediation="Set imageScanningConfiguration.scanOnPush to true.",
        severity=Severity.LOW,
        references=(Reference("CIS EKS Benchmark 1.5", "5.1.1"),),
        types=(REPOSITORY,),
        resource=_scanned,
        level=Level.ADVISORY,
    ),
    Rule(
        id="key-rotated",
        description="KMS keys rotate every year",
        why="It bounds what one leaked key material can read.",
        remediation="Set enableKeyRotation to true (component AwsKeys does).",
        severity=Severity.MEDIUM,
        references=(Reference(_CIS, "3.6"),),
        types=(KEY,),
        resource=_rotated,
    ),
    Rule(
        id="logs-expire",
        description="Log groups have an end",
        why="Logs kept for ever cost for ever, and prompts in them are personal data.",
        remediation="Set retentionInDays.",
        severity=Severity.LOW,
        references=(Reference("AWS FSBP", "CloudWatch.16"),),
        types=(LOG_GROUP,),
        resource=_retention,
        level=Level.ADVISORY,
        parameters={"longest-days": _LONGEST},
    ),
)
