"""The governance gateway: one endpoint for every model, behind keys, caps and a ledger."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, Self, TypedDict

import pulumi
import pulumi_kubernetes as k8s
from pydantic import Field

from terrace_common.governance import Governance, GovernanceError, load_governance
from terrace_common.names import (
    GATEWAY,
    GATEWAY_ADMIN,
    GATEWAY_METRICS_PORT,
    LABEL_NAME,
    NAMESPACE_OBSERVABILITY,
    PROMETHEUS,
    SECRET_GATEWAY,
    SECRET_GATEWAY_LEDGER,
    SECRET_PROVIDERS,
    ServiceName,
    labels,
)
from terrace_components import network
from terrace_components.arguments import (
    Address,
    AddressArgs,
    Arguments,
    Image,
    NodePort,
    PodPeer,
    PodPeerArgs,
    Resources,
    ResourcesArgs,
    Scheduling,
    SchedulingArgs,
    Text,
)
from terrace_components.config_file import ConfigFile
from terrace_components.gateway import configuration
from terrace_components.gateway.autoscaling import Autoscaling, AutoscalingArgs, autoscaler
from terrace_components.gateway.identity_check import identity_check
from terrace_components.gateway.pod import DEREGISTRATION_SECONDS, GatewayPod
from terrace_components.gateway.replicas import Replicas, replica_set
from terrace_components.gateway.spool import Spool, SpoolArgs
from terrace_components.objects import (
    SKIP_AWAIT,
    metadata,
    name_of,
    namespace_of,
    service_spec,
)

GuardSetting = Literal[
    "anchor_location", "anchor_retention_days", "bedrock_log_location", "capture_kms_key_arn",
    "export_location", "trusted_proxies",
]  # fmt: skip
DEFAULT_REPLICAS = 2
DATABASE_MAX_CONNECTIONS = "terrace.dev/database-max-connections"


class GovernanceGatewayArgs(TypedDict):
    """Arguments of ``GovernanceGateway``."""

    # required
    namespace: pulumi.Input[str]
    """Namespace of the gateway; it should deny all traffic by default (``SecureNamespace``)."""
    guard_image: pulumi.Input[str]
    """Image of ``services/gateway``."""
    translator_image: pulumi.Input[str]
    """Image of ``services/translator``."""
    governance: str
    """The governance spec, YAML: models, prices, providers. Its hosts are all the egress there
    is, besides DNS, the database and the OTLP endpoint."""
    guard_resources: ResourcesArgs
    """Resources of the guard."""
    translator_resources: ResourcesArgs
    """Resources of LiteLLM. In production its floor is 1 CPU and 4 GiB."""
    # database: pods or an address; the URL itself is in gateway_secret
    database: NotRequired[PodPeerArgs]
    """The pods of PostgreSQL, where it runs in the cluster."""
    database_address: NotRequired[AddressArgs]
    """The addresses of PostgreSQL, where it is managed, such as the subnets of Aurora."""
    database_ca: NotRequired[str]
    """Certificates that the database's is checked against, PEM (of RDS: its bundle of the region).
    The guard has them as ``/etc/terrace-database/ca.pem``, for ``sslmode=verify-full`` and
    ``sslrootcert`` in the URL; default none."""
    database_max_connections: NotRequired[int]
    """How many connections the database takes, for policies that compare it with the pods'
    (annotation ``terrace.dev/database-max-connections`` of the StatefulSet); default unsaid."""
    # secrets
    gateway_secret: NotRequired[str]
    """Secret with ``database-url``, ``key-pepper``, ``admin-key``; default ``gateway-secrets``."""
    ledger_secret: NotRequired[str]
    """Secret with ``ledger-signing-key`` and ``capture-key``; default ``gateway-ledger-keys``."""
    provider_secret: NotRequired[str]
    """Secret with provider credentials; default ``provider-credentials``."""
    provider_credentials: NotRequired[dict[str, str]]
    """Environment variable -> key of ``provider_secret``; default none. The translator has them but
    ``token_env`` of the spec; the guard has as files those, relayed providers', a guardrail's."""
    # ledger
    guard_settings: NotRequired[dict[str, str]]
    """Further settings of the guard, name -> value as in its environment: ``anchor_location``,
    ``anchor_retention_days``, ``export_location``, ``bedrock_log_location``, ``trusted_proxies``,
    ``capture_kms_key_arn`` (instead of ``capture-key``). What they name must be in
    ``extra_egress`` or be let through by the governance spec."""
    # storage
    spool: NotRequired[SpoolArgs]
    """Where each replica's spool lives; default 2 GiB of the cluster's default class."""
    # scale
    replicas: NotRequired[int]
    """Pods; default 2. With one there is no PodDisruptionBudget, or no node could be drained."""
    autoscaling: NotRequired[AutoscalingArgs]
    """Pods by CPU load, instead of ``replicas``; default a fixed number."""
    zone_spread: NotRequired[bool]
    """Spread pods over zones as well as over nodes; default false."""
    scheduling: NotRequired[SchedulingArgs]
    """Nodes to run on; default any."""
    # networking
    public_node_port: NotRequired[int]
    """Port on every node for the public surface; default none."""
    admin_node_port: NotRequired[int]
    """Port on every node for the admin API; default none."""
    metrics_reader: NotRequired[PodPeerArgs]
    """Who scrapes the metrics port; default Terrace's Prometheus."""
    extra_egress: NotRequired[list[AddressArgs]]
    """Further address ranges that may be called, such as private endpoints of a provider (behind
    a VPC endpoint, AWS's own names lead to addresses of the VPC)."""
    keep_alive_seconds: NotRequired[int]
    """How long an idle connection is kept, 1 to 86400. Behind a load balancer more than its idle
    timeout (an ALB's is at most 4000), or it meets closed connections (502); default 75."""
    drain_delay_seconds: NotRequired[int]
    """How long an ending pod goes on taking requests, 1 to 300: what Services and load balancers
    need to notice; default 5; take 30 behind a load balancer whose targets are pods."""
    pod_identity: NotRequired[bool]
    """Let the pods ask the EKS Pod Identity agent of their node for AWS credentials, for Bedrock
    providers with ``credentials: ambient``; default false. The role must be associated with the
    service account ``gateway`` before: a Job waits until its pods get it, and a gateway pod that
    was created without it never becomes ready."""
    # observability
    otlp_endpoint: NotRequired[str]
    """Where traces go, such as ``http://collector.terrace-observability:4318``; default nowhere."""


class _GovernanceGateway(Arguments):
    namespace: Text
    guard_image: Image
    translator_image: Image
    governance: str
    guard_resources: Resources
    translator_resources: Resources
    database: PodPeer | None = None
    database_address: Address | None = None
    database_ca: Annotated[str, Field(pattern=r"-----BEGIN CERTIFICATE-----")] | None = None
    database_max_connections: Annotated[int, Field(ge=1, le=262_143)] | None = None
    gateway_secret: str = SECRET_GATEWAY
    ledger_secret: str = SECRET_GATEWAY_LEDGER
    provider_secret: str = SECRET_PROVIDERS
    provider_credentials: dict[str, str] = Field(default_factory=dict)
    guard_settings: dict[GuardSetting, str] = Field(default_factory=dict)
    spool: Spool = Spool()
    replicas: Annotated[int, Field(ge=1, le=100)] | None = None
    autoscaling: Autoscaling | None = None
    zone_spread: bool = False
    scheduling: Scheduling = Scheduling()
    public_node_port: NodePort | None = None
    admin_node_port: NodePort | None = None
    metrics_reader: PodPeer = PodPeer(
        namespace=NAMESPACE_OBSERVABILITY, pod=PROMETHEUS.name, port=GATEWAY_METRICS_PORT
    )
    extra_egress: list[Address] = Field(default_factory=list)
    keep_alive_seconds: Annotated[int, Field(ge=1, le=86_400)] | None = None
    drain_delay_seconds: Annotated[int, Field(ge=1, le=300)] = DEREGISTRATION_SECONDS
    pod_identity: bool = False
    otlp_endpoint: Annotated[str, Field(pattern=r"^https?://[^/\s]+")] | None = None

    @classmethod
    def of(cls, args: Mapping[str, Any]) -> Self:
        given = super().of(args)
        if (given.database is None) == (given.database_address is None):
            raise pulumi.InputPropertyError(
                "database", "give database (its pods) or database_address, exactly one of them"
            )
        if given.replicas is not None and given.autoscaling is not None:
            raise pulumi.InputPropertyError(
                "autoscaling", "give replicas (a fixed number) or autoscaling, not both"
            )
        return given

    @property
    def least_replicas(self) -> int:
        """How many pods there are at first, and never fewer."""
        if self.autoscaling is not None:
            return self.autoscaling.min_replicas
        return DEFAULT_REPLICAS if self.replicas is None else self.replicas

    @property
    def most_replicas(self) -> int:
        """How many pods there can be."""
        if self.autoscaling is not None:
            return self.autoscaling.max_replicas
        return self.least_replicas

    def annotations(self) -> dict[str, str] | None:
        """Of the StatefulSet itself: nothing here rolls a pod."""
        if self.database_max_connections is None:
            return None
        return {DATABASE_MAX_CONNECTIONS: str(self.database_max_connections)}

    def parsed_governance(self) -> Governance:
        try:
            return load_governance(self.governance, "governance")
        except GovernanceError as error:
            problem = str(error)
        raise pulumi.InputPropertyError("governance", problem)


class GovernanceGateway(pulumi.ComponentResource):
    """The gateway, reachable at ``gateway.<namespace>:8080``, rolled without a failed request.

    A change of the governance spec rolls the pods one by one: each drains, ships its spool, and is
    ready again before the next goes. A drain waits as long as the spec lets one stream live. The
    volumes with the spools outlive pods, scale-in and this component.

    Creates: ConfigMaps ``governance-<hash>`` and ``translator-<hash>``, ServiceAccount,
    NetworkPolicy, StatefulSet ``gateway``, Services ``gateway``, ``gateway-admin`` and
    ``gateway-replicas`` (headless), PodDisruptionBudget; as asked, HorizontalPodAutoscaler,
    PersistentVolumes ``<name>-spool-<number>``, Job ``gateway-identity`` (awaited) and ConfigMap
    ``database-ca-<hash>``.
    """

    url: pulumi.Output[str]
    """Public surface inside the cluster; known when every replica is ready."""
    admin_url: pulumi.Output[str]
    """Admin API inside the cluster. Only the node itself is let through."""

    def __init__(
        self,
        name: str,
        args: GovernanceGatewayArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("terrace:index:GovernanceGateway", name, None, opts)
        given = _GovernanceGateway.of(args)
        governance = given.parsed_governance()
        guard_credentials = configuration.guard_credentials(governance, given.provider_credentials)
        self._name = name
        self._given = given
        self._child = pulumi.ResourceOptions(parent=self)
        self._label = labels(GATEWAY.name, component="gateway", layer="gateway")
        account = k8s.core.v1.ServiceAccount(
            f"{name}-account",
            metadata=self._metadata(),
            automount_service_account_token=False,
            opts=self._child,
        )
        pod = GatewayPod(
            guard_image=given.guard_image,
            translator_image=given.translator_image,
            guard_resources=given.guard_resources,
            translator_resources=given.translator_resources,
            governance_config_map=self._config_map(configuration.governance_file(given.governance)),
            translator_config_map=self._config_map(configuration.translator_file(governance)),
            gateway_secret=given.gateway_secret,
            ledger_secret=given.ledger_secret,
            guard_credentials=guard_credentials,
            own_spool=given.spool.on_node,
            guard_settings={**given.guard_settings},
            provider_secret=given.provider_secret,
            translator_credentials=configuration.translator_credentials(
                governance, given.provider_credentials
            ),
            otlp_endpoint=given.otlp_endpoint,
            drain_seconds=governance.defaults.hard_stream_limit_seconds,
            scheduling=given.scheduling,
            service_account=GATEWAY.name,
            zone_spread=given.zone_spread,
            keep_alive_seconds=given.keep_alive_seconds,
            drain_delay_seconds=given.drain_delay_seconds,
            pod_identity=given.pod_identity,
            database_ca_config_map=(
                None
                if given.database_ca is None
                else self._config_map(configuration.database_ca_file(given.database_ca))
            ),
        )
        before: list[pulumi.Resource] = [
            account,
            self._policy(governance),
            # A load balancer's readiness gate is given to pods of a Service that is there already.
            self._service(GATEWAY, given.public_node_port),
            self._service(GATEWAY_ADMIN, given.admin_node_port),
            *given.spool.volumes(name, given.namespace, given.most_replicas, self._child),
        ]
        if given.pod_identity:
            before.append(
                identity_check(
                    f"{name}-identity",
                    namespace=given.namespace,
                    image=given.translator_image,
                    scheduling=given.scheduling,
                    opts=pulumi.ResourceOptions(
                        parent=self, depends_on=[account], delete_before_replace=True
                    ),
                )
            )
        replicas = replica_set(
            name,
            self._metadata(annotations=given.annotations()),
            Replicas(
                pod=pod,
                labels=self._label,
                count=given.least_replicas,
                counted_by_autoscaler=given.autoscaling is not None,
                claim=given.spool.claim(),
                claims_end=given.spool.on_node,
            ),
            namespace=given.namespace,
            parent=self,
            before=before,
        )
        if given.autoscaling is not None:
            autoscaler(
                f"{name}-autoscaler", self._metadata(), replicas, given.autoscaling, self._child
            )
        if given.least_replicas > 1:
            k8s.policy.v1.PodDisruptionBudget(
                f"{name}-budget",
                metadata=self._metadata(),
                spec={
                    "min_available": 1,
                    # A pod that serves nobody must not keep a node from being drained.
                    "unhealthy_pod_eviction_policy": "AlwaysAllow",
                    "selector": {"match_labels": {LABEL_NAME: GATEWAY.name}},
                },
                opts=self._child,
            )
        self.url = self._url(replicas, GATEWAY)
        self.admin_url = self._url(replicas, GATEWAY_ADMIN)
        self.register_outputs({"url": self.url, "adminUrl": self.admin_url})

    def _metadata(
        self, name: str = GATEWAY.name, annotations: dict[str, str] | None = None
    ) -> k8s.meta.v1.ObjectMetaArgsDict:
        return metadata(name, self._given.namespace, self._label, annotations)

    def _url(self, replicas: k8s.apps.v1.StatefulSet, service: ServiceName) -> pulumi.Output[str]:
        # From the StatefulSet, so that the address is known when the pods are ready.
        host = pulumi.Output.concat(service.name, ".", namespace_of(replicas))
        return pulumi.Output.concat("http://", host, f":{service.port}")

    def _config_map(self, file: ConfigFile) -> pulumi.Output[str]:
        config_map = k8s.core.v1.ConfigMap(
            f"{self._name}-{file.name}",
            metadata=self._metadata(file.object_name),
            data={file.key: file.content},
            immutable=True,
            opts=self._child,
        )
        return name_of(config_map)

    def _policy(self, governance: Governance) -> k8s.networking.v1.NetworkPolicy:
        given = self._given
        egress = [network.to_dns()]
        if given.database is not None:
            egress.append(network.to_pods(given.database))
        if given.database_address is not None:
            egress.append(network.to_address(given.database_address))
        for url in configuration.upstream_urls(governance) + [
            u for u in [given.otlp_endpoint] if u
        ]:
            rule = network.to_url(url)
            if rule not in egress:
                egress.append(rule)
        egress += [network.to_address(address) for address in given.extra_egress]
        if given.pod_identity:
            egress += network.to_pod_identity()
        return k8s.networking.v1.NetworkPolicy(
            f"{self._name}-policy",
            metadata=self._metadata(),
            spec=network.policy_spec(
                GATEWAY.name,
                ingress=[
                    network.from_anywhere(GATEWAY.port),
                    network.from_pods(given.metrics_reader),
                ],
                egress=egress,
            ),
            opts=self._child,
        )

    def _service(self, service: ServiceName, node_port: int | None) -> k8s.core.v1.Service:
        return k8s.core.v1.Service(
            f"{self._name}-{service.name}",
            metadata=self._metadata(service.name, SKIP_AWAIT),
            spec=service_spec(GATEWAY.name, service.port, node_port),
            opts=self._child,
        )
