"""What the substrate stack on aws tells the platform stack: its output ``substrate``."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

OUTPUT = "substrate"
VERSION = 1


class _Part(BaseModel):
    # Not strict: numbers of a stack's outputs come back as floats.
    model_config = ConfigDict(extra="ignore", frozen=True)


class KubernetesApi(_Part):
    """Address of the API server inside the cluster."""

    cidr: str
    port: int


class Cluster(_Part):
    """The cluster."""

    name: str
    kubeconfig: str
    """JSON text that gets its token by a command: it holds no secret."""
    identifier: str
    api: KubernetesApi
    belongs_to_stack: bool = False
    """Whether the substrate stack made it."""


class Postgres(_Part):
    """The database server."""

    host: str
    port: int
    master_secret_arn: str
    master_secret_key_arn: str | None = None
    max_connections: int


class Objects(_Part):
    """The bucket."""

    bucket: str
    key_arn: str | None = None
    """KMS key of a bucket that the substrate stack made."""
    object_lock: bool | None = None
    """Whether that one has Object Lock; of a bucket that was there, nobody said."""


class LoadBalancer(_Part):
    """The load balancer before the gateway."""

    url: str
    target_group_arn: str
    security_group_id: str
    deregistration_delay_seconds: int | None = None


class AwsSubstrateOutput(_Part):
    """The output ``substrate`` of the substrate stack: plain data, no secret.

    A later release may add keys; one that changes the meaning of a key raises ``version``.
    """

    version: Literal[1]
    account: str
    partition: str
    region: str
    vpc_id: str
    vpc_cidr: str
    cluster: Cluster
    postgres: Postgres
    objects: Objects
    registry: dict[str, str] = Field(default_factory=dict)
    """Image name -> repository."""
    load_balancer: LoadBalancer | None = None
    node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels of the Core nodes."""
    logs_key_arn: str | None = None
    """KMS key of logs."""
    captures_key_arn: str | None = None
    """KMS key for captured prompts."""
    tags: dict[str, str] = Field(default_factory=dict)
    """Of everything that the platform makes on AWS."""
    isolation: str
