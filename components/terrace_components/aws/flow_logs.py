"""Flow logs of a VPC in CloudWatch."""

from collections.abc import Mapping

import pulumi
import pulumi_aws as aws

from terrace_components.aws import arns

# What CloudWatch Logs takes; 0 (for ever) is left out on purpose.
RETENTION_DAYS = (
    1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731,
    1096, 1827, 2192, 2557, 2922, 3288, 3653,
)  # fmt: skip


def flow_logs(
    name: str,
    vpc_id: pulumi.Input[str],
    *,
    retention_days: int,
    key_arn: pulumi.Input[str] | None,
    tags: Mapping[str, str],
    parent: pulumi.Resource,
) -> "aws.ec2.FlowLog":
    """Every flow of the VPC, accepted or refused, into a log group of its own.

    The role may write to that group only, and only the flow logs service of this account may
    take it.
    """
    child = pulumi.ResourceOptions(parent=parent)
    place = arns.Place.of(parent)
    group = aws.cloudwatch.LogGroup(
        f"{name}-flow-logs",
        retention_in_days=retention_days,
        kms_key_id=key_arn,
        tags=arns.tags(name, tags),
        opts=child,
    )
    role = aws.iam.Role(
        f"{name}-flow-logs",
        description="Lets the VPC's flow logs write to their log group",
        assume_role_policy=arns.trust_policy(
            "vpc-flow-logs.amazonaws.com",
            {"StringEquals": {"aws:SourceAccount": place.account}},
            {"ArnLike": {"aws:SourceArn": place.arn("ec2", "vpc-flow-log/*")}},
        ),
        tags=arns.tags(name, tags),
        opts=child,
    )
    write = aws.iam.RolePolicy(
        f"{name}-flow-logs",
        role=role.id,
        policy=arns.policy_document(
            {
                "Action": ["logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams"],
                "Resource": [group.arn, pulumi.Output.concat(group.arn, ":*")],
            },
            {
                "Action": ["logs:DescribeLogGroups"],
                "Resource": [place.arn("logs", "log-group:*")],
            },
        ),
        opts=child,
    )
    return aws.ec2.FlowLog(
        f"{name}-flow-logs",
        vpc_id=vpc_id,
        traffic_type="ALL",
        log_destination_type="cloud-watch-logs",
        log_destination=group.arn,
        iam_role_arn=role.arn,
        max_aggregation_interval=60,
        tags=arns.tags(name, tags, Name=f"{name}-flow-logs"),
        opts=pulumi.ResourceOptions(parent=parent, depends_on=[write]),
    )
