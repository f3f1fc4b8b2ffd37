"""An Aurora PostgreSQL cluster whose password is AWS's to keep."""

from typing import NotRequired, TypedDict

import pulumi
import pulumi_aws as aws
from pydantic import Field, ValidationInfo, field_validator

from terrace_components.aws.arguments import KeyArn, Tags, TwoSubnetIds, VpcId
from terrace_components.aws.arns import tags
from terrace_components.aws.database_settings import PORT, DatabaseSettings, SecurityGroupId
from terrace_components.aws.existing import made_here, needed_to_make

MASTER_USER = "terrace_admin"
WRITER_TIERS = 1  # instances of promotion tier 0 and 1 scale with the writer


class ExistingDatabaseArgs(TypedDict):
    """A PostgreSQL server that exists already."""

    host: str
    """Its host name."""
    port: NotRequired[int]
    """Its port; default 5432."""
    master_secret_arn: str
    """ARN of the Secrets Manager secret with ``username`` and ``password`` of a user who may make
    databases and roles."""
    master_secret_key_arn: NotRequired[pulumi.Input[str]]
    """ARN of the KMS key of that secret; default Secrets Manager's own."""
    max_connections: int
    """Connections that it takes, ``show max_connections``."""
    security_group_id: NotRequired[str]
    """Its security group, which gets a rule for each client."""
    open_to_cluster: NotRequired[bool]
    """``true``, instead of ``security_group_id``: its own rules let the clients in already."""


class AwsDatabaseArgs(TypedDict):
    """Arguments of ``AwsDatabase``."""

    # required, unless existing
    vpc_id: NotRequired[pulumi.Input[str]]
    """The VPC."""
    subnet_ids: NotRequired[pulumi.Input[list[str]]]
    """Private subnets, in two zones at least."""
    key_arn: NotRequired[pulumi.Input[str]]
    """KMS key of the storage, the backups, the password and the insights."""
    client_security_group_ids: NotRequired[list[pulumi.Input[str]]]
    """Security groups whose members may connect; no one else may. Not with ``existing``, unless
    that has a ``security_group_id``."""
    # capacity
    engine_version: NotRequired[str]
    """Minor version of Aurora PostgreSQL; default ``17.7``. It is never upgraded by itself."""
    min_capacity: NotRequired[float]
    """Least capacity in Aurora units (2 GiB each), in steps of 0.5; default 1."""
    max_capacity: NotRequired[float]
    """Most capacity in Aurora units; default 8, or ``min_capacity`` if that is more."""
    instances: NotRequired[int]
    """Number of instances, each in another zone as far as there are zones; default 2, so that one
    takes over when the other's zone is gone."""
    zones: NotRequired[pulumi.Input[list[str]]]
    """Zones of the subnets, which instances take in turn. Default: Aurora chooses."""
    max_connections: NotRequired[int]
    """Connections that the database takes. Default: Aurora's own, by capacity. A change takes
    effect when the instances are restarted."""
    # data
    database_name: NotRequired[str]
    """Name of the first database; default ``terrace``."""
    backup_days: NotRequired[int]
    """Days that backups go back, 1 to 35; default 14."""
    log_retention_days: NotRequired[int]
    """Days that CloudWatch keeps the server's log; default 90."""
    log_key_arn: NotRequired[pulumi.Input[str]]
    """KMS key of the log group; its policy must let CloudWatch Logs use it. Default: a key of
    AWS's own."""
    deletion_protection: NotRequired[bool]
    """``true`` (default): AWS refuses to delete it until this is ``false`` and applied."""
    final_snapshot: NotRequired[bool]
    """``true`` (default): a snapshot stays when it is deleted. ``false`` only together with
    ``deletion_protection: false``."""
    # or
    existing: NotRequired[ExistingDatabaseArgs]
    """A database that exists already, instead of all of the above but
    ``client_security_group_ids``."""
    tags: NotRequired[dict[str, str]]
    """Tags of everything that is made."""


class _AwsDatabase(DatabaseSettings):
    vpc_id: VpcId | None = Field(default=None, validate_default=True)
    subnet_ids: TwoSubnetIds | None = Field(default=None, validate_default=True)
    key_arn: KeyArn | None = Field(default=None, validate_default=True)
    client_security_group_ids: list[SecurityGroupId] = Field(
        default_factory=list, validate_default=True
    )
    zones: list[str] | pulumi.Output[list[str]] | None = None
    tags: Tags = Field(default_factory=dict)

    log_key_arn: KeyArn | None = None

    log_key = field_validator("log_key_arn")(made_here)
    needed = field_validator("vpc_id", "subnet_ids", "key_arn")(needed_to_make)

    @field_validator("zones")
    @classmethod
    def some(
        cls, value: list[str] | pulumi.Output[list[str]] | None
    ) -> list[str] | pulumi.Output[list[str]] | None:
        if value == []:
            raise ValueError("must name a zone at least; leave it out and Aurora chooses")
        return value

    @field_validator("client_security_group_ids")
    @classmethod
    def clients_can_be_let_in(
        cls, value: list[SecurityGroupId], info: ValidationInfo
    ) -> list[SecurityGroupId]:
        if "existing" not in info.data:
            return value  # it is wrong, and is reported
        existing = info.data["existing"]
        if existing is None:
            if not value:
                raise ValueError("must name at least one: nobody else may connect")
        elif existing.security_group_id is not None:
            if not value:
                raise ValueError("must name who is let in by existing.security_group_id")
        elif value:
            raise ValueError(
                "cannot be let in: existing has no security_group_id to put the rules into"
            )
        return value


class AwsDatabase(pulumi.ComponentResource):
    """Aurora PostgreSQL with serverless capacity, encrypted, over TLS only, reached by named
    security groups only. The master password is made, kept and rotated in Secrets Manager and is
    never in code or state. Or a database that exists already.

    Creates: SubnetGroup, SecurityGroup and a rule per client, ClusterParameterGroup, LogGroup,
    Cluster, ClusterInstance each.
    """

    host: pulumi.Output[str]
    """Host name of the writer; known when the instances are ready."""
    port: pulumi.Output[int]
    """Port of the server."""
    master_secret_arn: pulumi.Output[str]
    """ARN of the secret with ``username`` and ``password``."""
    master_secret_key_arn: pulumi.Output[str | None]
    """ARN of the KMS key that encrypts that secret: who reads it needs ``kms:Decrypt`` on it. None
    where Secrets Manager's own key does, which takes no right."""
    max_connections: pulumi.Output[int]
    """Connections that the database takes, all clients together."""

    def __init__(
        self,
        name: str,
        args: AwsDatabaseArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("terrace:index:AwsDatabase", name, None, opts)
        given = _AwsDatabase.of(args)
        if given.existing is not None:
            found = given.existing
            rules = []
            if found.security_group_id is not None:
                rules = self._rules(name, found.security_group_id, found.port, given)
            # From the rules, so that whoever uses it waits until they let it in.
            self.host = pulumi.Output.all(found.host, *[rule.id for rule in rules]).apply(
                lambda all_: str(all_[0])
            )
            self.port = pulumi.Output.from_input(found.port)
            self.master_secret_arn = pulumi.Output.from_input(found.master_secret_arn)
            self.master_secret_key_arn = pulumi.Output.from_input(found.master_secret_key_arn)
        else:
            self._make(name, given)
        self.max_connections = pulumi.Output.from_input(given.connections)
        self.register_outputs(
            {
                "host": self.host,
                "port": self.port,
                "masterSecretArn": self.master_secret_arn,
                "masterSecretKeyArn": self.master_secret_key_arn,
                "maxConnections": self.max_connections,
            }
        )

    def _make(self, name: str, given: _AwsDatabase) -> None:
        child = pulumi.ResourceOptions(parent=self)
        label = tags(name, given.tags)
        subnets = aws.rds.SubnetGroup(
            f"{name}-aurora",
            description="Where the database may be",
            subnet_ids=given.subnet_ids,
            tags=label,
            opts=child,
        )
        security_group = aws.ec2.SecurityGroup(
            f"{name}-security-group",
            description="The database: its clients in, nothing out",
            vpc_id=given.vpc_id,
            ingress=[],
            egress=[],
            tags={**label, "Name": name},
            # The rules are resources of their own.
            opts=pulumi.ResourceOptions(parent=self, ignore_changes=["ingress", "egress"]),
        )
        rules = self._rules(name, security_group.id, PORT, given)
        parameters = aws.rds.ClusterParameterGroup(
            f"{name}-parameters",
            description="TLS only",
            family=f"aurora-postgresql{given.engine_version.split('.', maxsplit=1)[0]}",
            parameters=_parameters(given),
            tags=label,
            opts=child,
        )
        # The cluster takes the subnet group's name, which Pulumi makes unique: so the log group is
        # ours. RDS would make one that is kept for ever, and left behind by a destroy.
        log_group = aws.cloudwatch.LogGroup(
            f"{name}-logs",
            name=pulumi.Output.concat("/aws/rds/cluster/", subnets.name, "/postgresql"),
            retention_in_days=given.log_retention_days,
            kms_key_id=given.log_key_arn,
            tags=label,
            opts=child,
        )
        cluster = aws.rds.Cluster(
            f"{name}-cluster",
            cluster_identifier=subnets.name,
            engine=aws.rds.EngineType.AURORA_POSTGRESQL,
            engine_mode="provisioned",
            engine_version=given.engine_version,
            database_name=given.database_name,
            port=PORT,
            serverlessv2_scaling_configuration={
                "min_capacity": given.min_capacity,
                "max_capacity": given.max_capacity or given.min_capacity,
            },
            master_username=MASTER_USER,
            manage_master_user_password=True,
            master_user_secret_kms_key_id=given.key_arn,
            storage_encrypted=True,
            kms_key_id=given.key_arn,
            db_subnet_group_name=subnets.name,
            vpc_security_group_ids=[security_group.id],
            db_cluster_parameter_group_name=parameters.name,
            enabled_cloudwatch_logs_exports=["postgresql"],
            backup_retention_period=given.backup_days,
            copy_tags_to_snapshot=True,
            deletion_protection=given.deletion_protection,
            skip_final_snapshot=not given.final_snapshot,
            final_snapshot_identifier=pulumi.Output.concat(subnets.name, "-final")
            if given.final_snapshot
            else None,
            # What was applied is what is there: not at the next maintenance window.
            apply_immediately=True,
            allow_major_version_upgrade=False,
            tags=label,
            opts=pulumi.ResourceOptions(
                parent=self, depends_on=[log_group, *rules], delete_before_replace=True
            ),
        )
        instances = [
            self._instance(name, index, cluster, given) for index in range(given.instances)
        ]
        self.host = pulumi.Output.all(cluster.endpoint, *[one.id for one in instances]).apply(
            lambda all_: str(all_[0])
        )
        self.port = cluster.port.apply(int)
        self.master_secret_arn = cluster.master_user_secrets.apply(
            lambda secrets: str(secrets[0].secret_arn)
        )
        # The secret's own key id may be short; the key is the one that was given.
        self.master_secret_key_arn = pulumi.Output.from_input(given.key_arn)

    def _instance(
        self, name: str, index: int, cluster: "aws.rds.Cluster", given: _AwsDatabase
    ) -> "aws.rds.ClusterInstance":
        zone = None
        if given.zones is not None:
            zone = pulumi.Output.from_input(given.zones).apply(lambda all_: all_[index % len(all_)])
        return aws.rds.ClusterInstance(
            f"{name}-instance-{index + 1}",
            cluster_identifier=cluster.id,
            engine=aws.rds.EngineType.AURORA_POSTGRESQL,
            engine_version=cluster.engine_version,
            instance_class="db.serverless",
            availability_zone=zone,
            promotion_tier=min(index, WRITER_TIERS),
            publicly_accessible=False,
            auto_minor_version_upgrade=False,
            performance_insights_enabled=True,
            performance_insights_kms_key_id=given.key_arn,
            performance_insights_retention_period=7,
            copy_tags_to_snapshot=True,
            apply_immediately=True,
            tags=tags(name, given.tags),
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _rules(
        self, name: str, security_group: pulumi.Input[str], port: int, given: _AwsDatabase
    ) -> "list[aws.vpc.SecurityGroupIngressRule]":
        return [
            aws.vpc.SecurityGroupIngressRule(
                f"{name}-client-{number}",
                security_group_id=security_group,
                referenced_security_group_id=client,
                ip_protocol="tcp",
                from_port=port,
                to_port=port,
                description="A client of the database",
                tags=tags(name, given.tags),
                opts=pulumi.ResourceOptions(parent=self),
            )
            for number, client in enumerate(given.client_security_group_ids, start=1)
        ]


def _parameters(given: _AwsDatabase) -> "list[aws.rds.ClusterParameterGroupParameterArgsDict]":
    parameters: list[aws.rds.ClusterParameterGroupParameterArgsDict] = [
        {"name": "rds.force_ssl", "value": "1", "apply_method": "immediate"}
    ]
    if given.max_connections is not None:
        parameters.append(
            {
                "name": "max_connections",
                "value": str(given.max_connections),
                "apply_method": "pending-reboot",
            }
        )
    return parameters
