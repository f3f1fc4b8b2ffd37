"""RDS and Aurora."""

from collections.abc import Iterator

from terrace_policies.checks import each, each_resource
from terrace_policies.model import Finding, Parameter, Parameters, Reference, Rule, Says, Severity
from terrace_policies.resources import Node, Resource, Stack
from terrace_policies.rules.references import GATEWAY_GUIDANCE

CLUSTER = "aws:rds/cluster:Cluster"
CLUSTER_INSTANCE = "aws:rds/clusterInstance:ClusterInstance"
INSTANCE = "aws:rds/instance:Instance"
PARAMETER_GROUPS = (
    "aws:rds/clusterParameterGroup:ClusterParameterGroup",
    "aws:rds/parameterGroup:ParameterGroup",
)
FORCE_TLS = "rds.force_ssl"
FORCED_SINCE = 15  # from this major version on, PostgreSQL on RDS refuses plaintext by default


def _public(instance: Resource, given: Parameters) -> Iterator[Says]:
    del given
    if instance.get("publiclyAccessible", False):
        yield Finding("publiclyAccessible", "must be false")


def _encrypted(database: Resource, given: Parameters) -> Iterator[Says]:
    del given
    if database.get("storageEncrypted") is not True:
        yield Finding("storageEncrypted", "must be true; it cannot be turned on later")


def _protected(database: Resource, given: Parameters) -> Iterator[Says]:
    if given["trial"]:
        return
    if database.get("deletionProtection") is not True:
        yield Finding("deletionProtection", "must be true")
    if database.get("skipFinalSnapshot", False):
        yield Finding("skipFinalSnapshot", "must be false, so that a deletion leaves a snapshot")


def _password(database: Resource, given: Parameters) -> Iterator[Says]:
    del given
    path = "masterPassword" if database.type == CLUSTER else "password"
    if database.has(path):
        yield Finding(path, "the password is in the program and in Pulumi's state")
    elif database.get("manageMasterUserPassword") is not True:
        yield Finding("manageMasterUserPassword", "must be true")


def _backups(database: Resource, given: Parameters) -> Iterator[Says]:
    days = database.get("backupRetentionPeriod", 1)
    if not given["trial"] and days < given["days"]:
        yield Finding("backupRetentionPeriod", f"is {days:g}; at least {given['days']} days")


def _tls(stack: Stack, given: Parameters) -> Iterator[Says]:
    del given
    yield from each_resource(stack.of(*PARAMETER_GROUPS), _group)

    def check(database: Resource) -> Iterator[Says]:
        if "postgres" not in str(database.get("engine", "")):
            return
        major = str(database.get("engineVersion", "")).split(".", maxsplit=1)[0]
        names = ("dbClusterParameterGroupName", "parameterGroupName")
        if major.isdecimal() and int(major) < FORCED_SINCE and not any(map(database.has, names)):
            yield Finding("engineVersion", f"PostgreSQL {major} takes plaintext connections")

    yield from each_resource(stack.of(CLUSTER, INSTANCE), check)


def _group(group: Resource) -> Iterator[Says]:
    yield from each(group.items("parameters"), _forced)


def _forced(parameter: Node) -> Iterator[Says]:
    if parameter.get("name") == FORCE_TLS and str(parameter.get("value")) not in {"1", "1.0"}:
        yield Finding(f"{parameter.path}.value", f"{FORCE_TLS} must be 1")


_DAYS = Parameter(int, 7, "shortest retention in days, 1 to 35", "lower", least=1, most=35)
_CIS = "CIS AWS Foundations 3.0"

RULES = (
    Rule(
        id="database-not-public",
        description="No database has a public address",
        why="The ledger and the keys' hashes lie in it.",
        remediation="Set publiclyAccessible to false and use private subnets.",
        severity=Severity.CRITICAL,
        references=(Reference(_CIS, "2.3.3"),),
        types=(INSTANCE, CLUSTER_INSTANCE),
        resource=_public,
    ),
    Rule(
        id="database-encrypted",
        description="Database storage is encrypted",
        why="Snapshots and backups are encrypted only if the database was born so.",
        remediation="Set storageEncrypted to true and name a key in kmsKeyId.",
        severity=Severity.HIGH,
        references=(Reference(_CIS, "2.3.1"),),
        types=(INSTANCE, CLUSTER),
        resource=_encrypted,
    ),
    Rule(
        id="database-deletion-protected",
        description="A database cannot be deleted by mistake, nor without a last snapshot",
        why="The published gateway guidance ships with both off: one destroy ends the ledger.",
        remediation="Set `database.deletion_protection`; only a stack of `trial` may not.",
        severity=Severity.HIGH,
        references=(
            Reference("AWS FSBP", "RDS.7, RDS.8"),
            GATEWAY_GUIDANCE,
        ),
        types=(INSTANCE, CLUSTER),
        resource=_protected,
    ),
    Rule(
        id="database-password-managed",
        description="The master password is made and rotated by Secrets Manager",
        why="A password given in code is in the repository or in Pulumi's state.",
        remediation="Set manageMasterUserPassword to true and give no password.",
        severity=Severity.HIGH,
        references=(
            Reference("AWS FSBP", "SecretsManager.1"),
            Reference("field report", "pulumi/pulumi#9781"),
        ),
        types=(INSTANCE, CLUSTER),
        resource=_password,
    ),
    Rule(
        id="database-backups-kept",
        description="Database backups are kept long enough",
        why="A fault of the ledger is often found days later.",
        remediation="Set `database.backup_days` (backupRetentionPeriod).",
        severity=Severity.MEDIUM,
        references=(Reference("AWS Well-Architected", "REL09-BP03"),),
        types=(INSTANCE, CLUSTER),
        resource=_backups,
        parameters={"days": _DAYS},
    ),
    Rule(
        id="database-tls-required",
        description="PostgreSQL refuses connections without TLS",
        why="Guards send keys' hashes and prices over this connection.",
        remediation="Set rds.force_ssl to 1 in the parameter group, or use PostgreSQL 15 or later.",
        severity=Severity.HIGH,
        references=(Reference("AWS Well-Architected", "SEC09-BP02"),),
        stack=_tls,
    ),
)
