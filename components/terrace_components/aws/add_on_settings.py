"""The EKS add-ons: which come when, their pinned versions, and what is configured of them."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from terrace_components.arguments import Arguments
from terrace_components.aws.arguments import Different, one_of
from terrace_components.aws.cluster_settings import KUBERNETES_VERSION, KubernetesVersion

BEFORE_NODES = ("vpc-cni", "kube-proxy", "eks-pod-identity-agent")
AFTER_NODES = ("coredns", "metrics-server", "aws-ebs-csi-driver")
PHASES = {"before_nodes": BEFORE_NODES, "after_nodes": AFTER_NODES}

# EKS's versions for Kubernetes 1.35 in autumn 2026; all but kube-proxy serve its neighbours too.
VERSIONS = {
    "vpc-cni": "v1.22.4-eksbuild.3",
    "kube-proxy": "v1.35.3-eksbuild.29",
    "eks-pod-identity-agent": "v1.3.10-eksbuild.3",
    "coredns": "v1.13.2-eksbuild.31",
    "metrics-server": "v0.8.1-eksbuild.6",
    "aws-ebs-csi-driver": "v1.64.0-eksbuild.1",
}
# kubelet and kube-proxy may be three minor versions older than the API, and never newer.
MOST_BEHIND = 3
EFFECTS = ("NoSchedule", "NoExecute", "PreferNoSchedule")


def _versions(value: dict[str, str]) -> dict[str, str]:
    for add_on, version in value.items():
        if add_on not in VERSIONS:
            raise ValueError(f"unknown add-on {add_on}; valid: {', '.join(VERSIONS)}")
        if not re.fullmatch(r"v\d+\.\d+\.\d+-eksbuild\.\d+", version):
            raise ValueError(
                f"{add_on} must be one version such as {VERSIONS[add_on]}, not latest or default; "
                f"not {version!r}"
            )
    return value


class Toleration(Arguments):
    """Checked ``TolerationArgs``."""

    key: str = ""
    operator: Annotated[str, one_of("Equal", "Exists")] = "Equal"
    value: str = ""
    effect: Annotated[str, one_of(*EFFECTS)] | None = None

    def manifest(self) -> dict[str, str]:
        """In Kubernetes' own spelling, empty keys left out."""
        return {key: text for key, text in self.model_dump().items() if text}


CORE_TOLERATION = {"key": "CriticalAddonsOnly", "operator": "Exists"}


class AddOnSettings(Arguments):
    """What a person chooses about the add-ons."""

    kubernetes_version: KubernetesVersion = KUBERNETES_VERSION
    skip: Annotated[list[Annotated[str, one_of(*VERSIONS)]], Different] = Field(
        default_factory=list
    )
    versions: Annotated[dict[str, str], AfterValidator(_versions), Field(validate_default=True)] = (
        Field(default_factory=dict)
    )
    network_policy: bool = True
    prefix_delegation: bool = True
    tolerations: list[Toleration] = Field(
        default_factory=lambda: [Toleration.model_validate(CORE_TOLERATION)]
    )

    @field_validator("versions")
    @classmethod
    def of_this_kubernetes(cls, value: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        kubernetes = info.data.get("kubernetes_version")
        skipped = [add_on for add_on in value if add_on in info.data.get("skip", [])]
        if skipped:
            raise ValueError(f"names {skipped[0]}, which is in skip")
        if kubernetes is None or "kube-proxy" in info.data.get("skip", []):
            return value
        proxy = value.get("kube-proxy", VERSIONS["kube-proxy"])
        behind = int(kubernetes.split(".")[1]) - int(proxy.split(".")[1])
        if not 0 <= behind <= MOST_BEHIND:
            raise ValueError(
                f"kube-proxy {proxy} does not go with Kubernetes {kubernetes}: it must be of the "
                f"same minor version or up to {MOST_BEHIND} older: v{kubernetes}.x-eksbuild.n"
            )
        return value

    def version(self, add_on: str) -> str:
        return self.versions.get(add_on, VERSIONS[add_on])

    def configuration(self, add_on: str) -> dict[str, Any]:
        """``configurationValues`` of an add-on, as its own schema spells them."""
        tolerations = [one.manifest() for one in self.tolerations]
        if add_on == "vpc-cni":
            environment = {"ENABLE_PREFIX_DELEGATION": str(self.prefix_delegation).lower()}
            if self.prefix_delegation:
                # One spare prefix per node: sixteen addresses, and pods start without waiting.
                environment["WARM_PREFIX_TARGET"] = "1"
            return {
                "enableNetworkPolicy": str(self.network_policy).lower(),
                "env": environment,
            }
        if add_on in {"coredns", "metrics-server"}:
            return {"tolerations": tolerations}
        if add_on == "aws-ebs-csi-driver":
            return {"controller": {"tolerations": tolerations}}
        return {}
