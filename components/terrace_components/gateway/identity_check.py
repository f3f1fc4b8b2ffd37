"""A Job that ends once pods of the gateway's service account are given their identity at AWS."""

import pulumi
import pulumi_kubernetes as k8s

from terrace_common.names import GATEWAY, RUN_AS_USER, labels
from terrace_components import pods
from terrace_components.arguments import Resources, Scheduling
from terrace_components.objects import metadata

NAME = "gateway-identity"
RESOURCES = Resources(cpu="20m", memory="32Mi", memory_limit="128Mi")
DEADLINE_SECONDS = 600


def identity_check(
    name: str,
    *,
    namespace: pulumi.Input[str],
    image: pulumi.Input[str],
    scheduling: Scheduling,
    opts: pulumi.ResourceOptions,
) -> k8s.batch.v1.Job:
    """The Job; ``image`` is that of ``services/translator``. Pods that are created after it has
    ended are almost sure to have the identity; the translator itself refuses to start without."""
    label = labels(NAME, component="gateway", layer="gateway")
    return k8s.batch.v1.Job(
        name,
        metadata=metadata(NAME, namespace, label),
        spec={
            # Pauses of 10, 20, 40, 80 and 160 seconds between the attempts.
            "backoff_limit": 5,
            "active_deadline_seconds": DEADLINE_SECONDS,
            "template": {
                "metadata": {"labels": label},
                "spec": {
                    **pods.pod_spec(
                        user=RUN_AS_USER,
                        service_account=GATEWAY.name,
                        scheduling=scheduling,
                        containers=[
                            {
                                **pods.container(NAME, image, resources=RESOURCES),
                                "command": ["python", "-m", "terrace_translator.pod_identity"],
                            }
                        ],
                        volumes=[],
                    ),
                    "restart_policy": pods.job_restart_policy(pod_identity=True),
                },
            },
        },
        opts=opts,
    )
