"""Bedrock's own log of every call: what reconciliation compares the ledger with."""

from typing import Annotated, NotRequired, TypedDict

import pulumi
import pulumi_aws as aws
from pydantic import AfterValidator, Field

from terrace_components.arguments import Arguments
from terrace_components.aws import arns
from terrace_components.aws.arguments import KeyArn, Tags, text_like
from terrace_components.aws.flow_logs import RETENTION_DAYS

LOG_STREAM = "aws/bedrock/modelinvocations"  # Bedrock's own name for it


class BedrockInvocationLogsArgs(TypedDict):
    """Arguments of ``BedrockInvocationLogs``."""

    log_retention_days: NotRequired[int]
    """Days that CloudWatch keeps the records; default 30. One of the numbers that it takes."""
    key_arn: NotRequired[pulumi.Input[str]]
    """KMS key of the log group; its policy must let CloudWatch Logs use it (the key ``logs`` of
    ``AwsKeys`` does); default CloudWatch's own."""
    bucket: NotRequired[pulumi.Input[str]]
    """Bucket that gets the records as well; its policy must let ``bedrock.amazonaws.com`` put
    objects; default none."""
    capture_content: NotRequired[bool]
    """True: prompts and answers are in the records too. False (default): only who called what,
    when, with how many tokens, and the metadata of the request."""
    tags: NotRequired[dict[str, str]]
    """Tags of everything that is made."""


def _retention(value: int) -> int:
    if value not in RETENTION_DAYS:
        raise ValueError(f"must be one of {', '.join(map(str, RETENTION_DAYS))}")
    return value


class _BedrockInvocationLogs(Arguments):
    log_retention_days: Annotated[int, AfterValidator(_retention)] = 30
    key_arn: KeyArn | None = None
    bucket: (
        Annotated[
            str | pulumi.Output[str],
            text_like(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", "the name of a bucket"),
        ]
        | None
    ) = None
    capture_content: bool = False
    tags: Tags = Field(default_factory=dict)


class BedrockInvocationLogs(pulumi.ComponentResource):
    """Records of all calls to Bedrock in the provider's region.

    An account has one such setting per region: this takes it over, and ``destroy`` turns the
    logging off. Leave it out where another stack or another team owns it.

    Creates: LogGroup, IAM role with an inline policy, InvocationLoggingConfiguration.
    """

    log_group: pulumi.Output[str]
    """Name of the log group; known when calls are recorded."""

    def __init__(
        self,
        name: str,
        args: BedrockInvocationLogsArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("terrace:index:BedrockInvocationLogs", name, None, opts)
        given = _BedrockInvocationLogs.of(args)
        child = pulumi.ResourceOptions(parent=self)
        place = arns.Place.of(self)
        group = aws.cloudwatch.LogGroup(
            f"{name}-log",
            retention_in_days=given.log_retention_days,
            kms_key_id=given.key_arn,
            tags=arns.tags(name, given.tags),
            opts=child,
        )
        role = aws.iam.Role(
            f"{name}-role",
            description="Lets Bedrock write the records of its calls",
            assume_role_policy=arns.trust_policy(
                "bedrock.amazonaws.com",
                {"StringEquals": {"aws:SourceAccount": place.account}},
                {"ArnLike": {"aws:SourceArn": place.arn("bedrock", "*")}},
            ),
            tags=arns.tags(name, given.tags),
            opts=child,
        )
        write = aws.iam.RolePolicy(
            f"{name}-write",
            role=role.id,
            policy=arns.policy_document(
                {
                    "Action": ["logs:CreateLogStream", "logs:PutLogEvents"],
                    "Resource": [pulumi.Output.concat(group.arn, f":log-stream:{LOG_STREAM}")],
                }
            ),
            opts=child,
        )
        content = given.capture_content
        config: aws.bedrockmodel.InvocationLoggingConfigurationLoggingConfigArgsDict = {
            "cloudwatch_config": {"log_group_name": group.name, "role_arn": role.arn},
            "text_data_delivery_enabled": content,
            "image_data_delivery_enabled": content,
            "embedding_data_delivery_enabled": content,
            "video_data_delivery_enabled": content,
        }
        if given.bucket is not None:
            config["s3_config"] = {"bucket_name": given.bucket}
        setting = aws.bedrockmodel.InvocationLoggingConfiguration(
            f"{name}-setting",
            logging_config=config,
            # Bedrock tries to write when it is set.
            opts=pulumi.ResourceOptions(parent=self, depends_on=[write]),
        )
        self.log_group = pulumi.Output.all(group.name, setting.id).apply(lambda known: known[0])
        self.register_outputs({"logGroup": self.log_group})
