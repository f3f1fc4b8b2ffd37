"""`down` leaves the machine as `up` found it."""

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import cluster_child
import pytest
import trial_pods
from machine_snapshot import Snapshot, differences, take_snapshot

from terrace_local import cluster
from terrace_local.cluster import cgroups


@pytest.fixture
def before(quiet_machine: None, paths: cluster.Paths) -> Snapshot:
    cluster.down(keep_data=False, progress=print, paths=paths)
    return take_snapshot()


@pytest.fixture
def used(
    before: Snapshot, paths: cluster.Paths, binaries: Path, kubectl: Any, tmp_path: Path
) -> None:
    """A cluster with pods, a node port, chains and mounts: everything that leaves traces."""
    references = trial_pods.load_trial_images(paths, binaries, tmp_path)
    kubectl("apply", "-f", "-", text=trial_pods.trial_manifests(references))
    kubectl("-n", trial_pods.NAMESPACE, "rollout", "status", "deployment/web", "--timeout=90s")
    kubectl(
        "-n", trial_pods.NAMESPACE, "wait", "--for=condition=Ready", "pod/client", "--timeout=90s"
    )
    (paths.volumes / "trial").mkdir()
    (paths.volumes / "trial" / "row").write_bytes(b"x" * 100_000)


def test_the_snapshot_sees_a_running_cluster(before: Snapshot, used: None) -> None:
    found = differences(before, take_snapshot())
    kinds = {
        "process",
        "mount",
        "link",
        "address",
        "route",
        "nftables",
        "cgroup",
        "sysctl",
        "file",
        "listener",
    }
    assert kinds <= found.keys()


def test_nothing_is_left_after_down(before: Snapshot, used: None, paths: cluster.Paths) -> None:
    report = cluster.down(keep_data=False, progress=print, paths=paths)
    assert report.left == ()
    assert report.data["volumes"] >= 100_000
    assert not report.data_kept
    assert differences(before, take_snapshot()) == {}
    assert cluster.status(paths=paths).state == "absent"


@pytest.mark.fault
def test_nothing_is_left_after_everything_was_killed(
    before: Snapshot, used: None, paths: cluster.Paths
) -> None:
    assert cgroups.kill_all()
    assert cluster.down(keep_data=False, progress=print, paths=paths).left == ()
    assert differences(before, take_snapshot()) == {}


@pytest.mark.fault
def test_nothing_is_left_when_only_the_containers_outlived_the_parts(
    before: Snapshot, used: None, paths: cluster.Paths
) -> None:
    for part in cluster.status(paths=paths).parts:
        assert part.pid is not None
        os.kill(part.pid, signal.SIGKILL)
    assert cgroups.members("kubepods")
    assert cluster.down(keep_data=False, progress=print, paths=paths).left == ()
    assert differences(before, take_snapshot()) == {}


@pytest.mark.fault
def test_a_down_that_was_killed_is_finished_by_the_next(
    before: Snapshot, used: None, paths: cluster.Paths, binaries: Path
) -> None:
    for seconds in (0.5, 1.0, 2.0):
        with cluster_child.start("down", binaries, paths) as child:
            time.sleep(seconds)
            child.kill()
    assert cluster.down(keep_data=False, progress=print, paths=paths).left == ()
    assert differences(before, take_snapshot()) == {}


def test_down_twice_is_down(before: Snapshot, paths: cluster.Paths) -> None:
    assert cluster.down(keep_data=False, progress=print, paths=paths) == cluster.DownReport()
    assert differences(before, take_snapshot()) == {}


def test_kept_data_is_the_same_cluster_again(
    before: Snapshot, used: None, paths: cluster.Paths, binaries: Path, kubectl: Any
) -> None:
    identifier = cluster.status(paths=paths).cluster_identifier
    images = cluster.write_substrate({"x": "terrace.local/x:1"}, paths=paths).read_text()
    report = cluster.down(keep_data=True, progress=print, paths=paths)
    assert report.data_kept
    assert cluster.status(paths=paths).state == "stopped"
    left = differences(before, take_snapshot())
    assert left.keys() == {"file"}
    assert [line for line in left["file"] if not line.startswith(f"+ {paths.state}")] == []
    again = cluster.up(binaries, progress=print, paths=paths)
    assert again.cluster_identifier == identifier
    assert not again.new
    assert paths.substrate.read_text() == images
    assert (paths.volumes / "trial" / "row").stat().st_size == 100_000
    kubectl("-n", trial_pods.NAMESPACE, "rollout", "status", "deployment/web", "--timeout=90s")


def test_rules_of_others_stay(before: Snapshot, paths: cluster.Paths, binaries: Path) -> None:
    run = (
        "iptables",
        "-w",
        "{}",
        "INPUT",
        "-p",
        "tcp",
        "--dport",
        "9",
        "-m",
        "comment",
        "--comment",
        "mine",
        "-j",
        "DROP",
    )
    # Inserted while the cluster runs, so it sits in a table that only the cluster had made.
    cluster.up(binaries, progress=print, paths=paths)
    subprocess.run([word.format("-A") for word in run], check=True)
    try:
        cluster.down(keep_data=False, progress=print, paths=paths)
        rules = subprocess.run(
            ["iptables", "-S", "INPUT"], check=True, capture_output=True, text=True
        ).stdout
        assert "--comment mine -j DROP" in rules
        assert (
            "KUBE-"
            not in subprocess.run(
                ["iptables-save"], check=True, capture_output=True, text=True
            ).stdout
        )
    finally:
        subprocess.run([word.format("-D") for word in run], check=True)
        subprocess.run(["nft", "delete", "table", "ip", "filter"], check=False)
