"""The gateway's pod and how it is rolled."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from terrace_blueprints.substrates.contract import ObjectStore
from terrace_components import GovernanceGateway

STREAM_LIMIT = 600


@pytest.fixture
def replicas(render: Any, stage_one: Callable[[], None]) -> Any:
    return render(stage_one).one("StatefulSet", "terrace-gateway/gateway")


def test_the_translator_starts_before_and_ends_after_the_guard(replicas: Any) -> None:
    _, translator = replicas.pod["initContainers"]
    [guard] = replicas.pod["containers"]
    assert (guard["name"], translator["name"]) == ("guard", "translator")
    assert translator["restartPolicy"] == "Always"
    probe = translator["startupProbe"]
    assert probe["exec"]["command"] == ["/usr/bin/test", "-f", "/run/terrace/engine/ready"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 120


def test_guard_and_translator_share_one_directory_in_memory(replicas: Any) -> None:
    for container in [c for c in replicas.containers if c["name"] != "own-volume"]:
        [mount] = [m for m in container["volumeMounts"] if m["name"] == "engine"]
        assert mount["mountPath"] == "/run/terrace"
    [volume] = [v for v in replicas.pod["volumes"] if v["name"] == "engine"]
    assert volume["emptyDir"]["medium"] == "Memory"


def test_the_translator_has_no_port_and_no_secret_of_the_guard(replicas: Any) -> None:
    _, translator = replicas.pod["initContainers"]
    assert "ports" not in translator
    assert "gateway-secrets" not in {m["name"] for m in translator["volumeMounts"]}
    assert {
        e["name"]: e["valueFrom"]["secretKeyRef"]["key"]
        for e in translator["env"]
        if "valueFrom" in e
    } == {
        "AWS_ACCESS_KEY_ID": "aws-access-key-id",
        "AWS_SECRET_ACCESS_KEY": "aws-secret-access-key",
        "TERRACE_SIMULATOR_API_KEY": "simulator-api-key",
    }
    [guard] = replicas.pod["containers"]
    assert not [e for e in guard["env"] if "secretKeyRef" in e.get("valueFrom", {})]


def test_a_drain_waits_as_long_as_a_stream_may_live(replicas: Any) -> None:
    [guard] = replicas.pod["containers"]
    environment = {entry["name"]: entry.get("value") for entry in guard["env"]}
    assert environment["TERRACE_DRAIN_SECONDS"] == str(STREAM_LIMIT)
    needed = STREAM_LIMIT + int(environment["TERRACE_DRAIN_DELAY_SECONDS"])
    assert replicas.pod["terminationGracePeriodSeconds"] > needed


def test_a_roll_takes_one_replica_at_a_time(
    replicas: Any, render: Any, stage_one: Callable[[], None]
) -> None:
    spec = replicas.inputs["spec"]
    assert spec["replicas"] == 2
    assert spec["updateStrategy"] == {"type": "RollingUpdate"}
    assert spec["podManagementPolicy"] == "Parallel"
    budget = render(stage_one).one("PodDisruptionBudget").inputs["spec"]
    assert budget["minAvailable"] == 1
    assert budget["selector"] == spec["selector"]


def test_a_roll_is_waited_for_as_long_as_it_may_take(replicas: Any) -> None:
    grace = replicas.pod["terminationGracePeriodSeconds"]
    assert int(replicas.options["customTimeouts"]["update"].removesuffix("s")) > 2 * grace


def test_the_old_deployment_goes_after_the_replicas_are_ready(
    replicas: Any, render: Any, stage_one: Callable[[], None]
) -> None:
    """Pulumi deletes what a program no longer has after everything else: so no option may turn that
    around, and the Service must select the pods of both."""
    assert "deleteBeforeReplace" not in replicas.options
    [service] = [
        r for r in render(stage_one).of("Service") if r.object_name == "terrace-gateway/gateway"
    ]
    selector = service.inputs["spec"]["selector"]
    assert selector == replicas.inputs["spec"]["selector"]["matchLabels"]
    assert selector == {"app.kubernetes.io/name": "gateway"}


def test_every_replica_keeps_a_spool_of_its_own(replicas: Any) -> None:
    spec = replicas.inputs["spec"]
    [claim] = spec["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == "spool"
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert spec["persistentVolumeClaimRetentionPolicy"]["whenScaled"] == "Retain"
    [guard] = replicas.pod["containers"]
    [mount] = [m for m in guard["volumeMounts"] if m["name"] == "spool"]
    environment = {entry["name"]: entry.get("value") for entry in guard["env"]}
    assert environment["TERRACE_SPOOL_DIRECTORY"].startswith(mount["mountPath"] + "/")
    assert not [v for v in replicas.pod["volumes"] if v["name"] == "spool"]
    _, translator = replicas.pod["initContainers"]
    assert "spool" not in {m["name"] for m in translator["volumeMounts"]}


def test_a_driver_that_can_gives_a_spool_to_one_pod_alone(render: Any) -> None:
    spool = ObjectStore(ebs=True).spool("gateway-spool", "2Gi")
    replicas = render(_gateway(spool=spool)).one("StatefulSet")
    [claim] = replicas.inputs["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    assert "access_mode" not in ObjectStore(storage_class="c").spool("gateway-spool", "2Gi")


def test_on_a_node_each_possible_replica_has_a_directory(render: Any) -> None:
    spool = {"size": "1Gi", "node": "n1", "path": "/srv/spools"}
    scale = {"min_replicas": 2, "max_replicas": 4}
    graph = render(_gateway(spool=spool, autoscaling=scale))
    made = sorted(graph.of("PersistentVolume"), key=lambda r: r.name)
    volumes = [r.inputs["spec"] for r in made]
    assert [v["hostPath"]["path"] for v in volumes] == [f"/srv/spools/{n}" for n in range(4)]
    assert [v["claimRef"]["name"] for v in volumes] == [f"spool-gateway-{n}" for n in range(4)]
    assert {v["persistentVolumeReclaimPolicy"] for v in volumes} == {"Retain"}
    replicas = graph.one("StatefulSet")
    [claim] = replicas.inputs["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == ""
    # `destroy` would wait for ever for a volume that is still claimed.
    kept = replicas.inputs["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert kept == {"whenDeleted": "Delete", "whenScaled": "Retain"}
    own, _ = replicas.pod["initContainers"]
    assert own["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
    names = {r.name for r in graph.of("PersistentVolume")}
    assert names <= graph.needs(replicas)


@pytest.mark.parametrize(("spool", "expected"), [({}, None), ({"storage_class": "c"}, "c")])
def test_of_a_class_nothing_runs_as_root(
    render: Any, spool: dict[str, Any], expected: str | None
) -> None:
    graph = render(_gateway(spool=spool))
    replicas = graph.one("StatefulSet")
    [claim] = replicas.inputs["spec"]["volumeClaimTemplates"]
    assert claim["spec"].get("storageClassName") == expected  # absent: the cluster's default
    assert [c["name"] for c in replicas.pod["initContainers"]] == ["translator"]
    kept = replicas.inputs["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert kept == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert not graph.of("PersistentVolume")
    assert replicas.pod["securityContext"]["fsGroup"] == 10001


def test_the_guard_has_the_credentials_of_relayed_providers_as_files(render: Any) -> None:
    known = {"RELAYED_KEY": "relayed", "OTHER_KEY": "other"}
    pod = render(_gateway(provider_credentials=known, relay=True)).one("StatefulSet").pod
    [volume] = [v for v in pod["volumes"] if v["name"] == "relay-credentials"]
    assert volume["secret"]["items"] == [{"key": "relayed", "path": "RELAYED_KEY"}]
    [guard] = pod["containers"]
    assert "relay-credentials" in {m["name"] for m in guard["volumeMounts"]}
    plain = render(_gateway(provider_credentials=known)).one("StatefulSet").pod
    assert not [v for v in plain["volumes"] if v["name"] == "relay-credentials"]


def test_one_replica_has_no_budget_that_would_block_a_drain(render: Any) -> None:
    graph = render(_gateway(replicas=1))
    assert not graph.of("PodDisruptionBudget")


def test_metrics_are_annotated(replicas: Any) -> None:
    assert replicas.inputs["spec"]["template"]["metadata"]["annotations"] == {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": "9090",
        "prometheus.io/path": "/metrics",
    }


def test_a_changed_spec_changes_the_pods_and_an_equal_one_does_not(render: Any) -> None:
    first, same = render(_gateway()), render(_gateway())
    dearer = render(_gateway(price=2))
    other_model = render(_gateway(model="two"))
    assert first.one("StatefulSet").inputs == same.one("StatefulSet").inputs
    assert _config_maps(first) == _config_maps(same)
    # A price concerns the guard only, a model both; either way the pod template changes.
    assert _config_maps(first)["translator"] == _config_maps(dearer)["translator"]
    assert _config_maps(first)["governance"] != _config_maps(dearer)["governance"]
    assert _config_maps(first)["translator"] != _config_maps(other_model)["translator"]
    assert first.one("StatefulSet").pod != dearer.one("StatefulSet").pod


def test_config_maps_are_immutable_and_carry_the_spec(render: Any) -> None:
    graph = render(_gateway())
    for config_map in graph.of("ConfigMap"):
        assert config_map.inputs["immutable"] is True
    [translator] = [r for r in graph.of("ConfigMap") if "translator.yaml" in r.inputs["data"]]
    config = yaml.safe_load(translator.inputs["data"]["translator.yaml"])
    assert [entry["model_name"] for entry in config["model_list"]] == ["one"]
    [governance] = [r for r in graph.of("ConfigMap") if "governance.yaml" in r.inputs["data"]]
    assert governance.inputs["data"]["governance.yaml"] == _spec("one", 1)


@pytest.mark.parametrize("arn", [None, "arn:aws:kms:eu-west-1:123456789012:key/k-1"])
def test_captures_have_one_key_a_file_or_one_of_kms(render: Any, arn: str | None) -> None:
    settings = {} if arn is None else {"capture_kms_key_arn": arn}
    graph = render(_gateway(guard_settings=settings))
    [guard] = graph.one("StatefulSet").pod["containers"]
    environment = {entry["name"]: entry.get("value") for entry in guard["env"]}
    assert environment.get("TERRACE_CAPTURE_KMS_KEY_ARN") == arn
    assert ("TERRACE_CAPTURE_KEY_FILE" in environment) == (arn is None)


def test_pods_use_the_config_maps_of_their_own_content(render: Any) -> None:
    graph = render(_gateway())
    used = {
        v["configMap"]["name"] for v in graph.one("StatefulSet").pod["volumes"] if "configMap" in v
    }
    assert used == {r.inputs["metadata"]["name"] for r in graph.of("ConfigMap")}


def _config_maps(graph: Any) -> dict[str, str]:
    names = [r.inputs["metadata"]["name"] for r in graph.of("ConfigMap")]
    return {name.rpartition("-")[0]: name for name in names}


def _spec(model: str, price: int, *, relay: bool = False) -> str:
    relayed = ", relay: true, api_key_env: RELAYED_KEY" if relay else ""
    return f"""
version: 1
price_version: "1"
providers: [{{name: p, kind: openai, api_base: "http://model.elsewhere:8000/v1"{relayed}}}]
models:
  - name: {model}
    provider: p
    upstream_model: m
    context_tokens: 100
    max_output_tokens: 10
    price: {{input_micro_usd_per_mtok: {price}, output_micro_usd_per_mtok: 1}}
"""


def _gateway(
    *, model: str = "one", price: int = 1, relay: bool = False, **more: Any
) -> Callable[[], None]:
    resources: Any = {"cpu": "1", "memory": "1Gi", "memory_limit": "1Gi"}

    def program() -> None:
        GovernanceGateway(
            "gateway",
            {
                "namespace": "terrace-gateway",
                "guard_image": "guard:1",
                "translator_image": "translator:1",
                "governance": _spec(model, price, relay=relay),
                "guard_resources": resources,
                "translator_resources": resources,
                "database": {"namespace": "db", "port": 5432},
                **more,
            },
        )

    return program
