"""Who may do what in a cluster: access entries, their policies, and Pod Identity."""

from collections.abc import Iterable
from typing import Final

from ...inventory import Item
from ...models import CloudError, Problem
from ...rules import matches, one_of
from ...schema_check import nearest
from ...values import Properties, first, known
from ...world import World
from ..iam.documents import check_document
from ..iam.roles import refuse_missing_role, refuse_wrong_trust
from ..model import ArnOf, AwsModel, digest
from .cluster import ACCESS_ENTRY, refuse_missing_cluster
from .node_groups import ADDON

POLICIES: Final = (
    "AmazonEKSClusterAdminPolicy",
    "AmazonEKSAdminPolicy",
    "AmazonEKSAdminViewPolicy",
    "AmazonEKSEditPolicy",
    "AmazonEKSViewPolicy",
    "AmazonEKSSecretReaderPolicy",
    "AmazonEKSAutoNodePolicy",
)
_DNS_NAME: Final = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"


class AccessEntry(AwsModel):
    token = ACCESS_ENTRY
    rules = (
        one_of(
            "type",
            "STANDARD",
            "EC2_LINUX",
            "EC2_WINDOWS",
            "FARGATE_LINUX",
            "EC2",
            "HYBRID_LINUX",
            "HYPERPOD_LINUX",
        ),
        matches("kubernetesGroups[]", r"(?!system:).+", "a group that does not start with system:"),
    )
    arns = (ArnOf("principalArn", "iam", "(role|user)/.+"),)
    replace_on = frozenset({"clusterName", "principalArn", "type"})
    defaults = {"type": "STANDARD"}
    duplicate_code = "ResourceInUseException"

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        if inputs.get("kubernetesGroups") and inputs.get("type") not in (None, "STANDARD"):
            yield Problem(
                "kubernetesGroups",
                f"only entries of type STANDARD have groups, not {inputs['type']}",
            )

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return f"{inputs['clusterName']}:{inputs['principalArn']}"

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        _refuse_without_api_mode(inputs["clusterName"], world)
        if ":role/" in inputs["principalArn"]:
            refuse_missing_role(inputs["principalArn"], "principalArn", world)

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        _, _, _, _, account, principal = inputs["principalArn"].split(":", 5)
        kind, name = principal.split("/", 1)
        entry = f"access-entry/{inputs['clusterName']}/{kind}/{account}/{name}/{digest(id)}"
        return {
            "accessEntryArn": self.arn_in(world, "eks", entry),
            "userName": inputs.get("userName") or inputs["principalArn"],
            "kubernetesGroups": inputs.get("kubernetesGroups") or [],
            "createdAt": "2026-01-01T00:00:00Z",
            "modifiedAt": "2026-01-01T00:00:00Z",
        }


class AccessPolicyAssociation(AwsModel):
    token = "aws:eks/accessPolicyAssociation:AccessPolicyAssociation"
    rules = (one_of("accessScope.type", "cluster", "namespace"),)
    arns = (
        ArnOf("policyArn", "eks", "cluster-access-policy/.+"),
        ArnOf("principalArn", "iam", "(role|user)/.+"),
    )
    replace_on = frozenset({"clusterName", "principalArn", "policyArn", "accessScope"})
    duplicate_code = "ResourceInUseException"

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        for where, arn in known(inputs, "policyArn"):
            name = str(arn).rsplit("/", 1)[-1]
            if name not in POLICIES:
                yield Problem(
                    where, f"there is no access policy {name!r}; {nearest(name, list(POLICIES))}"
                )
        scope = inputs.get("accessScope")
        if isinstance(scope, dict):
            if scope.get("type") == "namespace" and not scope.get("namespaces"):
                yield Problem(
                    "accessScope.namespaces", "is required when accessScope.type is namespace"
                )
            if scope.get("type") == "cluster" and scope.get("namespaces"):
                yield Problem(
                    "accessScope.namespaces", "is not allowed when accessScope.type is cluster"
                )

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return f"{inputs['clusterName']}#{inputs['principalArn']}#{inputs['policyArn']}"

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        _refuse_without_api_mode(inputs["clusterName"], world)
        if world.get(f"{inputs['clusterName']}:{inputs['principalArn']}", ACCESS_ENTRY) is None:
            raise CloudError(
                "ResourceNotFoundException",
                f"principalArn: {inputs['principalArn']} has no access entry in"
                f" {inputs['clusterName']}",
            )

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        return {"associatedAt": "2026-01-01T00:00:00Z", "modifiedAt": "2026-01-01T00:00:00Z"}


class PodIdentityAssociation(AwsModel):
    token = "aws:eks/podIdentityAssociation:PodIdentityAssociation"
    rules = (
        matches("namespace", _DNS_NAME, "a namespace name"),
        matches(
            "serviceAccount", r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", "a service account name"
        ),
    )
    arns = (ArnOf("roleArn", "iam", "role/.+"), ArnOf("targetRoleArn", "iam", "role/.+"))
    replace_on = frozenset({"clusterName", "namespace", "serviceAccount"})
    unique = (("clusterName", "namespace", "serviceAccount"),)
    duplicate_code = "ResourceInUseException"

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        yield from check_document(inputs.get("policy"), "policy", kind="identity")

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        parts = [inputs[key] for key in ("clusterName", "namespace", "serviceAccount")]
        return f"a-{digest(*parts, world.place.scope('region'), length=17)}"

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        cluster = refuse_missing_cluster(inputs["clusterName"], world)
        refuse_missing_role(inputs["roleArn"], "roleArn", world)
        refuse_wrong_trust(
            inputs["roleArn"], "pods.eks.amazonaws.com", "roleArn", world, ("sts:TagSession",)
        )
        agents = [
            item
            for item in world.find(ADDON, clusterName=cluster.id)
            if item["addonName"] == "eks-pod-identity-agent"
        ]
        if not agents and not first(cluster.outputs, "computeConfig.enabled"):
            world.inventory.assume(
                f"{cluster.id}/{inputs['namespace']}/{inputs['serviceAccount']}",
                self.token,
                "association",
                "made while the add-on eks-pod-identity-agent is not there: pods get no credentials"
                " until it is",
            )

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        return {
            "associationId": id,
            "associationArn": self.arn_in(
                world, "eks", f"podidentityassociation/{inputs['clusterName']}/{id}"
            ),
            "disableSessionTags": bool(inputs.get("disableSessionTags")),
            "externalId": "",
        }


def _refuse_without_api_mode(cluster_name: str, world: World) -> None:
    cluster = refuse_missing_cluster(cluster_name, world)
    mode = first(cluster.outputs, "accessConfig.authenticationMode")
    if mode == "CONFIG_MAP":
        raise CloudError(
            "InvalidRequestException",
            f"{cluster_name} has authentication mode {mode}; access entries need API or"
            " API_AND_CONFIG_MAP",
        )


MODELS = (AccessEntry, AccessPolicyAssociation, PodIdentityAssociation)
