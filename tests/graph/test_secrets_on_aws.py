"""Secrets whose values come from AWS: what the Job may do and reach, and what state never sees."""

import json
from collections.abc import Callable
from typing import Any

import pulumi
import pytest

from terrace_components import SecretBootstrap, aws_gateway_secrets, gateway_secrets

ARN = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:rds!cluster-0a1b-AbCdEf"
PROVIDER_KEY = {
    "namespace": "terrace-gateway",
    "name": "provider-credentials",
    "data": {"example-api-key": {"secrets_manager": {"arn": ARN, "json_key": "key"}}},
}
OWN = {"namespace": "theirs", "name": "their-own", "data": {"key": {"existing": True}}}
COPY = {"namespace": "ours", "name": "copied", "data": {"key": {"copy": "theirs/their-own/key"}}}
MADE = {"namespace": "ours", "name": "made", "data": {"key": {"random_hex": 32}}}


def bootstrap(*secrets: dict[str, Any], **more: Any) -> Callable[[], None]:
    args: Any = {
        "namespace": "terrace-foundation",
        "image": "secret-bootstrap:1",
        "secrets": list(secrets),
        "kubernetes_api": {"cidr": "172.20.0.1/32", "port": 443},
        **more,
    }
    return lambda: SecretBootstrap("it", args) and None


def ranges(graph: Any) -> set[tuple[str, int]]:
    return {
        (peer["ipBlock"]["cidr"], rule["ports"][0]["port"])
        for rule in graph.one("NetworkPolicy").inputs["spec"]["egress"]
        for peer in rule["to"]
        if "ipBlock" in peer
    }


def spec(graph: Any) -> Any:
    [container] = graph.one("Job").pod["containers"]
    [entry] = [e for e in container["env"] if e["name"] == "SECRETS_SPEC"]
    return json.loads(entry["value"])


@pytest.mark.parametrize(("secret", "policy"), [(PROVIDER_KEY, "Never"), (MADE, "OnFailure")])
def test_an_attempt_with_an_identity_is_a_new_pod(
    render: Any, secret: dict[str, Any], policy: str
) -> None:
    assert render(bootstrap(secret)).one("Job").pod["restartPolicy"] == policy


def test_the_job_is_told_the_arn_and_nobody_the_value(render: Any) -> None:
    graph = render(bootstrap(PROVIDER_KEY))
    assert spec(graph) == [PROVIDER_KEY]
    assert not graph.of("Secret")


def test_the_arn_may_be_another_resources_output(render: Any) -> None:
    def program() -> None:
        source = {"arn": pulumi.Output.from_input(ARN), "json_key": "key"}
        bootstrap({**PROVIDER_KEY, "data": {"example-api-key": {"secrets_manager": source}}})()

    assert spec(render(program)) == [PROVIDER_KEY]


def test_it_reaches_aws_only_if_a_value_is_there(render: Any) -> None:
    api = ("172.20.0.1/32", 443)
    assert ranges(render(bootstrap(MADE))) == {api}
    of_aws = {("169.254.170.23/32", 80), ("fd00:ec2::23/128", 80), ("0.0.0.0/0", 443)}
    assert ranges(render(bootstrap(MADE, PROVIDER_KEY))) == {api} | of_aws
    endpoint = [{"cidr": "10.20.0.0/16", "port": 443}]
    assert ranges(render(bootstrap(PROVIDER_KEY, extra_egress=endpoint))) == {
        api, ("10.20.0.0/16", 443), *of_aws
    }  # fmt: skip


def test_a_secret_of_the_users_own_is_read_and_nothing_is_made_beside_it(render: Any) -> None:
    graph = render(bootstrap(OWN, COPY))
    roles = {r.inputs["metadata"]["namespace"]: r.inputs["rules"] for r in graph.of("Role")}
    [read] = roles["theirs"]
    assert (read["verbs"], read["resourceNames"]) == (["get"], ["their-own"])
    assert [rule["verbs"] for rule in roles["ours"]] == [["create"], ["get"]]


def test_the_pod_runs_where_it_is_told(render: Any) -> None:
    tolerations = [{"key": "CriticalAddonsOnly", "operator": "Exists"}]
    graph = render(bootstrap(MADE, scheduling={"tolerations": tolerations}))
    assert graph.one("Job").pod["tolerations"] == tolerations


@pytest.mark.parametrize(
    ("verified", "query"),
    [
        (False, "sslmode=require"),
        (True, "sslmode=verify-full&sslrootcert=/etc/terrace-database/ca.pem"),
    ],
)
def test_the_guards_url_on_aws(verified: bool, query: str) -> None:
    secrets = {
        f"{s['namespace']}/{s['name']}": s["data"]
        for s in aws_gateway_secrets("db.example.com", 5433, verified=verified)
    }
    # The administrator of a managed server is not ours to make.
    assert set(secrets["terrace-foundation/postgres-credentials"]) == {"gateway-password"}
    assert secrets["terrace-gateway/gateway-secrets"]["database-url"] == {
        "template": "postgresql://gateway:{terrace-foundation/postgres-credentials/gateway-password}"
        f"@db.example.com:5433/terrace?{query}"
    }
    local = gateway_secrets("postgres.terrace-foundation:5432")[1]["data"]
    assert {key: how for key, how in local.items() if key != "database-url"} == {
        key: how
        for key, how in secrets["terrace-gateway/gateway-secrets"].items()
        if key != "database-url"
    }
