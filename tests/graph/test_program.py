"""`blueprints/__main__.py`: what a person sees when the configuration is wrong."""

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulumi
import pytest

from terrace_common.names import IMAGES
from terrace_common.substrate import LocalSubstrateFile

ROOT = Path(__file__).resolve().parents[2]
Configure = Callable[..., Callable[[], None]]


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configure:
    """The program with this configuration, on a cluster that has published its facts."""
    substrate = LocalSubstrateFile(
        kubeconfig=str(tmp_path / "kubeconfig"),
        cluster_identifier="terrace-local-0a1b2c3d",
        images={name: f"terrace.local/{name}:0123456789abcdef" for name in IMAGES},
    )
    (tmp_path / "substrate.json").write_text(substrate.model_dump_json())
    monkeypatch.chdir(ROOT / "blueprints")  # as the language host does

    def configure(**terrace: str) -> Callable[[], None]:
        given = {"substrateFile": str(tmp_path / "substrate.json")} | terrace
        monkeypatch.setenv(
            "PULUMI_CONFIG", json.dumps({f"terrace:{key}": v for key, v in given.items()})
        )

        def program() -> None:
            runpy.run_path(str(ROOT / "blueprints" / "__main__.py"), run_name="__main__")

        return program

    return configure


def refused(render: Any, program: Callable[[], None]) -> str:
    with pytest.raises(pulumi.RunError) as raised:
        render(program)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__
    return str(raised.value)


def test_it_builds_the_recorded_stage_one(render: Any, configured: Configure) -> None:
    graph = render(configured(stage="1", substrate="local"))
    assert graph.outputs["gateway_url"] == "http://10.89.0.1:30400"
    assert len(graph.pods()) == 5


def test_an_unknown_key_is_one_line(render: Any, configured: Configure) -> None:
    message = refused(render, configured(stag="1"))
    assert message.startswith("Pulumi.local.yaml: unknown key 'terrace:stag'")
    assert "\n" not in message


def test_no_cluster_is_one_line(render: Any, configured: Configure, tmp_path: Path) -> None:
    message = refused(render, configured(substrateFile=str(tmp_path / "none.json")))
    assert "the local cluster is not running" in message
    assert "\n" not in message


def test_a_governance_file_is_found_from_the_projects_folder(
    render: Any, configured: Configure
) -> None:
    example = "examples/gateway-on-your-cluster/governance.yaml"
    graph = render(configured(governanceFile=example))
    [config_map] = [r for r in graph.of("ConfigMap") if "governance.yaml" in r.inputs["data"]]
    assert config_map.inputs["data"]["governance.yaml"] == (ROOT / example).read_text()


def test_a_governance_file_that_is_not_there(render: Any, configured: Configure) -> None:
    message = refused(render, configured(governanceFile="nowhere.yaml"))
    assert "terrace:governanceFile: cannot read" in message
    assert message.count("nowhere.yaml") == 1
    assert message.endswith("nowhere.yaml: No such file or directory")


def test_a_wrong_governance_file_names_file_and_line(
    render: Any, configured: Configure, tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("version: 1\nprice_version: '1'\nprovidrs: []\n")
    message = refused(render, configured(governanceFile=str(path)))
    assert f"{path}:3: unknown key 'providrs'" in message


def test_traces_go_where_the_stack_says(render: Any, configured: Configure) -> None:
    graph = render(configured(otlpEndpoint="http://collector.monitoring:4318"))
    [guard] = graph.one("StatefulSet", "terrace-gateway/gateway").pod["containers"]
    assert {
        "name": "OTEL_EXPORTER_OTLP_ENDPOINT",
        "value": "http://collector.monitoring:4318",
    } in guard["env"]
