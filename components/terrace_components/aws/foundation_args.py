"""Arguments of ``FoundationAws``: the settings of its parts, without what one gives another."""

from typing import NotRequired, TypedDict

import pulumi

from terrace_components.aws.bucket import ExistingBucketArgs
from terrace_components.aws.certificate import ExistingCertificateArgs, ZoneArgs
from terrace_components.aws.cluster import ExistingClusterArgs
from terrace_components.aws.cluster_add_ons import TolerationArgs
from terrace_components.aws.database import ExistingDatabaseArgs
from terrace_components.aws.existing_network import ExistingNetworkArgs
from terrace_components.aws.node_group import (
    InstanceCapacityArgs,
    NodeReserveArgs,
    NodeTaintArgs,
)
from terrace_components.aws.web_acl import WafArgs


class FoundationNetworkArgs(TypedDict):
    """The VPC; see ``AwsNetwork``."""

    existing: NotRequired[ExistingNetworkArgs]
    """A VPC that exists, to be used as it is, instead of all below but ``pods``."""
    cidr: NotRequired[str]
    """Range of the VPC, /16 to /28 and private; default 10.20.0.0/16."""
    zones: NotRequired[list[str]]
    """Names of 2 to 6 zones, such as ``eu-west-1a``."""
    zone_count: NotRequired[int]
    """Instead of ``zones``: how many of the region's; default 3."""
    nat: NotRequired[str]
    """``per-zone`` (default), ``shared`` or ``none``."""
    public_subnets: NotRequired[bool]
    """Public subnets and an internet gateway; default only where NAT needs them."""
    endpoints: NotRequired[list[str]]
    """AWS services that get an interface endpoint; default none beside a NAT, else what stage 1
    calls."""
    pods: NotRequired[int]
    """How many pods must fit; too many for the range are refused."""
    flow_logs: NotRequired[bool]
    """Log every flow; default true."""
    flow_log_retention_days: NotRequired[int]
    """Days that flow logs are kept; default 90."""


class FoundationKeysArgs(TypedDict):
    """KMS keys, one per purpose: ``secrets``, ``database``, ``objects``, ``images``, ``logs``; and
    ``captures`` where it is asked for."""

    captures: NotRequired[bool]
    """A key that seals captured prompts, for the gateway alone; default only where ``existing`` has
    one. Without a NAT the network gets an endpoint for KMS with it."""
    existing: NotRequired[dict[str, pulumi.Input[str]]]
    """Purpose to ARN of a key that exists."""
    deletion_window_days: NotRequired[int]
    """Days for which a deleted key can be brought back, 7 to 30; default 30."""
    retain: NotRequired[bool]
    """Default ``true``: a destroy leaves the keys. ``false`` only where it leaves nothing that
    they encrypt: ``database.final_snapshot: false`` and ``objects.retain: false``."""


class FoundationClusterArgs(TypedDict):
    """The EKS cluster; see ``AwsCluster``."""

    existing: NotRequired[ExistingClusterArgs]
    """A cluster that exists, instead of all below but ``admins``. Needs ``network.existing``; gets
    add-ons and nodes only where ``add_ons`` and ``nodes`` are given."""
    api_access_cidrs: NotRequired[list[str]]
    """Public address ranges that may reach the API. Required unless ``private_api``."""
    private_api: NotRequired[bool]
    """``true``: no public endpoint; the platform stack and kubectl must run where the private one
    is reached."""
    private_api_cidrs: NotRequired[list[str]]
    """Address ranges that may reach the private endpoint, such as a runner's subnet. Required with
    ``private_api``, unless ``api_client_security_group_ids``."""
    api_client_security_group_ids: NotRequired[list[pulumi.Input[str]]]
    """Security groups whose members may reach the private endpoint."""
    admins: NotRequired[list[str]]
    """ARNs of IAM roles or users that become administrators, without whoever creates the cluster:
    that one is by EKS, and is refused here."""
    kubernetes_version: NotRequired[str]
    """Minor version; default ``1.35``. Nodes and kube-proxy follow it."""
    support: NotRequired[str]
    """``STANDARD`` (default) or ``EXTENDED``."""
    service_cidr: NotRequired[str]
    """Range of Service addresses; default ``172.20.0.0/16``."""
    log_types: NotRequired[list[str]]
    """Control-plane logs that are kept; default all five."""
    log_retention_days: NotRequired[int]
    """Days that they are kept; default 90."""
    deletion_protection: NotRequired[bool]
    """Default ``true``."""


class FoundationAddOnsArgs(TypedDict):
    """EKS's add-ons; see ``AwsClusterAddOns``."""

    kubernetes_version: NotRequired[str]
    """Minor version that kube-proxy must go with; default the cluster's. For a cluster that
    exists."""
    versions: NotRequired[dict[str, str]]
    """Add-on to version; default one pinned version each."""
    skip: NotRequired[list[str]]
    """Add-ons that somebody else installs."""
    network_policy: NotRequired[bool]
    """Default ``true``: NetworkPolicies are enforced."""
    prefix_delegation: NotRequired[bool]
    """/28 prefixes for nodes; default ``true``, in a VPC that exists ``false``."""
    tolerations: NotRequired[list[TolerationArgs]]
    """Taints that the add-ons tolerate; default ``CriticalAddonsOnly``."""


class FoundationNodesArgs(TypedDict):
    """The Core nodes; see ``AwsNodeGroup``."""

    kubernetes_version: NotRequired[str]
    """Minor version of the nodes; default the cluster's, at most 3 older."""
    ami_release_version: NotRequired[str]
    """Release of the EKS AL2023 image; default ``1.35.7-20260911``."""
    instance_types: NotRequired[list[str]]
    """EC2 types; default ``m7i.xlarge``."""
    instance_capacity: NotRequired[InstanceCapacityArgs]
    """What types have that this package does not know."""
    min_size: NotRequired[int]
    """Fewest nodes; default 3."""
    max_size: NotRequired[int]
    """Most nodes; default 6."""
    autoscaled: NotRequired[bool]
    """Something else sets the number of nodes; default ``false``."""
    reserve: NotRequired[NodeReserveArgs]
    """Room for what keeps the cluster alive."""
    prefix_delegation: NotRequired[bool]
    """That of ``add_ons``, which is the default."""
    disk_gib: NotRequired[int]
    """Size of the root volume in GiB; default 80."""
    labels: NotRequired[dict[str, str]]
    """Labels; default ``terrace.dev/nodes: core``."""
    taints: NotRequired[list[NodeTaintArgs]]
    """Taints; default ``CriticalAddonsOnly=true:NoSchedule``."""


class FoundationDatabaseArgs(TypedDict):
    """The database; see ``AwsDatabase``. The cluster's nodes are its clients."""

    existing: NotRequired[ExistingDatabaseArgs]
    """A database that exists, instead of all below but ``client_security_group_ids``. Needs
    ``security_group_id`` or ``open_to_cluster: true`` in it."""
    client_security_group_ids: NotRequired[list[pulumi.Input[str]]]
    """Security groups that may connect too."""
    engine_version: NotRequired[str]
    """Minor version of Aurora PostgreSQL; default ``17.7``."""
    min_capacity: NotRequired[float]
    """Least capacity in Aurora units; default 1."""
    max_capacity: NotRequired[float]
    """Most capacity in Aurora units; default 8."""
    instances: NotRequired[int]
    """Number of instances, in the zones in turn; default 2."""
    max_connections: NotRequired[int]
    """Connections; default Aurora's own, by capacity."""
    database_name: NotRequired[str]
    """Name of the first database; default ``terrace``."""
    backup_days: NotRequired[int]
    """Days that backups go back; default 14."""
    log_retention_days: NotRequired[int]
    """Days that the server's log is kept; default 90."""
    deletion_protection: NotRequired[bool]
    """Default ``true``."""
    final_snapshot: NotRequired[bool]
    """Default ``true``; ``false`` only with ``deletion_protection: false``."""


class FoundationObjectsArgs(TypedDict):
    """The bucket for ledger heads and evidence; see ``AwsBucket``."""

    existing: NotRequired[ExistingBucketArgs]
    """A bucket that exists, instead of all below."""
    object_lock_days: NotRequired[int]
    """Days for which no version can be deleted; default no Object Lock."""
    object_lock_mode: NotRequired[str]
    """``GOVERNANCE`` (default) or ``COMPLIANCE``."""
    lifecycle_days: NotRequired[int]
    """Days after which objects expire; default never."""
    noncurrent_days: NotRequired[int]
    """Days after which old versions expire; default 90."""
    retain: NotRequired[bool]
    """Default ``true``: a destroy leaves the bucket."""
    delete_objects: NotRequired[bool]
    """Delete every object with the bucket; default ``false``."""


class FoundationRegistryArgs(TypedDict):
    """Image repositories; see ``AwsRegistry``."""

    repositories: list[str]
    """Names of the images, such as ``gateway``."""
    keep_images: NotRequired[int]
    """How many images each keeps; default 50."""
    force_delete: NotRequired[bool]
    """Delete repositories that still hold images; default ``false``."""


class FoundationCertificateArgs(TypedDict):
    """The certificate; see ``AwsCertificate``."""

    domain: str
    """Name that clients call, such as ``models.example.com``."""
    zone: NotRequired[ZoneArgs]
    """Its DNS zone."""
    existing: NotRequired[ExistingCertificateArgs]
    """A certificate that exists."""


class FoundationLoadBalancerArgs(TypedDict):
    """The load balancer; see ``AwsLoadBalancer``. Needs ``certificate``."""

    # required
    allowed_cidrs: list[str]
    """Who may connect: 1 to 25 address ranges."""
    target_port: int
    """Port of the pods."""
    health_path: str
    """Path that answers 200 while a pod takes requests, such as ``/readyz``."""
    # what it is
    internal: NotRequired[bool]
    """Reachable from inside the network only; default ``true``."""
    domain: NotRequired[str]
    """Name that clients call; default the certificate's domain."""
    health_port: NotRequired[int]
    """Port of the health check; default ``target_port``."""
    idle_timeout_seconds: NotRequired[int]
    """How long a connection may be silent, 1 to 4000; default 3600."""
    deregistration_delay_seconds: NotRequired[int]
    """How long requests of a pod that goes may take to end; default 600."""
    tls_policy: NotRequired[str]
    """ELB's security policy; default TLS 1.2 and 1.3 with the strongest ciphers."""
    waf: NotRequired[WafArgs]
    """AWS WAF in front; default none."""
    deletion_protection: NotRequired[bool]
    """Default ``false``."""
    access_log_days: NotRequired[int]
    """Days that access logs are kept, 1 to 3650, in a bucket of their own that goes with the stack;
    default no access logs."""
    access_log_bucket: NotRequired[pulumi.Input[str]]
    """Instead: a bucket that exists, whose policy lets ELB write."""


class FoundationAwsArgs(TypedDict):
    """Arguments of ``FoundationAws``, one section per part. A section that is left out has its
    defaults, unless it says otherwise."""

    cluster: FoundationClusterArgs
    """The EKS cluster."""
    network: NotRequired[FoundationNetworkArgs]
    """The VPC."""
    keys: NotRequired[FoundationKeysArgs]
    """KMS keys."""
    add_ons: NotRequired[FoundationAddOnsArgs]
    """EKS's add-ons. Left out with ``cluster.existing``: none is touched."""
    nodes: NotRequired[FoundationNodesArgs]
    """The Core nodes. Left out with ``cluster.existing``: none are made."""
    database: NotRequired[FoundationDatabaseArgs]
    """The database."""
    objects: NotRequired[FoundationObjectsArgs]
    """The bucket."""
    registry: NotRequired[FoundationRegistryArgs]
    """Image repositories; left out: none are made."""
    certificate: NotRequired[FoundationCertificateArgs]
    """The certificate; left out: none is made."""
    load_balancer: NotRequired[FoundationLoadBalancerArgs]
    """The load balancer; left out: none is made."""
    tags: NotRequired[dict[str, str]]
    """Tags of everything that is made."""
