"""What every layer stands on, on AWS."""

import re
from typing import Any

import pulumi

from terrace_components.arguments import late
from terrace_components.aws import arns
from terrace_components.aws.bucket import AwsBucket
from terrace_components.aws.certificate import AwsCertificate
from terrace_components.aws.cluster import AwsCluster
from terrace_components.aws.cluster_add_ons import AwsClusterAddOns
from terrace_components.aws.database import AwsDatabase
from terrace_components.aws.foundation_args import FoundationAwsArgs
from terrace_components.aws.foundation_checks import check_partition
from terrace_components.aws.foundation_settings import FoundationAwsArguments, check_apart
from terrace_components.aws.keys import AwsKeys
from terrace_components.aws.load_balancer import AwsLoadBalancer
from terrace_components.aws.network import AwsNetwork
from terrace_components.aws.network_settings import NONE
from terrace_components.aws.node_group import AwsNodeGroup
from terrace_components.aws.registry import AwsRegistry

__all__ = ["FoundationAws", "FoundationAwsArgs", "FoundationAwsArguments"]

# AWS's limits on physical names (32 characters for a target group, 64 for a role) less what the
# parts and Pulumi add.
NAME = re.compile(r"[a-z][a-z0-9-]{0,18}")
# By which policies, and people, know the bucket that must be locked.
LEDGER = {"terrace.dev/purpose": "ledger"}


class FoundationAws(pulumi.ComponentResource):
    """Network, keys, EKS cluster with Core nodes, database, bucket, registry, certificate and load
    balancer; each new, or one that exists.

    They are made in an order, and deleted in the opposite one, that leaves nothing behind: add-ons
    that need nodes go first, then nodes, then the network add-ons, then the cluster; the VPC goes
    when nothing is in it. Its name has at most 19 characters.

    Creates: AwsNetwork, AwsKeys, AwsCluster, AwsClusterAddOns twice, AwsNodeGroup, AwsDatabase,
    AwsBucket; where asked for AwsRegistry, AwsCertificate and AwsLoadBalancer.
    """

    vpc_id: pulumi.Output[str]
    """Id of the VPC."""
    vpc_cidr: pulumi.Output[str]
    """Range of the VPC."""
    cluster_name: pulumi.Output[str]
    """Name of the EKS cluster."""
    kubeconfig: pulumi.Output[str]
    """A kubeconfig in JSON, without a secret."""
    api_address: pulumi.Output[str]
    """Address of the Service ``kubernetes``."""
    database_host: pulumi.Output[str]
    """Host name of the database."""
    database_port: pulumi.Output[int]
    """Port of the database."""
    master_secret_arn: pulumi.Output[str]
    """ARN of the secret with the database's master user and password."""
    master_secret_key_arn: pulumi.Output[str | None]
    """ARN of that secret's KMS key; none where it has Secrets Manager's own."""
    max_connections: pulumi.Output[int]
    """Connections that the database takes."""
    bucket_name: pulumi.Output[str]
    """Name of the bucket."""
    repository_urls: pulumi.Output[dict[str, str]]
    """Image to URL of its repository."""
    load_balancer_url: pulumi.Output[str | None]
    """URL of the load balancer; none where there is none."""
    target_group_arn: pulumi.Output[str | None]
    """Target group that pods join; none where there is no load balancer."""
    load_balancer_security_group_id: pulumi.Output[str | None]
    """Security group of the load balancer; none where there is none."""

    def __init__(
        self,
        name: str,
        args: FoundationAwsArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("terrace:index:FoundationAws", name, None, opts)
        given = FoundationAwsArguments.of(args)
        if not NAME.fullmatch(name):
            raise ValueError(
                f"the name of a FoundationAws must be 1 to 19 lower-case letters, digits and "
                f"hyphens, a letter first; not {name!r}"
            )
        self._given = given
        self._args = args
        self._name = name
        self.keys = self._make_keys()
        self.network = self._make_network()
        self.cluster = self._make_cluster()
        self.add_ons_before_nodes = self._make_add_ons("before_nodes", [self.cluster])
        self.nodes = self._make_nodes()
        self.add_ons_after_nodes = self._make_add_ons(
            "after_nodes", [self.cluster, *_present(self.add_ons_before_nodes, self.nodes)]
        )
        self.database = self._make_database()
        self.objects = self._make_bucket()
        self.registry = self._make_registry()
        self.certificate = self._make_certificate()
        self.access_logs = self._make_access_logs()
        self.load_balancer = self._make_load_balancer()
        self.vpc_id = self.network.vpc_id
        self.vpc_cidr = self.network.cidr
        self.cluster_name = self.cluster.name
        self.kubeconfig = self.cluster.kubeconfig
        self.api_address = self.cluster.api_address
        self.database_host = self.database.host
        self.database_port = self.database.port
        self.master_secret_arn = self.database.master_secret_arn
        self.master_secret_key_arn = self.database.master_secret_key_arn
        self.max_connections = self.database.max_connections
        self.bucket_name = self.objects.name
        self.repository_urls = (
            pulumi.Output.from_input({}) if self.registry is None else self.registry.urls
        )
        balancer = self.load_balancer
        none: pulumi.Output[str | None] = pulumi.Output.from_input(None)
        self.load_balancer_url = none if balancer is None else _optional(balancer.url)
        self.target_group_arn = none if balancer is None else _optional(balancer.target_group_arn)
        self.load_balancer_security_group_id = (
            none if balancer is None else _optional(balancer.security_group_id)
        )
        self.register_outputs(
            {
                "vpcId": self.vpc_id,
                "vpcCidr": self.vpc_cidr,
                "clusterName": self.cluster_name,
                "kubeconfig": self.kubeconfig,
                "apiAddress": self.api_address,
                "databaseHost": self.database_host,
                "databasePort": self.database_port,
                "masterSecretArn": self.master_secret_arn,
                "masterSecretKeyArn": self.master_secret_key_arn,
                "maxConnections": self.max_connections,
                "bucketName": self.bucket_name,
                "repositoryUrls": self.repository_urls,
                "loadBalancerUrl": self.load_balancer_url,
                "targetGroupArn": self.target_group_arn,
                "loadBalancerSecurityGroupId": self.load_balancer_security_group_id,
            }
        )

    def _section(self, section: str, *, without: str = "", **more: Any) -> Any:
        """A section as it was given, with what other parts give it."""
        given: dict[str, Any] = dict(self._args.get(section) or {})
        given.pop(without, None)
        return {**given, **more, "tags": self._given.tags}

    def _child(self, *after: pulumi.Resource) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions(parent=self, depends_on=[*after])

    def _key(self, purpose: str) -> pulumi.Output[str] | None:
        if self.keys is None or purpose not in self._given.purposes:
            return None
        return self.keys.arns.apply(lambda arns: arns[purpose])

    def _make_keys(self) -> AwsKeys | None:
        if not self._given.purposes:
            return None
        return AwsKeys(
            f"{self._name}-keys",
            self._section("keys", without="captures", purposes=self._given.purposes),
            opts=self._child(),
        )

    def _make_network(self) -> AwsNetwork:
        settings = self._given.network
        logged = settings.existing is None and settings.flow_logs is not False
        more: dict[str, Any] = {"flow_log_key_arn": self._key("logs")} if logged else {}
        closed = settings.existing is None and settings.nat == NONE and settings.endpoints is None
        if closed and "captures" in self._given.purposes:
            more["endpoints"] = [*settings.services, "kms"]
        return AwsNetwork(
            f"{self._name}-network", self._section("network", **more), opts=self._child()
        )

    def _make_cluster(self) -> AwsCluster:
        more: dict[str, Any] = {}
        settings = self._given.cluster
        if settings.existing is None:
            more = {
                "vpc_id": self._vpc_id(settings.service_cidr, settings.admins),
                "subnet_ids": self.network.private_subnet_ids,
                "secrets_key_arn": self._key("secrets"),
                "log_key_arn": self._key("logs"),
            }
        return AwsCluster(
            f"{self._name}-cluster",
            self._section("cluster", **more),
            opts=self._child(self.network),
        )

    def _vpc_id(self, service_cidr: str, admins: list[str]) -> pulumi.Output[str]:
        """The VPC, once its range is known and is not that of the Services, and the partition is
        known and is that of the admins."""

        def checked(found: list[Any]) -> str:
            check_apart(service_cidr, str(found[1]))
            check_partition(admins, str(found[2]))
            return str(found[0])

        asked = pulumi.Output.all(
            self.network.vpc_id, self.network.cidr, arns.Place.of(self).partition
        )
        return late(asked.apply(checked))

    def _make_add_ons(self, phase: str, after: list[pulumi.Resource]) -> AwsClusterAddOns | None:
        settings = self._given.add_ons
        if settings is None:
            return None
        return AwsClusterAddOns(
            f"{self._name}-{phase.replace('_', '-')}",
            self._section(
                "add_ons",
                phase=phase,
                cluster_name=self.cluster.name,
                kubernetes_version=settings.kubernetes_version,
                prefix_delegation=settings.prefix_delegation,
            ),
            opts=self._child(*after),
        )

    def _make_nodes(self) -> AwsNodeGroup | None:
        settings = self._given.nodes
        if settings is None:
            return None
        return AwsNodeGroup(
            f"{self._name}-core",
            self._section(
                "nodes",
                cluster_name=self.cluster.name,
                subnet_ids=self.network.private_subnet_ids,
                kubernetes_version=settings.kubernetes_version,
                prefix_delegation=settings.prefix_delegation,
            ),
            # Nodes need routes and the CNI from the first minute to the last.
            opts=self._child(self.network, self.cluster, *_present(self.add_ons_before_nodes)),
        )

    def _make_database(self) -> AwsDatabase:
        settings = self._given.database
        clients: list[Any] = [self.cluster.security_group_id, *settings.client_security_group_ids]
        more: dict[str, Any] = {}
        if settings.existing is None:
            more = {
                "vpc_id": self.network.vpc_id,
                "subnet_ids": self.network.private_subnet_ids,
                "key_arn": self._key("database"),
                "log_key_arn": self._key("logs"),
                "zones": self.network.zones,
            }
        elif settings.existing.open_to_cluster:
            clients = settings.client_security_group_ids
        return AwsDatabase(
            f"{self._name}-database",
            self._section("database", client_security_group_ids=clients, **more),
            opts=self._child(self.network),
        )

    def _make_bucket(self) -> AwsBucket:
        more: dict[str, Any] = (
            {} if self._given.objects.existing else {"key_arn": self._key("objects")}
        )
        section = self._section("objects", **more)
        section["tags"] = {**self._given.tags, **LEDGER}
        return AwsBucket(f"{self._name}-objects", section, opts=self._child())

    def _make_registry(self) -> AwsRegistry | None:
        if self._given.registry is None:
            return None
        return AwsRegistry(
            f"{self._name}-images",
            self._section("registry", key_arn=self._key("images")),
            opts=self._child(),
        )

    def _make_access_logs(self) -> AwsBucket | None:
        settings = self._given.load_balancer
        if settings is None or settings.access_log_days is None:
            return None
        return AwsBucket(
            f"{self._name}-access-logs",
            {
                "load_balancer_logs": True,
                "lifecycle_days": settings.access_log_days,
                "noncurrent_days": 1,
                "retain": False,
                "delete_objects": True,
                "tags": self._given.tags,
            },
            opts=self._child(),
        )

    def _make_certificate(self) -> AwsCertificate | None:
        if self._given.certificate is None:
            return None
        return AwsCertificate(
            f"{self._name}-certificate", self._section("certificate"), opts=self._child()
        )

    def _make_load_balancer(self) -> AwsLoadBalancer | None:
        settings = self._given.load_balancer
        if settings is None or self.certificate is None:
            return None
        network = self.network
        more: dict[str, Any] = {}
        if self.access_logs is not None:
            more["access_log_bucket"] = self.access_logs.name
        if self._given.certificate is not None and self._given.certificate.zone is not None:
            more["zone_id"] = self.certificate.zone_id
        return AwsLoadBalancer(
            f"{self._name}-lb",
            self._section(
                "load_balancer",
                without="access_log_days",
                vpc_id=network.vpc_id,
                subnet_ids=(
                    network.private_subnet_ids if settings.internal else network.public_subnet_ids
                ),
                certificate_arn=self.certificate.arn,
                domain=settings.domain,
                target_cidrs=[network.cidr],
                **more,
            ),
            opts=self._child(network),
        )


def _present(*parts: pulumi.Resource | None) -> list[pulumi.Resource]:
    return [part for part in parts if part is not None]


def _optional(value: pulumi.Output[str]) -> pulumi.Output[str | None]:
    return value.apply(lambda text: text)
