"""Terrace's program as the release before had it: the gateway's replicas are a Deployment, without
a spool. Everything else is today's."""

import os
import runpy
from pathlib import Path
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from terrace_common.names import GATEWAY, LABEL_NAME
from terrace_components.gateway import governance_gateway
from terrace_components.gateway.pod import SPOOL_VOLUME


def deployment(name: str, named: Any, replicas: Any, **around: Any) -> k8s.apps.v1.Deployment:
    """In the place of ``replica_set``."""
    spec: dict[str, Any] = dict(replicas.pod.spec())
    spec["init_containers"] = [c for c in spec["init_containers"] if c["name"] == "translator"]
    spec["containers"] = [
        {**one, "volume_mounts": [m for m in one["volume_mounts"] if m["name"] != SPOOL_VOLUME]}
        for one in spec["containers"]
    ]
    return k8s.apps.v1.Deployment(
        f"{name}-deployment",
        metadata=named,
        spec={
            "replicas": replicas.count,
            "selector": {"match_labels": {LABEL_NAME: GATEWAY.name}},
            "template": {"metadata": {"labels": replicas.labels}, "spec": spec},
        },
        opts=pulumi.ResourceOptions(parent=around["parent"], depends_on=[*around["before"]]),
    )


governance_gateway.replica_set = deployment
# The engine starts a program in its own folder.
today = Path(__file__).resolve().parents[3] / "blueprints"
os.chdir(today)
runpy.run_path(str(today / "__main__.py"), run_name="__main__")
