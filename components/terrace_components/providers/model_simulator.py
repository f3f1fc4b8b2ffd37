"""Model providers that are simulated inside the cluster and keep their own bill."""

from typing import NotRequired, TypedDict

import pulumi
import pulumi_kubernetes as k8s
from pulumi_kubernetes.core.v1 import ContainerArgsDict, PodSpecArgsDict

from terrace_common.names import (
    GATEWAY,
    LABEL_NAME,
    MODEL_SIMULATOR,
    NAMESPACE_GATEWAY,
    NAMESPACE_OBSERVABILITY,
    PROMETHEUS,
    RUN_AS_USER,
    SECRET_SIMULATOR,
    labels,
)
from terrace_components import network, pods
from terrace_components.arguments import (
    Arguments,
    Image,
    NodePort,
    PodPeer,
    PodPeerArgs,
    Resources,
    ResourcesArgs,
    Scheduling,
    SchedulingArgs,
    StorageArgs,
    Text,
)
from terrace_components.foundation.persistent_volume import PersistentVolume, Storage
from terrace_components.objects import (
    SKIP_AWAIT,
    metadata,
    name_of,
    namespace_of,
    service_spec,
)

BILL = "/var/lib/terrace-simulator"
CLAIM = "bill"
# The service ends open calls within 20 s of being told to stop.
GRACE_SECONDS = 30


class ModelSimulatorArgs(TypedDict):
    """Arguments of ``ModelSimulator``."""

    namespace: pulumi.Input[str]
    """Namespace of the simulated outside world."""
    image: pulumi.Input[str]
    """Image of ``services/model_simulator``."""
    storage: StorageArgs
    """Where its bill lives."""
    resources: ResourcesArgs
    """Resources of the simulator."""
    credentials_secret: NotRequired[str]
    """Secret with the credentials it demands; default ``simulator-credentials``."""
    clients: NotRequired[list[PodPeerArgs]]
    """Pods that may call it; default the gateway and Terrace's Prometheus."""
    node_port: NotRequired[int]
    """Port on every node; default none."""
    scheduling: NotRequired[SchedulingArgs]
    """Nodes to run on; default any."""


class _ModelSimulator(Arguments):
    namespace: Text
    image: Image
    storage: Storage
    resources: Resources
    credentials_secret: str = SECRET_SIMULATOR
    clients: tuple[PodPeer, ...] = (
        PodPeer(namespace=NAMESPACE_GATEWAY, pod=GATEWAY.name, port=MODEL_SIMULATOR.port),
        PodPeer(namespace=NAMESPACE_OBSERVABILITY, pod=PROMETHEUS.name, port=MODEL_SIMULATOR.port),
    )
    node_port: NodePort | None = None
    scheduling: Scheduling = Scheduling()


class ModelSimulator(pulumi.ComponentResource):
    """A deterministic OpenAI and Bedrock look-alike for evaluation and tests. Not for production.

    Creates: PersistentVolume, ServiceAccount, NetworkPolicy (no egress at all), Service and
    Deployment ``model-simulator``.
    """

    url: pulumi.Output[str]
    """Address inside the cluster; known when it answers."""

    def __init__(
        self,
        name: str,
        args: ModelSimulatorArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("terrace:index:ModelSimulator", name, None, opts)
        given = _ModelSimulator.of(args)
        child = pulumi.ResourceOptions(parent=self)
        label = labels(MODEL_SIMULATOR.name, component="model-simulator", layer="providers")
        named = metadata(MODEL_SIMULATOR.name, given.namespace, label)
        volume = PersistentVolume(
            f"{name}-bill",
            {"namespace": given.namespace, "claim": CLAIM, "storage": args["storage"]},
            opts=child,
        )
        account = k8s.core.v1.ServiceAccount(
            f"{name}-account",
            metadata=named,
            automount_service_account_token=False,
            opts=child,
        )
        policy = k8s.networking.v1.NetworkPolicy(
            f"{name}-policy",
            metadata=named,
            spec=network.policy_spec(
                MODEL_SIMULATOR.name,
                ingress=[network.from_pods(client) for client in given.clients],
                egress=[],
            ),
            opts=child,
        )
        k8s.core.v1.Service(
            f"{name}-service",
            metadata=metadata(MODEL_SIMULATOR.name, given.namespace, label, SKIP_AWAIT),
            spec=service_spec(MODEL_SIMULATOR.name, MODEL_SIMULATOR.port, given.node_port),
            opts=child,
        )
        deployment = k8s.apps.v1.Deployment(
            f"{name}-deployment",
            metadata=named,
            spec={
                "replicas": 1,
                "revision_history_limit": 3,
                "selector": {"match_labels": {LABEL_NAME: MODEL_SIMULATOR.name}},
                # Two writers would tear the one book.
                "strategy": {"type": "Recreate"},
                "template": {
                    "metadata": {
                        "labels": label,
                        "annotations": pods.scrape_annotations(MODEL_SIMULATOR.port),
                    },
                    "spec": self._pod(given, volume.claim),
                },
            },
            opts=pulumi.ResourceOptions(parent=self, depends_on=[account, policy]),
        )
        self.url = pulumi.Output.concat(
            "http://",
            name_of(deployment),
            ".",
            namespace_of(deployment),
            f":{MODEL_SIMULATOR.port}",
        )
        self.register_outputs({"url": self.url})

    def _pod(self, given: _ModelSimulator, claim: pulumi.Output[str]) -> PodSpecArgsDict:
        port = MODEL_SIMULATOR.port
        simulator: ContainerArgsDict = {
            **pods.container(
                MODEL_SIMULATOR.name,
                given.image,
                resources=given.resources,
                env=[{"name": "TERRACE_SIMULATOR_BILL_PATH", "value": f"{BILL}/bill.jsonl"}],
                mounts={CLAIM: BILL},
                read_only_mounts={"credentials": "/run/secrets/terrace"},
            ),
            "ports": [{"name": "http", "container_port": port}],
            "startup_probe": pods.http_probe("/healthz", port, every=1, failures=120),
            "readiness_probe": pods.http_probe("/healthz", port, every=5, failures=2),
            "liveness_probe": pods.http_probe("/healthz", port, every=10, failures=6),
        }
        return {
            **pods.pod_spec(
                user=RUN_AS_USER,
                service_account=MODEL_SIMULATOR.name,
                scheduling=given.scheduling,
                init_containers=[pods.own_volume(given.image, CLAIM, BILL, RUN_AS_USER)],
                containers=[simulator],
                volumes=[
                    pods.claim_volume(CLAIM, claim),
                    pods.secret_volume("credentials", given.credentials_secret),
                ],
            ),
            "termination_grace_period_seconds": GRACE_SECONDS,
        }
