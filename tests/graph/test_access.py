"""Who may do what in the Kubernetes API."""

from collections.abc import Callable
from typing import Any

import yaml


def rules(graph: Any, name: str) -> dict[str, list[dict[str, Any]]]:
    return {
        r.inputs["metadata"]["namespace"]: r.inputs["rules"]
        for r in graph.of("Role")
        if r.inputs["metadata"]["name"] == name
    }


def test_nobody_has_rights_in_the_whole_cluster(render: Any, stage_one: Callable[[], None]) -> None:
    graph = render(stage_one)
    assert not graph.of("ClusterRole")
    assert not graph.of("ClusterRoleBinding")


def test_the_bootstrap_creates_secrets_and_reads_its_own_only(
    render: Any, stage_one: Callable[[], None]
) -> None:
    granted = rules(render(stage_one), "secret-bootstrap")
    assert set(granted) == {"terrace-foundation", "terrace-gateway", "terrace-providers"}
    for namespace, entries in granted.items():
        assert {(tuple(e["resources"]), tuple(e["verbs"])) for e in entries} == {
            (("secrets",), ("create",)),
            (("secrets",), ("get",)),
        }, namespace
        assert all(e["resourceNames"] for e in entries if "get" in e["verbs"])


def test_prometheus_has_no_rights_and_finds_pods_by_dns(
    render: Any, stage_one: Callable[[], None]
) -> None:
    graph = render(stage_one)
    assert not rules(graph, "prometheus")
    [config] = [r for r in graph.of("ConfigMap") if "prometheus.yml" in r.inputs["data"]]
    jobs = yaml.safe_load(config.inputs["data"]["prometheus.yml"])["scrape_configs"]
    looked_up = {
        (name, discovery["port"])
        for job in jobs
        for discovery in job["dns_sd_configs"]
        for name in discovery["names"]
    }
    headless = {
        (f"{r.inputs['metadata']['name']}.{r.inputs['metadata']['namespace']}", port["port"])
        for r in graph.of("Service")
        if r.inputs["spec"].get("clusterIP") == "None"
        for port in r.inputs["spec"]["ports"]
    }
    headless -= {("gateway-replicas.terrace-gateway", 8080)}  # what its StatefulSet must have
    assert looked_up == headless
    assert looked_up == {
        ("gateway-metrics.terrace-gateway", 9090),
        ("model-simulator-metrics.terrace-providers", 8080),
    }


def test_bindings_give_each_role_to_its_own_account(
    render: Any, stage_one: Callable[[], None]
) -> None:
    for binding in render(stage_one).of("RoleBinding"):
        [subject] = binding.inputs["subjects"]
        assert subject["kind"] == "ServiceAccount"
        assert subject["name"] == binding.inputs["roleRef"]["name"]
