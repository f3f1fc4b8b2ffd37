"""Metrics of the platform: one Prometheus that finds pods by DNS."""

from typing import Annotated, NotRequired, TypedDict

import pulumi
import pulumi_kubernetes as k8s
from pulumi_kubernetes.core.v1 import ContainerArgsDict, PodSpecArgsDict
from pydantic import Field

from terrace_common.names import LABEL_NAME, PROMETHEUS, RUN_AS_USER, labels
from terrace_components import network, pods
from terrace_components.arguments import (
    Arguments,
    Image,
    Name,
    NodePort,
    PodPeer,
    PodPeerArgs,
    Port,
    Resources,
    ResourcesArgs,
    Scheduling,
    SchedulingArgs,
    Text,
)
from terrace_components.config_file import ConfigFile
from terrace_components.objects import (
    SKIP_AWAIT,
    metadata,
    name_of,
    namespace_of,
    service_spec,
)
from terrace_components.observability.prometheus_config import (
    ALERTS_KEY,
    alert_rules,
    metrics_service,
    prometheus_config,
)

CONFIG = "/etc/prometheus"
DATA = "/prometheus"
DATA_SIZE = "1Gi"
DATA_RETENTION_SIZE = "768MB"


class ObservabilityArgs(TypedDict):
    """Arguments of ``Observability``."""

    # required
    namespace: pulumi.Input[str]
    """Namespace of Prometheus."""
    image: pulumi.Input[str]
    """Image that starts ``prometheus`` with its configuration in ``/etc/prometheus`` and its
    data at ``/prometheus``."""
    resources: ResourcesArgs
    """Resources of Prometheus."""
    targets: list[PodPeerArgs]
    """Pods to scrape; each with ``pod``, and the port that serves ``/metrics``."""
    # optional
    retention_hours: NotRequired[int]
    """How long samples are kept, on a volume that is gone with the pod; default 2."""
    scrape_interval_seconds: NotRequired[int]
    """Seconds between two scrapes; default 15."""
    node_port: NotRequired[int]
    """Port on every node; default none."""
    scheduling: NotRequired[SchedulingArgs]
    """Nodes to run on; default any."""


class Target(Arguments):
    """A checked target: unlike other peers it must name its pods, since a Service lists them."""

    namespace: Name
    pod: Name
    port: Port


class _Observability(Arguments):
    namespace: Text
    image: Image
    resources: Resources
    targets: list[Target] = Field(min_length=1)
    retention_hours: Annotated[int, Field(ge=1, le=24 * 90)] = 2
    scrape_interval_seconds: Annotated[int, Field(ge=1, le=300)] = 15
    node_port: NodePort | None = None
    scheduling: Scheduling = Scheduling()


class Observability(pulumi.ComponentResource):
    """Prometheus over the named pods.

    Pods are found by DNS: a headless Service ``<pod>-metrics`` per target lists them, ready or not.
    So Prometheus needs no token and no right in the Kubernetes API, and reaches DNS and its targets
    and nothing else. (Debian's build has no Kubernetes discovery either.)

    Creates: ServiceAccount, ConfigMap, NetworkPolicy, headless Services, Service and Deployment
    ``prometheus``.
    """

    url: pulumi.Output[str]
    """Prometheus inside the cluster; known when it answers. Only the node itself is let in."""

    def __init__(
        self,
        name: str,
        args: ObservabilityArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("terrace:index:Observability", name, None, opts)
        given = _Observability.of(args)
        self._name = name
        self._given = given
        self._child = pulumi.ResourceOptions(parent=self)
        self._label = labels(PROMETHEUS.name, component="metrics", layer="observability")
        named = metadata(PROMETHEUS.name, given.namespace, self._label)
        before: list[pulumi.Resource] = [
            k8s.core.v1.ServiceAccount(
                f"{name}-account",
                metadata=named,
                automount_service_account_token=False,
                opts=self._child,
            ),
            *(self._list_pods(target) for target in given.targets),
            k8s.networking.v1.NetworkPolicy(
                f"{name}-policy",
                metadata=named,
                spec=network.policy_spec(
                    PROMETHEUS.name,
                    ingress=[],
                    egress=[
                        network.to_dns(),
                        *(
                            network.to_pods(PodPeer(namespace=t.namespace, pod=t.pod, port=t.port))
                            for t in given.targets
                        ),
                    ],
                ),
                opts=self._child,
            ),
        ]
        config = ConfigFile(
            PROMETHEUS.name,
            "prometheus.yml",
            prometheus_config(given.targets, given.scrape_interval_seconds),
        )
        rules = alert_rules()
        # The name is the content of both files.
        named_by_content = ConfigFile(PROMETHEUS.name, config.key, config.content + rules)
        config_map = k8s.core.v1.ConfigMap(
            f"{name}-config",
            metadata=metadata(named_by_content.object_name, given.namespace, self._label),
            data={config.key: config.content, ALERTS_KEY: rules},
            immutable=True,
            opts=self._child,
        )
        k8s.core.v1.Service(
            f"{name}-service",
            metadata=metadata(PROMETHEUS.name, given.namespace, self._label, SKIP_AWAIT),
            spec=service_spec(PROMETHEUS.name, PROMETHEUS.port, given.node_port),
            opts=self._child,
        )
        deployment = k8s.apps.v1.Deployment(
            f"{name}-deployment",
            metadata=named,
            spec={
                "replicas": 1,
                "revision_history_limit": 3,
                "selector": {"match_labels": {LABEL_NAME: PROMETHEUS.name}},
                "template": {
                    "metadata": {"labels": self._label},
                    "spec": self._pod(name_of(config_map)),
                },
            },
            opts=pulumi.ResourceOptions(parent=self, depends_on=before),
        )
        host = pulumi.Output.concat(name_of(deployment), ".", namespace_of(deployment))
        self.url = pulumi.Output.concat("http://", host, f":{PROMETHEUS.port}")
        self.register_outputs({"url": self.url})

    def _list_pods(self, target: Target) -> k8s.core.v1.Service:
        return k8s.core.v1.Service(
            f"{self._name}-{target.namespace}-{target.pod}",
            metadata=metadata(
                metrics_service(target.pod), target.namespace, self._label, SKIP_AWAIT
            ),
            spec={
                "cluster_ip": "None",
                "publish_not_ready_addresses": True,
                "selector": {LABEL_NAME: target.pod},
                "ports": [{"name": "metrics", "port": target.port, "target_port": target.port}],
            },
            opts=self._child,
        )

    def _pod(self, config_map: pulumi.Output[str]) -> PodSpecArgsDict:
        given = self._given
        port = PROMETHEUS.port
        prometheus: ContainerArgsDict = {
            **pods.container(
                PROMETHEUS.name,
                given.image,
                resources=given.resources,
                mounts={"data": DATA},
                read_only_mounts={"config": CONFIG},
            ),
            "args": [
                f"--storage.tsdb.retention.time={given.retention_hours}h",
                f"--storage.tsdb.retention.size={DATA_RETENTION_SIZE}",
                f"--web.listen-address=0.0.0.0:{port}",
            ],
            "ports": [{"name": "http", "container_port": port}],
            "startup_probe": pods.http_probe("/-/ready", port, every=1, failures=120),
            "readiness_probe": pods.http_probe("/-/ready", port, every=10, failures=3),
            "liveness_probe": pods.http_probe("/-/healthy", port, every=20, failures=6),
        }
        return {
            **pods.pod_spec(
                user=RUN_AS_USER,
                service_account=PROMETHEUS.name,
                scheduling=given.scheduling,
                containers=[prometheus],
                volumes=[
                    pods.config_volume("config", config_map),
                    {"name": "data", "empty_dir": {"size_limit": DATA_SIZE}},
                ],
            ),
            "termination_grace_period_seconds": 30,
        }
