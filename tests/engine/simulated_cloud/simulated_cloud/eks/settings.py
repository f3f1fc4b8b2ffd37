"""The inputs of `eks:index:Cluster`: what is refused, and the kubeconfig that follows from them."""

from collections.abc import Iterator, Mapping
from typing import Any

from ..schema_check import Problem

_UNSUPPORTED = (
    "fargate",
    "creationRoleProvider",
    "storageClasses",
    "roleMappings",
    "userMappings",
    "nodeGroupOptions",
)


def refusals(inputs: Mapping[str, Any]) -> Iterator[Problem]:
    """What the real component refuses, and what this one cannot do."""
    auto_mode = bool(nested(inputs, "autoMode", "enabled"))
    if inputs.get("subnetIds") is not None:
        for name in ("publicSubnetIds", "privateSubnetIds"):
            if inputs.get(name) is not None:
                yield Problem(
                    name,
                    "conflicts with subnetIds: give either subnetIds or public and private ones",
                )
    if inputs.get("instanceRole") is not None and inputs.get("instanceRoles") is not None:
        yield Problem("instanceRole", "conflicts with instanceRoles")
    if inputs.get("accessEntries") and inputs.get("authenticationMode") in (None, "CONFIG_MAP"):
        yield Problem("accessEntries", "need authenticationMode API or API_AND_CONFIG_MAP")
    if inputs.get("authenticationMode") == "API":
        for name in ("roleMappings", "userMappings", "instanceRoles"):
            if inputs.get(name):
                yield Problem(
                    name, "is not supported with authenticationMode API; use accessEntries"
                )
    if not inputs.get("skipDefaultNodeGroup") and not auto_mode and not inputs.get("fargate"):
        yield Problem(
            "skipDefaultNodeGroup",
            "must be true here: the children of a default node group are not simulated",
        )
    for name in _UNSUPPORTED:
        if inputs.get(name):
            yield Problem(name, "is not simulated")
    if inputs.get("vpcId") is None or not any(
        inputs.get(key) for key in ("subnetIds", "publicSubnetIds", "privateSubnetIds")
    ):
        yield Problem(
            "vpcId",
            "vpcId and subnets are required here: there is no default VPC in the simulated cloud",
        )


def kubeconfig(
    name: str, endpoint: str, authority: Mapping[str, str], region: str
) -> dict[str, Any]:
    """A kubeconfig that gets its token from the AWS CLI, in the shape of pulumi-eks."""
    command = ["eks", "get-token", "--cluster-name", name, "--output", "json", "--region", region]
    user = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1beta1",
            "command": "aws",
            "args": command,
        }
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "aws",
        "users": [{"name": "aws", "user": user}],
        "clusters": [
            {
                "name": "kubernetes",
                "cluster": {"server": endpoint, "certificate-authority-data": authority["data"]},
            }
        ],
        "contexts": [{"name": "aws", "context": {"cluster": "kubernetes", "user": "aws"}}],
    }


def nested(inputs: Mapping[str, Any], outer: str, inner: str) -> Any:
    """The property `inner` of the object `outer`, or None."""
    value = inputs.get(outer)
    return value.get(inner) if isinstance(value, Mapping) else None
