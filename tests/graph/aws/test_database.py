"""AwsDatabase: encrypted, over TLS, for named clients, with a password nobody has seen."""

import json
import typing
from typing import Any

import pulumi
import pytest
from hypothesis import given
from hypothesis import strategies as st

import terrace_components as components
from terrace_components.aws.database_settings import DatabaseSettings, max_connections

from .cloud import Cloud
from .contract import check_component
from .eks_answers import answer_databases

KEY = "arn:aws:kms:eu-west-1:123456789012:key/0a1b2c3d-0000-4000-8000-000000000000"
SECRET = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:theirs-a1b2c3"
CLIENTS = ["sg-0a1b2c3d", "sg-0a1b2c3e"]
NEEDED: dict[str, Any] = {
    "vpc_id": "vpc-0a1b2c3d",
    "subnet_ids": ["subnet-0a1b2c3d", "subnet-0a1b2c3e"],
    "key_arn": KEY,
    "client_security_group_ids": CLIENTS,
}
THEIRS: dict[str, Any] = {
    "host": "db.example.com", "master_secret_arn": SECRET, "max_connections": 500
}  # fmt: skip
OPEN: dict[str, Any] = {**THEIRS, "open_to_cluster": True}
WITH_GROUP: dict[str, Any] = {**THEIRS, "port": 5433, "security_group_id": "sg-0d0d0d0d"}
VARIANTS: dict[str, dict[str, Any]] = {
    "every": {
        **NEEDED,
        "engine_version": "16.11",
        "min_capacity": 0.5,
        "max_capacity": 32,
        "instances": 3,
        "zones": ["eu-west-1a", "eu-west-1b"],
        "max_connections": 700,
        "database_name": "other",
        "backup_days": 7,
        "log_retention_days": 30,
        "log_key_arn": KEY,
        "deletion_protection": False,
        "final_snapshot": False,
        "tags": {"team": "platform"},
    },
    "existing": {
        "existing": {**WITH_GROUP, "master_secret_key_arn": KEY},
        "client_security_group_ids": CLIENTS,
    },
    "existing-open": {"existing": OPEN},
}


@pytest.fixture(autouse=True)
def _aurora(cloud: Cloud) -> None:
    answer_databases(cloud)


def make(**changes: Any) -> Any:
    args = {**NEEDED, **changes}
    args = {key: value for key, value in args.items() if value is not None}
    return lambda: components.AwsDatabase("it", typing.cast(Any, args))


def exported(**changes: Any) -> Any:
    def program() -> None:
        made = make(**changes)()
        for output in components.AwsDatabase.__annotations__:
            pulumi.export(output, getattr(made, output))

    return program


def existing(theirs: dict[str, Any], clients: list[str] | None = None) -> Any:
    return exported(
        **{**dict.fromkeys(NEEDED), "client_security_group_ids": clients, "existing": theirs}
    )


def cluster_of(render: Any, **changes: Any) -> dict[str, Any]:
    return render(make(**changes)).one("Cluster").inputs


def test_the_password_is_aws_to_make_and_keep(render: Any) -> None:
    cluster = cluster_of(render)
    assert cluster["manageMasterUserPassword"] is True
    assert cluster["masterUserSecretKmsKeyId"] == KEY
    assert not {"masterPassword", "masterPasswordWo"} & cluster.keys()


def test_everything_is_encrypted_with_the_key(render: Any) -> None:
    graph = render(make())
    cluster = graph.one("Cluster").inputs
    assert (cluster["storageEncrypted"], cluster["kmsKeyId"]) == (True, KEY)
    for instance in graph.of("ClusterInstance"):
        assert instance.inputs["performanceInsightsKmsKeyId"] == KEY


def test_only_tls(render: Any) -> None:
    [group] = render(make()).of("ClusterParameterGroup")
    assert {"name": "rds.force_ssl", "value": "1", "applyMethod": "immediate"} in group.inputs[
        "parameters"
    ]
    assert group.inputs["family"] == "aurora-postgresql17"


def test_only_named_clients_come_in_and_nothing_goes_out(render: Any) -> None:
    graph = render(make())
    [group] = [r for r in graph.of("SecurityGroup") if r.custom]
    assert (group.inputs["ingress"], group.inputs["egress"]) == ([], [])
    rules = graph.of("SecurityGroupIngressRule")
    assert sorted(r.inputs["referencedSecurityGroupId"] for r in rules) == CLIENTS
    for rule in rules:
        assert (rule.inputs["fromPort"], rule.inputs["toPort"]) == (5432, 5432)
        assert "cidrIpv4" not in rule.inputs
    assert not graph.of("SecurityGroupEgressRule")
    assert graph.one("Cluster").inputs["vpcSecurityGroupIds"] == [
        rules[0].inputs["securityGroupId"]
    ]
    assert {r.name for r in rules} <= graph.needs(graph.one("Cluster"))


def test_two_instances_nobody_outside_can_see(render: Any) -> None:
    instances = render(make()).of("ClusterInstance")
    assert len(instances) == 2
    for instance in instances:
        assert instance.inputs["instanceClass"] == "db.serverless"
        assert instance.inputs["publiclyAccessible"] is False
        assert instance.inputs["autoMinorVersionUpgrade"] is False
        assert instance.inputs["performanceInsightsEnabled"] is True
    assert sorted(i.inputs["promotionTier"] for i in instances) == [0, 1]


def test_instances_take_the_zones_in_turn(render: Any) -> None:
    instances = render(make(instances=3, zones=["eu-west-1a", "eu-west-1b"])).of("ClusterInstance")
    by_name = {i.name: i.inputs["availabilityZone"] for i in instances}
    assert by_name == {
        "it-instance-1": "eu-west-1a",
        "it-instance-2": "eu-west-1b",
        "it-instance-3": "eu-west-1a",
    }
    free = render(make()).of("ClusterInstance")
    assert not any("availabilityZone" in i.inputs for i in free)


def test_data_is_not_lost_by_accident(render: Any) -> None:
    cluster = cluster_of(render)
    assert cluster["deletionProtection"] is True
    assert cluster["skipFinalSnapshot"] is False
    assert cluster["finalSnapshotIdentifier"] == f"{cluster['clusterIdentifier']}-final"
    assert cluster["backupRetentionPeriod"] == 14
    assert cluster["copyTagsToSnapshot"] is True


def test_a_trial_stack_leaves_nothing(render: Any) -> None:
    cluster = cluster_of(render, deletion_protection=False, final_snapshot=False, backup_days=1)
    assert cluster["deletionProtection"] is False
    assert cluster["skipFinalSnapshot"] is True
    assert "finalSnapshotIdentifier" not in cluster
    kept = cluster_of(render, deletion_protection=False)
    assert kept["skipFinalSnapshot"] is False


def test_the_log_group_is_there_before_the_cluster_and_has_its_name(render: Any) -> None:
    graph = render(make(log_retention_days=30, log_key_arn=KEY))
    cluster, [logs] = graph.one("Cluster"), graph.of("LogGroup")
    assert logs.inputs["name"] == (
        f"/aws/rds/cluster/{cluster.inputs['clusterIdentifier']}/postgresql"
    )
    assert (logs.inputs["retentionInDays"], logs.inputs["kmsKeyId"]) == (30, KEY)
    assert cluster.inputs["enabledCloudwatchLogsExports"] == ["postgresql"]
    assert logs.name in graph.needs(cluster)


def test_capacity_and_version(render: Any) -> None:
    cluster = cluster_of(render, min_capacity=2, max_capacity=16.5, engine_version="16.11")
    assert cluster["serverlessv2ScalingConfiguration"] == {"minCapacity": 2, "maxCapacity": 16.5}
    assert (cluster["engine"], cluster["engineVersion"]) == ("aurora-postgresql", "16.11")
    assert cluster["allowMajorVersionUpgrade"] is False
    wide = cluster_of(render, min_capacity=12)
    assert wide["serverlessv2ScalingConfiguration"] == {"minCapacity": 12, "maxCapacity": 12}


def test_outputs(render: Any) -> None:
    outputs = render(exported()).outputs
    assert outputs["host"].endswith(".rds.amazonaws.com")
    assert outputs["port"] == 5432
    assert outputs["master_secret_arn"].startswith("arn:aws:secretsmanager:")
    assert outputs["max_connections"] == 1669


@pytest.mark.parametrize(
    ("least", "most", "connections"),
    [
        # Aurora user guide and re:Post: show max_connections by the range of capacity.
        (0.5, 1, 189),
        (1, 4, 823),
        (1, 8, 1669),
        (1, 16, 3360),
        (0.5, 16, 2000),
        (0.5, 8, 1669),
        (1, 32, 5000),
        (8, 256, 5000),
    ],
)
def test_connections_are_those_that_aws_publishes(
    least: float, most: float, connections: int
) -> None:
    assert max_connections(least, most) == connections


@given(
    least=st.sampled_from([0.5, 1.0, 2.0]),
    steps=st.lists(st.integers(4, 512), min_size=2, max_size=2),
)
def test_more_capacity_never_takes_fewer_connections(least: float, steps: list[int]) -> None:
    low, high = sorted(step / 2 for step in steps)
    assert 1 <= max_connections(least, low) <= max_connections(least, high) <= 5000
    # Never more than the memory itself would allow: a unit is 2 GiB, a connection 9531392 bytes.
    assert max_connections(least, high) <= high * 2 * 2**30 / 9531392


def test_a_number_of_connections_can_be_set(render: Any) -> None:
    graph = render(exported(max_connections=300))
    [group] = graph.of("ClusterParameterGroup")
    assert {
        "name": "max_connections", "value": "300", "applyMethod": "pending-reboot"
    } in group.inputs["parameters"]  # fmt: skip
    assert graph.outputs["max_connections"] == 300


def test_nothing_is_made_of_a_database_that_exists(render: Any) -> None:
    graph = render(existing(OPEN))
    assert [r.type for r in graph.resources if not r.type.startswith("pulumi:")] == [
        "terrace:index:AwsDatabase"
    ]
    assert graph.outputs == {
        "host": "db.example.com",
        "port": 5432,
        "master_secret_arn": SECRET,
        "master_secret_key_arn": None,
        "max_connections": 500,
    }


def test_whoever_reads_the_secret_learns_its_key(render: Any) -> None:
    assert render(exported()).outputs["master_secret_key_arn"] == KEY
    theirs = existing({**OPEN, "master_secret_key_arn": KEY})
    assert render(theirs).outputs["master_secret_key_arn"] == KEY


def test_clients_are_let_into_its_group(render: Any) -> None:
    graph = render(existing(WITH_GROUP, CLIENTS))
    rules = graph.of("SecurityGroupIngressRule")
    assert sorted(r.inputs["referencedSecurityGroupId"] for r in rules) == CLIENTS
    assert {r.inputs["securityGroupId"] for r in rules} == {"sg-0d0d0d0d"}
    assert {r.inputs["fromPort"] for r in rules} == {5433}
    assert graph.outputs["port"] == 5433


def test_no_name_is_fixed(render: Any) -> None:
    graph = render(make())
    for resource in graph.resources:
        if resource.type.startswith("aws:") and resource.type != "aws:cloudwatch/logGroup:LogGroup":
            assert not {"name", "identifier"} & resource.inputs.keys(), resource.name
    [subnets] = graph.of("SubnetGroup")
    assert graph.one("Cluster").inputs["clusterIdentifier"].startswith(f"{subnets.name}-")


def test_a_preview_registers_all(render: Any) -> None:
    known, unknown = render(exported()), render(exported(), preview=True)
    assert sorted((r.type, r.name) for r in unknown.resources) == sorted(
        (r.type, r.name) for r in known.resources
    )
    assert unknown.outputs["max_connections"] == 1669


def test_the_component_keeps_the_contract(render: Any, snapshot: Any, house_rules: Any) -> None:
    check_component(render, snapshot, house_rules, "AwsDatabase", VARIANTS)


def test_house_rules(render: Any, house_rules: Any) -> None:
    house_rules(render(make(tags={"team": "a"})), "it", tags={"team": "a"})


def test_no_secret_is_anywhere_in_the_graph(render: Any) -> None:
    text = json.dumps([r.inputs for r in render(make()).resources]).lower()
    assert '"password' not in text
    assert '"masterpassword"' not in text


@pytest.mark.parametrize(
    ("changes", "path", "reason"),
    [
        ({"vpc_id": None}, "vpc_id", "required unless existing"),
        ({"vpc_id": "x"}, "vpc_id", "vpc-0a1b2c3d"),
        ({"subnet_ids": None}, "subnet_ids", "required unless existing"),
        ({"subnet_ids": ["subnet-0a1b2c3d"]}, "subnet_ids", "at least 2"),
        ({"key_arn": None}, "key_arn", "required unless existing"),
        ({"key_arn": "alias/x"}, "key_arn", "not of an alias"),
        ({"client_security_group_ids": []}, "client_security_group_ids", "at least one"),
        ({"client_security_group_ids": None}, "client_security_group_ids", "at least one"),
        ({"client_security_group_ids": ["10.0.0.0/8"]}, "client_security_group_ids.0", "sg-"),
        ({"engine_version": "17"}, "engine_version", "one minor version"),
        ({"engine_version": "latest"}, "engine_version", "17.7"),
        ({"engine_version": "13.9"}, "engine_version", "15 or later"),
        ({"min_capacity": 0}, "min_capacity", "pause"),
        ({"min_capacity": 1.25}, "min_capacity", "steps of 0.5"),
        ({"max_capacity": 257}, "max_capacity", "0.5 to 256"),
        ({"min_capacity": 4, "max_capacity": 2}, "max_capacity", "at least min_capacity, 4"),
        ({"min_capacity": 0.5, "max_capacity": 0.5}, "max_capacity", "at least 1"),
        ({"instances": 0}, "instances", "greater"),
        ({"instances": 17}, "instances", "less"),
        ({"max_connections": 1}, "max_connections", "greater"),
        ({"backup_days": 0}, "backup_days", "greater"),
        ({"backup_days": 36}, "backup_days", "less"),
        ({"log_retention_days": 31}, "log_retention_days", "one of"),
        ({"log_key_arn": "x"}, "log_key_arn", "KMS key"),
        ({"database_name": "Terrace"}, "database_name", "pattern"),
        ({"database_name": "rdsadmin"}, "database_name", "has already"),
        ({"zones": []}, "zones", "at least"),
        ({"final_snapshot": False}, "final_snapshot", "deletion_protection: false"),
        ({"existing": OPEN}, "vpc_id", "together with existing"),
        ({"existing": THEIRS}, "existing", "how clients get in"),
        ({"existing": {**WITH_GROUP, "open_to_cluster": True}}, "existing", "one of the two"),
        ({"existing": {**OPEN, "host": "postgres://h"}}, "existing.host", "without a scheme"),
        ({"existing": {**OPEN, "host": "h:5432"}}, "existing.host", "without a port"),
        ({"existing": {**OPEN, "port": 0}}, "existing.port", "greater"),
        ({"existing": {**OPEN, "master_secret_arn": "x"}}, "existing.master_secret_arn", "Secrets"),
        ({"existing": {**OPEN, "max_connections": 0}}, "existing.max_connections", "greater"),
        ({"existing": {**OPEN, "security_group_id": "x"}}, "existing.security_group_id", "sg-"),
        ({"existing": {**OPEN, "user": "x"}}, "existing.user", "master_secret_arn"),
        ({"password": "x"}, "password", "engine_version"),
    ],
)
def test_nonsense_is_refused_by_name(
    refused: Any, changes: dict[str, Any], path: str, reason: str
) -> None:
    assert reason in refused(make(**changes), path)


@pytest.mark.parametrize(
    ("theirs", "clients", "reason"),
    [
        (OPEN, CLIENTS, "no security_group_id"),
        (WITH_GROUP, None, "who is let in"),
        (WITH_GROUP, [], "who is let in"),
    ],
)
def test_clients_of_a_database_that_exists(
    refused: Any, theirs: dict[str, Any], clients: list[str] | None, reason: str
) -> None:
    assert reason in refused(existing(theirs, clients), "client_security_group_ids")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("engine_version", "17.7"),
        ("min_capacity", 1),
        ("max_capacity", 8),
        ("instances", 2),
        ("max_connections", 100),
        ("database_name", "terrace"),
        ("backup_days", 14),
        ("log_retention_days", 90),
        ("deletion_protection", False),
        ("final_snapshot", True),
    ],
)
def test_an_existing_database_keeps_its_own_settings(key: str, value: Any) -> None:
    with pytest.raises(pulumi.InputPropertyError) as raised:
        DatabaseSettings.of({"existing": OPEN, key: value})
    assert raised.value.property_path == key
    assert "existing" in raised.value.reason
