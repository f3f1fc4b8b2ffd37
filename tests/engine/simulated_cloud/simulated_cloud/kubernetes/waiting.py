"""What the provider waits for: why an object is not ready yet, as its events would say."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from . import pod_security, scheduling
from .clusters import Cluster
from .objects import Key, Manifest, containers, labels_of, pod_template, selects

SKIP_AWAIT = "pulumi.com/skipAwait"
_ECR = re.compile(r"(\d{12})\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/([^:@]+)")
_WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "Pod")
_EBS = ("ebs.csi.aws.com", "kubernetes.io/aws-ebs")


def why_not_ready(manifest: Manifest, cluster: Cluster) -> str | None:
    """Why an object is not what the provider waits for, or None when it is."""
    if manifest.get("kind") == "Service":
        return _service(manifest, cluster)
    if manifest.get("kind") in _WORKLOADS:
        return why_pods_wait(manifest, cluster)
    return None


def is_awaited(manifest: Manifest) -> bool:
    annotations = (manifest.get("metadata") or {}).get("annotations") or {}
    return str(annotations.get(SKIP_AWAIT, "false")).lower() != "true"


def why_pods_wait(manifest: Manifest, cluster: Cluster) -> str | None:
    """Why the pods of a workload do not run and get ready, or None."""
    template = pod_template(manifest)
    if template is None or replicas(manifest) == 0:
        return None
    spec = template.get("spec") or {}
    namespace = str((manifest.get("metadata") or {}).get("namespace") or "default")
    return (
        _why_refused(spec, namespace, cluster)
        or _why_pending(manifest, spec, namespace, cluster)
        or next(_missing(spec, namespace, cluster), None)
        or next(_unpullable(spec, cluster), None)
    )


def replicas(manifest: Manifest) -> int:
    """How many pods a workload has; one of each kind that does not count them."""
    spec = manifest.get("spec") or {}
    if manifest.get("kind") in ("Deployment", "StatefulSet", "ReplicaSet"):
        given = spec.get("replicas")
        return 1 if given is None else int(given)
    return 1


def _why_refused(spec: Manifest, namespace: str, cluster: Cluster) -> str | None:
    """What admission says to the pod's controller."""
    account = str(spec.get("serviceAccountName") or "default")
    key = Key("", "ServiceAccount", namespace, account)
    if account != "default" and cluster.get(key) is None:
        return (
            f"FailedCreate: pods are forbidden: error looking up service account {namespace}/"
            f'{account}: serviceaccount "{account}" not found'
        )
    owner = cluster.get(Key("", "Namespace", "", namespace)) or {}
    level = str(labels_of(owner).get(pod_security.ENFORCE, "privileged"))
    if found := pod_security.violations(spec, level):
        return (
            f'FailedCreate: pods are forbidden: violates PodSecurity "{level}": {", ".join(found)}'
        )
    return None


def _why_pending(
    manifest: Manifest, spec: Manifest, namespace: str, cluster: Cluster
) -> str | None:
    nodes = cluster.nodes()
    for other in cluster.objects(*_WORKLOADS):
        if Key.of(other) == Key.of(manifest) or other.get("kind") in ("Job", "DaemonSet"):
            continue  # jobs end and free their room; daemon sets are left out
        taken = pod_template(other) or {}
        scheduling.place(taken.get("spec") or {}, replicas(other), nodes)
    if reason := scheduling.place(spec, replicas(manifest), nodes):
        return f"FailedScheduling: {reason}"
    for claim in _claims(manifest, spec, namespace, cluster):
        if isinstance(claim, str):
            return f'FailedScheduling: persistentvolumeclaim "{claim}" not found'
        if reason := _unbound(claim, cluster):
            return f"FailedScheduling: {reason}"
    return None


def _claims(
    manifest: Manifest, spec: Manifest, namespace: str, cluster: Cluster
) -> Iterator[Manifest | str]:
    """The specs of the volume claims of a pod; the name of one that does not exist."""
    for template in (manifest.get("spec") or {}).get("volumeClaimTemplates") or []:
        yield template.get("spec") or {}
    for volume in spec.get("volumes") or []:
        if source := volume.get("persistentVolumeClaim"):
            name = str(source.get("claimName"))
            found = cluster.get(Key("", "PersistentVolumeClaim", namespace, name))
            yield name if found is None else found.get("spec") or {}
        elif source := volume.get("ephemeral"):
            yield (source.get("volumeClaimTemplate") or {}).get("spec") or {}


def _unbound(claim: Manifest, cluster: Cluster) -> str | None:
    name = claim.get("storageClassName")
    if name == "" or claim.get("volumeName"):
        return None  # a volume made by hand
    provisioner = _provisioner(name, cluster)
    if provisioner is None:
        wanted = f'storageclass "{name}" not found' if name else "there is no default StorageClass"
        return f"pod has unbound immediate PersistentVolumeClaims ({wanted})"
    if provisioner in _EBS and cluster.is_eks and not cluster.has_add_on("aws-ebs-csi-driver"):
        return (
            f"VolumeBinding: waiting for a volume to be created by {provisioner} (no add-on"
            " aws-ebs-csi-driver)"
        )
    return None


def _provisioner(name: Any, cluster: Cluster) -> str | None:
    for one in cluster.objects("StorageClass"):
        metadata = one.get("metadata") or {}
        default = (metadata.get("annotations") or {}).get(
            "storageclass.kubernetes.io/is-default-class"
        )
        if metadata.get("name") == name or (name is None and default == "true"):
            return str(one.get("provisioner"))
    if cluster.is_eks:
        return "kubernetes.io/aws-ebs" if name == "gp2" else None
    return "somebody's own"


def _missing(spec: Manifest, namespace: str, cluster: Cluster) -> Iterator[str]:
    """ConfigMaps and Secrets that the pod needs and that are not there."""
    for kind, source, key in _sources(spec):
        name = str(source.get("name") or source.get("secretName"))
        if source.get("optional"):
            continue
        found = cluster.get(Key("", kind, namespace, name))
        if found is None:
            yield f'CreateContainerConfigError: {kind.lower()} "{name}" not found'
        elif key is not None and key not in {
            **(found.get("data") or {}),
            **(found.get("stringData") or {}),
            **(found.get("binaryData") or {}),
        }:
            where = f"{kind} {namespace}/{name}"
            yield f"CreateContainerConfigError: couldn't find key {key} in {where}"


def _sources(spec: Manifest) -> Iterator[tuple[str, Mapping[str, Any], str | None]]:
    """(kind, reference, key) of everything that a pod reads from ConfigMaps and Secrets."""
    for volume in spec.get("volumes") or []:
        projected = (volume.get("projected") or {}).get("sources") or []
        for one in [volume, *projected]:
            for field, kind in (("configMap", "ConfigMap"), ("secret", "Secret")):
                if source := one.get(field):
                    yield kind, source, None
                    for item in source.get("items") or []:
                        yield kind, source, str(item.get("key"))
    for _, container in containers(spec):
        for one in container.get("envFrom") or []:
            for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
                if source := one.get(field):
                    yield kind, source, None
        for variable in container.get("env") or []:
            origin = variable.get("valueFrom") or {}
            for field, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
                if source := origin.get(field):
                    yield kind, source, str(source.get("key"))


def _unpullable(spec: Manifest, cluster: Cluster) -> Iterator[str]:
    """Images in repositories of the simulated ECR that do not exist. Every tag of one is there."""
    urls = {
        str(item["repositoryUrl"])
        for item in cluster.inventory.items(type="aws:ecr/repository:Repository")
    }
    for _, container in containers(spec):
        image = str(container.get("image"))
        if (found := _ECR.match(image)) and found.group(0) not in urls:
            yield f"ImagePullBackOff: {image}: the repository {found.group(0)} does not exist"


def _service(manifest: Manifest, cluster: Cluster) -> str | None:
    """A Service is ready when it has an endpoint; without a selector, or headless, at once."""
    spec = manifest.get("spec") or {}
    selector = spec.get("selector") or {}
    if not selector or spec.get("clusterIP") == "None" or spec.get("type") == "ExternalName":
        return None
    namespace = (manifest.get("metadata") or {}).get("namespace") or "default"
    waiting: str | None = None
    for other in cluster.objects(*_WORKLOADS):
        metadata, template = other.get("metadata") or {}, pod_template(other) or {}
        if (metadata.get("namespace") or "default") != namespace:
            continue
        if selects({"matchLabels": selector}, labels_of(template)):
            waiting = why_pods_wait(other, cluster)
            if waiting is None:
                return None
    return f"does not target any ready Pods{f' ({waiting})' if waiting else ''}"
