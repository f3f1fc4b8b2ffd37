"""`status` in words and as JSON: a layer that cannot be asked is a problem, never a crash."""

import json
from pathlib import Path
from typing import Any

import pytest

from terrace_cli import platform_status, tools
from terrace_cli.errors import NotRunningError
from terrace_cli.kubernetes_api import WorkloadState
from terrace_local import cluster
from terrace_local.cluster import ClusterStatus, PartStatus, Problem

from .conftest import Invoke

PARTS = (
    PartStatus("etcd", 7, 30.0, 2**20, Path("/log")),
    PartStatus("kubelet", None, None, None, Path("/log")),
)


class FakeApi:
    workloads_found: list[WorkloadState] = []  # noqa: RUF012
    troubles: list[str] = []  # noqa: RUF012

    def __enter__(self) -> "FakeApi":
        return self

    def __exit__(self, *_: object) -> None: ...

    def workloads(self, _: Any) -> list[WorkloadState]:
        return self.workloads_found

    def pod_troubles(self, _: Any) -> list[str]:
        return self.troubles


def test_a_bare_machine(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "status", lambda: ClusterStatus("absent"))
    outcome = invoke("status")
    assert outcome.code == 6
    assert "no Terrace cluster" in outcome.out
    assert "terrace up" in outcome.out


def test_a_stopped_cluster_is_not_asked_further(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "status", lambda: ClusterStatus("stopped", parts=PARTS))
    outcome = invoke("status")
    assert outcome.code == 6
    assert "Cluster: stopped" in outcome.out
    for said in ("data is kept", "`terrace up` goes on with it", "`terrace down --yes` deletes it"):
        assert said in outcome.out


@pytest.mark.usefixtures("clone")
@pytest.mark.parametrize("kept", ["etcd/member", "volumes/postgres/file", "pulumi/stack.json"])
def test_data_without_a_cluster_is_a_stopped_cluster(
    invoke: Invoke, tmp_path: Path, kept: str
) -> None:
    path = tmp_path / "state" / kept
    path.parent.mkdir(parents=True)
    outcome = invoke("status")
    assert "Cluster: absent" in outcome.out
    path.write_bytes(b"data")
    outcome = invoke("status")
    assert outcome.code == 6
    assert "Cluster: stopped" in outcome.out
    assert "no Terrace cluster" not in outcome.out
    assert json.loads(invoke("status", "--json").out)["cluster"]["state"] == "stopped"


@pytest.mark.parametrize(
    ("state", "is_told"),
    [("absent", True), ("stopped", True), ("running", False), ("degraded", False)],
)
def test_the_exports_come_with_a_word_when_nothing_runs(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, is_told: bool
) -> None:
    monkeypatch.setattr(cluster, "status", lambda: ClusterStatus(state))
    monkeypatch.setattr(tools, "bin_directory", lambda: tmp_path)
    outcome = invoke("env")
    assert outcome.code == 0
    assert all(line.startswith("export ") for line in outcome.out.splitlines())
    assert f"export KUBECONFIG={tmp_path}/state/kubeconfig" in outcome.out
    said = "there is no running cluster; `terrace up` makes one\n"
    first, rest = outcome.err.split("\n", 1)
    assert "wins over `pulumi login` in this shell" in first
    assert "for stacks on aws or existing open a new shell" in first
    assert rest == (said if is_told else "")


def test_a_dead_part_is_named_and_the_rest_still_asked(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem("kubelet", "ended (it was pid 9)", "run `terrace up`")
    found = ClusterStatus("degraded", parts=PARTS, problems=(problem,), holder="the clone at /c")
    monkeypatch.setattr(cluster, "status", lambda: found)

    def gone() -> FakeApi:
        raise NotRunningError("The API server does not answer")

    monkeypatch.setattr(platform_status, "KubernetesApi", gone)
    outcome = invoke("status")
    assert outcome.code == 6
    for said in ("kubelet: ended", "does not run", "runs, pid 7", "/c", "The API server does not"):
        assert said in outcome.out
    document = json.loads(invoke("status", "--json").out)
    assert document["well"] is False
    assert document["cluster"]["parts"][0] == {
        "name": "etcd",
        "pid": 7,
        "running_seconds": 30.0,
        "resident_bytes": 2**20,
    }


def test_a_workload_that_is_not_ready_is_said_with_its_reason(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Api(FakeApi):
        workloads_found = [  # noqa: RUF012
            WorkloadState(kind="Deployment", namespace="n", name="gateway", wanted=2, ready=1)
        ]
        troubles = ["container guard of n/gateway-1 waits: CrashLoopBackOff"]  # noqa: RUF012

    monkeypatch.setattr(cluster, "status", lambda: ClusterStatus("running", parts=PARTS))
    monkeypatch.setattr(platform_status, "KubernetesApi", Api)
    outcome = invoke("status")
    assert outcome.code == 6
    assert "Deployment n/gateway: 1 of 2 ready" in outcome.out
    assert "CrashLoopBackOff" in outcome.out
