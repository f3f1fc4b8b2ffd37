"""The guard's role and database on a server that is managed: made by a Job, once per change."""

from typing import Annotated, Any, NotRequired, TypedDict

import pulumi
import pulumi_kubernetes as k8s
from pulumi_kubernetes.core.v1 import ContainerArgsDict, EnvVarArgsDict, VolumeArgsDict
from pulumi_kubernetes.networking.v1 import NetworkPolicyEgressRuleArgsDict
from pydantic import Field

from terrace_common.names import RUN_AS_USER, SECRET_POSTGRES, labels
from terrace_components import network, pods
from terrace_components.arguments import (
    Address,
    AddressArgs,
    Arguments,
    Image,
    Name,
    Resources,
    Scheduling,
    SchedulingArgs,
    Text,
)
from terrace_components.config_file import ConfigFile
from terrace_components.objects import metadata, name_of

NAME = "database-role"
RESOURCES = Resources(cpu="50m", memory="64Mi", memory_limit="192Mi")
DEADLINE_SECONDS = 600
SECRETS = "/run/secrets/terrace"
ADMIN = "/run/secrets/terrace-admin"
CERTIFICATES = "/etc/terrace-database"
CA_KEY = "ca.pem"
HTTPS = 443


class DatabaseRoleArgs(TypedDict):
    """Arguments of ``DatabaseRole``."""

    # required
    namespace: pulumi.Input[str]
    """Namespace that the Job runs in; its Secrets are there."""
    image: pulumi.Input[str]
    """Image of ``services/gateway``."""
    host: pulumi.Input[str]
    """Name of the database server, as its certificate has it."""
    database_address: AddressArgs
    """The addresses and the port of the server."""
    # who may make roles: a Secret of the cluster, or one of AWS Secrets Manager
    admin_secret: NotRequired[str]
    """Secret with ``username`` and ``password`` of the server's administrator. A copy of a
    password that is rotated goes stale; then take ``admin_secret_arn``."""
    admin_secret_arn: NotRequired[pulumi.Input[str]]
    """ARN of a secret of AWS Secrets Manager, JSON with ``username`` and ``password``, such as
    the one that RDS manages. It is read at each run with the identity of the service account
    ``database-role`` (associate a role with it before) and is never a Secret of the cluster."""
    secret_bootstrap_image: NotRequired[pulumi.Input[str]]
    """Image of ``services/secret_bootstrap``; needed with ``admin_secret_arn``."""
    # the role
    gateway_secret: NotRequired[str]
    """Secret with ``gateway-password``, the password of the role; default
    ``postgres-credentials``."""
    # networking
    database_ca: NotRequired[str]
    """Certificates that the server's is checked against, PEM (of RDS: its bundle of the region).
    Without, the connection is encrypted, and anybody who can redirect it can read it."""
    extra_egress: NotRequired[list[AddressArgs]]
    """Further addresses, such as the VPC's range at 443 where it has an endpoint for Secrets
    Manager. With ``admin_secret_arn``, public addresses at 443 are open as well."""
    scheduling: NotRequired[SchedulingArgs]
    """Nodes to run on; default any."""


class _DatabaseRole(Arguments):
    namespace: Text
    image: Image
    host: Text
    database_address: Address
    admin_secret: Name | None = None
    admin_secret_arn: Text | None = None
    secret_bootstrap_image: Image | None = None
    gateway_secret: Name = SECRET_POSTGRES
    database_ca: Annotated[str, Field(pattern=r"-----BEGIN CERTIFICATE-----")] | None = None
    extra_egress: list[Address] = Field(default_factory=list)
    scheduling: Scheduling = Scheduling()

    def one_administrator(self) -> None:
        if (self.admin_secret is None) == (self.admin_secret_arn is None):
            raise pulumi.InputPropertyError(
                "admin_secret",
                "give admin_secret (a Secret of the cluster) or admin_secret_arn (AWS Secrets"
                " Manager), exactly one of them",
            )
        if (self.admin_secret_arn is None) != (self.secret_bootstrap_image is None):
            raise pulumi.InputPropertyError(
                "secret_bootstrap_image", "is needed with admin_secret_arn, and only with it"
            )

    def egress(self) -> list[NetworkPolicyEgressRuleArgsDict]:
        rules = [network.to_dns(), network.to_address(self.database_address)]
        if self.admin_secret_arn is not None:
            rules += [*network.to_pod_identity(), network.to_internet(HTTPS)]
        return rules + [network.to_address(address) for address in self.extra_egress]


class DatabaseRole(pulumi.ComponentResource):
    """Database ``terrace`` and login role ``gateway`` on a managed PostgreSQL server.

    The Job does nothing where the role can work already, so the administrator's password is asked
    for only when something is missing. Passwords are files and go to no log, and over TLS only.

    Creates: ServiceAccount ``database-role``, NetworkPolicy, ConfigMap ``database-ca-<hash>`` if
    certificates are given, Job (awaited).
    """

    job: pulumi.Output[str]
    """Name of the Job; known when the role can log in."""

    def __init__(
        self,
        name: str,
        args: DatabaseRoleArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("terrace:index:DatabaseRole", name, None, opts)
        given = _DatabaseRole.of(args)
        given.one_administrator()
        child = pulumi.ResourceOptions(parent=self)
        label = labels(NAME, component="database", layer="foundation")
        named = metadata(NAME, given.namespace, label)
        account = k8s.core.v1.ServiceAccount(
            f"{name}-account", metadata=named, automount_service_account_token=False, opts=child
        )
        policy = k8s.networking.v1.NetworkPolicy(
            f"{name}-policy",
            metadata=named,
            spec=network.policy_spec(NAME, ingress=[], egress=given.egress()),
            opts=child,
        )
        certificates: pulumi.Output[str] | None = None
        if given.database_ca is not None:
            file = ConfigFile("database-ca", CA_KEY, given.database_ca)
            # Not the name of the gateway's ConfigMap: both may live in one namespace.
            certificates = name_of(
                k8s.core.v1.ConfigMap(
                    f"{name}-database-ca",
                    metadata=metadata(f"{NAME}-{file.object_name}", given.namespace, label),
                    data={file.key: file.content},
                    immutable=True,
                    opts=child,
                )
            )
        job = k8s.batch.v1.Job(
            f"{name}-job",
            metadata=named,
            spec={
                "backoff_limit": 6,
                "active_deadline_seconds": DEADLINE_SECONDS,
                "template": {
                    "metadata": {"labels": label},
                    "spec": {
                        **pods.pod_spec(
                            user=RUN_AS_USER,
                            service_account=NAME,
                            scheduling=given.scheduling,
                            init_containers=_fetch(given),
                            containers=[_role(given)],
                            volumes=_volumes(given, certificates),
                        ),
                        "restart_policy": pods.job_restart_policy(
                            pod_identity=given.admin_secret_arn is not None
                        ),
                    },
                },
            },
            # A Job cannot be changed, and a new one of this name needs the old one gone.
            opts=pulumi.ResourceOptions(
                parent=self, depends_on=[account, policy], delete_before_replace=True
            ),
        )
        self.job = name_of(job)
        self.register_outputs({"job": self.job})


def _role(given: _DatabaseRole) -> ContainerArgsDict:
    verified = given.database_ca is not None
    environment: list[EnvVarArgsDict] = [
        {"name": "TERRACE_DATABASE_HOST", "value": given.host},
        {"name": "TERRACE_DATABASE_PORT", "value": str(given.database_address.port)},
        {"name": "TERRACE_DATABASE_SSLMODE", "value": "verify-full" if verified else "require"},
    ]
    mounts = {"gateway": SECRETS, "admin": ADMIN}
    if verified:
        environment.append(
            {"name": "TERRACE_DATABASE_SSLROOTCERT", "value": f"{CERTIFICATES}/{CA_KEY}"}
        )
        mounts["certificates"] = CERTIFICATES
    return {
        **pods.container(
            NAME, given.image, resources=RESOURCES, env=environment, read_only_mounts=mounts
        ),
        "command": ["python", "-m", "terrace_gateway.database_role"],
    }


def _fetch(given: _DatabaseRole) -> list[ContainerArgsDict]:
    """The container that reads the administrator's secret of AWS into memory, if it is there."""
    if given.admin_secret_arn is None or given.secret_bootstrap_image is None:
        return []
    wanted: dict[str, Any] = {
        key: {"arn": given.admin_secret_arn, "json_key": key} for key in ("username", "password")
    }
    return [
        {
            **pods.container(
                "admin-secret",
                given.secret_bootstrap_image,
                resources=RESOURCES,
                env=[
                    {"name": "FETCH_SPEC", "value": pulumi.Output.json_dumps(wanted)},
                    {"name": "FETCH_DIRECTORY", "value": ADMIN},
                ],
                mounts={"admin": ADMIN},
            ),
            "command": ["python3", "-m", "terrace_secret_bootstrap.fetch"],
        }
    ]


def _volumes(given: _DatabaseRole, certificates: pulumi.Output[str] | None) -> list[VolumeArgsDict]:
    volumes: list[VolumeArgsDict] = [
        {
            "name": "gateway",
            "secret": {
                "secret_name": given.gateway_secret,
                "default_mode": 0o440,
                # Nothing else that the Secret may hold, such as a superuser's password.
                "items": [{"key": "gateway-password", "path": "gateway-password"}],
            },
        },
        (
            pods.memory_volume("admin", "1Mi")
            if given.admin_secret is None
            else pods.secret_volume("admin", given.admin_secret)
        ),
    ]
    if certificates is not None:
        volumes.append(pods.config_volume("certificates", certificates))
    return volumes
