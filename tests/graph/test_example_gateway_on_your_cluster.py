"""examples/gateway-on-your-cluster: the program runs with the configuration that it ships."""

import json
import runpy
from pathlib import Path
from typing import Any

import pulumi
import yaml

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "gateway-on-your-cluster"


def program() -> None:
    shipped = yaml.safe_load((EXAMPLE / "Pulumi.dev.yaml").read_text())["config"]
    project = yaml.safe_load((EXAMPLE / "Pulumi.yaml").read_text())["name"]
    for key, value in shipped.items():
        assert key.startswith(f"{project}:")
        # The program reads the keys of its own project; under mocks that is "terrace".
        pulumi.runtime.set_config(key.replace(project, "terrace", 1), json.dumps(value))
    runpy.run_path(str(EXAMPLE / "__main__.py"), run_name="__main__")


def test_it_builds_the_gateway_on_any_cluster(render: Any) -> None:
    graph = render(program)
    gateway = graph.one("StatefulSet", "terrace-gateway/gateway")
    assert {c["image"] for c in gateway.containers} == {
        "registry.example.com/terrace/gateway:0.1.0",
        "registry.example.com/terrace/translator:0.1.0",
    }
    assert graph.outputs == {"gateway": "http://gateway.terrace-gateway:8080"}
    assert graph.one("StatefulSet", "terrace-foundation/postgres").name in graph.needs(gateway)


def test_its_pods_reach_the_provider_that_its_spec_names(render: Any) -> None:
    [policy] = [
        r.inputs["spec"]
        for r in render(program).of("NetworkPolicy")
        if r.object_name == "terrace-gateway/gateway"
    ]
    ports = [
        port["port"]
        for rule in policy["egress"]
        for peer in rule["to"]
        if "ipBlock" in peer
        for port in rule["ports"]
    ]
    assert ports == [443]


def test_its_preview_works_before_anything_exists(render: Any) -> None:
    assert render(program, preview=True).one("StatefulSet", "terrace-gateway/gateway")


def test_it_stays_a_short_program() -> None:
    lines = (EXAMPLE / "__main__.py").read_text().splitlines()
    assert len([line for line in lines if line.strip()]) <= 60
