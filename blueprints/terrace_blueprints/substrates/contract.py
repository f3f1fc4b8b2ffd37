"""The contract between a substrate and the layers: plain data, so it can cross a StackReference.

Layers see only this. What differs between substrates is data here: a part that a substrate does not
have is ``None``, and a layer asks whether it is there, never where it runs.
"""

from dataclasses import dataclass, field
from typing import Any

from terrace_components.arguments import (
    AddressArgs,
    ResourcesArgs,
    SchedulingArgs,
    StorageArgs,
)
from terrace_components.gateway.spool import SpoolArgs

EBS_CLASS = "terrace-ebs"


class SubstrateError(ValueError):
    """The substrate is not there or lacks something; ``str()`` says what and what to do."""


@dataclass(frozen=True)
class ClusterAccess:
    """How Pulumi and pods reach the Kubernetes API."""

    kubeconfig: str
    """Path of a kubeconfig (its content stays out of Pulumi's state), or its text, when that holds
    no secret."""
    identifier: str
    """Never two clusters with one identifier, never two identifiers for one cluster."""
    api: AddressArgs
    """Where the API server listens, as a pod's packets reach it."""
    belongs_to_stack: bool
    """Nobody else makes objects there, so one that exists already is ours: an update that was
    killed between the API server's answer and its own record of it can be run again."""
    context: str | None = None
    """Context of the kubeconfig; ``None``: its current one."""
    drain_limit_seconds: int | None = None
    """How long the drain of a node waits for a pod, before it fails; ``None``: not known."""


@dataclass(frozen=True)
class GivenPostgres:
    """A PostgreSQL server outside of the cluster. A Job makes the gateway's role in it."""

    host: str
    address: AddressArgs
    """Where pods' packets reach it."""
    ca: str | None = None
    """Certificate (PEM) that its own must come from; ``None``: TLS without a check of the name."""
    admin_secret_arn: str | None = None
    """Secret in Secrets Manager with the administrator's ``username`` and ``password``."""
    admin_secret: str | None = None
    """The same in the cluster, ``namespace/name``, when there is no ``admin_secret_arn``."""
    max_connections: int | None = None
    """What the server allows; ``None``: not known."""
    admin_key_arns: tuple[str, ...] = ()
    """KMS keys that encrypt ``admin_secret_arn``."""


@dataclass(frozen=True)
class PostgresAccess:
    """The database: in the cluster, on ``storage``, or ``given``. Its passwords are in Secrets."""

    storage: StorageArgs | None = None
    given: GivenPostgres | None = None


@dataclass(frozen=True)
class ObjectStore:
    """Files of the platform: one volume per name, on a node or of a storage class."""

    root: str | None = None
    node: str | None = None
    storage_class: str | None = None
    ebs: bool = False
    """Whether volumes are EBS's, of a class that the platform makes itself."""

    @property
    def on_node(self) -> bool:
        """Whether volumes are directories of a node, which are born root's."""
        return self.root is not None and self.node is not None

    def spool(self, name: str, size: str) -> SpoolArgs:
        """Storage of the volumes that pods claim for themselves, one each. A substrate that says
        nothing has its cluster's default class."""
        if self.root is not None and self.node is not None:
            return {"size": size, "node": self.node, "path": f"{self.root}/{name}"}
        if self.ebs:
            return {
                "size": size,
                "storage_class": EBS_CLASS,
                "access_mode": "ReadWriteOncePod",
            }
        if self.storage_class is not None:
            return {"size": size, "storage_class": self.storage_class}
        return {"size": size}

    def volume(self, name: str, size: str) -> StorageArgs:
        """Storage of one volume; ``size`` is a Kubernetes quantity."""
        if self.root is not None and self.node is not None:
            return {"size": size, "node": self.node, "path": f"{self.root}/{name}"}
        if self.storage_class is not None:
            return {"size": size, "storage_class": self.storage_class}
        raise SubstrateError(f"the substrate has no storage for volume {name!r}")


@dataclass(frozen=True)
class PodIdentity:
    """Identities that AWS gives to pods: a role per service account."""

    cluster_name: str
    tags: dict[str, str] = field(default_factory=dict)
    """Of every role."""


@dataclass(frozen=True)
class ProviderCredential:
    """One credential of a model provider."""

    variable: str
    """Environment variable of the translator."""
    key: str
    """Key of the Secret with provider credentials."""
    recipe: dict[str, Any] | None = None
    """How the bootstrap Job makes its value; ``None``: with the simulated providers."""
    source: str | None = None
    """``namespace/name/key`` in the cluster that the recipe copies from."""
    secret_arn: str | None = None
    """Secret in Secrets Manager that the recipe reads."""
    key_arn: str | None = None
    """KMS key that encrypts it, when that is not the account's own."""


@dataclass(frozen=True)
class Identity:
    """What the platform's pods may do outside of the cluster."""

    credentials: tuple[ProviderCredential, ...] = ()
    """Keys of model providers. None where every provider takes the pod's own identity."""
    pod_identity: PodIdentity | None = None

    @property
    def provider_credentials(self) -> dict[str, str]:
        """Environment variable of the translator -> key of the Secret."""
        return {c.variable: c.key for c in self.credentials}


@dataclass(frozen=True)
class Images:
    """Image references by name, each naming one content."""

    references: dict[str, str]

    def ref(self, name: str) -> str:
        """The reference of an image. Raises ``SubstrateError`` when the substrate has none."""
        if name not in self.references:
            known = ", ".join(sorted(self.references)) or "none"
            raise SubstrateError(f"the substrate has no image {name!r}; it has: {known}")
        return self.references[name]


@dataclass(frozen=True)
class LoadBalancer:
    """A load balancer that is there before the platform, and waits for its pods."""

    url: str
    target_group_arn: str
    security_group_id: str
    vpc_id: str
    region: str
    keep_alive_seconds: int
    """Longer than it keeps an idle connection to a pod, so that no pod closes one first."""
    deregistration_seconds: int
    """From "the pod goes" to "no new request is sent to it", at the longest."""
    controller_chart: str
    """Version of the chart of the controller that registers pods in the target group."""
    deregistration_delay_seconds: int | None = None
    """How long it lets the requests of a pod that goes run; ``None``: not known."""
    controller_image: str | None = None
    """Image of that controller; ``None``: the chart's own."""


@dataclass(frozen=True)
class Exposure:
    """How people reach Services from outside of the cluster."""

    address: str | None = None
    node_ports: dict[str, int] = field(default_factory=dict)
    """Service name -> port on every node."""
    load_balancer: LoadBalancer | None = None
    """What stands before the gateway's public surface."""

    def url(self, service: str) -> str | None:
        """Address of a Service for people, without a trailing slash; ``None``: in the cluster
        only."""
        if service in self.node_ports:
            return f"http://{self.address}:{self.node_ports[service]}"
        return None


@dataclass(frozen=True)
class Sizes:
    """Resources of each container, chosen for the substrate's machines."""

    guard: ResourcesArgs
    translator: ResourcesArgs
    postgres: ResourcesArgs
    prometheus: ResourcesArgs
    model_simulator: ResourcesArgs
    postgres_storage: str
    bill_storage: str
    spool_storage: str
    """Of each replica of the gateway."""


@dataclass(frozen=True)
class Scale:
    """Pods of the gateway."""

    min_replicas: int
    max_replicas: int
    """More than ``min_replicas``: an autoscaler adds pods for CPU."""
    zone_spread: bool = False
    """Whether pods are spread over availability zones."""


@dataclass(frozen=True)
class Admission:
    """What the rules of admission must know of this substrate."""

    immutable_images: tuple[str, ...] = ()
    """Beginnings of image references whose tags never move; private ECR's never do."""
    node_ports: tuple[int, ...] = ()
    """Ports that Services may have on every node."""


@dataclass(frozen=True)
class InvocationLogs:
    """Bedrock's own log of its calls, which is one per account and region."""

    retention_days: int
    capture_content: bool
    """Whether prompts and answers are in it."""
    key_arn: str | None = None
    """KMS key of the log; ``None``: CloudWatch's own."""
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CaptureKey:
    """The key of AWS KMS that seals captured prompts."""

    arn: str
    earlier: tuple[str, ...] = ()
    """Keys that sealed captured prompts before."""


@dataclass(frozen=True)
class Anchors:
    """The bucket in which heads of the ledger are anchored."""

    bucket: str
    key_arn: str | None = None
    """KMS key that encrypts it; ``None``: S3's own."""
    retention_days: int | None = None
    """For how long the gateway locks each; ``None``: as the bucket does by itself."""


@dataclass(frozen=True)
class Substrate:
    """Everything that layers may know about where they run."""

    name: str
    cluster: ClusterAccess
    postgres: PostgresAccess
    objects: ObjectStore
    identity: Identity
    images: Images
    exposure: Exposure
    scheduling: dict[str, SchedulingArgs]
    """Scheduling class (core, sandbox, accelerated) -> nodes. A class that is absent is not
    offered."""
    sizes: Sizes
    gateway: Scale
    scrape_interval_seconds: int
    isolation: str
    """What separates sandboxes from the node: runc, gvisor or kata."""
    simulates_providers: bool
    """Whether the outside world (model providers) is simulated inside the cluster."""
    private_endpoints: tuple[AddressArgs, ...] = ()
    """Addresses of cloud services inside the network, which "the internet" does not include."""
    admission: Admission | None = None
    """Rules by which the API server refuses what breaks them; ``None``: it is not asked to."""
    invocation_logs: InvocationLogs | None = None
    """Set Bedrock's log of calls; ``None``: leave it as it is."""
    capture_key: CaptureKey | None = None
    """What seals captured prompts; ``None``: a key that is born in the cluster."""
    anchors: Anchors | None = None
    """Where heads of the ledger are anchored; ``None``: nowhere."""
    next_steps: tuple[str, ...] = ()
    """Commands that a person needs after `pulumi up`."""
