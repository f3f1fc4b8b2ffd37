"""Every pod that stage 1 makes: what it may be and may do."""

from collections.abc import Callable
from typing import Any

import pytest

CALLS_THE_KUBERNETES_API = {"terrace-foundation/secret-bootstrap"}
CHANGES_AN_OWNER = "own-volume"


@pytest.fixture
def workloads(render: Any, stage_one: Callable[[], None]) -> list[Any]:
    found = render(stage_one).pods()
    assert len(found) == 5
    return found


def test_pods_are_non_root_with_the_default_seccomp_profile(workloads: list[Any]) -> None:
    for workload in workloads:
        security = workload.pod["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] == security["runAsGroup"] == security["fsGroup"] == 10001
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        for forbidden in ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"):
            assert forbidden not in workload.pod


def test_containers_are_read_only_without_capabilities(workloads: list[Any]) -> None:
    for workload in workloads:
        for container in workload.containers:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"]["drop"] == ["ALL"]
            assert "privileged" not in security
            if container["name"] == CHANGES_AN_OWNER:
                assert security["capabilities"]["add"] == ["CHOWN"]
                continue
            assert "add" not in security["capabilities"]
            assert not {"runAsUser", "runAsNonRoot"} & set(security)


def test_a_root_container_lives_only_where_the_namespace_allows_it(
    render: Any, stage_one: Callable[[], None]
) -> None:
    graph = render(stage_one)
    level = {
        r.inputs["metadata"]["name"]: r.inputs["metadata"]["labels"][
            "pod-security.kubernetes.io/enforce"
        ]
        for r in graph.of("Namespace")
    }
    with_root = {
        w.inputs["metadata"]["namespace"]
        for w in graph.pods()
        if any(c["name"] == CHANGES_AN_OWNER for c in w.containers)
    }
    assert {name for name, value in level.items() if value == "baseline"} == with_root
    assert set(level.values()) == {"baseline", "restricted"}


def test_only_those_that_call_the_api_have_a_token(workloads: list[Any]) -> None:
    with_token = {w.object_name for w in workloads if w.pod["automountServiceAccountToken"]}
    assert with_token == CALLS_THE_KUBERNETES_API


def test_each_workload_has_its_own_service_account(workloads: list[Any]) -> None:
    accounts = {(w.inputs["metadata"]["namespace"], w.pod["serviceAccountName"]) for w in workloads}
    assert len(accounts) == len(workloads)
    assert "default" not in {name for _, name in accounts}


def test_resources_are_bounded(workloads: list[Any]) -> None:
    for workload in workloads:
        for container in workload.containers:
            resources = container["resources"]
            assert set(resources["requests"]) == {"cpu", "memory"}
            assert set(resources["limits"]) == {"memory"}


def test_what_runs_on_is_probed(workloads: list[Any]) -> None:
    for workload in workloads:
        if workload.type.endswith(":Job"):
            continue
        for container in workload.pod["containers"]:
            assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container)


def test_no_value_of_a_secret_is_in_an_environment(workloads: list[Any]) -> None:
    for workload in workloads:
        for container in workload.containers:
            for entry in container.get("env", []):
                word = entry["name"].lower()
                if word.endswith("_file"):  # where one is, not what it is
                    assert entry["value"].startswith("/run/secrets/terrace/"), entry["name"]
                    continue
                if any(part in word for part in ("key", "password", "token", "secret")):
                    assert "value" not in entry or entry["name"] == "SECRETS_SPEC", entry["name"]


def test_images_are_content_addressed_and_never_fetched_again(workloads: list[Any]) -> None:
    for workload in workloads:
        for container in workload.containers:
            assert container["imagePullPolicy"] == "IfNotPresent"
            assert container["image"].endswith(":0123456789abcdef")


def test_secret_files_are_for_the_pods_group_only(workloads: list[Any]) -> None:
    modes = [
        volume["secret"]["defaultMode"]
        for workload in workloads
        for volume in workload.pod["volumes"]
        if "secret" in volume
    ]
    assert modes
    assert set(modes) == {0o440}


def test_every_mount_has_its_volume(workloads: list[Any]) -> None:
    for workload in workloads:
        volumes = [volume["name"] for volume in workload.pod["volumes"]]
        claims = workload.inputs["spec"].get("volumeClaimTemplates", [])
        volumes += [claim["metadata"]["name"] for claim in claims]
        assert len(volumes) == len(set(volumes))
        mounted = {m["name"] for c in workload.containers for m in c["volumeMounts"]}
        assert mounted == set(volumes)


def test_labels_select_the_pods_that_carry_them(workloads: list[Any]) -> None:
    for workload in workloads:
        labels = workload.inputs["spec"]["template"]["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "terrace"
        assert {"app.kubernetes.io/component", "terrace.dev/layer"} <= set(labels)
        if not workload.type.endswith(":Job"):
            selector = workload.inputs["spec"]["selector"]["matchLabels"]
            assert selector == {"app.kubernetes.io/name": labels["app.kubernetes.io/name"]}
