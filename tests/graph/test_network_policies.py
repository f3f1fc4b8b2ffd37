"""Who may talk to whom in stage 1: everything is denied, then exactly this."""

from collections.abc import Callable
from typing import Any

import pytest

from terrace_components.network import NOT_THE_INTERNET, to_url

Peers = set[tuple[str, int]]


@pytest.fixture
def policies(render: Any, stage_one: Callable[[], None]) -> dict[str, Any]:
    return {r.object_name: r.inputs["spec"] for r in render(stage_one).of("NetworkPolicy")}


def peers(rules: list[dict[str, Any]], direction: str) -> Peers:
    """(who, port) for every way that a policy opens."""
    found: Peers = set()
    for rule in rules:
        for port in rule["ports"]:
            for peer in rule.get(direction, [{}]):
                found.add((_who(peer), port["port"]))
    return found


def _who(peer: dict[str, Any]) -> str:
    if not peer:
        return "anyone"
    if "ipBlock" in peer:
        return peer["ipBlock"]["cidr"]
    namespace = peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
    labels = peer.get("podSelector", {}).get("matchLabels", {})
    return f"{namespace}/{next(iter(labels.values()), '*')}"


def test_every_namespace_denies_by_default(
    render: Any, stage_one: Callable[[], None], policies: dict[str, Any]
) -> None:
    namespaces = {r.inputs["metadata"]["name"] for r in render(stage_one).of("Namespace")}
    assert namespaces == {
        "terrace-foundation",
        "terrace-gateway",
        "terrace-providers",
        "terrace-observability",
    }
    for namespace in namespaces:
        assert policies[f"{namespace}/default-deny"] == {
            "podSelector": {},
            "policyTypes": ["Ingress", "Egress"],
        }


@pytest.mark.parametrize(
    ("policy", "ingress", "egress"),
    [
        (
            "terrace-gateway/gateway",
            {("anyone", 8080), ("terrace-observability/prometheus", 9090)},
            {
                ("kube-system/kube-dns", 53),
                ("terrace-foundation/postgres", 5432),
                ("terrace-providers/*", 8080),
            },
        ),
        ("terrace-foundation/postgres", {("terrace-gateway/gateway", 5432)}, set()),
        ("terrace-foundation/secret-bootstrap", set(), {("10.89.0.1/32", 6443)}),
        (
            "terrace-providers/model-simulator",
            {("terrace-gateway/gateway", 8080), ("terrace-observability/prometheus", 8080)},
            set(),
        ),
        (
            "terrace-observability/prometheus",
            set(),
            {
                ("kube-system/kube-dns", 53),
                ("terrace-gateway/gateway", 9090),
                ("terrace-providers/model-simulator", 8080),
            },
        ),
    ],
)
def test_a_workload_opens_exactly_this(
    policies: dict[str, Any], policy: str, ingress: Peers, egress: Peers
) -> None:
    spec = policies[policy]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert spec["podSelector"]["matchLabels"]["app.kubernetes.io/name"] == policy.split("/")[1]
    assert peers(spec.get("ingress", []), "from") == ingress
    assert peers(spec.get("egress", []), "to") == egress


def test_every_workload_has_its_policy(
    render: Any, stage_one: Callable[[], None], policies: dict[str, Any]
) -> None:
    for workload in render(stage_one).pods():
        assert workload.object_name in policies


def test_nobody_but_the_node_reaches_the_admin_port(policies: dict[str, Any]) -> None:
    """Enforcers always admit the node itself, so a rule would only open it to pods."""
    ports = {
        port["port"]
        for rule in policies["terrace-gateway/gateway"]["ingress"]
        for port in rule["ports"]
    }
    assert 8081 not in ports


@pytest.mark.parametrize(
    ("url", "who", "port"),
    [
        ("http://collector.monitoring:4318", "monitoring/*", 4318),
        ("http://collector.monitoring.svc:4318/v1", "monitoring/*", 4318),
        ("http://collector.monitoring.svc.cluster.local:4318", "monitoring/*", 4318),
        ("http://192.0.2.7:9000/v1", "192.0.2.7/32", 9000),
        ("http://model-simulator.terrace-providers:8080", "terrace-providers/*", 8080),
        ("https://collector.monitoring.svc:4318", "monitoring/*", 4318),
        ("https://collector.monitoring.svc.cluster.local", "monitoring/*", 443),
        ("https://api.openai.com/v1", "0.0.0.0/0", 443),
        ("https://openrouter.ai/api/v1", "0.0.0.0/0", 443),
        ("https://example.com:8443", "0.0.0.0/0", 8443),
        ("https://192.0.2.7", "192.0.2.7/32", 443),
        ("http://models.example.com", "0.0.0.0/0", 80),
    ],
)
def test_the_way_to_a_url(url: str, who: str, port: int) -> None:
    [peer] = to_url(url)["to"]
    assert to_url(url)["ports"] == [{"protocol": "TCP", "port": port}]
    if "ip_block" in peer:
        assert peer["ip_block"]["cidr"] == who
    else:
        assert peer["namespace_selector"]["match_labels"]["kubernetes.io/metadata.name"] == (
            who.removesuffix("/*")
        )


def test_the_internet_is_not_the_cluster_nor_cloud_metadata() -> None:
    [peer] = to_url("https://api.openai.com/v1")["to"]
    assert peer["ip_block"]["except_"] == NOT_THE_INTERNET
    assert {"10.0.0.0/8", "169.254.0.0/16"} <= set(NOT_THE_INTERNET)
