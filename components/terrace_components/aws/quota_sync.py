"""Quota sync: Bedrock's service quotas, read per region and published to the gateways."""

from typing import Annotated, NotRequired, TypedDict

import pulumi
import pulumi_kubernetes as k8s
from pulumi_kubernetes.core.v1 import ContainerArgsDict, EnvVarArgsDict, PodSpecArgsDict
from pydantic import Field

from terrace_common.names import (
    GATEWAY,
    GATEWAY_ADMIN,
    LABEL_NAME,
    NAMESPACE_OBSERVABILITY,
    PROMETHEUS,
    QUOTA_SYNC,
    QUOTA_SYNC_METRICS_PORT,
    RUN_AS_USER,
    SECRET_GATEWAY,
    SECRET_PROVIDERS,
    labels,
)
from terrace_components import network, pods
from terrace_components.arguments import (
    Address,
    AddressArgs,
    Arguments,
    Image,
    Name,
    PodPeer,
    PodPeerArgs,
    Resources,
    ResourcesArgs,
    Scheduling,
    SchedulingArgs,
    Text,
)
from terrace_components.aws.arguments import Tags
from terrace_components.aws.arns import Place, policy_document
from terrace_components.aws.pod_identity import AwsPodIdentity
from terrace_components.objects import SKIP_AWAIT, metadata, name_of

# Reading, of exactly what it asks for: lists, which know no narrower resource, and the account's
# own application profiles, which the governance spec names at run time.
READS = [
    "bedrock:GetFoundationModelAvailability",
    "bedrock:ListFoundationModels",
    "bedrock:ListInferenceProfiles",
    "servicequotas:ListAWSDefaultServiceQuotas",
    "servicequotas:ListServiceQuotas",
]
SECRETS = "/run/secrets/terrace"
HTTPS = 443
GRACE_SECONDS = 15


class QuotaSyncArgs(TypedDict):
    """Arguments of ``QuotaSync``."""

    # required
    namespace: str
    """Namespace of the gateway."""
    image: pulumi.Input[str]
    """Image of ``services/quota_sync``."""
    resources: ResourcesArgs
    """Resources of one replica."""
    # credentials: an identity of the pods, or keys
    cluster_name: NotRequired[pulumi.Input[str]]
    """Name of the EKS cluster, whose pods get a role that may read quotas, profiles and access,
    and nothing else; default none."""
    provider_credentials: NotRequired[dict[str, str]]
    """Environment variable, such as ``AWS_ACCESS_KEY_ID``, -> key of ``provider_secret``; where
    pods have no identity. Default none."""
    provider_secret: NotRequired[str]
    """Secret with provider credentials; default ``provider-credentials``."""
    gateway_secret: NotRequired[str]
    """Secret with ``admin-key``, the only key of it that is mounted; default
    ``gateway-secrets``."""
    # rhythm
    every_seconds: NotRequired[int]
    """Between two readings of a region; default 3600."""
    stale_after_seconds: NotRequired[int]
    """Age from which on the lower share of a quota holds; default three times
    ``every_seconds``."""
    stale_percent: NotRequired[int]
    """The lower share, in percent of the share while it is fresh; default 80."""
    # scale
    replicas: NotRequired[int]
    """1 or 2; one of them works, the other one stands by. Default 2."""
    scheduling: NotRequired[SchedulingArgs]
    """Nodes to run on; default any."""
    # networking
    extra_egress: NotRequired[list[AddressArgs]]
    """Address ranges of AWS's endpoints inside the network, which the internet does not include."""
    metrics_reader: NotRequired[PodPeerArgs]
    """Who scrapes the metrics port; default Terrace's Prometheus."""
    # observability
    tags: NotRequired[dict[str, str]]
    """Tags of the role."""


class _QuotaSync(Arguments):
    namespace: Name
    image: Image
    resources: Resources
    cluster_name: Text | None = None
    provider_credentials: dict[str, str] = Field(default_factory=dict)
    provider_secret: str = SECRET_PROVIDERS
    gateway_secret: str = SECRET_GATEWAY
    every_seconds: Annotated[int, Field(ge=60, le=86_400)] = 3600
    stale_after_seconds: Annotated[int, Field(ge=60, le=30 * 86_400)] | None = None
    stale_percent: Annotated[int, Field(ge=0, le=100)] = 80
    replicas: Annotated[int, Field(ge=1, le=2)] = 2
    scheduling: Scheduling = Scheduling()
    extra_egress: list[Address] = Field(default_factory=list)
    metrics_reader: PodPeer = PodPeer(
        namespace=NAMESPACE_OBSERVABILITY, pod=PROMETHEUS.name, port=QUOTA_SYNC_METRICS_PORT
    )
    tags: Tags = Field(default_factory=dict)


class QuotaSync(pulumi.ComponentResource):
    """Keeps the gateways below AWS's own quotas: reads them, and publishes shared caps.

    Nothing waits for it: without it the gateways go on with what was last published, and lower it
    when it is old. Its pods are not ready while AWS cannot be read.

    Creates: ServiceAccount, NetworkPolicy, NetworkPolicy ``gateway-admin-quota-sync`` (its way to
    the admin API), Deployment ``quota-sync``; with ``cluster_name``, AwsPodIdentity.
    """

    name: pulumi.Output[str]
    """Name of the Deployment."""

    def __init__(
        self,
        name: str,
        args: QuotaSyncArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("terrace:index:QuotaSync", name, None, opts)
        given = _QuotaSync.of(args)
        child = pulumi.ResourceOptions(parent=self)
        label = labels(QUOTA_SYNC, component="quota-sync", layer="gateway")
        named = metadata(QUOTA_SYNC, given.namespace, label)
        before: list[pulumi.Resource] = [
            k8s.core.v1.ServiceAccount(
                f"{name}-account",
                metadata=named,
                automount_service_account_token=False,
                opts=child,
            ),
            self._policy(name, given, named),
            k8s.networking.v1.NetworkPolicy(
                f"{name}-admin-policy",
                metadata=metadata(f"{GATEWAY_ADMIN.name}-{QUOTA_SYNC}", given.namespace, label),
                spec={
                    "pod_selector": {"match_labels": {LABEL_NAME: GATEWAY.name}},
                    "policy_types": ["Ingress"],
                    "ingress": [
                        network.from_pods(
                            PodPeer(
                                namespace=given.namespace, pod=QUOTA_SYNC, port=GATEWAY_ADMIN.port
                            )
                        )
                    ],
                },
                opts=child,
            ),
        ]
        if given.cluster_name is not None:
            before.append(
                AwsPodIdentity(
                    f"{name}-identity",
                    {
                        "cluster_name": given.cluster_name,
                        "namespace": given.namespace,
                        "service_account": QUOTA_SYNC,
                        "policy": self._rights(),
                        "tags": given.tags,
                    },
                    opts=child,
                )
            )
        deployment = k8s.apps.v1.Deployment(
            f"{name}-deployment",
            # An account whose quotas cannot be read must not keep the platform from coming up.
            metadata=metadata(QUOTA_SYNC, given.namespace, label, SKIP_AWAIT),
            spec={
                "replicas": given.replicas,
                "revision_history_limit": 3,
                "selector": {"match_labels": {LABEL_NAME: QUOTA_SYNC}},
                "template": {
                    "metadata": {
                        "labels": label,
                        "annotations": pods.scrape_annotations(QUOTA_SYNC_METRICS_PORT),
                    },
                    "spec": self._pod(given),
                },
            },
            opts=pulumi.ResourceOptions(parent=self, depends_on=before),
        )
        self.name = name_of(deployment)
        self.register_outputs({"name": self.name})

    def _rights(self) -> pulumi.Output[str]:
        place = Place.of(self)
        profiles = pulumi.Output.concat(
            "arn:",
            place.partition,
            ":bedrock:*:",
            place.account,
            ":application-inference-profile/*",
        )
        return policy_document(
            {"Sid": "ReadQuotas", "Action": READS, "Resource": "*"},
            {
                "Sid": "ReadProfiles",
                "Action": ["bedrock:GetInferenceProfile"],
                "Resource": [profiles],
            },
        )

    def _policy(
        self, name: str, given: _QuotaSync, named: k8s.meta.v1.ObjectMetaArgsDict
    ) -> k8s.networking.v1.NetworkPolicy:
        egress = [
            network.to_dns(),
            network.to_pods(
                PodPeer(namespace=given.namespace, pod=GATEWAY.name, port=GATEWAY_ADMIN.port)
            ),
            network.to_internet(HTTPS),
            *(network.to_address(address) for address in given.extra_egress),
        ]
        if given.cluster_name is not None:
            egress += network.to_pod_identity()
        return k8s.networking.v1.NetworkPolicy(
            f"{name}-policy",
            metadata=named,
            spec=network.policy_spec(
                QUOTA_SYNC, ingress=[network.from_pods(given.metrics_reader)], egress=egress
            ),
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _pod(self, given: _QuotaSync) -> PodSpecArgsDict:
        stale = given.stale_after_seconds or 3 * given.every_seconds
        values = {
            "TERRACE_QUOTA_SYNC_ADMIN_URL": (
                f"http://{GATEWAY_ADMIN.name}.{given.namespace}:{GATEWAY_ADMIN.port}"
            ),
            "TERRACE_QUOTA_SYNC_EVERY_SECONDS": str(given.every_seconds),
            "TERRACE_QUOTA_SYNC_STALE_AFTER_SECONDS": str(stale),
            "TERRACE_QUOTA_SYNC_STALE_PERCENT": str(given.stale_percent),
        }
        environment: list[EnvVarArgsDict] = [
            {
                "name": "TERRACE_QUOTA_SYNC_REPLICA",
                "value_from": {"field_ref": {"field_path": "metadata.name"}},
            },
            *({"name": key, "value": value} for key, value in values.items()),
            *(
                {
                    "name": variable,
                    "value_from": {"secret_key_ref": {"name": given.provider_secret, "key": key}},
                }
                for variable, key in sorted(given.provider_credentials.items())
            ),
        ]
        port = QUOTA_SYNC_METRICS_PORT
        container: ContainerArgsDict = {
            **pods.container(
                QUOTA_SYNC,
                given.image,
                resources=given.resources,
                env=environment,
                read_only_mounts={"secrets": SECRETS},
            ),
            "ports": [{"name": "metrics", "container_port": port}],
            "startup_probe": pods.http_probe("/healthz", port, every=1, failures=120),
            "readiness_probe": pods.http_probe("/readyz", port, every=10, failures=3),
            "liveness_probe": pods.http_probe("/healthz", port, every=10, failures=6),
        }
        spec = pods.pod_spec(
            user=RUN_AS_USER,
            service_account=QUOTA_SYNC,
            scheduling=given.scheduling,
            containers=[container],
            volumes=[
                {
                    "name": "secrets",
                    "secret": {
                        "secret_name": given.gateway_secret,
                        "default_mode": 0o440,
                        "items": [{"key": "admin-key", "path": "admin-key"}],
                    },
                }
            ],
        )
        return {**spec, "termination_grace_period_seconds": GRACE_SECONDS}
