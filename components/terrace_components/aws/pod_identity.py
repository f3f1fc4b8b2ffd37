"""AWS rights of one Kubernetes service account."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, NotRequired, TypedDict, cast

import pulumi
import pulumi_aws as aws
from pydantic import Field, PlainValidator

from terrace_components.arguments import Arguments, Name, Text
from terrace_components.aws.arguments import Tags
from terrace_components.aws.arns import Place, tags, trust_policy

MOST_CHARACTERS = 10240  # of an inline role policy, white space not counted


class AwsPodIdentityArgs(TypedDict):
    """Arguments of ``AwsPodIdentity``."""

    cluster_name: pulumi.Input[str]
    """Name of the EKS cluster; it must have the add-on ``eks-pod-identity-agent``."""
    namespace: str
    """Namespace of the service account."""
    service_account: str
    """Name of the service account. It need not exist yet."""
    policy: pulumi.Input[str]
    """IAM policy document, JSON text: what its pods may do. No statement may allow the action
    ``*`` or all actions of a service."""
    tags: NotRequired[dict[str, str]]
    """Tags of everything that is made."""


def checked_policy(text: str) -> str:
    """``text``, if it is an identity policy that names what it allows. Raises ValueError."""
    try:
        parsed: Any = json.loads(text)
    except ValueError as error:
        raise ValueError(f"must be JSON: {error}") from None
    document: Mapping[str, Any] = (
        cast(Mapping[str, Any], parsed) if isinstance(parsed, dict) else {}
    )
    statements: Any = document.get("Statement")
    if isinstance(statements, dict):
        statements = [statements]
    if document.get("Version") != "2012-10-17" or not isinstance(statements, list):
        raise ValueError(
            'must be an IAM policy document: {"Version": "2012-10-17", "Statement": [...]}'
        )
    if not statements:
        raise ValueError("must have a statement at least")
    if len("".join(text.split())) > MOST_CHARACTERS:
        raise ValueError(f"must have at most {MOST_CHARACTERS} characters, IAM's limit")
    for number, statement in enumerate(cast(list[Any], statements)):
        _check_statement(number, statement)
    return text


def _check_statement(number: int, statement: Any) -> None:
    if not isinstance(statement, dict):
        raise ValueError(f"statement {number} must be an object")  # noqa: TRY004  for pydantic
    keys = cast(Mapping[str, Any], statement)
    if keys.get("Effect") not in {"Allow", "Deny"}:
        raise ValueError(f"statement {number}: Effect must be Allow or Deny")
    if "Principal" in keys or "NotPrincipal" in keys:
        raise ValueError(f"statement {number}: a role's own policy has no Principal")
    if keys["Effect"] == "Deny":
        return
    if "NotAction" in keys or "NotResource" in keys:
        raise ValueError(f"statement {number}: must allow by Action and Resource")
    actions = keys.get("Action")
    named = cast(list[Any], actions if isinstance(actions, list) else [actions])
    for action in named:
        service, _, what = str(action or "").partition(":")
        if not service or not what or what == "*" or "*" in service:
            raise ValueError(
                f"statement {number}: must name its actions, such as s3:GetObject; not {action!r}"
            )
    if not keys.get("Resource"):
        raise ValueError(f"statement {number}: must name its Resource")


def _policy(value: Any) -> str | pulumi.Output[str]:
    if isinstance(value, pulumi.Output):
        # Documents are made of ARNs of other resources: checked as soon as they are known.
        return cast(pulumi.Output[str], value).apply(_checked_later)
    if not isinstance(value, str):
        raise ValueError("must be JSON text")  # noqa: TRY004  pydantic wants ValueError
    return checked_policy(value)


def _checked_later(text: str) -> str:
    try:
        return checked_policy(text)
    except ValueError as error:
        raise pulumi.InputPropertyError("policy", str(error)) from None


class _AwsPodIdentity(Arguments):
    cluster_name: Text
    namespace: Name
    service_account: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
    policy: Annotated[str | pulumi.Output[str], PlainValidator(_policy)]
    tags: Tags = Field(default_factory=dict)


class AwsPodIdentity(pulumi.ComponentResource):
    """A role that pods of one service account in one cluster have, and no others.

    A pod gets it when it is created, or never. EKS needs some seconds to see a new association, so
    a pod that is created right after it may have none: Jobs try again with a new pod
    (``restartPolicy: Never``), and ``GovernanceGateway`` waits for a Job that has seen it.

    Creates: IAM role with an inline policy, PodIdentityAssociation.
    """

    role_arn: pulumi.Output[str]
    """ARN of the role; known when the association is made. Pods that are created some seconds
    later have the role."""

    def __init__(
        self,
        name: str,
        args: AwsPodIdentityArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("terrace:index:AwsPodIdentity", name, None, opts)
        given = _AwsPodIdentity.of(args)
        child = pulumi.ResourceOptions(parent=self)
        role = aws.iam.Role(
            f"{name}-role",
            assume_role_policy=pod_trust(
                Place.of(self), given.cluster_name, given.namespace, given.service_account
            ),
            description=f"Pods of {given.namespace}/{given.service_account}"[:1000],
            tags=tags(name, given.tags),
            opts=child,
        )
        policy = aws.iam.RolePolicy(
            f"{name}-policy", role=role.name, policy=given.policy, opts=child
        )
        association = aws.eks.PodIdentityAssociation(
            f"{name}-association",
            cluster_name=given.cluster_name,
            namespace=given.namespace,
            service_account=given.service_account,
            role_arn=role.arn,
            tags=tags(name, given.tags),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[policy]),
        )
        self.role_arn = association.role_arn
        self.register_outputs({"roleArn": self.role_arn})


def pod_trust(
    place: Place, cluster_name: pulumi.Input[str], namespace: str, service_account: str
) -> pulumi.Output[str]:
    """The trust policy of a role for one service account. EKS tags each session with the cluster,
    the namespace and the service account; another association's session does not match."""
    return trust_policy(
        "pods.eks.amazonaws.com",
        {
            "StringEquals": {
                "aws:SourceAccount": place.account,
                "aws:RequestTag/eks-cluster-name": cluster_name,
                "aws:RequestTag/kubernetes-namespace": namespace,
                "aws:RequestTag/kubernetes-service-account": service_account,
            }
        },
        actions=("sts:AssumeRole", "sts:TagSession"),
    )
