"""A cluster, spoken to as the provider does but without the engine; and objects to send to it."""

import copy
import sys
from pathlib import Path
from typing import Any

# The package is not installed: a provider finds it by PYTHONPATH.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from simulated_cloud.inventory import Inventory, Item
from simulated_cloud.kubernetes.clusters import Cluster
from simulated_cloud.kubernetes.models import ObjectModel, ReleaseModel
from simulated_cloud.kubernetes.provider import (
    KubernetesLifecycle,
    KubernetesSdk,
)
from simulated_cloud.world import World

SDK = KubernetesSdk("kubernetes")
Object = dict[str, Any]
GROUPS = {
    "Deployment": "apps/v1",
    "StatefulSet": "apps/v1",
    "Job": "batch/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "PodDisruptionBudget": "policy/v1",
    "HorizontalPodAutoscaler": "autoscaling/v2",
    "RoleBinding": "rbac.authorization.k8s.io/v1",
    "CustomResourceDefinition": "apiextensions.k8s.io/v1",
    "ValidatingAdmissionPolicy": "admissionregistration.k8s.io/v1",
    "ValidatingAdmissionPolicyBinding": "admissionregistration.k8s.io/v1",
    "TargetGroupBinding": "elbv2.k8s.aws/v1beta1",
}
SERVER = "https://abc.gr7.us-east-1.eks.amazonaws.com"


class Api:
    """A cluster, spoken to as the provider does."""

    def __init__(self, inventory: Inventory, cluster: Cluster) -> None:
        self.inventory, self.cluster = inventory, cluster
        self.world = World(inventory, cluster)
        self.lifecycle = KubernetesLifecycle(inventory, SDK, self._model)

    def check(self, made: Object) -> list[str]:
        """Paths of what is wrong with an object by itself."""
        return [p.property for p in self._model(token(made)).check(made, self.world)]

    def create(self, made: Object) -> Item:
        assert not self.check(made)
        return self.lifecycle.create(token(made), "one", made, self.world)

    def update(self, item: Item, made: Object) -> Item:
        return self.lifecycle.update(item.type, item.id, made, self.world)

    def delete(self, item: Item) -> None:
        self.lifecycle.delete(item.type, item.id, self.world)

    @staticmethod
    def _model(name: str) -> Any:
        if name.endswith("helm.sh/v3:Release"):
            return ReleaseModel()
        return ObjectModel(name.rpartition(":")[2], mutable=False)


def token(made: Object) -> str:
    if "chart" in made:
        return "kubernetes:helm.sh/v3:Release"
    api = made["apiVersion"]
    return f"kubernetes:{api if '/' in api else f'core/{api}'}:{made['kind']}"


def thing(kind: str, name: str = "one", namespace: str = "app", **content: Any) -> Object:
    metadata: Object = {"name": name, **content.pop("metadata", {})}
    if kind not in ("Namespace", "CustomResourceDefinition") and "Admission" not in kind:
        metadata["namespace"] = namespace
    return {
        "apiVersion": GROUPS.get(kind, "v1"),
        "kind": kind,
        "metadata": metadata,
        **content,
    }


def deployment(name: str = "web", replicas: int = 1, **pod: Any) -> Object:
    labels = {"app": name}
    container = {"name": "web", "image": "web:1"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container], **pod}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return thing("Deployment", name, spec=spec)


def stateful_set(name: str = "db", replicas: int = 1, **spec: Any) -> Object:
    """One with a claim ``data`` per replica."""
    template = {"metadata": {"name": "data"}, "spec": {"storageClassName": "", "volumeName": "v"}}
    made = thing("StatefulSet", name, spec=deployment(name, replicas)["spec"])
    claims = {"volumeClaimTemplates": [template]}
    return {**made, "spec": {**made["spec"], "serviceName": name, **claims, **spec}}


def changed(made: Object, path: str, value: Any) -> Object:
    """A copy with one value set; ``None`` removes it."""
    made = copy.deepcopy(made)
    *steps, last = path.split(".")
    place: Any = made
    for step in steps:
        place = place[int(step)] if step.isdigit() else place.setdefault(step, {})
    if value is None:
        del place[last]
    else:
        place[int(last) if last.isdigit() else last] = value
    return made


def add(inventory: Inventory, kind: str, id: str, outputs: Object) -> Item:
    item = Item(kind, "123456789012/us-east-1", id, id, outputs, outputs)
    inventory.put(item)
    return item


def add_nodes(api: Api, size: int = 2, **options: Any) -> Item:
    group = {
        "clusterName": "main",
        "nodeGroupName": "core",
        "instanceTypes": ["m7i.xlarge"],
        "scalingConfig": {"desiredSize": size},
        **options,
    }
    return add(api.inventory, "aws:eks/nodeGroup:NodeGroup", "main:core", group)


CONTAINER = "spec.template.spec.containers.0"
SERVICE = thing("Service", spec={"selector": {"app": "web"}, "ports": [{"port": 80}]})
POLICY = thing(
    "NetworkPolicy",
    spec={"egress": [{"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}}]}]},
)
