"""The Job that makes the guard's role on a managed server: who reads what, who is reached."""

import json
from collections.abc import Callable
from typing import Any

import pulumi
import pytest

from terrace_components import DatabaseRole

ARN = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:rds!cluster-AbCdEf"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
LEAST: dict[str, Any] = {
    "namespace": "terrace-foundation",
    "image": "gateway:1",
    "host": "db.example.com",
    "database_address": {"cidr": "10.20.0.0/16", "port": 5433},
}
FROM_AWS = {**LEAST, "admin_secret_arn": ARN, "secret_bootstrap_image": "secret-bootstrap:1"}
IN_CLUSTER = {**LEAST, "admin_secret": "database-admin"}


def role(args: dict[str, Any], **more: Any) -> Callable[[], None]:
    return lambda: DatabaseRole("it", {**args, **more}) and None  # type: ignore[arg-type]


def environment(container: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in container["env"]}


@pytest.fixture
def job(render: Any) -> Callable[..., Any]:
    return lambda args, **more: render(role(args, **more)).one("Job")


def test_it_runs_the_guards_program_against_the_server(job: Any) -> None:
    [container] = job(IN_CLUSTER).pod["containers"]
    assert container["command"] == ["python", "-m", "terrace_gateway.database_role"]
    assert environment(container) == {
        "TERRACE_DATABASE_HOST": "db.example.com",
        "TERRACE_DATABASE_PORT": "5433",
        "TERRACE_DATABASE_SSLMODE": "require",
    }


def test_with_certificates_the_server_is_verified(render: Any) -> None:
    graph = render(role(IN_CLUSTER, database_ca=CERTIFICATE))
    [container] = graph.one("Job").pod["containers"]
    assert environment(container)["TERRACE_DATABASE_SSLMODE"] == "verify-full"
    path = environment(container)["TERRACE_DATABASE_SSLROOTCERT"]
    [mount] = [m for m in container["volumeMounts"] if m["name"] == "certificates"]
    assert path == f"{mount['mountPath']}/ca.pem"
    [config_map] = graph.of("ConfigMap")
    assert config_map.inputs["data"] == {"ca.pem": CERTIFICATE}
    [volume] = [v for v in graph.one("Job").pod["volumes"] if v["name"] == "certificates"]
    assert volume["configMap"]["name"] == config_map.inputs["metadata"]["name"]


@pytest.mark.parametrize(("args", "policy"), [(FROM_AWS, "Never"), (IN_CLUSTER, "OnFailure")])
def test_an_attempt_with_an_identity_is_a_new_pod(
    job: Any, args: dict[str, Any], policy: str
) -> None:
    assert job(args).pod["restartPolicy"] == policy


def test_secrets_are_files_and_no_variables(job: Any) -> None:
    for args in (IN_CLUSTER, FROM_AWS):
        made = job(args)
        for container in made.containers:
            assert not [entry for entry in container["env"] if "valueFrom" in entry]
        [volume] = [v for v in made.pod["volumes"] if v["name"] == "gateway"]
        # The Secret may hold a superuser's password too: only this key is given.
        assert [item["key"] for item in volume["secret"]["items"]] == ["gateway-password"]
        [container] = made.pod["containers"]
        mounts = {m["name"]: m for m in container["volumeMounts"]}
        assert mounts["gateway"]["readOnly"] is True
        assert mounts["admin"]["readOnly"] is True


def test_the_administrators_secret_of_aws_stays_in_memory(job: Any) -> None:
    made = job(FROM_AWS)
    [fetch] = made.pod["initContainers"]
    assert fetch["command"] == ["python3", "-m", "terrace_secret_bootstrap.fetch"]
    assert json.loads(environment(fetch)["FETCH_SPEC"]) == {
        "username": {"arn": ARN, "json_key": "username"},
        "password": {"arn": ARN, "json_key": "password"},
    }
    [volume] = [v for v in made.pod["volumes"] if v["name"] == "admin"]
    assert volume["emptyDir"]["medium"] == "Memory"
    [container] = made.pod["containers"]
    paths = {
        c["name"]: m["mountPath"]
        for c in (fetch, container)
        for m in c["volumeMounts"]
        if m["name"] == "admin"
    }
    assert set(paths.values()) == {environment(fetch)["FETCH_DIRECTORY"]}
    assert len(paths) == 2


def test_a_secret_of_the_cluster_needs_no_init_container(job: Any) -> None:
    made = job(IN_CLUSTER)
    assert "initContainers" not in made.pod
    [volume] = [v for v in made.pod["volumes"] if v["name"] == "admin"]
    assert volume["secret"]["secretName"] == "database-admin"


def test_the_arn_may_be_another_resources_output(render: Any, job: Any) -> None:
    def program() -> None:
        role(FROM_AWS, admin_secret_arn=pulumi.Output.from_input(ARN))()

    assert render(program).one("Job").inputs == job(FROM_AWS).inputs


def test_it_reaches_the_server_and_what_it_needs_of_aws(render: Any) -> None:
    def ranges(args: dict[str, Any], **more: Any) -> set[tuple[str, int]]:
        rules = render(role(args, **more)).one("NetworkPolicy").inputs["spec"]["egress"]
        return {
            (peer["ipBlock"]["cidr"], rule["ports"][0]["port"])
            for rule in rules
            for peer in rule["to"]
            if "ipBlock" in peer
        }

    assert ranges(IN_CLUSTER) == {("10.20.0.0/16", 5433)}
    of_aws = {("169.254.170.23/32", 80), ("fd00:ec2::23/128", 80), ("0.0.0.0/0", 443)}
    assert ranges(FROM_AWS) == ranges(IN_CLUSTER) | of_aws
    endpoint = [{"cidr": "10.20.0.0/16", "port": 443}]
    assert ranges(FROM_AWS, extra_egress=endpoint) == ranges(FROM_AWS) | {("10.20.0.0/16", 443)}


def test_nothing_is_let_in_and_no_token_is_given(render: Any) -> None:
    graph = render(role(FROM_AWS))
    assert graph.one("NetworkPolicy").inputs["spec"]["ingress"] == []
    assert graph.one("Job").pod["automountServiceAccountToken"] is False
    assert graph.one("Job").pod["serviceAccountName"] == "database-role"


def test_a_changed_job_takes_the_place_of_the_old_one(job: Any) -> None:
    assert job(IN_CLUSTER).options["deleteBeforeReplace"] is True
    assert job(IN_CLUSTER).inputs["spec"]["backoffLimit"] > 0
