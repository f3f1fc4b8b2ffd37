"""The stack on somebody's cluster: the committed settings, what they make, what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml

from terrace_secret_bootstrap.spec import parse

ROOT = Path(__file__).resolve().parents[2]
STACK = "existing"
GIVEN = yaml.safe_load((ROOT / f"Pulumi.{STACK}.yaml").read_text())["config"]
Change = Callable[..., Any]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person's home with a kubeconfig that has the context of the committed settings."""
    kubeconfig = tmp_path / ".kube" / "config"
    kubeconfig.parent.mkdir()
    kubeconfig.write_text(yaml.safe_dump({"contexts": [{"name": "other"}, {"name": "my-cluster"}]}))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def graph_of(render: Any, stack_program: Any, home: Path) -> Change:
    """``graph_of(existing={...}, **keys)``: the graph with keys of ``terrace:existing`` changed."""

    def run(*, preview: bool = False, existing: dict[str, Any] | None = None, **keys: Any) -> Any:
        cluster = {
            key: value
            for key, value in (GIVEN["terrace:existing"] | (existing or {})).items()
            if value is not None
        }
        program = stack_program(STACK, existing=cluster, **keys)
        return render(program, stack=STACK, preview=preview)

    return run


def refused(graph_of: Change, **changes: Any) -> str:
    with pytest.raises(pulumi.RunError) as raised:
        graph_of(**changes)
    message = str(raised.value)
    assert message.startswith(f"Pulumi.{STACK}.yaml: terrace:")
    assert "\n" not in message
    return message.removeprefix(f"Pulumi.{STACK}.yaml: ")


def test_the_graph_is_the_recorded_one(graph_of: Change, snapshot: Any, home: Path) -> None:
    rows = json.loads(json.dumps(graph_of().rows()).replace(str(home), "~"))
    snapshot(f"stage-1-{STACK}", rows)


def test_a_preview_registers_the_same_resources(graph_of: Change) -> None:
    known, unknown = graph_of(), graph_of(preview=True)
    assert {(r.type, r.name) for r in unknown.resources} == {
        (r.type, r.name) for r in known.resources
    }


def test_the_cluster_is_the_named_context_of_the_kubeconfig(graph_of: Change, home: Path) -> None:
    graph = graph_of()
    provider = graph.one("kubernetes")
    assert provider.inputs["kubeconfig"] == str(home / ".kube" / "config")
    assert provider.inputs["context"] == "my-cluster"
    assert provider.inputs["clusterIdentifier"] == "existing-my-cluster"
    # Objects of this name that are there are somebody else's: they are not taken over.
    assert provider.inputs["upsertExistingObjects"] in {"false", False}
    assert {r.provider for r in graph.resources if r.custom and r is not provider} == {"cluster"}


def test_without_exposure_nothing_is_open_on_the_nodes(graph_of: Change) -> None:
    graph = graph_of()
    assert all(s.inputs["spec"].get("type") != "NodePort" for s in graph.of("Service"))
    assert graph.outputs["gateway_url"] == "http://gateway.terrace-gateway:8080"
    assert graph.outputs["admin_url"] == "http://gateway-admin.terrace-gateway:8081"
    assert any("port-forward service/gateway-admin" in step for step in graph.outputs["next_steps"])
    assert any("admin-key" in step for step in graph.outputs["next_steps"])


def test_node_ports_are_those_that_were_asked_for(graph_of: Change) -> None:
    exposure = {"address": "192.0.2.10", "nodePorts": {"gateway": 31400}}
    graph = graph_of(existing={"exposure": exposure})
    open_ports = {
        s.object_name: s.inputs["spec"]["ports"][0]["nodePort"]
        for s in graph.of("Service")
        if s.inputs["spec"].get("type") == "NodePort"
    }
    assert open_ports == {"terrace-gateway/gateway": 31400}
    assert graph.outputs["gateway_url"] == "http://192.0.2.10:31400"


def test_volumes_are_of_the_storage_class(graph_of: Change) -> None:
    graph = graph_of()
    assert not [v for v in graph.of("PersistentVolume") if v.custom]
    claims = graph.of("PersistentVolumeClaim")
    assert {c.inputs["spec"]["storageClassName"] for c in claims} == {"standard"}


def test_volumes_are_directories_of_a_node(graph_of: Change) -> None:
    graph = graph_of(existing={"storage": {"node": "node-1", "path": "/srv/terrace"}})
    volumes = [v for v in graph.of("PersistentVolume") if v.custom]
    paths = {v.inputs["spec"]["hostPath"]["path"] for v in volumes}
    assert paths == {
        "/srv/terrace/postgres",
        "/srv/terrace/model-simulator",
        "/srv/terrace/gateway-spool/0",
        "/srv/terrace/gateway-spool/1",
    }


def test_images_are_the_stacks_own(graph_of: Change) -> None:
    used = {c["image"] for pod in graph_of().pods() for c in pod.containers}
    assert used == set(GIVEN["terrace:images"].values())


def test_evaluation_is_small_and_production_is_what_litellm_asks_for(graph_of: Change) -> None:
    def translator(**changes: Any) -> dict[str, Any]:
        pod = graph_of(**changes).one("StatefulSet", "terrace-gateway/gateway")
        [found] = [c for c in pod.containers if c["name"] == "translator"]
        return found["resources"]["requests"]

    assert translator() == {"cpu": "150m", "memory": "450Mi"}
    assert translator(existing={"sizes": "production"}) == {"cpu": "1", "memory": "4Gi"}


def test_the_api_server_keeps_the_rules_in_production(graph_of: Change) -> None:
    assert not graph_of().of("ValidatingAdmissionPolicy")
    exposure = {"address": "192.0.2.10", "nodePorts": {"gateway": 31400}}
    graph = graph_of(existing={"sizes": "production", "exposure": exposure})
    policies = graph.of("ValidatingAdmissionPolicy")
    assert len(policies) > 10
    text = json.dumps([p.inputs for p in policies])
    assert "31400" in text
    assert "registry.example.com/terrace/gateway:" in text  # a tag that never moves, it was said
    for workload in graph.pods():
        assert {p.name for p in policies} <= graph.needs(workload) | {
            p.name for p in policies if p.parent in graph.needs(workload)
        }


def test_an_autoscaler_only_with_more_than_the_least(graph_of: Change) -> None:
    assert not graph_of().of("HorizontalPodAutoscaler")
    graph = graph_of(gateway={"minReplicas": 2, "maxReplicas": 5})
    spec = graph.one("HorizontalPodAutoscaler").inputs["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 5)


def test_provider_keys_are_copied_from_the_users_secret(graph_of: Change) -> None:
    graph = graph_of(
        providerSecrets={
            "OPENAI_API_KEY": {"secret": "mine/llm", "key": "openai"},
            "COHERE_API_KEY": {"secret": "mine/llm", "key": "cohere"},
        }
    )
    [entry] = graph.one("Job").pod["containers"][0]["env"]
    recipes = {f"{s.namespace}/{s.name}" for s in parse(entry["value"])}
    assert "mine/llm" in recipes
    [kept] = [s for s in json.loads(entry["value"]) if s["name"] == "provider-credentials"]
    assert kept["data"]["openai-api-key"] == {"copy": "mine/llm/openai"}
    assert kept["data"]["simulator-api-key"]  # the simulated ones are still there


def test_a_given_database_takes_the_place_of_the_one_in_the_cluster(graph_of: Change) -> None:
    database = {
        "host": "postgres.example.com",
        "cidr": "192.0.2.20/32",
        "adminSecret": "databases/postgres-admin",
    }
    graph = graph_of(existing={"database": database})
    assert [r.object_name for r in graph.of("StatefulSet")] == ["terrace-gateway/gateway"]
    assert "terrace-foundation/database-role" in {j.object_name for j in graph.of("Job")}
    gateway = graph.one("NetworkPolicy", "terrace-gateway/gateway")
    assert {
        "to": [{"ipBlock": {"cidr": "192.0.2.20/32"}}],
        "ports": [{"protocol": "TCP", "port": 5432}],
    } in gateway.inputs["spec"]["egress"]
    job = graph.one("Job", "terrace-foundation/secret-bootstrap")
    [entry] = [e for e in job.pod["containers"][0]["env"] if e["name"] == "SECRETS_SPEC"]
    recipes = json.loads(entry["value"])
    assert parse(entry["value"])
    named = [f"{r['namespace']}/{r['name']}" for r in recipes]
    assert len(named) == len(set(named))
    assert named[:2] == ["databases/postgres-admin", "terrace-foundation/database-admin"]
    assert recipes[1]["data"]["password"] == {"copy": "databases/postgres-admin/password"}
    assert "@postgres.example.com:5432/terrace" in entry["value"]


def test_a_kubeconfig_that_is_not_there(graph_of: Change) -> None:
    message = refused(graph_of, existing={"kubeconfig": "/nowhere/config"})
    assert message == (
        "terrace:existing.kubeconfig: /nowhere/config cannot be read: No such file or directory"
    )


@pytest.mark.parametrize("content", ["", "[]", "a: b", "contexts: 3", "\x01"])
def test_a_file_that_is_no_kubeconfig(graph_of: Change, home: Path, content: str) -> None:
    (home / ".kube" / "config").write_text(content)
    assert "is not a kubeconfig" in refused(graph_of)


def test_a_context_that_is_not_there_lists_those_that_are(graph_of: Change) -> None:
    message = refused(graph_of, existing={"context": "mycluster"})
    assert "has no context 'mycluster'; it has: other, my-cluster" in message


def test_a_certificate_file_is_read_and_looked_at(graph_of: Change, tmp_path: Path) -> None:
    assert "cannot read" in refused(graph_of, databaseCaFile="nowhere.pem")
    (tmp_path / "ca.pem").write_text("hello")
    assert "has no certificate" in refused(graph_of, databaseCaFile=str(tmp_path / "ca.pem"))
