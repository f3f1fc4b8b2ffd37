"""How Kubernetes objects and Helm releases behave at the API server."""

import hashlib
from collections.abc import Iterable
from typing import Any, Final

from ..inventory import Item
from ..models import CloudError, Problem, ResourceModel
from ..values import Properties
from ..world import World
from . import pod_security
from .admission import denials
from .charts import CHARTS, controller_of, why_controller_is_away, why_release_waits
from .claims import claim_for_replicas, forget_replicas
from .clusters import BUILT_IN_NAMESPACES, Cluster, chart_name
from .jobs import put, run_jobs
from .objects import Key, Manifest, group_of, labels_of, version_of, with_later
from .validation import check_object

_BUILT_IN_GROUPS: Final = frozenset(
    {
        "",
        "admissionregistration.k8s.io",
        "apiextensions.k8s.io",
        "apiregistration.k8s.io",
        "apps",
        "authentication.k8s.io",
        "authorization.k8s.io",
        "autoscaling",
        "batch",
        "certificates.k8s.io",
        "coordination.k8s.io",
        "discovery.k8s.io",
        "events.k8s.io",
        "flowcontrol.apiserver.k8s.io",
        "helm.sh",
        "networking.k8s.io",
        "node.k8s.io",
        "policy",
        "rbac.authorization.k8s.io",
        "resource.k8s.io",
        "scheduling.k8s.io",
        "storage.k8s.io",
        "storagemigration.k8s.io",
    }
)
_STATEFUL_SET_FREE: Final = frozenset(
    {
        "minReadySeconds",
        "ordinals",
        "persistentVolumeClaimRetentionPolicy",
        "replicas",
        "revisionHistoryLimit",
        "template",
        "updateStrategy",
    }
)
# What Pulumi's provider replaces an object for; the API server would refuse the change.
_REPLACE: Final[dict[str, tuple[str, ...]]] = {
    "ClusterRoleBinding": ("roleRef",),
    "DaemonSet": ("spec.selector",),
    "Deployment": ("spec.selector",),
    "Job": ("spec.completions", "spec.parallelism", "spec.selector", "spec.template"),
    "PersistentVolumeClaim": (
        "spec.accessModes",
        "spec.selector",
        "spec.storageClassName",
        "spec.volumeName",
    ),
    "RoleBinding": ("roleRef",),
    "Secret": ("data", "stringData", "type"),
    "Service": ("spec.clusterIP",),
    "StatefulSet": (
        "spec.podManagementPolicy",
        "spec.revisionHistoryLimit",
        "spec.selector",
        "spec.serviceName",
        "spec.volumeClaimTemplates",
    ),
    "StorageClass": ("parameters", "provisioner"),
    "ConfigMap": ("binaryData", "data"),
}


def is_custom(group: str) -> bool:
    """Whether a group is not Kubernetes' own."""
    return group not in _BUILT_IN_GROUPS


class ObjectModel(ResourceModel):
    """Any object. The place of its world is the cluster."""

    level = "cluster"
    duplicate_code = "AlreadyExists"

    def __init__(self, kind: str, *, mutable: bool) -> None:
        paths = () if mutable and kind in ("ConfigMap", "Secret") else _REPLACE.get(kind, ())
        self.replace_on = frozenset({"metadata.name", "metadata.namespace", *paths})

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        del world
        return check_object(with_later(inputs))

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        cluster: Cluster = world.place
        key = self._key(inputs, cluster)
        if key.namespace and not cluster.has_namespace(key.namespace):
            raise CloudError("NotFound", f'namespaces "{key.namespace}" not found')
        if is_custom(key.group):
            self._refuse_custom(inputs, key, cluster)
        if inputs.get("kind") == "Pod":
            self._refuse_pod(inputs, key, cluster)
        if existing is not None and inputs.get("kind") == "StatefulSet":
            before, after = existing.inputs.get("spec") or {}, inputs.get("spec") or {}
            changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
            if fixed := sorted(changed - _STATEFUL_SET_FREE):
                raise CloudError("Invalid", f"{key}: spec: {', '.join(fixed)} cannot be changed")
        if found := denials(inputs, existing.inputs if existing else None, key, cluster):
            raise CloudError("Invalid", f"{key}: {'; '.join(found)}")

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        del name
        key = self._key(inputs, world.place)
        return f"{key.namespace}/{key.name}" if key.namespace else key.name

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        cluster: Cluster = world.place
        key = self._key(inputs, cluster)
        uid = hashlib.sha256(f"{cluster.space}/{id}/{key.kind}".encode()).hexdigest()
        live: Properties = {
            "metadata": {
                **(inputs.get("metadata") or {}),
                **({"namespace": key.namespace} if key.namespace else {}),
                "uid": f"{uid[:8]}-{uid[8:12]}-4{uid[13:16]}-8{uid[17:20]}-{uid[20:32]}",
            }
        }
        if key.kind == "Service":
            spec = inputs.get("spec") or {}
            number = int(uid[:4], 16)
            ip = spec.get("clusterIP") or f"172.20.{number >> 8}.{number & 255}"
            live["spec"] = {"type": "ClusterIP", **spec, "clusterIP": ip}
        return live

    def blocks_delete(self, item: Item, world: World) -> str | None:
        cluster: Cluster = world.place
        key = self._key(item.inputs, cluster)
        if key.kind == "Namespace":
            for other in cluster.items():
                inside = (other.inputs.get("metadata") or {}).get("namespace") == key.name
                if inside and (reason := _stuck(other.inputs, cluster)):
                    return f"Timeout: namespace {key.name} stays Terminating: {reason}"
        if key.kind == "CustomResourceDefinition":
            for other in self._served(item, cluster):
                if reason := _stuck(other.inputs, cluster):
                    return f"Timeout: {key} stays Terminating: {reason}"
        if reason := _stuck(item.inputs, cluster):
            return f"Timeout: {reason}"
        return None

    def created(self, item: Item, world: World) -> None:
        if item.inputs.get("kind") == "StatefulSet":
            claim_for_replicas(item.inputs, world.place)

    def deleted(self, item: Item, world: World) -> None:
        cluster: Cluster = world.place
        key = self._key(item.inputs, cluster)
        if key.kind == "StatefulSet":
            forget_replicas(item.inputs, cluster)
        if key.kind == "Namespace":
            for other in cluster.items():
                if (other.inputs.get("metadata") or {}).get("namespace") == key.name:
                    world.inventory.remove(other)
        if key.kind == "CustomResourceDefinition":
            for other in self._served(item, cluster):
                world.inventory.remove(other)

    @staticmethod
    def _key(inputs: Properties, cluster: Cluster) -> Key:
        group = group_of(inputs)
        definition = _definition(group, str(inputs.get("kind")), cluster)
        if definition is None:
            return Key.of(inputs)
        return Key.of(inputs, namespaced=(definition["spec"]).get("scope") != "Cluster")

    @staticmethod
    def _served(definition: Item, cluster: Cluster) -> list[Item]:
        spec = definition.inputs.get("spec") or {}
        wanted = (spec.get("group"), (spec.get("names") or {}).get("kind"))
        return [
            other
            for other in cluster.items()
            if (group_of(other.inputs), other.inputs.get("kind")) == wanted
        ]

    @staticmethod
    def _refuse_custom(inputs: Properties, key: Key, cluster: Cluster) -> None:
        definition = _definition(key.group, key.kind, cluster)
        version = version_of(inputs)
        served = [
            one.get("name")
            for one in ((definition or {}).get("spec") or {}).get("versions") or []
            if one.get("served", True)
        ]
        if version not in served:
            raise CloudError(
                "NotFound",
                f'no matches for kind "{key.kind}" in version "{key.group}/{version}" (its'
                " CustomResourceDefinition is not there)",
            )
        if reason := why_controller_is_away(key.group, key.kind, cluster):
            raise CloudError(
                "InternalError", f"failed calling webhook: no endpoints available: {reason}"
            )
        if key.kind == "TargetGroupBinding":
            _refuse_binding(inputs, cluster)

    @staticmethod
    def _refuse_pod(inputs: Properties, key: Key, cluster: Cluster) -> None:
        owner = cluster.get(Key("", "Namespace", "", key.namespace)) or {}
        level = str(labels_of(owner).get(pod_security.ENFORCE, "privileged"))
        if found := pod_security.violations(inputs.get("spec") or {}, level):
            raise CloudError(
                "Forbidden",
                f'pods "{key.name}" is forbidden: violates PodSecurity "{level}": '
                + ", ".join(found),
            )


class ReleaseModel(ResourceModel):
    """A Helm release."""

    level = "cluster"
    replace_on = frozenset({"name", "namespace"})
    duplicate_code = "AlreadyExists"

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        cluster: Cluster = world.place
        namespace = str(inputs.get("namespace") or "default")
        if not cluster.has_namespace(namespace) and not inputs.get("createNamespace"):
            raise CloudError("NotFound", f'create: namespaces "{namespace}" not found')
        taken = world.inventory.items(
            type="kubernetes:helm.sh/v3:Release",
            id=f"{namespace}/{inputs.get('name')}",
            scopes=(cluster.space,),
        )
        if existing is None and taken:
            raise CloudError("AlreadyExists", "cannot re-use a name that is still in use")

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        del world
        return f"{inputs.get('namespace') or 'default'}/{inputs.get('name') or name}"

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        del world
        namespace, _, name = id.partition("/")
        status = {
            "appVersion": inputs.get("version"),
            "chart": chart_name(inputs),
            "name": name,
            "namespace": namespace,
            "status": "deployed",
            "version": inputs.get("version"),
        }
        return {"name": name, "namespace": namespace, "status": status}

    def created(self, item: Item, world: World) -> None:
        cluster: Cluster = world.place
        namespace = str(item["namespace"])
        if not cluster.has_namespace(namespace):
            put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}, cluster)
        chart = CHARTS.get(chart_name(item.inputs))
        if chart is None:
            return
        if not item.inputs.get("skipCrds"):
            for definition in chart.definitions:
                put(definition.manifest(), cluster)
        put(
            chart.deployment(str(item["name"]), namespace, item.inputs.get("values") or {}), cluster
        )

    def deleted(self, item: Item, world: World) -> None:
        cluster: Cluster = world.place
        chart = CHARTS.get(chart_name(item.inputs))
        if chart is None:
            return
        made = chart.deployment(
            str(item["name"]), str(item["namespace"]), item.inputs.get("values") or {}
        )
        for other in cluster.items():
            if other.inputs.get("kind") == "Deployment" and Key.of(other.inputs) == Key.of(made):
                world.inventory.remove(other)


def why_release_is_not_ready(item: Item, cluster: Cluster) -> str | None:
    run_jobs(cluster)
    reason = why_release_waits(item, cluster)
    return f"context deadline exceeded ({reason})" if reason else None


def _definition(group: str, kind: str, cluster: Cluster) -> Manifest | None:
    if not is_custom(group):
        return None
    for found in cluster.objects("CustomResourceDefinition"):
        spec = found.get("spec") or {}
        if (spec.get("group"), (spec.get("names") or {}).get("kind")) == (group, kind):
            return found
    return None


def _stuck(manifest: Manifest, cluster: Cluster) -> str | None:
    """Why an object's finalizer is never taken off, or None."""
    group, kind = group_of(manifest), str(manifest.get("kind"))
    found = controller_of(group, kind)
    if found is None or not found[1].finalizer:
        return None
    if reason := why_controller_is_away(group, kind, cluster):
        return f"{Key.of(manifest)} keeps its finalizer: {reason}"
    return None


def _refuse_binding(inputs: Properties, cluster: Cluster) -> None:
    spec: dict[str, Any] = inputs.get("spec") or {}
    arn = spec.get("targetGroupARN")
    groups = cluster.inventory.items(type="aws:lb/targetGroup:TargetGroup")
    found = next((group for group in groups if group.arn == arn), None)
    if found is None:
        raise CloudError("Invalid", f"spec.targetGroupARN: target group {arn!r} does not exist")
    if spec.get("targetType") not in (None, found["targetType"] or "instance"):
        raise CloudError(
            "Invalid",
            f"spec.targetType: {spec['targetType']!r} is not that of the target group"
            f" ({found['targetType'] or 'instance'})",
        )


__all__ = ["BUILT_IN_NAMESPACES", "ObjectModel", "ReleaseModel", "is_custom"]
