"""Aurora clusters and their instances."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from ...inventory import Item
from ...models import AutoName, CloudError, Link, Problem
from ...rules import between, length, matches, one_of, only_one
from ...values import UNKNOWN, Properties, first, known
from ...world import World
from ..ec2.network import SECURITY_GROUP
from ..ec2.security_groups import refuse_groups_of_other_network
from ..kms import refuse_missing_key
from ..logs import put_service_log_group
from ..model import ArnOf, AwsModel, digest
from .groups import CLUSTER_PARAMETER_GROUP, SUBNET_GROUP

CLUSTER: Final = "aws:rds/cluster:Cluster"
INSTANCE: Final = "aws:rds/clusterInstance:ClusterInstance"
SECRET: Final = "aws:secretsmanager/secret:Secret"
VERSIONS: Final = {
    "aurora-postgresql": re.compile(r"1[3-8](\.\d{1,2})?"),
    "aurora-mysql": re.compile(r"8\.0(\.mysql_aurora\.3\.\d{2}\.\d)?"),
}
IDENTIFIER = r"[a-z](?!.*--)[a-z0-9-]*[a-z0-9]|[a-z]"
IDENTIFIER_MEANING = (
    "lower-case letters, digits and hyphens, starting with a letter, no double or last hyphen"
)
_RESERVED_USERS = ("admin", "rdsadmin", "rds_superuser", "root", "public")
_LOGS = {
    "aurora-postgresql": ("postgresql", "iam-db-auth-error", "instance"),
    "aurora-mysql": ("audit", "error", "general", "slowquery", "iam-db-auth-error", "instance"),
}
_WINDOW = r"([01]\d|2[0-3]):[0-5]\d"


class Cluster(AwsModel):
    token = CLUSTER
    auto_name = AutoName("clusterIdentifier", 63, lower=True)
    rules = (
        length("clusterIdentifier", 1, 63),
        matches("clusterIdentifier", IDENTIFIER, IDENTIFIER_MEANING),
        one_of("engine", "aurora-postgresql", "aurora-mysql", "postgres", "mysql"),
        one_of("engineMode", "provisioned", "serverless", "parallelquery", "global", ""),
        one_of("storageType", "", "aurora", "aurora-iopt1", "io1", "io2", "gp3"),
        matches(
            "databaseName",
            r"[A-Za-z_][A-Za-z0-9_]{0,62}",
            "letters, digits and _, starting with a letter",
        ),
        matches(
            "masterUsername",
            r"[A-Za-z][A-Za-z0-9_]{0,62}",
            "letters, digits and _, starting with a letter",
        ),
        matches(
            "masterPassword",
            r"[^/@\"\s]{8,128}",
            '8 to 128 printable characters without / @ " and space',
        ),
        only_one("masterPassword", "manageMasterUserPassword", "masterPasswordWo"),
        between("backupRetentionPeriod", 1, 35),
        between("port", 1150, 65535),
        between("serverlessv2ScalingConfiguration.minCapacity", 0, 256),
        between("serverlessv2ScalingConfiguration.maxCapacity", 1, 256),
        between("serverlessv2ScalingConfiguration.secondsUntilAutoPause", 300, 86400),
        matches("preferredBackupWindow", f"{_WINDOW}-{_WINDOW}", "like 03:00-03:30"),
        matches(
            "preferredMaintenanceWindow",
            rf"\w{{3}}:{_WINDOW}-\w{{3}}:{_WINDOW}",
            "like sun:04:00-sun:04:30",
        ),
        matches(
            "finalSnapshotIdentifier",
            r"[A-Za-z](?!.*--)[A-Za-z0-9-]*[A-Za-z0-9]",
            "letters, digits and hyphens",
        ),
    )
    arns = (
        ArnOf("kmsKeyId", "kms", "key/.+", here=True),
        ArnOf("masterUserSecretKmsKeyId", "kms", "key/.+", here=True, or_name=True),
        ArnOf("monitoringRoleArn", "iam", "role/.+"),
    )
    links = (
        Link(
            "vpcSecurityGroupIds[]",
            SECURITY_GROUP,
            holds=True,
            not_found="InvalidVPCNetworkStateFault",
        ),
        Link(
            "dbSubnetGroupName",
            SUBNET_GROUP,
            by=("id", "name"),
            not_found="DBSubnetGroupNotFoundFault",
        ),
        Link(
            "dbClusterParameterGroupName",
            CLUSTER_PARAMETER_GROUP,
            by=("id", "name"),
            not_found="DBClusterParameterGroupNotFound",
        ),
    )
    replace_on = frozenset(
        {
            "clusterIdentifier",
            "clusterIdentifierPrefix",
            "databaseName",
            "engine",
            "engineMode",
            "masterUsername",
            "kmsKeyId",
            "storageEncrypted",
            "dbSubnetGroupName",
            "availabilityZones",
            "snapshotIdentifier",
            "networkType",
        }
    )
    defaults = {
        "storageEncrypted": False,
        "backupRetentionPeriod": 1,
        "deletionProtection": False,
        "skipFinalSnapshot": False,
    }
    duplicate_code = "DBClusterAlreadyExistsFault"

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        yield from _check_engine(inputs)
        yield from _check_login(inputs)
        if inputs.get("kmsKeyId") is not None and inputs.get("storageEncrypted") is not True:
            yield Problem("storageEncrypted", "must be true when kmsKeyId is set")
        scaling = inputs.get("serverlessv2ScalingConfiguration")
        if isinstance(scaling, dict) and UNKNOWN not in scaling.values():
            low, high = (
                float(scaling.get("minCapacity") or 0),
                float(scaling.get("maxCapacity") or 1),
            )
            if low > high:
                yield Problem(
                    "serverlessv2ScalingConfiguration.minCapacity",
                    f"{low:g} is above maxCapacity {high:g}",
                )
            for name, value in (("minCapacity", low), ("maxCapacity", high)):
                if (value * 2) % 1:
                    yield Problem(
                        f"serverlessv2ScalingConfiguration.{name}",
                        f"{value:g} must be a multiple of 0.5",
                    )

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return str(inputs["clusterIdentifier"])

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        refuse_missing_key(inputs.get("kmsKeyId"), "kmsKeyId", world)
        refuse_missing_key(
            inputs.get("masterUserSecretKmsKeyId"), "masterUserSecretKmsKeyId", world
        )
        group = world.get(inputs.get("dbSubnetGroupName") or "", SUBNET_GROUP)
        if group:
            refuse_groups_of_other_network(
                inputs.get("vpcSecurityGroupIds") or [],
                group["vpcId"],
                world,
                "vpcSecurityGroupIds",
            )
        parameters = world.get(
            inputs.get("dbClusterParameterGroupName") or "", CLUSTER_PARAMETER_GROUP
        )
        major = str(inputs.get("engineVersion") or "").split(".")[0]
        if parameters and major and not str(parameters["family"]).endswith((major, ".0")):
            raise CloudError(
                "InvalidParameterCombination",
                f"dbClusterParameterGroupName: family {parameters['family']} is not for"
                f" {inputs['engine']} {major}",
            )
        if existing and not inputs.get("allowMajorVersionUpgrade"):
            before = str(existing["engineVersion"]).split(".")[0]
            if major and before != major:
                raise CloudError(
                    "InvalidParameterCombination",
                    f"engineVersion: {before} to {major} needs allowMajorVersionUpgrade",
                )

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        region, suffix = world.place.region, world.place.dns_suffix
        code = digest(world.place.account, region, length=12)
        version = inputs.get("engineVersion") or (
            "17.5" if inputs["engine"] == "aurora-postgresql" else "8.0.mysql_aurora.3.08.0"
        )
        secrets = []
        if inputs.get("manageMasterUserPassword"):
            key = inputs.get("masterUserSecretKmsKeyId") or world.place.arn(
                "kms", f"key/{digest('aws/secretsmanager', length=32)}"
            )
            secrets = [
                {
                    "secretArn": _master_secret_arn(id, world),
                    "secretStatus": "active",
                    "kmsKeyId": key,
                }
            ]
        return {
            "arn": self.arn_in(world, "rds", f"cluster:{id}"),
            "clusterResourceId": f"cluster-{digest(id, code, length=26).upper()}",
            "endpoint": f"{id}.cluster-{code}.{region}.rds.{suffix}",
            "readerEndpoint": f"{id}.cluster-ro-{code}.{region}.rds.{suffix}",
            "hostedZoneId": "Z2R2ITUGPM61AM",
            "port": inputs.get("port") or (5432 if "postgres" in inputs["engine"] else 3306),
            "engineVersion": version,
            "engineVersionActual": version,
            "engineMode": inputs.get("engineMode") or "provisioned",
            "masterUserSecrets": secrets,
            "clusterMembers": inputs.get("clusterMembers") or [],
            "availabilityZones": inputs.get("availabilityZones") or world.place.zones()[:3],
            "masterUsername": inputs.get("masterUsername"),
            "caCertificateIdentifier": "rds-ca-rsa2048-g1",
        }

    def created(self, item: Item, world: World) -> None:
        if item.inputs.get("manageMasterUserPassword"):
            arn = _master_secret_arn(item.id, world)
            values = {
                "name": arn.split(":secret:")[1][:-7],
                "arn": arn,
                "kmsKeyId": item.outputs.get("masterUserSecretKmsKeyId"),
            }
            world.inventory.put(
                Item(
                    SECRET,
                    world.place.scope("region"),
                    arn,
                    item.name,
                    {"__owner": item.id, **values},
                    values,
                )
            )
        for log in item.inputs.get("enabledCloudwatchLogsExports") or []:
            put_service_log_group(f"/aws/rds/cluster/{item.id}/{log}", world)

    def blocks_delete(self, item: Item, world: World) -> str | None:
        if item["deletionProtection"]:
            return (
                f"InvalidParameterCombination: cannot delete {item.id}, deletion protection is on;"
                " turn deletionProtection off first"
            )
        for instance in world.find(INSTANCE, clusterIdentifier=item.id):
            return (
                f"InvalidDBClusterStateFault: {item.id} cannot be deleted, it still contains"
                f" instances ({instance.id})"
            )
        if not item["skipFinalSnapshot"] and not item["finalSnapshotIdentifier"]:
            return (
                "InvalidParameterCombination: finalSnapshotIdentifier is required when"
                " skipFinalSnapshot is false"
            )
        return None


def _master_secret_arn(id: str, world: World) -> str:
    code = digest(id, world.place.account, world.place.region, length=32)
    uuid = "-".join((code[:8], code[8:12], code[12:16], code[16:20], code[20:32]))
    return str(
        world.place.arn("secretsmanager", f"secret:rds!cluster-{uuid}-{digest(id, length=6)}")
    )


def _check_engine(inputs: Properties) -> Iterator[Problem]:
    engine, version = inputs.get("engine"), inputs.get("engineVersion")
    pattern = VERSIONS.get(str(engine))
    if isinstance(version, str) and pattern and not pattern.fullmatch(version):
        yield Problem(
            "engineVersion",
            f"{version!r} is not a version of {engine}; like 17.5 for aurora-postgresql",
        )
    valid = _LOGS.get(str(engine))
    for where, log in known(inputs, "enabledCloudwatchLogsExports[]"):
        if valid and log not in valid:
            yield Problem(where, f"{log!r} is not a log of {engine}: {', '.join(valid)}")


def _check_login(inputs: Properties) -> Iterator[Problem]:
    restored = any(
        first(inputs, name)
        for name in ("snapshotIdentifier", "globalClusterIdentifier", "replicationSourceIdentifier")
    )
    password = any(
        inputs.get(name) is not None
        for name in ("masterPassword", "masterPasswordWo", "manageMasterUserPassword")
    )
    if not restored and inputs.get("restoreToPointInTime") is None:
        if inputs.get("masterUsername") is None:
            yield Problem("masterUsername", "is required for a new cluster")
        if not password:
            yield Problem(
                "manageMasterUserPassword",
                "one of manageMasterUserPassword, masterPassword is required for a new cluster",
            )
    for where, user in known(inputs, "masterUsername"):
        if str(user).lower() in _RESERVED_USERS:
            yield Problem(where, f"{user!r} is reserved: {', '.join(_RESERVED_USERS)}")
    if inputs.get("masterUserSecretKmsKeyId") is not None and not inputs.get(
        "manageMasterUserPassword"
    ):
        yield Problem("masterUserSecretKmsKeyId", "needs manageMasterUserPassword")


MODELS = (Cluster,)
