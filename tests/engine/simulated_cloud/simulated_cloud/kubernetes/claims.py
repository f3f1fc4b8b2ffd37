"""The claims that a StatefulSet makes from its templates, one per replica, and what keeps them."""

from typing import Any

from ..inventory import Item
from .clusters import Cluster
from .jobs import put
from .objects import Key, Manifest, labels_of

_CLAIM = "kubernetes:core/v1:PersistentVolumeClaim"


def claim_for_replicas(stateful_set: Manifest, cluster: Cluster) -> None:
    """Make the claims that are not there yet; take away those of replicas that were scaled away,
    where ``whenScaled`` is ``Delete``. One that is there stays as it is, whoever made it."""
    namespace, count = _namespace(stateful_set), _replicas(stateful_set)
    for template in _templates(stateful_set):
        for number in range(count):
            name = _claim(template, stateful_set, number)
            if cluster.get(Key("", "PersistentVolumeClaim", namespace, name)) is None:
                put(_manifest(template, stateful_set, name), cluster)
    if _retention(stateful_set, "whenScaled") == "Delete":
        _remove(stateful_set, cluster, first=count)


def forget_replicas(stateful_set: Manifest, cluster: Cluster) -> None:
    """What the deletion of a StatefulSet takes along: nothing, unless ``whenDeleted`` says so."""
    if _retention(stateful_set, "whenDeleted") == "Delete":
        _remove(stateful_set, cluster, first=0)


def _remove(stateful_set: Manifest, cluster: Cluster, *, first: int) -> None:
    wanted = labels_of(((stateful_set.get("spec") or {}).get("template")) or {})
    prefixes = [_claim(template, stateful_set, "") for template in _templates(stateful_set)]
    for item in cluster.items():
        metadata = item.inputs.get("metadata") or {}
        if item.type != _CLAIM or metadata.get("namespace") != _namespace(stateful_set):
            continue
        name, number = str(metadata.get("name")), _number(item)
        if number is None or number < first or labels_of(item.inputs) != wanted:
            continue
        if any(name == f"{prefix}{number}" for prefix in prefixes):
            cluster.inventory.remove(item)


def _manifest(template: Manifest, stateful_set: Manifest, name: str) -> Manifest:
    labels = labels_of((stateful_set.get("spec") or {}).get("template") or {})
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": name,
            "namespace": _namespace(stateful_set),
            "labels": dict(labels),
        },
        "spec": template.get("spec") or {},
    }


def _number(item: Item) -> int | None:
    number = str((item.inputs.get("metadata") or {}).get("name")).rpartition("-")[2]
    return int(number) if number.isdigit() else None


def _templates(stateful_set: Manifest) -> list[Manifest]:
    return list((stateful_set.get("spec") or {}).get("volumeClaimTemplates") or [])


def _claim(template: Manifest, stateful_set: Manifest, number: Any) -> str:
    volume = (template.get("metadata") or {}).get("name")
    return f"{volume}-{(stateful_set.get('metadata') or {}).get('name')}-{number}"


def _namespace(manifest: Manifest) -> str:
    return str((manifest.get("metadata") or {}).get("namespace") or "default")


def _replicas(stateful_set: Manifest) -> int:
    given = (stateful_set.get("spec") or {}).get("replicas")
    return 1 if given is None else int(given)


def _retention(stateful_set: Manifest, event: str) -> str:
    policy = (stateful_set.get("spec") or {}).get("persistentVolumeClaimRetentionPolicy") or {}
    return str(policy.get(event) or "Retain")
