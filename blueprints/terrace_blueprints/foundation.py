"""What the layers of a platform stand on: closed namespaces, Secrets, a database."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi

from terrace_blueprints.secrets import SECRET_DATABASE_ADMIN, platform_secrets
from terrace_blueprints.substrates.contract import GivenPostgres, PodIdentity, Substrate
from terrace_common.names import (
    GATEWAY,
    NAMESPACE_FOUNDATION,
    NAMESPACE_GATEWAY,
    NAMESPACE_OBSERVABILITY,
    NAMESPACE_PROVIDERS,
    POSTGRES,
)
from terrace_components import (
    AwsPodIdentity,
    DatabaseRole,
    DatabaseRoleArgs,
    FoundationLocal,
    SecretBootstrap,
    SecretBootstrapArgs,
    SecureNamespace,
    SecureNamespaceArgs,
    secret_reading_policy,
)
from terrace_components.arguments import StorageArgs

NAME = "foundation"
# Service accounts of the two Jobs, as their components name them.
SECRET_BOOTSTRAP_ACCOUNT = "secret-bootstrap"  # noqa: S105
DATABASE_ROLE_ACCOUNT = "database-role"


@dataclass(frozen=True)
class Foundation:
    """What there is before any layer."""

    ready: list[pulumi.Resource]
    """What every layer waits for."""


def after(
    opts: pulumi.ResourceOptions, resources: Sequence[pulumi.Resource]
) -> pulumi.ResourceOptions:
    """``opts`` for what waits for ``resources`` too."""
    return pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=[*resources]))


def build_foundation(substrate: Substrate, opts: pulumi.ResourceOptions) -> Foundation:
    """The foundation on a substrate: with a database in the cluster, or with the given one."""
    given = substrate.postgres.given
    if given is not None:
        return _on_given_postgres(substrate, given, opts)
    if substrate.postgres.storage is None:
        raise ValueError("a substrate has storage for a database, or a given one")
    return _with_postgres(substrate, substrate.postgres.storage, opts)


def _with_postgres(
    substrate: Substrate, storage: StorageArgs, opts: pulumi.ResourceOptions
) -> Foundation:
    made = FoundationLocal(
        NAME,
        {
            "namespace": NAMESPACE_FOUNDATION,
            "namespaces": _namespaces(substrate),
            "secret_bootstrap_image": substrate.images.ref("secret-bootstrap"),
            "secrets": platform_secrets(substrate),
            "kubernetes_api": substrate.cluster.api,
            "postgres_image": substrate.images.ref("postgres"),
            "postgres_storage": storage,
            "postgres_resources": substrate.sizes.postgres,
            "postgres_clients": [
                {"namespace": NAMESPACE_GATEWAY, "pod": GATEWAY.name, "port": POSTGRES.port}
            ],
            "scheduling": substrate.scheduling["core"],
        },
        opts=opts,
    )
    return Foundation(ready=[*made.namespaces, made.secrets])


def _on_given_postgres(
    substrate: Substrate, given: GivenPostgres, opts: pulumi.ResourceOptions
) -> Foundation:
    namespaces = [
        SecureNamespace(f"{NAME}-{entry['name']}", entry, opts=opts)
        for entry in _namespaces(substrate)
    ]
    secrets = _secrets(substrate, after(opts, namespaces))
    role = _database_role(substrate, given, after(opts, [*namespaces, secrets]))
    return Foundation(ready=[*namespaces, secrets, role])


def _namespaces(substrate: Substrate) -> list[SecureNamespaceArgs]:
    # baseline where an init container gives a node's directory to the service's user
    made: list[SecureNamespaceArgs] = [
        {"name": NAMESPACE_FOUNDATION, "layer": "foundation"},
        {"name": NAMESPACE_GATEWAY, "layer": "gateway"},
        {"name": NAMESPACE_OBSERVABILITY, "layer": "observability"},
    ]
    if substrate.exposure.load_balancer is not None:
        made[1]["readiness_gates"] = True
    if substrate.postgres.given is None:
        made[0]["pod_security"] = "baseline"
    if substrate.objects.on_node:
        made[1]["pod_security"] = "baseline"
    if substrate.simulates_providers:
        made.append({"name": NAMESPACE_PROVIDERS, "layer": "providers", "pod_security": "baseline"})
    return made


def _secrets(substrate: Substrate, opts: pulumi.ResourceOptions) -> SecretBootstrap:
    args: SecretBootstrapArgs = {
        "namespace": NAMESPACE_FOUNDATION,
        "image": substrate.images.ref("secret-bootstrap"),
        "secrets": platform_secrets(substrate),
        "kubernetes_api": substrate.cluster.api,
        "scheduling": substrate.scheduling["core"],
    }
    credentials = substrate.identity.credentials
    secret_arns = [c.secret_arn for c in credentials if c.secret_arn is not None]
    if secret_arns:
        args["extra_egress"] = [*substrate.private_endpoints]
        identity = _reading_identity(
            substrate,
            SECRET_BOOTSTRAP_ACCOUNT,
            secret_arns,
            [c.key_arn for c in credentials if c.key_arn is not None],
            opts,
        )
        opts = after(opts, identity)
    return SecretBootstrap(f"{NAME}-secrets", args, opts=opts)


def _database_role(
    substrate: Substrate, given: GivenPostgres, opts: pulumi.ResourceOptions
) -> DatabaseRole:
    args: DatabaseRoleArgs = {
        "namespace": NAMESPACE_FOUNDATION,
        "image": substrate.images.ref("gateway"),
        "host": given.host,
        "database_address": given.address,
        "scheduling": substrate.scheduling["core"],
    }
    if given.ca is not None:
        args["database_ca"] = given.ca
    if given.admin_secret_arn is None:
        args["admin_secret"] = SECRET_DATABASE_ADMIN
    else:
        args["admin_secret_arn"] = given.admin_secret_arn
        args["secret_bootstrap_image"] = substrate.images.ref("secret-bootstrap")
        args["extra_egress"] = [*substrate.private_endpoints]
        identity = _reading_identity(
            substrate,
            DATABASE_ROLE_ACCOUNT,
            [given.admin_secret_arn],
            [*given.admin_key_arns],
            opts,
        )
        opts = after(opts, identity)
    return DatabaseRole(f"{NAME}-database-role", args, opts=opts)


def _reading_identity(
    substrate: Substrate,
    service_account: str,
    secret_arns: Sequence[str],
    key_arns: Sequence[str],
    opts: pulumi.ResourceOptions,
) -> list[pulumi.Resource]:
    """A role that reads exactly these secrets. AWS gives it to pods that start after it."""
    identity: PodIdentity | None = substrate.identity.pod_identity
    if identity is None:
        return []
    return [
        AwsPodIdentity(
            f"{NAME}-{service_account}",
            {
                "cluster_name": identity.cluster_name,
                "namespace": NAMESPACE_FOUNDATION,
                "service_account": service_account,
                "policy": secret_reading_policy([*secret_arns], [*key_arns]),
                "tags": identity.tags,
            },
            opts=_of_the_cloud(opts),
        )
    ]


def _of_the_cloud(opts: pulumi.ResourceOptions) -> pulumi.ResourceOptions:
    """``opts`` without the provider of the cluster."""
    return pulumi.ResourceOptions(depends_on=opts.depends_on)
