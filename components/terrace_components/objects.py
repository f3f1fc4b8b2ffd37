"""Small pieces of Kubernetes objects that several components make in the same way."""

from typing import Protocol

import pulumi
import pulumi_kubernetes as k8s

from terrace_common.names import LABEL_NAME

# The pods behind a Service are awaited already; waiting for its endpoints again costs ten seconds.
SKIP_AWAIT = {"pulumi.com/skipAwait": "true"}


class Named(Protocol):
    """A registered Kubernetes object."""

    @property
    def metadata(self) -> pulumi.Output[k8s.meta.v1.outputs.ObjectMeta]: ...


def name_of(registered: Named) -> pulumi.Output[str]:
    """Name of the object, known when Kubernetes has it."""
    return registered.metadata.apply(lambda metadata: str(metadata.name))


def namespace_of(registered: Named) -> pulumi.Output[str]:
    """Namespace of the object, known when Kubernetes has it."""
    return registered.metadata.apply(lambda metadata: str(metadata.namespace))


def metadata(
    name: str,
    namespace: pulumi.Input[str],
    labels: dict[str, str],
    annotations: dict[str, str] | None = None,
) -> k8s.meta.v1.ObjectMetaArgsDict:
    """Metadata of a namespaced object."""
    made: k8s.meta.v1.ObjectMetaArgsDict = {
        "name": name,
        "namespace": namespace,
        "labels": {**labels},
    }
    if annotations is not None:
        made["annotations"] = {**annotations}
    return made


def service_spec(
    app: str, port: int, node_port: int | None = None, *, port_name: str = "http"
) -> k8s.core.v1.ServiceSpecArgsDict:
    """A Service for one port of the pods named ``app``; with ``node_port``, also on every node."""
    entry: k8s.core.v1.ServicePortArgsDict = {
        "name": port_name,
        "port": port,
        "target_port": port,
    }
    if node_port is not None:
        entry["node_port"] = node_port
    return {
        "type": "ClusterIP" if node_port is None else "NodePort",
        "selector": {LABEL_NAME: app},
        "ports": [entry],
    }
