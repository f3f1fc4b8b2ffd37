"""IAM: wildcards, trust, and what the roles of nodes may not do."""

import re
from collections.abc import Iterator
from typing import Any, cast

from terrace_policies.checks import each, each_resource
from terrace_policies.iam import (
    ATTACHMENT,
    CARRIERS,
    EXCLUSIVE,
    GROUP_ATTACHMENT,
    POLICY,
    POLICY_ATTACHMENT,
    ROLE,
    ROLE_POLICY,
    USER_ATTACHMENT,
    documents,
    is_everyone,
    is_wide,
    raw_statements,
    statements,
)
from terrace_policies.model import Finding, Parameters, Reference, Rule, Says, Severity
from terrace_policies.resources import Node, Resource, Stack
from terrace_policies.rules.nodes import NODE_GROUP
from terrace_policies.rules.references import GATEWAY_GUIDANCE

MODEL_SERVICES = ("bedrock", "sagemaker")
# AWS's own policies that hold everything of a service, or of all.
_BROAD = re.compile(
    r"^arn:[^:]+:iam::aws:policy/(.*/)?"
    r"([^/]*(FullAccess|Administrator)[^/]*|PowerUserAccess|AmazonBedrock[^/]*)$"
)
RESOURCE_POLICIES = (
    "aws:s3/bucketPolicy:BucketPolicy",
    "aws:ecr/repositoryPolicy:RepositoryPolicy",
    "aws:kms/key:Key",
    "aws:kms/keyPolicy:KeyPolicy",
    "aws:secretsmanager/secret:Secret",
    "aws:secretsmanager/secretPolicy:SecretPolicy",
    "aws:sns/topicPolicy:TopicPolicy",
    "aws:sqs/queue:Queue",
    "aws:sqs/queuePolicy:QueuePolicy",
)


def _wildcards(resource: Resource, given: Parameters) -> Iterator[Says]:
    del given
    for document in documents(resource):
        for statement in statements(document):
            if not statement.allow:
                continue
            wide = [a for a in statement.actions if is_wide(a)]
            if wide or statement.inverted:
                what = ", ".join(wide) or "all but what NotAction or NotResource names"
                yield Finding(f"{statement.path}.Action", f"allows {what}")


def _trust(role: Resource, given: Parameters) -> Iterator[Says]:
    del given
    for index, statement in enumerate(raw_statements(role.get("assumeRolePolicy"))):
        path = f"assumeRolePolicy.Statement[{index}]"
        if not isinstance(statement, dict):
            yield Finding(path, "is no statement")
        elif is_everyone(cast(dict[str, Any], statement)):
            yield Finding(f"{path}.Principal", "anyone may take this role")


def _resource_policy(resource: Resource, given: Parameters) -> Iterator[Says]:
    del given
    for index, statement in enumerate(raw_statements(resource.get("policy"))):
        if isinstance(statement, dict) and is_everyone(cast(dict[str, Any], statement)):
            yield Finding(f"policy.Statement[{index}].Principal", "anyone in AWS is allowed")


def _managed(resource: Resource, given: Parameters) -> Iterator[Says]:
    del given
    for path in ("policyArn", "policyArns", "managedPolicyArns"):
        if not resource.has(path):
            continue
        # One unknown ARN in a list hides no other.
        nodes = resource.items(path) or [resource.at(path)]
        yield from each(nodes, _attached)


def _attached(arn: Node) -> Iterator[Says]:
    arn.require_known()
    if isinstance(arn.value, str) and _BROAD.match(arn.value):
        yield Finding(arn.path, f"attaches {arn.value.rpartition('/')[2]}")


def _node_role(stack: Stack, given: Parameters) -> Iterator[Says]:
    del given
    groups = stack.of(NODE_GROUP)
    roles = [r for r in stack.of(ROLE) if any(stack.refers(g, "nodeRoleArn", r) for g in groups)]

    def check(role: Resource) -> Iterator[Says]:
        carriers = [role]
        carriers += [p for p in stack.of(ROLE_POLICY) if stack.refers(p, "role", role)]
        attachments = [a for a in stack.of(ATTACHMENT) if stack.refers(a, "role", role)]
        for attachment in attachments:
            for policy in stack.of(POLICY):
                if stack.refers(attachment, "policyArn", policy):
                    carriers.append(policy)
            if not attachment.dependencies.get("policyArn"):
                arn = str(attachment.get("policyArn", ""))
                if any(service in arn.lower() for service in MODEL_SERVICES):
                    yield Finding("", f"{attachment.name} attaches {arn}")
        for carrier in carriers:
            for document in documents(carrier):
                for statement in statements(document):
                    if any(statement.touches(service) for service in MODEL_SERVICES):
                        yield Finding("", f"{carrier.name} lets every pod of its nodes call models")

    yield from each_resource(roles, check)


RULES = (
    Rule(
        id="iam-no-wildcard-actions",
        description="No permission document allows all actions of a service",
        why="A wildcard grants what AWS adds next year.",
        remediation="List the actions that are called; parliament tells what each needs.",
        severity=Severity.HIGH,
        references=(
            Reference("CIS AWS Foundations 3.0", "1.16"),
            Reference("AWS Well-Architected", "SEC03-BP02"),
        ),
        types=CARRIERS,
        resource=_wildcards,
    ),
    Rule(
        id="iam-trust-not-open",
        description="No role may be taken by anyone",
        why="A principal of * without a condition is the whole of AWS.",
        remediation="Name the principal, for pods pods.eks.amazonaws.com (AwsPodIdentity).",
        severity=Severity.CRITICAL,
        references=(Reference("AWS Well-Architected", "SEC03-BP07"),),
        types=(ROLE,),
        resource=_trust,
    ),
    Rule(
        id="iam-no-broad-managed-policies",
        description="None of AWS's policies for all of a service, or for all, is attached",
        why="They grant every action on every resource, what AWS adds next year too.",
        remediation="Attach a policy of your own that lists actions and resources.",
        severity=Severity.CRITICAL,
        references=(
            Reference("CIS AWS Foundations 3.0", "1.16"),
            Reference("AWS Well-Architected", "SEC03-BP02"),
        ),
        types=(ROLE, ATTACHMENT, USER_ATTACHMENT, GROUP_ATTACHMENT, POLICY_ATTACHMENT, EXCLUSIVE),
        resource=_managed,
    ),
    Rule(
        id="resource-policy-not-open",
        description="No policy of a bucket, repository, key, secret, queue or topic allows anyone",
        why="A principal of * without a condition is the whole of AWS.",
        remediation="Name the principals, or add a condition that only yours meet.",
        severity=Severity.CRITICAL,
        references=(Reference("AWS Well-Architected", "SEC03-BP07"),),
        types=RESOURCE_POLICIES,
        resource=_resource_policy,
    ),
    Rule(
        id="node-role-without-models",
        description="The role of nodes cannot call models",
        why="Permissions of the node are those of every pod on it, agents too; calls made with"
        " them pass no guard, no cap and no ledger.",
        remediation="Grant models to one service account by Pod Identity (BedrockAccess).",
        severity=Severity.CRITICAL,
        references=(
            Reference("EKS Best Practices", "security: identities for pods"),
            Reference("OWASP LLM Top 10 2025", "LLM10 unbounded consumption"),
            GATEWAY_GUIDANCE,
        ),
        stack=_node_role,
    ),
)
