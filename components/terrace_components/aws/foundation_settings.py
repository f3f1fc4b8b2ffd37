"""The settings of a whole AWS substrate, and whether its parts go together."""

import ipaddress
from collections.abc import Mapping
from typing import Annotated, Any, cast

import pulumi
from pydantic import Field, ValidationInfo, field_validator

from terrace_components.arguments import Arguments
from terrace_components.aws.add_on_settings import AddOnSettings
from terrace_components.aws.arguments import KeyArn, Tags, text_like
from terrace_components.aws.bucket import BucketSettings
from terrace_components.aws.certificate import CertificateSettings
from terrace_components.aws.cluster_settings import KUBERNETES_VERSION, ClusterSettings
from terrace_components.aws.database_settings import DatabaseSettings, SecurityGroupId
from terrace_components.aws.foundation_checks import (
    check_add_ons,
    check_name,
    check_taints,
    check_ways_to_aws,
)
from terrace_components.aws.load_balancer import LoadBalancerSettings
from terrace_components.aws.network_settings import DEFAULT_CIDR, NetworkSettings
from terrace_components.aws.node_settings import NodeSettings
from terrace_components.aws.registry import RegistrySettings

MOST_BEHIND = 3  # minor versions that nodes may be older than the API


class FoundationKeys(Arguments):
    """Checked ``FoundationKeysArgs``."""

    captures: bool | None = None
    existing: dict[str, KeyArn] = Field(default_factory=dict)
    deletion_window_days: Annotated[int, Field(ge=7, le=30)] | None = None
    retain: bool | None = None

    @property
    def for_captures(self) -> bool:
        """Whether there is a key for captured prompts."""
        return "captures" in self.existing if self.captures is None else self.captures


class FoundationDatabase(DatabaseSettings):
    """Checked ``FoundationDatabaseArgs``."""

    client_security_group_ids: list[SecurityGroupId] = Field(default_factory=list)


class FoundationObjects(BucketSettings):
    """Checked ``FoundationObjectsArgs``."""

    @field_validator("load_balancer_logs")
    @classmethod
    def another_bucket_has_those(cls, value: bool | None) -> bool | None:
        if value is not None:
            raise ValueError(
                "is not for this bucket, whose key ELB cannot use: load_balancer.access_log_days "
                "makes one for access logs"
            )
        return value


class FoundationLoadBalancer(LoadBalancerSettings):
    """Checked ``FoundationLoadBalancerArgs``."""

    access_log_days: Annotated[int, Field(ge=1, le=3650)] | None = None
    access_log_bucket: (
        Annotated[
            str | pulumi.Output[str],
            text_like(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", "the name of a bucket"),
        ]
        | None
    ) = None

    @field_validator("access_log_bucket")
    @classmethod
    def one_bucket_for_access_logs(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None and info.data.get("access_log_days") is not None:
            raise ValueError("cannot be given beside access_log_days, which makes a bucket")
        return value


class FoundationAwsArguments(Arguments):
    """Checked ``FoundationAwsArgs``. ``.of(args)`` needs no Pulumi and no AWS, and names the
    nested property that is wrong, such as ``network.cidr``."""

    network: NetworkSettings = Field(default_factory=NetworkSettings)
    cluster: ClusterSettings
    add_ons: Annotated[AddOnSettings | None, Field(validate_default=True)] = None
    nodes: Annotated[NodeSettings | None, Field(validate_default=True)] = None
    database: FoundationDatabase = Field(default_factory=FoundationDatabase)
    objects: FoundationObjects = Field(default_factory=FoundationObjects)
    registry: RegistrySettings | None = None
    keys: Annotated[FoundationKeys, Field(validate_default=True)] = Field(
        default_factory=FoundationKeys
    )
    certificate: CertificateSettings | None = None
    load_balancer: FoundationLoadBalancer | None = None
    tags: Tags = Field(default_factory=dict)

    @field_validator("network")
    @classmethod
    def nodes_reach_aws(cls, value: NetworkSettings) -> NetworkSettings:
        check_ways_to_aws(value)
        return value

    @field_validator("cluster")
    @classmethod
    def cluster_goes_with_the_network(
        cls, value: ClusterSettings, info: ValidationInfo
    ) -> ClusterSettings:
        network: NetworkSettings | None = info.data.get("network")
        if network is None:
            return value
        if value.existing is not None:
            if network.existing is None:
                raise pulumi.InputPropertyError(
                    "network.existing",
                    "is required with cluster.existing: the VPC that this cluster is in, for "
                    "nodes, database and load balancer too",
                )
            return value
        cidr = network_range(network)
        if cidr is not None:
            check_apart(value.service_cidr, cidr)
        return value

    @field_validator("add_ons", "nodes", mode="before")
    @classmethod
    def of_the_same_cluster(cls, value: Any, info: ValidationInfo) -> Any:
        """What the cluster and the network say already need not be said again."""
        cluster: ClusterSettings | None = info.data.get("cluster")
        if cluster is None or (value is not None and not isinstance(value, Mapping)):
            return value
        if cluster.existing is not None and value is None:
            return None  # it has its own
        given = dict(cast(Mapping[str, Any], value or {}))
        given.setdefault("kubernetes_version", _version_of(cluster, info))
        given.setdefault("prefix_delegation", _prefixes(info))
        return given

    @field_validator("add_ons")
    @classmethod
    def add_ons_of_a_new_cluster(
        cls, value: AddOnSettings | None, info: ValidationInfo
    ) -> AddOnSettings | None:
        cluster: ClusterSettings | None = info.data.get("cluster")
        if value is not None and cluster is not None and cluster.existing is None:
            check_add_ons(value)
        return value

    @field_validator("nodes")
    @classmethod
    def nodes_go_with_the_cluster(
        cls, value: NodeSettings | None, info: ValidationInfo
    ) -> NodeSettings | None:
        cluster: ClusterSettings | None = info.data.get("cluster")
        if value is None or cluster is None:
            return value
        if value.prefix_delegation != _prefixes(info):
            raise pulumi.InputPropertyError(
                "nodes.prefix_delegation",
                "must be that of add_ons: the CNI hands out what nodes count on",
            )
        if cluster.existing is None:
            behind = _minor(cluster.kubernetes_version) - _minor(value.kubernetes_version)
            if not 0 <= behind <= MOST_BEHIND:
                raise pulumi.InputPropertyError(
                    "nodes.kubernetes_version",
                    f"{value.kubernetes_version} does not go with the cluster's "
                    f"{cluster.kubernetes_version}: the same, or up to {MOST_BEHIND} older",
                )
        add_ons: AddOnSettings | None = info.data.get("add_ons")
        if add_ons is not None:
            check_taints(value, add_ons)
        return value

    @field_validator("keys")
    @classmethod
    def keys_that_are_used(cls, value: FoundationKeys, info: ValidationInfo) -> FoundationKeys:
        if not {"network", "cluster", "database", "objects", "registry"} <= info.data.keys():
            return value
        purposes = key_purposes({**info.data, "keys": value})
        unused = sorted(set(value.existing) - set(purposes))
        if unused:
            raise pulumi.InputPropertyError(
                "keys.existing",
                f"has {', '.join(unused)}, for which nothing is encrypted here; "
                f"valid: {', '.join(purposes)}",
            )
        if set(value.existing) == set(purposes):
            for name in ("deletion_window_days", "retain"):
                if getattr(value, name) is not None:
                    raise pulumi.InputPropertyError(
                        f"keys.{name}", "is for keys that are made; all are existing"
                    )
        if value.retain is False:
            _nothing_stays_encrypted(value, info.data)
        return value

    @field_validator("load_balancer", mode="before")
    @classmethod
    def named_as_its_certificate(cls, value: Any, info: ValidationInfo) -> Any:
        certificate: CertificateSettings | None = info.data.get("certificate")
        if certificate is None or not isinstance(value, Mapping):
            return value
        return {"domain": certificate.domain, **cast(Mapping[str, Any], value)}

    @field_validator("load_balancer")
    @classmethod
    def load_balancer_speaks_tls(
        cls, value: FoundationLoadBalancer | None, info: ValidationInfo
    ) -> FoundationLoadBalancer | None:
        if value is None or not {"certificate", "network"} <= info.data.keys():
            return value
        if info.data["certificate"] is None:
            raise pulumi.InputPropertyError(
                "certificate",
                "is required with load_balancer: keys and prompts must not cross a network in the "
                "clear. An existing one: {domain: ..., existing: {arn: ...}}",
            )
        check_name(value.domain, info.data["certificate"])
        check_ways_to_aws(info.data["network"], balanced=True)
        if not value.internal and not has_public_subnets(info.data["network"]):
            existing = info.data["network"].existing is not None
            raise pulumi.InputPropertyError(
                "network.existing.public_subnet_ids" if existing else "network.public_subnets",
                "must be given for load_balancer.internal: false, which stands in public subnets"
                if existing
                else "must be true for load_balancer.internal: false",
            )
        return value

    @property
    def purposes(self) -> list[str]:
        """What there are KMS keys for."""
        return key_purposes({name: getattr(self, name) for name in type(self).model_fields})


def _nothing_stays_encrypted(keys: FoundationKeys, parts: Mapping[str, Any]) -> None:
    """Raises InputPropertyError if a destroy leaves something whose key goes."""
    database: FoundationDatabase = parts["database"]
    objects: FoundationObjects = parts["objects"]
    stays = {
        "database": database.existing is None and database.final_snapshot is not False,
        "objects": objects.existing is None and objects.retain is not False,
    }
    setting = {"database": "database.final_snapshot", "objects": "objects.retain"}
    if keys.for_captures:  # captured prompts are in the database
        stays["captures"], setting["captures"] = stays["database"], setting["database"]
    for purpose, left in stays.items():
        if left and purpose not in keys.existing:
            raise pulumi.InputPropertyError(
                "keys.retain",
                f"can be false only with {setting[purpose]}: false; else a destroy leaves what "
                "nobody can decrypt any more",
            )


def key_purposes(parts: Mapping[str, Any]) -> list[str]:
    """What is made by these parts and wants a key."""
    keys: FoundationKeys = parts["keys"]
    made = {
        name: parts[name].existing is None for name in ("network", "cluster", "database", "objects")
    }
    logs = made["cluster"] or made["database"] or made["network"]
    wanted = {
        "secrets": made["cluster"],
        "database": made["database"],
        "objects": made["objects"],
        "images": parts["registry"] is not None,
        "logs": logs,
        "captures": keys.for_captures,
    }
    return [purpose for purpose, needed in wanted.items() if needed]


def network_range(network: NetworkSettings) -> str | None:
    """The VPC's range; none where only AWS knows it."""
    return network.existing.cidr if network.existing is not None else network.cidr or DEFAULT_CIDR


def check_apart(service_cidr: str, cidr: str) -> None:
    """Raises InputPropertyError if Services and the VPC share addresses."""
    if ipaddress.IPv4Network(service_cidr).overlaps(ipaddress.IPv4Network(cidr)):
        raise pulumi.InputPropertyError(
            "cluster.service_cidr",
            f"{service_cidr} overlaps the VPC's range {cidr}: Services would hide what is in it. "
            "Choose a private range outside, such as 172.20.0.0/16 or 192.168.0.0/20",
        )


def has_public_subnets(network: NetworkSettings) -> bool:
    if network.existing is None:
        return network.with_public
    return bool(network.existing.public_subnet_ids)


def _prefixes(info: ValidationInfo) -> bool:
    """Prefixes need whole blocks of free addresses, which a VPC of its own has."""
    add_ons: AddOnSettings | None = info.data.get("add_ons")
    if add_ons is not None:
        return add_ons.prefix_delegation
    network: NetworkSettings | None = info.data.get("network")
    return network is None or network.existing is None


def _version_of(cluster: ClusterSettings, info: ValidationInfo) -> str:
    if cluster.existing is None:
        return cluster.kubernetes_version
    add_ons: AddOnSettings | None = info.data.get("add_ons")
    return add_ons.kubernetes_version if add_ons is not None else KUBERNETES_VERSION


def _minor(version: str) -> int:
    return int(version.split(".")[1])
