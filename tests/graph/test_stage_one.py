"""The stage-1 local stack as a whole: what it is made of, in which order, and what it tells."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from terrace_secret_bootstrap.spec import parse

Program = Callable[[], None]


def test_the_graph_is_the_recorded_one(render: Any, snapshot: Any, stage_one: Program) -> None:
    snapshot("stage-1-local", render(stage_one).rows())


def test_a_preview_registers_the_same_resources(render: Any, stage_one: Program) -> None:
    """In a preview ids are unknown: no resource may hang on an ``apply``."""
    known, unknown = render(stage_one), render(stage_one, preview=True)
    assert {(r.type, r.name) for r in unknown.resources} == {
        (r.type, r.name) for r in known.resources
    }


def test_what_is_exported(render: Any, stage_one: Program) -> None:
    assert render(stage_one).outputs == {
        "stage": 1,
        "isolation": "runc",
        "gateway_url": "http://10.89.0.1:30400",
        "admin_url": "http://10.89.0.1:30401",
        "prometheus_url": "http://10.89.0.1:30490",
        "simulator_url": "http://10.89.0.1:30480",
    }


def test_every_object_belongs_to_the_named_cluster(render: Any, stage_one: Program) -> None:
    graph = render(stage_one)
    provider = graph.one("kubernetes")
    assert provider.inputs["clusterIdentifier"] == "terrace-local-0a1b2c3d"
    assert {r.provider for r in graph.resources if r.custom and r is not provider} == {"cluster"}


def test_only_the_path_of_the_kubeconfig_goes_into_state(render: Any, stage_one: Program) -> None:
    assert render(stage_one).one("kubernetes").inputs["kubeconfig"] == "/var/lib/terrace/kubeconfig"


def test_children_have_a_parent_and_carry_their_components_name(
    render: Any, stage_one: Program
) -> None:
    graph = render(stage_one)
    components = {r.name for r in graph.resources if r.type.startswith("terrace:index:")}
    for resource in graph.resources:
        if resource.type == "pulumi:providers:kubernetes":
            continue
        assert resource.parent == "terrace-local" or (
            resource.parent in components and resource.name.startswith(resource.parent)
        ), resource.name


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("StatefulSet", "terrace-foundation/postgres"),
        ("StatefulSet", "terrace-gateway/gateway"),
        ("Deployment", "terrace-providers/model-simulator"),
    ],
)
def test_secrets_are_there_before_whoever_reads_them(
    render: Any, stage_one: Program, kind: str, name: str
) -> None:
    graph = render(stage_one)
    job = graph.one("Job")
    assert job.name in graph.needs(graph.one(kind, name))


def test_a_namespace_is_closed_before_anything_runs_in_it(render: Any, stage_one: Program) -> None:
    graph = render(stage_one)
    closed = {
        r.inputs["metadata"]["namespace"]: r.name
        for r in graph.of("NetworkPolicy")
        if r.inputs["metadata"]["name"] == "default-deny"
    }
    for workload in graph.pods():
        namespace = workload.inputs["metadata"]["namespace"]
        assert closed[namespace] in graph.needs(workload), workload.name


def test_nothing_in_the_graph_is_a_secret(render: Any, stage_one: Program) -> None:
    """Secrets are born in the cluster: no Secret object, no random value, no literal password."""
    graph = render(stage_one)
    assert not graph.of("Secret")
    text = json.dumps(graph.rows())
    assert not re.search(r"tadm-[0-9a-zA-Z_-]{8}|[0-9a-f]{32}|PRIVATE KEY|AKIA[0-9A-Z]{12}", text)
    assert not re.search(r"postgresql://gateway:[^{]", text)


def test_secret_recipes_are_those_of_the_contract(render: Any, stage_one: Program) -> None:
    job = render(stage_one).one("Job")
    [entry] = job.pod["containers"][0]["env"]
    recipes = json.loads(entry["value"])
    assert entry["name"] == "SECRETS_SPEC"
    assert {f"{r['namespace']}/{r['name']}": sorted(r["data"]) for r in recipes} == {
        "terrace-foundation/postgres-credentials": ["gateway-password", "superuser-password"],
        "terrace-gateway/gateway-ledger-keys": ["capture-key", "ledger-signing-key"],
        "terrace-gateway/gateway-secrets": ["admin-key", "database-url", "key-pepper"],
        "terrace-providers/simulator-credentials": [
            "aws-access-key-id",
            "aws-secret-access-key",
            "simulator-api-key",
        ],
        "terrace-gateway/provider-credentials": [
            "aws-access-key-id",
            "aws-secret-access-key",
            "simulator-api-key",
        ],
    }
    by_name = {r["name"]: r["data"] for r in recipes}
    assert by_name["gateway-secrets"]["database-url"] == {
        "template": "postgresql://gateway:{terrace-foundation/postgres-credentials/gateway-password}"
        "@postgres.terrace-foundation:5432/terrace"
    }
    assert by_name["gateway-secrets"]["key-pepper"] == {"random_hex": 32}
    for key, recipe in by_name["provider-credentials"].items():
        assert recipe == {"copy": f"terrace-providers/simulator-credentials/{key}"}


def test_the_bootstrap_understands_the_recipes(render: Any, stage_one: Program) -> None:
    [entry] = render(stage_one).one("Job").pod["containers"][0]["env"]
    specs = parse(entry["value"])
    assert [f"{spec.namespace}/{spec.name}" for spec in specs] == [
        "terrace-foundation/postgres-credentials",
        "terrace-gateway/gateway-secrets",
        "terrace-gateway/gateway-ledger-keys",
        "terrace-providers/simulator-credentials",
        "terrace-gateway/provider-credentials",
    ]


def test_services_and_node_ports_are_those_of_the_contract(render: Any, stage_one: Program) -> None:
    services = {
        r.object_name: [(p["port"], p.get("nodePort")) for p in r.inputs["spec"]["ports"]]
        for r in render(stage_one).of("Service")
        if r.inputs["spec"].get("clusterIP") != "None"
    }
    assert services == {
        "terrace-foundation/postgres": [(5432, None)],
        "terrace-gateway/gateway": [(8080, 30400)],
        "terrace-gateway/gateway-admin": [(8081, 30401)],
        "terrace-providers/model-simulator": [(8080, 30480)],
        "terrace-observability/prometheus": [(9090, 30490)],
    }


def test_up_waits_for_pods_and_not_for_services_again(render: Any, stage_one: Program) -> None:
    graph = render(stage_one)
    skip = "pulumi.com/skipAwait"
    for service in graph.of("Service"):
        assert service.inputs["metadata"]["annotations"][skip] == "true"
    for workload in graph.pods():
        assert skip not in workload.inputs["metadata"].get("annotations", {})
