"""What the guard may do on AWS besides calling models: seal captured prompts, anchor the ledger."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NotRequired, TypedDict

import pulumi

from terrace_common.names import ANCHOR_PREFIX, CAPTURE_CONTEXT
from terrace_components.arguments import Arguments
from terrace_components.aws.arguments import KeyArn, text_like


class AnchorRightsArgs(TypedDict):
    """The bucket in which the guard anchors heads of its ledger, below ``anchors/``."""

    bucket: pulumi.Input[str]
    """Its name."""
    key_arn: NotRequired[pulumi.Input[str]]
    """KMS key that encrypts the bucket; default none, which is right for S3's own keys."""
    retention: NotRequired[bool]
    """Whether the guard locks each anchor itself (its ``anchor_retention_days``), which the bucket
    must have Object Lock for; default false: the bucket's own default holds."""


class AnchorRights(Arguments):
    """Checked ``AnchorRightsArgs``."""

    bucket: Annotated[
        str | pulumi.Output[str],
        text_like(
            r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]",
            "the name of a bucket: 3 to 63 lower-case letters, digits, dots and hyphens",
        ),
    ]
    key_arn: KeyArn | None = None
    retention: bool = False


def capture_statements(
    key: pulumi.Input[str] | None, earlier: Sequence[pulumi.Input[str]]
) -> list[Mapping[str, Any]]:
    """Wrap and open data keys of captured prompts with ``key``, open those of ``earlier`` keys, and
    nothing else that these keys encrypt."""
    context = {f"kms:EncryptionContext:{name}": value for name, value in CAPTURE_CONTEXT.items()}
    condition = {"Condition": {"StringEquals": context}}
    made: list[Mapping[str, Any]] = []
    if key is not None:
        made.append(
            {
                "Sid": "SealCaptures",
                "Action": ["kms:Encrypt", "kms:Decrypt"],
                "Resource": [key],
                **condition,
            }
        )
    if earlier:
        made.append(
            {
                "Sid": "OpenEarlierCaptures",
                "Action": ["kms:Decrypt"],
                "Resource": [*earlier],
                **condition,
            }
        )
    return made


def anchor_statements(given: AnchorRights, partition: pulumi.Input[str]) -> list[Mapping[str, Any]]:
    """Put, list and read anchors, which the verifier of the ledger does; never delete one."""
    bucket = pulumi.Output.concat("arn:", partition, ":s3:::", given.bucket)
    anchors = pulumi.Output.concat(bucket, "/", ANCHOR_PREFIX, "*")
    actions = ["s3:GetObject", "s3:PutObject"]
    if given.retention:
        actions.append("s3:PutObjectRetention")
    made: list[Mapping[str, Any]] = [
        {"Sid": "Anchors", "Action": actions, "Resource": [anchors]},
        {
            "Sid": "ListAnchors",
            "Action": ["s3:ListBucket"],
            "Resource": [bucket],
            "Condition": {"StringEquals": {"s3:prefix": ANCHOR_PREFIX}},
        },
    ]
    if given.key_arn is not None:
        made.append(
            {
                "Sid": "EncryptAnchors",
                "Action": ["kms:Decrypt", "kms:GenerateDataKey"],
                "Resource": [given.key_arn],
                # S3 sets the context: the bucket where it has a bucket key, else the object.
                "Condition": {
                    "StringLike": {"kms:EncryptionContext:aws:s3:arn": [bucket, anchors]}
                },
            }
        )
    return made
