"""Who administers a cluster, and who reaches its API by the private endpoint."""

import hashlib
import re
from collections.abc import Mapping, Sequence

import pulumi
import pulumi_aws as aws

from terrace_components.arguments import LateArgumentError
from terrace_components.aws.arns import tags

CREATOR_TAG = "terrace.dev/creator"
API_PORT = 443
_NOT_IN_TAGS = re.compile(r"[^\w.:/=+@-]")  # such as the comma, which names of roles may have


def principal(arn: str) -> str:
    """The IAM role or user behind an ARN, without path and session.

    AWS names the role of a caller as ``sts::...:assumed-role/<name>/<session>``, so its path is
    not known; names are unique in an account whatever the path.
    """
    _, partition, _, _, account, resource = arn.split(":", 5)
    kind, _, name = resource.partition("/")
    if kind == "assumed-role":
        kind, name = "role", name.partition("/")[0]
    text = f"arn:{partition}:iam::{account}:{kind}/{name.rpartition('/')[2]}"
    return _NOT_IN_TAGS.sub("_", text)


def caller(parent: pulumi.Resource) -> pulumi.Output[str]:
    """Who runs Pulumi, as ``principal`` says it."""
    opts = pulumi.InvokeOutputOptions(parent=parent)
    return aws.get_caller_identity_output(opts=opts).arn.apply(principal)


def creator_is_kept(opts: pulumi.ResourceOptions) -> pulumi.ResourceOptions:
    """``opts`` of a resource with ``CREATOR_TAG``: who made it stays, whoever runs Pulumi later."""
    kept = pulumi.ResourceOptions(ignore_changes=[f'tags["{CREATOR_TAG}"]'])
    return pulumi.ResourceOptions.merge(opts, kept)


def creator(role: "aws.iam.Role") -> pulumi.Output[str]:
    """Who made the role, by its tag; empty if that is gone."""
    return role.tags.apply(lambda found: (found or {}).get(CREATOR_TAG, ""))


def add_administrators(
    name: str,
    admins: Sequence[str],
    *,
    cluster_name: pulumi.Output[str],
    created_by: pulumi.Output[str] | None,
    partition: pulumi.Output[str],
    own_tags: Mapping[str, str],
    parent: pulumi.Resource,
) -> None:
    """Access entry and cluster-admin policy for each. ``created_by`` has an entry by EKS itself
    (``None``: not known) and is refused by name, before AWS refuses it."""
    policy_arn = pulumi.Output.concat(
        "arn:", partition, ":eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"
    )
    child = pulumi.ResourceOptions(parent=parent)
    for arn in admins:
        admin = f"{name}-admin-{_short(arn)}"
        entry = aws.eks.AccessEntry(
            admin,
            cluster_name=cluster_name,
            principal_arn=_another(arn, created_by),
            tags=tags(name, own_tags),
            opts=child,
        )
        aws.eks.AccessPolicyAssociation(
            f"{admin}-policy",
            cluster_name=cluster_name,
            principal_arn=entry.principal_arn,
            policy_arn=policy_arn,
            access_scope={"type": "cluster"},
            opts=child,
        )


def open_api(
    name: str,
    *,
    security_group_id: pulumi.Output[str],
    cidrs: Sequence[str],
    group_ids: Sequence[pulumi.Input[str]],
    own_tags: Mapping[str, str],
    parent: pulumi.Resource,
) -> "list[aws.vpc.SecurityGroupIngressRule]":
    """Lets address ranges and members of security groups reach the private endpoint. Without
    this only the cluster's own nodes and pods do: EKS's group lets in nobody but its members."""
    sources: list[tuple[str, str | None, pulumi.Input[str] | None]] = [
        *((re.sub(r"[./]", "-", cidr), cidr, None) for cidr in cidrs),
        *((f"client-{number}", None, group) for number, group in enumerate(group_ids)),
    ]
    return [
        aws.vpc.SecurityGroupIngressRule(
            f"{name}-api-{key}",
            security_group_id=security_group_id,
            cidr_ipv4=cidr,
            referenced_security_group_id=group,
            ip_protocol="tcp",
            from_port=API_PORT,
            to_port=API_PORT,
            description="Kubernetes API",
            tags=tags(name, own_tags),
            opts=pulumi.ResourceOptions(parent=parent),
        )
        for key, cidr, group in sources
    ]


def _another(arn: str, created_by: pulumi.Output[str] | None) -> pulumi.Input[str]:
    if created_by is None:
        return arn

    def check(who: str) -> str:
        if principal(arn) == who:
            raise LateArgumentError(
                "admins",
                f"must not name {arn}: it creates the cluster, so EKS makes it an administrator by "
                "itself, and has one access entry per principal. Take it out of cluster.admins",
            )
        return arn

    return created_by.apply(check)


def _short(arn: str) -> str:
    """The principal's name and six hex digits of its ARN: the same whatever else is in a list."""
    last = re.sub(r"[^A-Za-z0-9-]+", "-", arn.rpartition("/")[2]).strip("-").lower()
    return f"{last[:40]}-{hashlib.sha256(arn.encode()).hexdigest()[:6]}"
