"""PostgreSQL in the cluster, for substrates that have no managed one."""

from typing import NotRequired, TypedDict

import pulumi
import pulumi_kubernetes as k8s
from pulumi_kubernetes.core.v1 import ContainerArgsDict, PodSpecArgsDict

from terrace_common.names import LABEL_NAME, POSTGRES, RUN_AS_USER, SECRET_POSTGRES, labels
from terrace_components import network, pods
from terrace_components.arguments import (
    Arguments,
    Image,
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

VOLUME = "/var/lib/postgresql"  # the image makes data/ in it, once it is complete
SECRETS = "/run/secrets/terrace"
DATABASE = "terrace"
SHARED_MEMORY = "/dev/shm"  # noqa: S108  a volume of the pod
CLAIM = "data"
READY = ["pg_isready", "-q", "-h", "127.0.0.1", "-U", "postgres", "-d", DATABASE]


class PostgresArgs(TypedDict):
    """Arguments of ``Postgres``."""

    namespace: pulumi.Input[str]
    """Namespace of the database."""
    image: pulumi.Input[str]
    """Image ``postgres``: makes the database and the role ``gateway`` at first start, and
    sets the passwords of the Secret at every start."""
    storage: StorageArgs
    """Where the data lives."""
    resources: ResourcesArgs
    """Resources of the server."""
    clients: list[PodPeerArgs]
    """Pods that may connect; ``port`` is the database's."""
    credentials_secret: NotRequired[str]
    """Secret with ``superuser-password`` and ``gateway-password``; default
    ``postgres-credentials``."""
    scheduling: NotRequired[SchedulingArgs]
    """Nodes to run on; default any."""


class _Postgres(Arguments):
    namespace: Text
    image: Image
    storage: Storage
    resources: Resources
    clients: list[PodPeer]
    credentials_secret: str = SECRET_POSTGRES
    scheduling: Scheduling = Scheduling()


class Postgres(pulumi.ComponentResource):
    """One PostgreSQL server whose data outlives pod, image and component.

    Passwords are read from files of a Secret; connections are scram-sha-256 only.

    Creates: PersistentVolume, ServiceAccount, NetworkPolicy, Service ``postgres``,
    StatefulSet ``postgres``.
    """

    host: pulumi.Output[str]
    """Name of the server inside the cluster, ``postgres.<namespace>``; known when it is ready."""

    def __init__(
        self,
        name: str,
        args: PostgresArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("terrace:index:Postgres", name, None, opts)
        given = _Postgres.of(args)
        child = pulumi.ResourceOptions(parent=self)
        label = labels(POSTGRES.name, component="database", layer="foundation")
        named = metadata(POSTGRES.name, given.namespace, label)
        volume = PersistentVolume(
            f"{name}-data",
            {"namespace": given.namespace, "claim": CLAIM, "storage": args["storage"]},
            opts=child,
        )
        k8s.core.v1.ServiceAccount(
            f"{name}-account",
            metadata=named,
            automount_service_account_token=False,
            opts=child,
        )
        policy = k8s.networking.v1.NetworkPolicy(
            f"{name}-policy",
            metadata=named,
            spec=network.policy_spec(
                POSTGRES.name, ingress=[network.from_pods(c) for c in given.clients], egress=[]
            ),
            opts=child,
        )
        k8s.core.v1.Service(
            f"{name}-service",
            metadata=metadata(POSTGRES.name, given.namespace, label, SKIP_AWAIT),
            spec=service_spec(POSTGRES.name, POSTGRES.port, port_name="postgres"),
            opts=child,
        )
        server = k8s.apps.v1.StatefulSet(
            f"{name}-server",
            metadata=named,
            spec={
                "replicas": 1,
                "service_name": POSTGRES.name,
                "selector": {"match_labels": {LABEL_NAME: POSTGRES.name}},
                "template": {
                    "metadata": {"labels": label},
                    "spec": self._pod(given, volume.claim),
                },
            },
            opts=pulumi.ResourceOptions(parent=self, depends_on=[policy]),
        )
        self.host = pulumi.Output.concat(name_of(server), ".", namespace_of(server))
        self.register_outputs({"host": self.host})

    def _pod(self, given: _Postgres, claim: pulumi.Output[str]) -> PodSpecArgsDict:
        server: ContainerArgsDict = {
            **pods.container(
                POSTGRES.name,
                given.image,
                resources=given.resources,
                mounts={CLAIM: VOLUME, "socket": "/run/postgresql", "shared-memory": SHARED_MEMORY},
                read_only_mounts={"credentials": SECRETS},
            ),
            "ports": [{"name": "postgres", "container_port": POSTGRES.port}],
            # First start runs initdb; crash recovery after kill -9 answers no query either.
            "startup_probe": pods.exec_probe(READY, every=2, failures=150),
            "readiness_probe": pods.exec_probe(READY, every=10, failures=2),
            # Only the port: a server in recovery says "starting up" and must not be killed for it.
            "liveness_probe": pods.tcp_probe(POSTGRES.port, every=20, failures=6),
        }
        return {
            **pods.pod_spec(
                user=RUN_AS_USER,
                service_account=POSTGRES.name,
                scheduling=given.scheduling,
                init_containers=[pods.own_volume(given.image, CLAIM, VOLUME, RUN_AS_USER)],
                containers=[server],
                volumes=[
                    pods.claim_volume(CLAIM, claim),
                    pods.secret_volume("credentials", given.credentials_secret),
                    pods.memory_volume("socket", "1Mi"),
                    pods.memory_volume("shared-memory", "128Mi"),
                ],
            ),
            # A fast shutdown writes a checkpoint; killed before that, the next start recovers.
            "termination_grace_period_seconds": 60,
        }
