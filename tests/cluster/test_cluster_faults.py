"""kill -9 of anything, in any order, and the cluster comes back or goes away for good."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import cluster_child
import pytest
import trial_pods

from terrace_local import cluster
from terrace_local.cluster import cgroups
from terrace_local.cluster.files import read_json, write_json
from terrace_local.cluster.parts import PARTS
from terrace_local.cluster.processes import start_time

pytestmark = pytest.mark.fault


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while start_time(pid) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def pids(paths: cluster.Paths) -> dict[str, int]:
    return {part.name: part.pid for part in cluster.status(paths=paths).parts if part.pid}


@pytest.mark.parametrize("part", PARTS)
def test_a_killed_part_is_named_and_started_again(
    part: str, running: cluster.ClusterInfo, paths: cluster.Paths, binaries: Path
) -> None:
    before = pids(paths)
    kill(before[part])
    found = cluster.status(paths=paths)
    assert found.state == "degraded"
    assert f"{part}: ended (it was pid {before[part]})" in "\n".join(str(p) for p in found.problems)
    info = cluster.up(binaries, progress=print, paths=paths)
    # Those two end themselves when the API server is away for longer than their lease.
    leaders = {"kube-controller-manager", "kube-scheduler"}
    others = leaders if part in {"kube-apiserver", "etcd"} else set[str]()
    assert {part} <= set(info.started) <= {part} | others
    after = pids(paths)
    assert {name: pid for name, pid in after.items() if name not in info.started} == {
        name: pid for name, pid in before.items() if name not in info.started
    }
    assert cluster.status(paths=paths).problems == ()


def test_pods_live_through_the_death_of_every_part(
    running: cluster.ClusterInfo, paths: cluster.Paths, binaries: Path, kubectl: Any, tmp_path: Path
) -> None:
    references = trial_pods.load_trial_images(paths, binaries, tmp_path)
    kubectl("apply", "-f", "-", text=trial_pods.trial_manifests(references))
    kubectl(
        "-n", trial_pods.NAMESPACE, "wait", "--for=condition=Ready", "pod/client", "--timeout=90s"
    )
    identity = kubectl(
        "-n", trial_pods.NAMESPACE, "get", "pod", "client", "-o", "jsonpath={.metadata.uid}"
    )
    for pid in pids(paths).values():
        kill(pid)
    assert cluster.status(paths=paths).state == "stopped"
    info = cluster.up(binaries, progress=print, paths=paths)
    assert set(info.started) == set(PARTS)
    assert info.cluster_identifier == running.cluster_identifier
    shown = kubectl(
        "-n",
        trial_pods.NAMESPACE,
        "get",
        "pod",
        "client",
        "-o",
        "jsonpath={.metadata.uid} {.status.containerStatuses[0].restartCount}",
    )
    assert shown == f"{identity} 0"


def test_up_after_everything_was_killed_containers_and_all(
    running: cluster.ClusterInfo, paths: cluster.Paths, binaries: Path, kubectl: Any
) -> None:
    kubectl("create", "configmap", f"kept-{time.time_ns()}")
    assert cgroups.kill_all()
    info = cluster.up(binaries, progress=print, paths=paths)
    assert info.cluster_identifier == running.cluster_identifier
    assert "kept-" in kubectl("get", "configmaps")
    assert cluster.status(paths=paths).problems == ()


def test_a_killed_up_leaves_nothing_that_the_next_cannot_mend(
    quiet_machine: None, paths: cluster.Paths, binaries: Path
) -> None:
    cluster.down(keep_data=False, progress=print, paths=paths)
    chance = random.Random(20261130)
    for _ in range(6):
        with cluster_child.start("up", binaries, paths) as child:
            time.sleep(chance.uniform(0.15, 4))
            child.kill()
    info = cluster.up(binaries, progress=print, paths=paths)
    assert cluster.status(paths=paths).problems == ()
    # Every process of a host part is a recorded one: none was forgotten and started twice.
    for part in PARTS:
        recorded = pids(paths)[part]
        programs = {
            pid
            for pid in cgroups.members(part)
            if Path(f"/proc/{pid}/exe").resolve() == (binaries / part).resolve()
        }
        assert programs == {recorded}, part
    assert info.kubeconfig.exists()


def test_two_ups_at_once_end_in_one_cluster(
    quiet_machine: None, paths: cluster.Paths, binaries: Path
) -> None:
    cluster.down(keep_data=False, progress=print, paths=paths)
    children = [cluster_child.start("up", binaries, paths) for _ in range(2)]
    said = [child.communicate(timeout=200)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0], said
    assert sum("started etcd" in text for text in said) == 1, said
    assert sum("waiting for `terrace up`" in text for text in said) == 1, said
    assert cluster.status(paths=paths).problems == ()


def test_a_pid_that_belongs_to_somebody_else_now_lives(
    running: cluster.ClusterInfo, paths: cluster.Paths, binaries: Path
) -> None:
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        record_path = paths.processes / "kube-scheduler.json"
        record = read_json(record_path)
        assert record is not None
        kill(record["pid"])
        write_json(record_path, record | {"pid": stranger.pid})
        words = "\n".join(str(p) for p in cluster.status(paths=paths).problems)
        assert f"somebody else, pid {stranger.pid} (sleep 600), who is left alone" in words
        assert cluster.up(binaries, progress=print, paths=paths).started == ("kube-scheduler",)
        # And once more for `down`, which stops by the same records.
        live = read_json(record_path)
        assert live is not None
        write_json(record_path, live | {"pid": stranger.pid})
        cluster.down(keep_data=True, progress=print, paths=paths)
        assert stranger.poll() is None
        assert start_time(live["pid"]) is None
    finally:
        stranger.kill()
        stranger.wait()


def test_another_clone_is_refused_while_the_holder_lives(
    running: cluster.ClusterInfo, paths: cluster.Paths, binaries: Path, tmp_path: Path
) -> None:
    holder = cluster.status(paths=paths).holder_clone
    calls = (
        lambda: cluster.up(binaries, progress=print, paths=paths, clone=tmp_path),
        lambda: cluster.down(keep_data=False, progress=print, paths=paths, clone=tmp_path),
    )
    for call in calls:
        with pytest.raises(cluster.HeldByAnother, match=f"{holder} .*since"):
            call()
    assert cluster.status(paths=paths).problems == ()
    # One process is enough to live.
    recorded = pids(paths)
    del recorded["kube-proxy"]
    for pid in recorded.values():
        kill(pid)
    for call in calls:
        with pytest.raises(cluster.HeldByAnother, match=r"\(kube-proxy\)"):
            call()


def test_another_clone_takes_over_from_a_dead_holder(
    running: cluster.ClusterInfo, paths: cluster.Paths, binaries: Path, tmp_path: Path
) -> None:
    # Killed with its containers; mounts, links and rules are left behind.
    assert cgroups.kill_all()
    said: list[str] = []
    try:
        info = cluster.up(binaries, progress=said.append, paths=paths, clone=tmp_path)
        assert any("clearing what it left" in line for line in said)
        assert info.cluster_identifier == running.cluster_identifier
        assert cluster.status(paths=paths).holder_clone == tmp_path
        assert cluster.status(paths=paths).problems == ()
    finally:
        cluster.down(keep_data=True, progress=print, paths=paths, clone=tmp_path)


def test_a_cluster_whose_clone_was_deleted_can_be_stopped(
    running: cluster.ClusterInfo, paths: cluster.Paths, tmp_path: Path
) -> None:
    holder = read_json(paths.holder)
    assert holder is not None
    write_json(paths.holder, holder | {"clone": str(tmp_path / "deleted")})
    report = cluster.down(keep_data=True, progress=print, paths=paths)
    assert set(report.stopped) == set(PARTS)
