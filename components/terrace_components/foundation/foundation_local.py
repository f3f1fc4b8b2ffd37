"""What every layer stands on, where the cluster is all there is."""

from typing import NotRequired, TypedDict

import pulumi
from pydantic import Field

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
    StorageArgs,
)
from terrace_components.foundation.persistent_volume import Storage
from terrace_components.foundation.postgres import Postgres
from terrace_components.foundation.secret_bootstrap import (
    SecretArgs,
    SecretArguments,
    SecretBootstrap,
)
from terrace_components.namespace import (
    NamespaceArguments,
    SecureNamespace,
    SecureNamespaceArgs,
)


class FoundationLocalArgs(TypedDict):
    """Arguments of ``FoundationLocal``."""

    # required
    namespace: str
    """Namespace of the database and the secret bootstrap; one of ``namespaces``."""
    namespaces: list[SecureNamespaceArgs]
    """All namespaces of the platform, each closed until a layer opens what it needs."""
    # secrets
    secret_bootstrap_image: pulumi.Input[str]
    """Image of ``services/secret_bootstrap``."""
    secrets: list[SecretArgs]
    """Secrets that are born in the cluster, in order."""
    kubernetes_api: AddressArgs
    """Where the API server listens, as seen behind its Service."""
    # database
    postgres_image: pulumi.Input[str]
    """Image ``postgres``."""
    postgres_storage: StorageArgs
    """Where the database's files live."""
    postgres_resources: ResourcesArgs
    """Resources of the database."""
    postgres_clients: list[PodPeerArgs]
    """Pods that may connect to the database."""
    scheduling: NotRequired[SchedulingArgs]
    """Nodes for the database; default any."""


class _FoundationLocal(Arguments):
    namespace: Name
    namespaces: list[NamespaceArguments] = Field(min_length=1)
    secret_bootstrap_image: Image
    secrets: list[SecretArguments] = Field(min_length=1)
    kubernetes_api: Address
    postgres_image: Image
    postgres_storage: Storage
    postgres_resources: Resources
    postgres_clients: list[PodPeer]
    scheduling: Scheduling = Scheduling()


class FoundationLocal(pulumi.ComponentResource):
    """Closed namespaces, secrets born in the cluster, and PostgreSQL on a persistent volume.

    Creates: SecureNamespace per namespace, SecretBootstrap, Postgres.
    """

    postgres_host: pulumi.Output[str]
    """Name of the database server inside the cluster; known when it is ready."""
    secrets_job: pulumi.Output[str]
    """Name of the bootstrap Job; known when all Secrets exist."""

    def __init__(
        self,
        name: str,
        args: FoundationLocalArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("terrace:index:FoundationLocal", name, None, opts)
        given = _FoundationLocal.of(args)
        names = [entry.name for entry in given.namespaces]
        if given.namespace not in names:
            raise pulumi.InputPropertyError(
                "namespace", f"must be one of namespaces: {', '.join(sorted(names))}"
            )
        self.namespaces = [
            SecureNamespace(
                f"{name}-{entry['name']}", entry, opts=pulumi.ResourceOptions(parent=self)
            )
            for entry in args["namespaces"]
        ]
        self.secrets = SecretBootstrap(
            f"{name}-secrets",
            {
                "namespace": given.namespace,
                "image": given.secret_bootstrap_image,
                "secrets": args["secrets"],
                "kubernetes_api": args["kubernetes_api"],
            },
            opts=pulumi.ResourceOptions(parent=self, depends_on=[*self.namespaces]),
        )
        postgres = Postgres(
            f"{name}-postgres",
            {
                "namespace": given.namespace,
                "image": given.postgres_image,
                "storage": args["postgres_storage"],
                "resources": args["postgres_resources"],
                "clients": args["postgres_clients"],
                "scheduling": args.get("scheduling", {}),
            },
            opts=pulumi.ResourceOptions(parent=self, depends_on=[self.secrets]),
        )
        self.postgres_host = postgres.host
        self.secrets_job = self.secrets.job
        self.register_outputs({"postgresHost": self.postgres_host, "secretsJob": self.secrets_job})
