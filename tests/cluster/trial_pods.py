"""Pods to try the cluster with: CoreDNS serves HTTP (its health page), kubectl fetches it."""

from pathlib import Path
from typing import Any

import yaml

from terrace_local import cluster
from terrace_local.cluster.scratch_image import image_reference, write_scratch_image

__all__ = ["NAMESPACE", "NODE_PORT", "fetch", "load_trial_images", "trial_manifests"]

NAMESPACE = "trial"
NODE_PORT = 30999
SAFE = {
    "runAsNonRoot": True,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def load_trial_images(paths: cluster.Paths, binaries: Path, work: Path) -> dict[str, str]:
    """Build and load the images `coredns` (server) and `kubectl` (client); their references."""
    references: dict[str, str] = {}
    for name in ("coredns", "kubectl"):
        reference = image_reference(binaries / name, f"trial-{name}")
        if not cluster.has_image(reference, paths=paths):
            write_scratch_image(binaries / name, work / f"{name}.tar", reference)
            cluster.load_image(work / f"{name}.tar", reference, paths=paths)
        references[name] = reference
    return references


def trial_manifests(references: dict[str, str]) -> str:
    """Namespace, server with a Service on a node port and a client, as YAML."""
    labels = {"app": "web"}

    def pod(name: str, image: str, *arguments: str, **extra: Any) -> dict[str, Any]:
        container = {
            "name": name,
            "image": image,
            "imagePullPolicy": "Never",
            "args": list(arguments),
        }
        return {
            "containers": [container | {"securityContext": SAFE} | extra],
            "terminationGracePeriodSeconds": 1,
        }

    server = pod(
        "web",
        references["coredns"],
        "-conf",
        "/etc/coredns/Corefile",
        volumeMounts=[{"name": "config", "mountPath": "/etc/coredns"}],
        readinessProbe={"httpGet": {"path": "/health", "port": 8080}, "periodSeconds": 1},
    )
    server["volumes"] = [{"name": "config", "configMap": {"name": "web"}}]
    objects = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "web"},
            "data": {"Corefile": ".:5353 {\n health :8080\n}\n"},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web"},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": server},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {
                "type": "NodePort",
                "selector": labels,
                "ports": [{"port": 80, "targetPort": 8080, "nodePort": NODE_PORT}],
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "client", "labels": {"app": "client"}},
            "spec": pod("client", references["kubectl"], "proxy", "--port=8001"),
        },
    ]
    for item in objects[1:]:
        item["metadata"] = {"namespace": NAMESPACE, **item["metadata"]}  # type: ignore[dict-item]
    return yaml.safe_dump_all(objects)


def fetch(kubectl: Any, url: str) -> str | None:
    """What the client pod gets at `url`'s /health; None when it gets no answer."""
    done = kubectl.attempt(
        "-n",
        NAMESPACE,
        "exec",
        "client",
        "--",
        "/kubectl",
        f"--server={url}",
        "--request-timeout=3s",
        "get",
        "--raw",
        "/health",
    )
    return done.stdout.strip() if done.returncode == 0 else None
