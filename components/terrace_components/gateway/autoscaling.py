"""How many gateway pods there are when their number follows the load."""

from typing import Annotated, NotRequired, Self, TypedDict

import pulumi
import pulumi_kubernetes as k8s
from pydantic import Field, model_validator

from terrace_components.arguments import Arguments
from terrace_components.objects import name_of

# Growing is urgent, shrinking is not: a pod that goes drains its streams first, so two leave at
# least so far apart, and only after the load has been low for as long.
SCALE_IN_SECONDS = 600
SCALE_OUT_SECONDS = 60


class AutoscalingArgs(TypedDict):
    """How many pods there may be, and when there should be more."""

    min_replicas: int
    """Least pods, 1 to 100. Two or more keep the gateway up while a node is drained."""
    max_replicas: int
    """Most pods, 1 to 100. Each has ``TERRACE_DATABASE_POOL_SIZE`` connections to the database."""
    cpu_percent: NotRequired[int]
    """CPU of all pods' containers, in percent of their requests, that is held; default 60."""


class Autoscaling(Arguments):
    """Checked ``AutoscalingArgs``."""

    min_replicas: Annotated[int, Field(ge=1, le=100)]
    max_replicas: Annotated[int, Field(ge=1, le=100)]
    cpu_percent: Annotated[int, Field(ge=10, le=95)] = 60

    @model_validator(mode="after")
    def _room_to_grow(self) -> Self:
        if self.max_replicas < self.min_replicas:
            raise ValueError("max_replicas must not be below min_replicas")
        return self


def autoscaler(
    name: str,
    metadata: k8s.meta.v1.ObjectMetaArgsDict,
    replicas: k8s.apps.v1.StatefulSet,
    autoscaling: Autoscaling,
    opts: pulumi.ResourceOptions,
) -> "k8s.autoscaling.v2.HorizontalPodAutoscaler":
    """The HorizontalPodAutoscaler of ``replicas``. It reads CPU from the metrics API, which the
    cluster must have (on EKS the add-on ``metrics-server``).

    The replica with the highest number goes first. Before it ends it ships its spool; what it
    cannot ship (the database is away) stays on its volume, which is kept.
    """
    return k8s.autoscaling.v2.HorizontalPodAutoscaler(
        name,
        metadata=metadata,
        spec={
            "scale_target_ref": {
                "api_version": "apps/v1",
                "kind": "StatefulSet",
                "name": name_of(replicas),
            },
            "min_replicas": autoscaling.min_replicas,
            "max_replicas": autoscaling.max_replicas,
            "metrics": [
                {
                    "type": "Resource",
                    "resource": {
                        "name": "cpu",
                        "target": {
                            "type": "Utilization",
                            "average_utilization": autoscaling.cpu_percent,
                        },
                    },
                }
            ],
            "behavior": {
                "scale_up": {
                    "stabilization_window_seconds": 0,
                    "select_policy": "Max",
                    "policies": [
                        {"type": "Percent", "value": 100, "period_seconds": SCALE_OUT_SECONDS},
                        {"type": "Pods", "value": 2, "period_seconds": SCALE_OUT_SECONDS},
                    ],
                },
                "scale_down": {
                    "stabilization_window_seconds": SCALE_IN_SECONDS,
                    "select_policy": "Min",
                    "policies": [{"type": "Pods", "value": 1, "period_seconds": SCALE_IN_SECONDS}],
                },
            },
        },
        opts=opts,
    )
