"""The gateway's pod: the guard, and the translator that starts before it and stops after it.

The translator is a native sidecar (an init container with ``restartPolicy: Always``). Kubernetes
starts such a container first, waits for its startup probe, restarts it on its own, and at the end
stops it only when the guard has ended: a draining guard keeps its way upstream.
"""

from dataclasses import dataclass, field

import pulumi
from pulumi_kubernetes.core.v1 import (
    ContainerArgsDict,
    EnvVarArgsDict,
    KeyToPathArgsDict,
    PodSpecArgsDict,
    TopologySpreadConstraintArgsDict,
    VolumeArgsDict,
)
from pulumi_kubernetes.meta.v1 import LabelSelectorArgsDict

from terrace_common.names import (
    GATEWAY,
    GATEWAY_ADMIN,
    GATEWAY_METRICS_PORT,
    LABEL_NAME,
    RUN_AS_USER,
)
from terrace_components import pods
from terrace_components.arguments import Resources, Scheduling

GUARD = "guard"
TRANSLATOR = "translator"
CONFIG = "/etc/terrace"
SECRETS = "/run/secrets/terrace"
ENGINE_PARENT = "/run/terrace"  # the translator makes engine/ in it, mode 0700
READY_FILE = f"{ENGINE_PARENT}/engine/ready"
DATABASE_CA = "/etc/terrace-database"  # holds ca.pem

# From "told to stop" to "closes its door": Services need a moment to stop sending. The guard does
# that wait itself (and says not ready meanwhile), so no preStop hook repeats it.
DEREGISTRATION_SECONDS = 5
# From the last answer to the end of the process: ship the spool, close the database, end the
# translator.
SHIP_SECONDS = 35
SHUTDOWN_MARGIN_SECONDS = SHIP_SECONDS + 25
SPOOL = "/var/lib/terrace"  # a disk's root may hold lost+found: the guard has spool/ in it
SPOOL_VOLUME = "spool"
PROVIDER_CREDENTIALS = "/run/secrets/terrace-providers"


@dataclass(frozen=True)
class GatewayPod:
    """What the pod is made of. Names of objects may be outputs."""

    guard_image: pulumi.Input[str]
    translator_image: pulumi.Input[str]
    guard_resources: Resources
    translator_resources: Resources
    governance_config_map: pulumi.Input[str]
    translator_config_map: pulumi.Input[str]
    gateway_secret: pulumi.Input[str]
    ledger_secret: pulumi.Input[str]
    provider_secret: pulumi.Input[str]
    translator_credentials: dict[str, str]
    """Environment variable of the translator -> key of ``provider_secret``."""
    otlp_endpoint: str | None
    drain_seconds: int
    """How long a running answer may go on after the pod was told to stop."""
    scheduling: Scheduling
    service_account: str
    zone_spread: bool = False
    """Whether pods of one version are spread over zones as well as over nodes."""
    database_ca_config_map: pulumi.Input[str] | None = None
    """ConfigMap with the certificates that the database's is checked against."""
    keep_alive_seconds: int | None = None
    """How long the guard keeps an idle connection; ``None``: its own default."""
    drain_delay_seconds: int = DEREGISTRATION_SECONDS
    """From "told to stop" to "closes its door"."""
    pod_identity: bool = False
    """Whether a pod without an identity at AWS must not become ready."""
    guard_credentials: dict[str, str] = field(default_factory=dict[str, str])
    """Variable -> key of ``provider_secret``: what the guard itself shows to others, as files."""
    guard_settings: dict[str, str] = field(default_factory=dict[str, str])
    """Further settings of the guard, by their names in lower case without prefix."""
    own_spool: bool = False
    """Whether the spool's directory is born root's: one of a node, not a volume of a class."""

    @property
    def grace_seconds(self) -> int:
        """From "told to stop" to "killed": the pause, the longest stream, the spool."""
        return self.drain_delay_seconds + self.drain_seconds + SHUTDOWN_MARGIN_SECONDS

    def spec(self) -> PodSpecArgsDict:
        """The pod's spec."""
        return {
            **pods.pod_spec(
                user=RUN_AS_USER,
                service_account=self.service_account,
                scheduling=self.scheduling,
                init_containers=[*self._own_spool(), self._translator()],
                containers=[self._guard()],
                volumes=[
                    pods.config_volume("governance", self.governance_config_map),
                    pods.config_volume("translator-config", self.translator_config_map),
                    pods.secrets_volume(
                        "gateway-secrets", [self.gateway_secret, self.ledger_secret]
                    ),
                    # In memory: the key between guard and translator never touches a disk.
                    pods.memory_volume("engine", "16Mi"),
                    *self._database_ca_volume(),
                    *self._relay_volume(),
                ],
            ),
            "termination_grace_period_seconds": self.grace_seconds,
            "topology_spread_constraints": self._spread(),
        }

    def _database_ca_volume(self) -> list[VolumeArgsDict]:
        if self.database_ca_config_map is None:
            return []
        return [pods.config_volume("database-ca", self.database_ca_config_map)]

    def _relay_volume(self) -> list[VolumeArgsDict]:
        if not self.guard_credentials:
            return []
        items: list[KeyToPathArgsDict] = [
            {"key": key, "path": variable} for variable, key in self.guard_credentials.items()
        ]
        return [
            {
                "name": "relay-credentials",
                "secret": {
                    "secret_name": self.provider_secret,
                    "default_mode": 0o440,
                    "items": items,
                },
            }
        ]

    def _own_spool(self) -> list[ContainerArgsDict]:
        if not self.own_spool:
            return []
        return [pods.own_volume(self.guard_image, SPOOL_VOLUME, SPOOL, RUN_AS_USER)]

    def _spread(self) -> list[TopologySpreadConstraintArgsDict]:
        selector: LabelSelectorArgsDict = {"match_labels": {LABEL_NAME: GATEWAY.name}}
        constraints: list[TopologySpreadConstraintArgsDict] = [
            {
                "max_skew": 1,
                "topology_key": "kubernetes.io/hostname",
                "when_unsatisfiable": "ScheduleAnyway",
                "label_selector": selector,
            }
        ]
        if self.zone_spread:
            # A full or lost zone must not keep pods from starting elsewhere, hence "anyway". During
            # a roll the new pods are spread among themselves, whatever the old ones do.
            constraints.append(
                {
                    "max_skew": 1,
                    "topology_key": "topology.kubernetes.io/zone",
                    "when_unsatisfiable": "ScheduleAnyway",
                    "label_selector": selector,
                    "match_label_keys": ["controller-revision-hash"],
                }
            )
        return constraints

    def _capture_key(self) -> list[EnvVarArgsDict]:
        if "capture_kms_key_arn" in self.guard_settings:
            return []  # the guard takes one of them
        return [{"name": "TERRACE_CAPTURE_KEY_FILE", "value": f"{SECRETS}/capture-key"}]

    def _guard(self) -> ContainerArgsDict:
        environment: list[EnvVarArgsDict] = [
            {
                "name": "TERRACE_REPLICA",
                "value_from": {"field_ref": {"field_path": "metadata.name"}},
            },
            {"name": "TERRACE_DRAIN_DELAY_SECONDS", "value": str(self.drain_delay_seconds)},
            {"name": "TERRACE_DRAIN_SECONDS", "value": str(self.drain_seconds)},
            {"name": "TERRACE_SHIP_SECONDS", "value": str(SHIP_SECONDS)},
            {"name": "TERRACE_SPOOL_DIRECTORY", "value": f"{SPOOL}/spool"},
            {
                "name": "TERRACE_LEDGER_SIGNING_KEY_FILE",
                "value": f"{SECRETS}/ledger-signing-key",
            },
            *self._capture_key(),
            *(
                {"name": f"TERRACE_{name.upper()}", "value": value}
                for name, value in sorted(self.guard_settings.items())
            ),
        ]
        if self.guard_credentials:
            environment.append(
                {"name": "TERRACE_RELAY_CREDENTIALS_DIRECTORY", "value": PROVIDER_CREDENTIALS}
            )
        if self.keep_alive_seconds is not None:
            environment.append(
                {"name": "TERRACE_KEEP_ALIVE_SECONDS", "value": str(self.keep_alive_seconds)}
            )
        if self.otlp_endpoint is not None:
            environment.append({"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": self.otlp_endpoint})
        return {
            **pods.container(
                GUARD,
                self.guard_image,
                resources=self.guard_resources,
                env=environment,
                mounts={"engine": ENGINE_PARENT, SPOOL_VOLUME: SPOOL},
                read_only_mounts={
                    "governance": CONFIG,
                    "gateway-secrets": SECRETS,
                    **(
                        {"relay-credentials": PROVIDER_CREDENTIALS}
                        if self.guard_credentials
                        else {}
                    ),
                    **({} if self.database_ca_config_map is None else {"database-ca": DATABASE_CA}),
                },
            ),
            "ports": [
                {"name": "public", "container_port": GATEWAY.port},
                {"name": "admin", "container_port": GATEWAY_ADMIN.port},
                {"name": "metrics", "container_port": GATEWAY_METRICS_PORT},
            ],
            "startup_probe": pods.http_probe("/healthz", GATEWAY.port, every=1, failures=120),
            "readiness_probe": pods.http_probe("/readyz", GATEWAY.port, every=3, failures=2),
            "liveness_probe": pods.http_probe("/healthz", GATEWAY.port, every=10, failures=6),
        }

    def _translator(self) -> ContainerArgsDict:
        credentials: list[EnvVarArgsDict] = [
            {
                "name": variable,
                "value_from": {"secret_key_ref": {"name": self.provider_secret, "key": key}},
            }
            for variable, key in sorted(self.translator_credentials.items())
        ]
        identity: list[EnvVarArgsDict] = (
            [{"name": "TERRACE_POD_IDENTITY", "value": "true"}] if self.pod_identity else []
        )
        return {
            **pods.container(
                TRANSLATOR,
                self.translator_image,
                resources=self.translator_resources,
                env=[
                    {"name": "HOME", "value": "/tmp"},  # noqa: S108  an emptyDir
                    *identity,
                    *credentials,
                ],
                mounts={"engine": ENGINE_PARENT},
                read_only_mounts={"translator-config": CONFIG},
            ),
            "restart_policy": "Always",
            # `test` costs a process start, not a Python start. The file appears when the socket
            # answers and every deployment type is warm; the translator removes an old one first.
            # LiteLLM needs 12 to 20 s on two idle cores; a cold, busy machine gets five minutes.
            "startup_probe": pods.exec_probe(
                ["/usr/bin/test", "-f", READY_FILE], every=2, failures=150
            ),
        }
