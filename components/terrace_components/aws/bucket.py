"""An S3 bucket for what must not be lost or changed, such as the heads of the ledger."""

from typing import Annotated, Any, NotRequired, TypedDict

import pulumi
import pulumi_aws as aws
from pydantic import Field, field_validator
from pydantic_core.core_schema import ValidationInfo

from terrace_components.arguments import Arguments
from terrace_components.aws import arns
from terrace_components.aws.arguments import KeyArn, Tags, one_of, text_like

GOVERNANCE, COMPLIANCE = LOCK_MODES = ("GOVERNANCE", "COMPLIANCE")
# The locked heads are small; ten years is more than any rule on records that we know asks for.
MOST_LOCK_DAYS = 3650
UNFINISHED_UPLOAD_DAYS = 7


class ExistingBucketArgs(TypedDict):
    """A bucket that exists; nothing about it is changed."""

    name: pulumi.Input[str]
    """Its name."""


class AwsBucketArgs(TypedDict):
    """Arguments of ``AwsBucket``."""

    # instead of everything below
    existing: NotRequired[ExistingBucketArgs]
    """A bucket that exists, to be used as it is."""
    # locks
    object_lock_days: NotRequired[int]
    """Days for which no version can be deleted or overwritten, 1 to 3650; default no Object Lock.
    A bucket gets Object Lock when it is made or never: adding or removing it replaces the bucket.
    """
    object_lock_mode: NotRequired[str]
    """``GOVERNANCE`` (default): who holds ``s3:BypassGovernanceRetention`` can still delete, so a
    wrong number of days is not for ever. ``COMPLIANCE``: nobody can, the account's root neither;
    the bucket cannot be deleted before the last object's days have passed."""
    # life
    lifecycle_days: NotRequired[int]
    """Days after which objects expire; default never. Not less than ``object_lock_days``."""
    noncurrent_days: NotRequired[int]
    """Days after which versions that were overwritten or deleted expire; default 90, or
    ``object_lock_days`` if that is more."""
    load_balancer_logs: NotRequired[bool]
    """Let load balancers of this account and region write their access logs; default false. They
    can write neither with a KMS key nor to a bucket with Object Lock."""
    retain: NotRequired[bool]
    """True (default): ``destroy`` leaves the bucket and what is in it in the account. False: it
    deletes the bucket, which succeeds when the bucket is empty or ``delete_objects`` is true."""
    delete_objects: NotRequired[bool]
    """Delete every object with the bucket; default false. For evaluation; needs
    ``retain: false`` and no Object Lock in COMPLIANCE mode."""
    key_arn: NotRequired[pulumi.Input[str]]
    """KMS key of the objects; default S3's own keys."""
    tags: NotRequired[dict[str, str]]
    """Tags of everything that is made."""


class ExistingBucket(Arguments):
    """Checked ``ExistingBucketArgs``."""

    name: Annotated[
        str | pulumi.Output[str],
        text_like(
            r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]",
            "the name of a bucket: 3 to 63 lower-case letters, digits, dots and hyphens",
        ),
    ]


class BucketSettings(Arguments):
    """Checked arguments that no other part gives."""

    existing: ExistingBucket | None = None
    object_lock_days: Annotated[int, Field(ge=1, le=MOST_LOCK_DAYS)] | None = None
    object_lock_mode: Annotated[str, one_of(*LOCK_MODES)] | None = None
    lifecycle_days: Annotated[int, Field(ge=1)] | None = None
    noncurrent_days: Annotated[int, Field(ge=1)] | None = None
    load_balancer_logs: bool | None = None
    retain: bool | None = None
    delete_objects: bool | None = None

    @field_validator(
        "object_lock_days", "object_lock_mode", "lifecycle_days", "noncurrent_days",
        "load_balancer_logs", "retain", "delete_objects", "key_arn", check_fields=False,
    )  # fmt: skip
    @classmethod
    def _not_beside_existing(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None and info.data.get("existing") is not None:
            raise ValueError("cannot be given beside existing: that bucket stays as it is")
        return value

    @field_validator("object_lock_mode")
    @classmethod
    def _mode_of_a_lock(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("object_lock_days") is None:
            raise ValueError("needs object_lock_days")
        return value

    @field_validator("lifecycle_days", "noncurrent_days")
    @classmethod
    def _not_before_the_lock_ends(cls, value: int | None, info: ValidationInfo) -> int | None:
        locked = info.data.get("object_lock_days")
        if value is not None and locked is not None and value < locked:
            raise ValueError(
                f"must be at least object_lock_days ({locked}): S3 deletes no locked version"
            )
        return value

    @field_validator("load_balancer_logs")
    @classmethod
    def _logs_without_a_lock(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        if value and info.data.get("object_lock_days") is not None:
            raise ValueError("cannot be given with object_lock_days: ELB cannot write there")
        return value

    @field_validator("delete_objects")
    @classmethod
    def _only_what_may_go(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        if value and info.data.get("retain") is not False:
            raise ValueError("needs retain: false: else the bucket itself stays")
        if value and info.data.get("object_lock_mode") == COMPLIANCE:
            raise ValueError("cannot be given with COMPLIANCE: nobody can delete locked versions")
        return value

    @property
    def noncurrent(self) -> int:
        """Days that old versions are kept."""
        return self.noncurrent_days or max(90, self.object_lock_days or 0)


class _AwsBucket(BucketSettings):
    key_arn: KeyArn | None = None
    tags: Tags = Field(default_factory=dict)

    @field_validator("key_arn")
    @classmethod
    def _logs_without_a_key(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None and info.data.get("load_balancer_logs"):
            raise ValueError("cannot be given with load_balancer_logs: ELB writes with S3's keys")
        return value


class AwsBucket(pulumi.ComponentResource):
    """A private, versioned, encrypted bucket that is reached by TLS only, or one that exists.

    Its objects outlive the stack unless that is asked for otherwise. Creates, unless it exists:
    the bucket with versioning, Object Lock (where asked for), encryption, ownership, public access
    block, policy and lifecycle.
    """

    name: pulumi.Output[str]
    """Name of the bucket; known when it is closed and encrypted."""
    arn: pulumi.Output[str]
    """ARN of the bucket."""

    def __init__(
        self,
        name: str,
        args: AwsBucketArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("terrace:index:AwsBucket", name, None, opts)
        self._given = given = _AwsBucket.of(args)
        if given.existing is not None:
            found = aws.s3.get_bucket_output(
                bucket=given.existing.name, opts=pulumi.InvokeOutputOptions(parent=self)
            )
            self.name, self.arn = found.bucket, found.arn
        else:
            self._make(name)
        self.register_outputs({"name": self.name, "arn": self.arn})

    def _make(self, name: str) -> None:
        given = self._given
        kept = given.retain is not False
        bucket = aws.s3.Bucket(
            f"{name}-bucket",
            object_lock_enabled=given.object_lock_days is not None,
            force_destroy=bool(given.delete_objects),
            tags=arns.tags(name, given.tags),
            opts=pulumi.ResourceOptions(parent=self, retain_on_delete=kept),
        )
        # What belongs to the bucket stays with it: a bucket left behind must not be open.
        part = pulumi.ResourceOptions(parent=self, retain_on_delete=kept, deleted_with=bucket)
        versioning = aws.s3.BucketVersioning(
            f"{name}-versioning",
            bucket=bucket.bucket,
            versioning_configuration={"status": "Enabled"},
            opts=part,
        )
        encryption = aws.s3.BucketServerSideEncryptionConfiguration(
            f"{name}-encryption",
            bucket=bucket.bucket,
            rules=[
                {
                    "apply_server_side_encryption_by_default": (
                        {"sse_algorithm": "aws:kms", "kms_master_key_id": given.key_arn}
                        if given.key_arn is not None
                        else {"sse_algorithm": "AES256"}
                    ),
                    # One data key for many objects: KMS is asked, and paid, once per hour or so.
                    "bucket_key_enabled": given.key_arn is not None,
                }
            ],
            opts=part,
        )
        aws.s3.BucketOwnershipControls(
            f"{name}-ownership",
            bucket=bucket.bucket,
            rule={"object_ownership": "BucketOwnerEnforced"},  # no ACLs at all
            opts=part,
        )
        closed = aws.s3.BucketPublicAccessBlock(
            f"{name}-closed",
            bucket=bucket.bucket,
            block_public_acls=True,
            block_public_policy=True,
            ignore_public_acls=True,
            restrict_public_buckets=True,
            opts=part,
        )
        policy = aws.s3.BucketPolicy(
            f"{name}-policy",
            bucket=bucket.bucket,
            policy=_policy(bucket.arn, arns.Place.of(self) if given.load_balancer_logs else None),
            # S3 refuses two changes of these at once ("conflicting conditional operation").
            opts=pulumi.ResourceOptions.merge(part, pulumi.ResourceOptions(depends_on=[closed])),
        )
        after_versioning = pulumi.ResourceOptions.merge(
            part, pulumi.ResourceOptions(depends_on=[versioning])
        )
        ready: list[pulumi.CustomResource] = [versioning, encryption, closed, policy]
        if given.object_lock_days is not None:
            ready.append(
                aws.s3.BucketObjectLockConfiguration(
                    f"{name}-lock",
                    bucket=bucket.bucket,
                    rule={
                        "default_retention": {
                            "mode": given.object_lock_mode or GOVERNANCE,
                            "days": given.object_lock_days,
                        }
                    },
                    opts=after_versioning,
                )
            )
        aws.s3.BucketLifecycleConfiguration(
            f"{name}-lifecycle",
            bucket=bucket.bucket,
            rules=_lifecycle(given),
            opts=after_versioning,
        )
        self.name = pulumi.Output.all(bucket.bucket, [r.id for r in ready]).apply(lambda k: k[0])
        self.arn = bucket.arn


def _policy(bucket_arn: pulumi.Output[str], logs_of: arns.Place | None) -> pulumi.Output[str]:
    """TLS only; and where ``logs_of`` is given, ELB of that place may write its logs."""
    statements: list[dict[str, Any]] = [
        {
            "Sid": "TlsOnly",
            "Effect": "Deny",
            "Principal": "*",
            "Action": ["s3:*"],
            "Resource": [bucket_arn, pulumi.Output.concat(bucket_arn, "/*")],
            "Condition": {"Bool": {"aws:SecureTransport": "false"}},
        },
        {
            "Sid": "RecentTlsOnly",
            "Effect": "Deny",
            "Principal": "*",
            "Action": ["s3:*"],
            "Resource": [bucket_arn, pulumi.Output.concat(bucket_arn, "/*")],
            "Condition": {"NumericLessThan": {"s3:TlsVersion": "1.2"}},
        },
    ]
    if logs_of is not None:
        statements.append(
            {
                "Sid": "LoadBalancerLogs",
                "Principal": {"Service": "logdelivery.elasticloadbalancing.amazonaws.com"},
                "Action": ["s3:PutObject"],
                "Resource": pulumi.Output.concat(bucket_arn, "/*/AWSLogs/", logs_of.account, "/*"),
                "Condition": {
                    "ArnLike": {
                        "aws:SourceArn": logs_of.arn("elasticloadbalancing", "loadbalancer/*")
                    }
                },
            }
        )
    return arns.policy_document(*statements)


def _lifecycle(given: _AwsBucket) -> "list[aws.s3.BucketLifecycleConfigurationRuleArgsDict]":
    rules: list[aws.s3.BucketLifecycleConfigurationRuleArgsDict] = [
        {
            "id": "old-versions",
            "status": "Enabled",
            "filter": {"prefix": ""},
            "noncurrent_version_expiration": {"noncurrent_days": given.noncurrent},
            "abort_incomplete_multipart_upload": {"days_after_initiation": UNFINISHED_UPLOAD_DAYS},
        }
    ]
    if given.lifecycle_days is not None:
        rules.append(
            {
                "id": "expiry",
                "status": "Enabled",
                "filter": {"prefix": ""},
                "expiration": {"days": given.lifecycle_days},
            }
        )
    return rules
