"""Customer-managed KMS keys, one per purpose."""

from collections.abc import Mapping
from typing import Annotated, Any, NotRequired, TypedDict

import pulumi
import pulumi_aws as aws
from pydantic import Field, field_validator
from pydantic_core.core_schema import ValidationInfo

from terrace_components.arguments import Arguments, Name
from terrace_components.aws import arns
from terrace_components.aws.arguments import Different, KeyArn, Tags

# What a service principal may do with a key. Anything else that is encrypted with it (S3, Aurora,
# EKS, ECR, Secrets Manager) goes through the caller's own IAM rights, which the account grants.
SERVICE_ACTIONS = [
    "kms:Encrypt",
    "kms:Decrypt",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
    "kms:GenerateDataKey",
    "kms:GenerateDataKeyWithoutPlaintext",
]
LOGS = "logs"


class AwsKeysArgs(TypedDict):
    """Arguments of ``AwsKeys``."""

    purposes: list[str]
    """What there are keys for, such as ``secrets``, ``database``, ``objects``, ``images``,
    ``logs``. The key ``logs`` may be used by CloudWatch Logs of this account and region."""
    existing: NotRequired[dict[str, pulumi.Input[str]]]
    """Purpose -> ARN of a key that exists and is used instead of a new one."""
    deletion_window_days: NotRequired[int]
    """Days for which a deleted key can be brought back, 7 to 30; default 30."""
    retain: NotRequired[bool]
    """True (default): ``destroy`` leaves the keys in the account, because what they encrypt stays
    as well (buckets, snapshots) and would be lost with them. False: they are deleted at the end
    of the window."""
    tags: NotRequired[dict[str, str]]
    """Tags of everything that is made."""


class KeysSettings(Arguments):
    """Checked arguments that no other part gives."""

    purposes: Annotated[list[Name], Different, Field(min_length=1)]
    existing: dict[str, KeyArn] = Field(default_factory=dict)
    deletion_window_days: Annotated[int, Field(ge=7, le=30)] | None = None

    @field_validator("existing")
    @classmethod
    def _of_a_purpose(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        purposes = info.data.get("purposes", [])
        unknown = sorted(set(value) - set(purposes))
        if unknown:
            raise ValueError(
                f"has keys for {', '.join(unknown)}, which purposes does not name: "
                f"{', '.join(purposes)}"
            )
        return value

    retain: bool | None = None

    @field_validator("deletion_window_days", "retain")
    @classmethod
    def _of_keys_that_are_made(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None and set(info.data.get("existing", {})) == set(
            info.data.get("purposes", [""])
        ):
            raise ValueError("cannot be given when every key is existing: none is made")
        return value


class _AwsKeys(KeysSettings):
    tags: Tags = Field(default_factory=dict)


class AwsKeys(pulumi.ComponentResource):
    """A symmetric key per purpose, rotated every year, with an alias.

    The account's IAM policies say who uses a key; deleting one starts a window in which it can be
    brought back. Creates: a key and an alias per purpose that has no existing key.
    """

    arns: pulumi.Output[dict[str, str]]
    """Purpose -> ARN of its key."""

    def __init__(
        self,
        name: str,
        args: AwsKeysArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("terrace:index:AwsKeys", name, None, opts)
        given = _AwsKeys.of(args)
        found: dict[str, pulumi.Input[str]] = dict(given.existing)
        missing = [purpose for purpose in given.purposes if purpose not in found]
        child = pulumi.ResourceOptions(parent=self)
        kept = pulumi.ResourceOptions(parent=self, retain_on_delete=given.retain is not False)
        for purpose in missing:
            key = aws.kms.Key(
                f"{name}-{purpose}",
                description=f"Terrace: {purpose}",
                enable_key_rotation=True,
                deletion_window_in_days=given.deletion_window_days or 30,
                policy=_key_policy(purpose, arns.Place.of(self)),
                tags=arns.tags(name, given.tags, Name=f"{name}-{purpose}"),
                opts=kept,
            )
            aws.kms.Alias(
                f"{name}-{purpose}",
                # Pulumi would name it without the prefix that KMS asks for.
                name_prefix=f"alias/{name}-{purpose}-",
                target_key_id=key.key_id,
                opts=child,
            )
            found[purpose] = key.arn
        self.arns = pulumi.Output.all(**{p: found[p] for p in given.purposes}).apply(_texts)
        self.register_outputs({"arns": self.arns})


def _texts(known: Mapping[str, Any]) -> dict[str, str]:
    return {purpose: str(arn) for purpose, arn in known.items()}


def _key_policy(purpose: str, place: arns.Place) -> pulumi.Output[str]:
    # In a key policy "*" is this key. Without the account's statement nobody could ever manage it.
    statements: list[dict[str, Any]] = [
        {
            "Sid": "AccountDecidesByIam",
            "Principal": {"AWS": place.iam_arn("root")},
            "Action": ["kms:*"],
            "Resource": "*",
        }
    ]
    if purpose == LOGS:
        statements.append(
            {
                "Sid": "LogGroupsOfThisAccount",
                "Principal": {
                    "Service": pulumi.Output.concat("logs.", place.region, ".", place.dns_suffix)
                },
                "Action": SERVICE_ACTIONS,
                "Resource": "*",
                "Condition": {
                    "StringLike": {
                        "kms:EncryptionContext:aws:logs:arn": place.arn("logs", "log-group:*")
                    }
                },
            }
        )
    return arns.policy_document(*statements)
