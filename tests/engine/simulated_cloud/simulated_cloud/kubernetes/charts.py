"""Helm charts that the simulation knows: what they bring, and what they need to become ready.

A chart that is not listed here installs and brings nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..inventory import Item
from .clusters import Cluster, chart_name
from .objects import Key
from .waiting import why_pods_wait

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Definition:
    """A custom resource definition that a chart brings; Helm leaves it when the chart goes."""

    group: str
    kind: str
    plural: str
    versions: Sequence[str]
    namespaced: bool = True
    finalizer: bool = False
    """Whether the controller puts a finalizer on each object, so that none goes without it."""

    def manifest(self) -> dict[str, Any]:
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{self.plural}.{self.group}"},
            "spec": {
                "group": self.group,
                "names": {"kind": self.kind, "plural": self.plural},
                "scope": "Namespaced" if self.namespaced else "Cluster",
                "versions": [
                    {"name": version, "served": True, "storage": index == 0}
                    for index, version in enumerate(self.versions)
                ],
            },
        }


@dataclass(frozen=True)
class Chart:
    """What installing a chart does."""

    definitions: Sequence[Definition]
    deployment: Callable[[str, str, Values], dict[str, Any]]
    """(release, namespace, values) -> its Deployment."""
    why_broken: Callable[[str, Values, Cluster], str | None]
    """(namespace, values, cluster) -> why its pods do not work although they run, or None."""


def _controller(release: str, namespace: str, values: Values) -> dict[str, Any]:
    name = str(values.get("fullnameOverride") or release)
    account = values.get("serviceAccount") or {}
    labels = {"app.kubernetes.io/name": "aws-load-balancer-controller"}
    spec = {
        key: values[key]
        for key in ("nodeSelector", "tolerations", "affinity", "topologySpreadConstraints")
        if values.get(key)
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "replicas": values.get("replicaCount", 2),
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    **spec,
                    # The chart makes the account itself unless it is told not to.
                    **(
                        {"serviceAccountName": account["name"]}
                        if account.get("create") is False and account.get("name")
                        else {}
                    ),
                    "containers": [
                        {
                            "name": "aws-load-balancer-controller",
                            "image": "aws-load-balancer-controller",
                            "resources": values.get("resources") or {},
                        }
                    ],
                },
            },
        },
    }


def _controller_is_broken(namespace: str, values: Values, cluster: Cluster) -> str | None:
    eks = cluster.eks
    if not values.get("clusterName"):
        return "values.clusterName is required"
    if eks is not None and values["clusterName"] not in (eks.id, eks["name"]):
        return f"values.clusterName {values['clusterName']!r} is not this cluster's name"
    network = (eks["vpcConfig"] or {}) if eks is not None else {}
    if network.get("vpcId") and values.get("vpcId") not in (None, network["vpcId"]):
        return f"values.vpcId {values['vpcId']!r} is not the cluster's VPC"
    account = values.get("serviceAccount") or {}
    name = str(account.get("name") or "aws-load-balancer-controller")
    by_role = (account.get("annotations") or {}).get("eks.amazonaws.com/role-arn")
    if eks is not None and not by_role and not cluster.has_identity(namespace, name):
        return (
            f"CrashLoopBackOff: no AWS credentials: service account {namespace}/{name} has no"
            " Pod Identity association"
        )
    return None


CHARTS: Final[Mapping[str, Chart]] = {
    "aws-load-balancer-controller": Chart(
        definitions=(
            Definition(
                "elbv2.k8s.aws",
                "TargetGroupBinding",
                "targetgroupbindings",
                ("v1beta1",),
                finalizer=True,
            ),
            Definition(
                "elbv2.k8s.aws", "IngressClassParams", "ingressclassparams", ("v1beta1",), False
            ),
        ),
        deployment=_controller,
        why_broken=_controller_is_broken,
    ),
}


def controller_of(group: str, kind: str) -> tuple[str, Definition] | None:
    """The chart whose controller serves a kind, where there is one."""
    for name, chart in CHARTS.items():
        for definition in chart.definitions:
            if (definition.group, definition.kind) == (group, kind):
                return name, definition
    return None


def why_release_waits(release: Item, cluster: Cluster) -> str | None:
    """Why the pods of a release are not ready, or None."""
    chart = CHARTS.get(chart_name(release.inputs))
    if chart is None:
        return None
    namespace = str(release["namespace"] or "default")
    values = release.inputs.get("values") or {}
    deployment = chart.deployment(str(release["name"]), namespace, values)
    return why_pods_wait(deployment, cluster) or chart.why_broken(namespace, values, cluster)


def why_controller_is_away(group: str, kind: str, cluster: Cluster) -> str | None:
    """Why nothing serves the objects of a kind, or None."""
    found = controller_of(group, kind)
    if found is None:
        return None
    releases = cluster.releases(found[0])
    if not releases:
        return f"there is no release of {found[0]}"
    return why_release_waits(releases[0], cluster)


def definition_key(definition: Definition) -> Key:
    return Key(
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        "",
        f"{definition.plural}.{definition.group}",
    )
