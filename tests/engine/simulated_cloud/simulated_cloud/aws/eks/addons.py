"""EKS add-ons: names, versions, settings, and what they need to become healthy."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from ...inventory import Item
from ...models import CloudError, Problem
from ...rules import one_of
from ...schema_check import nearest
from ...values import Properties, first, known
from ...world import World
from ..ec2.network import SECURITY_GROUP, SUBNET
from ..iam.roles import refuse_missing_role
from ..model import ArnOf, AwsModel, derived_id, digest
from .cluster import cluster_security_group_id, refuse_missing_cluster
from .node_groups import ADDON, NODE_GROUP

DEFAULT_VERSIONS: Final = {
    "vpc-cni": "v1.20.4-eksbuild.2",
    "coredns": "v1.12.4-eksbuild.1",
    "kube-proxy": "v1.35.0-eksbuild.2",
    "eks-pod-identity-agent": "v1.3.9-eksbuild.3",
    "aws-ebs-csi-driver": "v1.50.1-eksbuild.1",
    "aws-efs-csi-driver": "v2.1.13-eksbuild.1",
    "aws-mountpoint-s3-csi-driver": "v2.1.0-eksbuild.1",
    "snapshot-controller": "v8.3.0-eksbuild.1",
    "metrics-server": "v0.8.0-eksbuild.2",
    "eks-node-monitoring-agent": "v1.4.1-eksbuild.1",
    "amazon-cloudwatch-observability": "v4.5.0-eksbuild.1",
    "adot": "v0.131.0-eksbuild.1",
    "aws-guardduty-agent": "v1.11.0-eksbuild.4",
    "cert-manager": "v1.18.2-eksbuild.2",
    "external-dns": "v0.19.0-eksbuild.2",
    "kube-state-metrics": "v2.17.0-eksbuild.1",
    "prometheus-node-exporter": "v1.9.1-eksbuild.3",
    "aws-network-flow-monitoring-agent": "v1.1.0-eksbuild.1",
    "aws-secrets-store-csi-driver-provider": "v2.1.1-eksbuild.1",
}
"""Add-ons that exist here, with the version taken when none is given."""
_NEED_NODES: Final = frozenset(
    {
        "coredns",
        "metrics-server",
        "aws-ebs-csi-driver",
        "aws-efs-csi-driver",
        "snapshot-controller",
        "adot",
        "cert-manager",
        "external-dns",
        "kube-state-metrics",
    }
)
"""Their pods are Deployments, so without nodes they never become ACTIVE."""
_TEXT_SETTINGS: Final = {
    "vpc-cni": ("enableNetworkPolicy", "enableWindowsIpam", "enableWindowsPrefixDelegation")
}
"""Settings that look like booleans and are texts."""


class Addon(AwsModel):
    token = ADDON
    rules = (
        one_of("resolveConflictsOnCreate", "NONE", "OVERWRITE"),
        one_of("resolveConflictsOnUpdate", "NONE", "OVERWRITE", "PRESERVE"),
    )
    arns = (
        ArnOf("serviceAccountRoleArn", "iam", "role/.+"),
        ArnOf("podIdentityAssociations[].roleArn", "iam", "role/.+"),
    )
    replace_on = frozenset({"clusterName", "addonName", "namespaceConfig"})
    duplicate_code = "ResourceInUseException"

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        for where, version in known(inputs, "addonVersion"):
            if not re.fullmatch(r"v\d+\.\d+\.\d+-eksbuild\.\d+", str(version)):
                yield Problem(where, f"{version!r} must be like v1.20.4-eksbuild.2")
        for where, text in known(inputs, "configurationValues"):
            yield from _check_settings(str(inputs.get("addonName")), text, where)

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return f"{inputs['clusterName']}:{inputs['addonName']}"

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        cluster = refuse_missing_cluster(inputs["clusterName"], world)
        name = inputs["addonName"]
        if name not in DEFAULT_VERSIONS:
            raise CloudError(
                "InvalidParameterException",
                f"addonName: {name!r} is not available; {nearest(name, list(DEFAULT_VERSIONS))}",
            )
        version = str(inputs.get("addonVersion") or "")
        if name == "kube-proxy" and version and not version.startswith(f"v{cluster['version']}."):
            raise CloudError(
                "InvalidParameterException",
                f"addonVersion: {version} is not for Kubernetes {cluster['version']}",
            )
        for where, arn in known(inputs, "podIdentityAssociations[].roleArn"):
            refuse_missing_role(arn, where, world)
        if inputs.get("serviceAccountRoleArn"):
            refuse_missing_role(inputs["serviceAccountRoleArn"], "serviceAccountRoleArn", world)
        if existing is None and name in _NEED_NODES and not _has_nodes(cluster, world):
            raise CloudError(
                "InsufficientNumberOfReplicas",
                f"{name} did not become ACTIVE: {cluster.id} has no nodes; make a node group first",
            )

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        return {
            "arn": self.arn_in(world, "eks", f"addon/{id.replace(':', '/')}/{digest(id)}"),
            "addonVersion": (
                inputs.get("addonVersion") or DEFAULT_VERSIONS.get(inputs["addonName"], "")
            ),
            "createdAt": "2026-01-01T00:00:00Z",
            "modifiedAt": "2026-01-01T00:00:00Z",
        }

    def deleted(self, item: Item, world: World) -> None:
        """Without the CNI the nodes' secondary interfaces are never given back: they stay and hold
        the VPC."""
        if item["addonName"] != "vpc-cni":
            return
        for group in world.find(NODE_GROUP, clusterName=item["clusterName"]):
            for subnet_id in group["subnetIds"]:
                if world.get(subnet_id, SUBNET):
                    _leak_interface(group, subnet_id, world)


def _leak_interface(group: Item, subnet_id: str, world: World) -> None:
    id = derived_id("eni", group.id, subnet_id)
    groups = [cluster_security_group_id(group["clusterName"], world)]
    values = {
        "subnetId": subnet_id,
        "description": f"aws-K8S-{digest(id, length=17)}",
        "securityGroups": [each for each in groups if world.get(each, SECURITY_GROUP)],
    }
    world.inventory.put(
        Item(
            "aws:ec2/networkInterface:NetworkInterface",
            world.place.scope("region"),
            id,
            group.name,
            values,
            dict(values),
        )
    )


def _has_nodes(cluster: Item, world: World) -> bool:
    if first(cluster.outputs, "computeConfig.enabled"):
        return True
    return any(
        world.find(type, clusterName=cluster.id)
        for type in (NODE_GROUP, "aws:eks/fargateProfile:FargateProfile")
    )


def _check_settings(addon: str, text: Any, where: str) -> Iterator[Problem]:
    if not str(text).lstrip().startswith("{"):
        return  # YAML is taken too
    try:
        settings = json.loads(text)
    except ValueError as error:
        yield Problem(where, f"is neither JSON nor YAML ({error})")
        return
    for name in _TEXT_SETTINGS.get(addon, ()):
        if isinstance(settings.get(name), bool):
            yield Problem(
                where,
                f"$.{name}: boolean found, string expected; write"
                f" {json.dumps(str(settings[name]).lower())}",
            )
    for name, value in (settings.get("env") or {}).items():
        if addon == "vpc-cni" and not isinstance(value, str):
            yield Problem(where, f"$.env.{name}: {type(value).__name__} found, string expected")


MODELS = (Addon,)
