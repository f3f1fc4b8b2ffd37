"""The gateway's replicas: a StatefulSet, because each keeps its spool on a volume of its own."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_kubernetes as k8s
from pulumi_kubernetes.core.v1 import PersistentVolumeClaimSpecArgsDict

from terrace_common.names import GATEWAY, GATEWAY_METRICS_PORT, LABEL_NAME
from terrace_components import pods
from terrace_components.gateway.pod import SPOOL_VOLUME, GatewayPod
from terrace_components.objects import SKIP_AWAIT, metadata, name_of

HEADLESS = f"{GATEWAY.name}-replicas"
# From "started" to "ready" on a cold, busy machine: the translator's startup probe waits as long.
START_SECONDS = 300


@dataclass(frozen=True)
class Replicas:
    """What the StatefulSet is made of."""

    pod: GatewayPod
    labels: dict[str, str]
    count: int
    """At first, where an autoscaler counts."""
    counted_by_autoscaler: bool
    claim: PersistentVolumeClaimSpecArgsDict
    claims_end: bool
    """Whether claims go with the StatefulSet: a volume that the program made cannot be deleted
    while it is claimed, and what is in its directory stays."""

    @property
    def roll_seconds(self) -> int:
        """How long a roll may take at most: the replicas go one after the other."""
        return self.count * (self.pod.grace_seconds + START_SECONDS)


def replica_set(
    name: str,
    named: k8s.meta.v1.ObjectMetaArgsDict,
    replicas: Replicas,
    *,
    namespace: pulumi.Input[str],
    parent: pulumi.Resource,
    before: Sequence[pulumi.Resource],
) -> k8s.apps.v1.StatefulSet:
    """The StatefulSet, and the headless Service that a StatefulSet must name.

    All replicas start and end at once (``Parallel``): none depends on another. A roll still takes
    one at a time and waits until it is ready again. Claims outlive everything: a record that was
    not shipped is money.
    """
    headless = k8s.core.v1.Service(
        f"{name}-{HEADLESS}",
        metadata=metadata(HEADLESS, namespace, replicas.labels, SKIP_AWAIT),
        spec={
            "cluster_ip": "None",
            # A replica is found by its name also while it drains or is not ready yet.
            "publish_not_ready_addresses": True,
            "selector": {LABEL_NAME: GATEWAY.name},
            "ports": [{"name": "http", "port": GATEWAY.port, "target_port": GATEWAY.port}],
        },
        opts=pulumi.ResourceOptions(parent=parent),
    )
    return k8s.apps.v1.StatefulSet(
        f"{name}-replicas",
        metadata=named,
        spec={
            "replicas": replicas.count,
            "revision_history_limit": 3,
            "service_name": name_of(headless),
            "pod_management_policy": "Parallel",
            "update_strategy": {"type": "RollingUpdate"},
            "persistent_volume_claim_retention_policy": {
                "when_deleted": "Delete" if replicas.claims_end else "Retain",
                "when_scaled": "Retain",
            },
            "selector": {"match_labels": {LABEL_NAME: GATEWAY.name}},
            "template": {
                "metadata": {
                    "labels": replicas.labels,
                    "annotations": pods.scrape_annotations(GATEWAY_METRICS_PORT),
                },
                "spec": replicas.pod.spec(),
            },
            "volume_claim_templates": [
                {"metadata": {"name": SPOOL_VOLUME}, "spec": replicas.claim}
            ],
        },
        opts=pulumi.ResourceOptions(
            parent=parent,
            depends_on=[*before, headless],
            custom_timeouts=pulumi.CustomTimeouts(
                create=f"{2 * START_SECONDS}s", update=f"{replicas.roll_seconds}s"
            ),
            # The autoscaler's number, not ours, after the first. Leaving `replicas` out instead
            # would set a StatefulSet that had it to Kubernetes' default of one pod.
            ignore_changes=["spec.replicas"] if replicas.counted_by_autoscaler else None,
        ),
    )
