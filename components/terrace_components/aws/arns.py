"""ARNs that know their partition (aws, aws-cn, aws-us-gov), policy documents, and tags."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

COMPONENT_TAG = "terrace.dev/component"


@dataclass(frozen=True)
class Place:
    """Where the provider of a component makes things: partition, region and account."""

    partition: pulumi.Output[str]
    """``aws``, ``aws-cn``, ``aws-us-gov``, ..."""
    dns_suffix: pulumi.Output[str]
    """``amazonaws.com``, or ``amazonaws.com.cn`` in China."""
    region: pulumi.Output[str]
    """Such as ``eu-west-1``."""
    account: pulumi.Output[str]
    """Twelve digits."""

    @classmethod
    def of(cls, component: pulumi.Resource) -> "Place":
        """Asks the provider that ``component`` passes on to its children."""
        opts = pulumi.InvokeOutputOptions(parent=component)
        partition = aws.get_partition_output(opts=opts)
        return cls(
            partition=partition.partition,
            dns_suffix=partition.dns_suffix,
            region=aws.get_region_output(opts=opts).region,
            account=aws.get_caller_identity_output(opts=opts).account_id,
        )

    def arn(self, service: str, resource: pulumi.Input[str]) -> pulumi.Output[str]:
        """ARN of a resource of this region and account; ``resource`` is what follows them."""
        return pulumi.Output.concat(
            "arn:", self.partition, f":{service}:", self.region, ":", self.account, ":", resource
        )

    def iam_arn(self, resource: pulumi.Input[str]) -> pulumi.Output[str]:
        """ARN of an IAM resource: they have an account and no region."""
        return pulumi.Output.concat("arn:", self.partition, ":iam::", self.account, ":", resource)

    def managed_policy_arn(self, name: str) -> pulumi.Output[str]:
        """ARN of a policy that AWS manages, such as ``AmazonEKSWorkerNodePolicy``."""
        return pulumi.Output.concat("arn:", self.partition, f":iam::aws:policy/{name}")


def policy_document(*statements: Mapping[str, Any]) -> pulumi.Output[str]:
    """JSON text of an IAM policy. Statements are in IAM's own spelling and may hold outputs;
    ``Effect`` is ``Allow`` where it is not given."""
    return pulumi.Output.json_dumps(
        {
            "Version": "2012-10-17",
            "Statement": [{"Effect": "Allow", **statement} for statement in statements],
        },
        sort_keys=True,
    )


def trust_policy(
    service: str, *conditions: Mapping[str, Any], actions: Sequence[str] = ("sts:AssumeRole",)
) -> pulumi.Output[str]:
    """JSON text of the policy that lets an AWS service take a role, under ``conditions``
    (operators and keys in IAM's own spelling, merged) that say for whom it may do so."""
    statement: dict[str, Any] = {"Principal": {"Service": service}, "Action": list(actions)}
    merged = {operator: keys for condition in conditions for operator, keys in condition.items()}
    if merged:
        statement["Condition"] = merged
    return policy_document(statement)


def tags(component: str, given: Mapping[str, str], **more: str) -> dict[str, str]:
    """Tags of a child: the component's name, ``more`` (such as ``Name``), and the user's own,
    which win."""
    return {COMPONENT_TAG: component, **more, **given}
