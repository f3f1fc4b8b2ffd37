"""The one way in which Terrace's pods are built: non-root, read-only, without capabilities.

Plain dictionaries in the spelling of the Pulumi Kubernetes SDK (snake case); no resources here.
"""

from collections.abc import Mapping, Sequence
from typing import cast

import pulumi
from pulumi_kubernetes.core.v1 import (
    ContainerArgsDict,
    EnvVarArgsDict,
    PodSpecArgsDict,
    ProbeArgsDict,
    SecurityContextArgsDict,
    TolerationArgsDict,
    VolumeArgsDict,
    VolumeMountArgsDict,
)

from terrace_common.names import ANNOTATION_PATH, ANNOTATION_PORT, ANNOTATION_SCRAPE
from terrace_components.arguments import Resources, Scheduling

# A change of the volume's owner needs CHOWN and nothing else: the mode is set while root still owns
# the directory, and a directory that has the right owner is left alone.
OWN_VOLUME = '[ "$(stat -c %u:%g "$1")" = "$2" ] || { chmod 0700 "$1" && chown "$2" "$1"; }'
OWN_VOLUME_RESOURCES = Resources(cpu="10m", memory="16Mi", memory_limit="64Mi")

TMP_SIZE = "64Mi"  # counts as memory of the pod
PROBE_TIMEOUT_SECONDS = 5  # a busy two-core machine answers late, not never

CONTAINER_SECURITY: SecurityContextArgsDict = {
    "allow_privilege_escalation": False,
    "read_only_root_filesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def container(
    name: str,
    image: pulumi.Input[str],
    *,
    resources: Resources,
    env: Sequence[EnvVarArgsDict] = (),
    mounts: Mapping[str, str] | None = None,
    read_only_mounts: Mapping[str, str] | None = None,
) -> ContainerArgsDict:
    """A hardened container. ``mounts`` and ``read_only_mounts`` are volume name -> path; every
    container also has a private writable ``/tmp`` in memory (volume ``<name>-tmp``)."""
    volume_mounts: list[VolumeMountArgsDict] = [
        {"name": _tmp(name), "mount_path": "/tmp"}  # noqa: S108  an emptyDir
    ]
    for volume, path in (mounts or {}).items():
        volume_mounts.append({"name": volume, "mount_path": path})
    for volume, path in (read_only_mounts or {}).items():
        volume_mounts.append({"name": volume, "mount_path": path, "read_only": True})
    return {
        "name": name,
        "image": image,
        # Tags are content-addressed: an image with this name can only have this content.
        "image_pull_policy": "IfNotPresent",
        "env": list(env),
        "resources": {
            "requests": {"cpu": resources.cpu, "memory": resources.memory},
            "limits": {"memory": resources.memory_limit},
        },
        "security_context": CONTAINER_SECURITY,
        "volume_mounts": volume_mounts,
    }


def memory_volume(name: str, size: str) -> VolumeArgsDict:
    """An empty volume in memory, gone with the pod."""
    return {"name": name, "empty_dir": {"medium": "Memory", "size_limit": size}}


def own_volume(image: pulumi.Input[str], volume: str, path: str, user: int) -> ContainerArgsDict:
    """An init container that gives the volume's directory to ``user`` (mode 0700) once.

    A directory of a node is born root's, and Kubernetes applies ``fsGroup`` to no ``hostPath``.
    It is the only container that runs as root; all it may do is change owners.
    """
    return {
        **container("own-volume", image, resources=OWN_VOLUME_RESOURCES, mounts={volume: path}),
        "command": ["/bin/sh", "-c", OWN_VOLUME, "own-volume", path, f"{user}:{user}"],
        "security_context": {
            **CONTAINER_SECURITY,
            "run_as_user": 0,
            "run_as_group": 0,
            "run_as_non_root": False,
            "capabilities": {"drop": ["ALL"], "add": ["CHOWN"]},
        },
    }


def job_restart_policy(*, pod_identity: bool) -> str:
    """``restartPolicy`` of a Job's pods: a pod gets its identity at AWS when it is created or
    never, and a new association takes seconds to be seen. So with one, each attempt is a new pod.
    """
    return "Never" if pod_identity else "OnFailure"


def pod_spec(
    *,
    user: int,
    service_account: str,
    containers: list[ContainerArgsDict],
    volumes: list[VolumeArgsDict],
    init_containers: Sequence[ContainerArgsDict] = (),
    token: bool = False,
    scheduling: Scheduling | None = None,
) -> PodSpecArgsDict:
    """A hardened pod. ``user`` is also the group of its volumes. ``token`` mounts the service
    account's token: for pods that call the Kubernetes API, no others."""
    names = [str(c["name"]) for c in (*init_containers, *containers)]
    made: PodSpecArgsDict = {
        "service_account_name": service_account,
        "automount_service_account_token": token,
        "enable_service_links": False,
        "security_context": {
            "run_as_non_root": True,
            "run_as_user": user,
            "run_as_group": user,
            "fs_group": user,
            "fs_group_change_policy": "OnRootMismatch",
            "seccomp_profile": {"type": "RuntimeDefault"},
        },
        "containers": [*containers],
        "volumes": [*volumes, *(memory_volume(_tmp(name), TMP_SIZE) for name in names)],
    }
    if init_containers:
        made["init_containers"] = [*init_containers]
    if scheduling is not None and scheduling.node_selector:
        made["node_selector"] = {**scheduling.node_selector}
    if scheduling is not None and scheduling.tolerations:
        made["tolerations"] = [cast(TolerationArgsDict, t) for t in scheduling.tolerations]
    return made


def secret_volume(name: str, secret: pulumi.Input[str]) -> VolumeArgsDict:
    """A Secret as files that the pod's group may read."""
    return {"name": name, "secret": {"secret_name": secret, "default_mode": 0o440}}


def secrets_volume(name: str, secrets: Sequence[pulumi.Input[str]]) -> VolumeArgsDict:
    """Several Secrets as files of one directory that the pod's group may read."""
    return {
        "name": name,
        "projected": {
            "default_mode": 0o440,
            "sources": [{"secret": {"name": secret}} for secret in secrets],
        },
    }


def config_volume(name: str, config_map: pulumi.Input[str]) -> VolumeArgsDict:
    """A ConfigMap as files."""
    return {"name": name, "config_map": {"name": config_map, "default_mode": 0o444}}


def claim_volume(name: str, claim: pulumi.Input[str]) -> VolumeArgsDict:
    """A persistent volume."""
    return {"name": name, "persistent_volume_claim": {"claim_name": claim}}


def http_probe(path: str, port: int, *, every: int, failures: int) -> ProbeArgsDict:
    """Asks for ``path`` every so many seconds; it has failed after so many refusals in a row."""
    return {"http_get": {"path": path, "port": port}, **_pace(every, failures)}


def exec_probe(command: list[str], *, every: int, failures: int) -> ProbeArgsDict:
    """Runs a program of the image every so many seconds."""
    return {"exec_": {"command": [*command]}, **_pace(every, failures)}


def tcp_probe(port: int, *, every: int, failures: int) -> ProbeArgsDict:
    """Connects every so many seconds."""
    return {"tcp_socket": {"port": port}, **_pace(every, failures)}


def _pace(every: int, failures: int) -> ProbeArgsDict:
    return {
        "period_seconds": every,
        "timeout_seconds": PROBE_TIMEOUT_SECONDS,
        "failure_threshold": failures,
    }


def _tmp(container_name: str) -> str:
    return f"{container_name}-tmp"


def scrape_annotations(port: int, path: str = "/metrics") -> dict[str, str]:
    """How Prometheus finds a pod."""
    return {ANNOTATION_SCRAPE: "true", ANNOTATION_PORT: str(port), ANNOTATION_PATH: path}
