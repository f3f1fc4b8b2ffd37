"""Removing the state: what goes, what stays, and that it is told before it goes."""

from pathlib import Path

import pytest

from terrace_local.cluster import cgroups, firewall, machine, mounts, network, provider_files
from terrace_local.cluster.paths import Paths
from terrace_local.cluster.processes import ProcessTable
from terrace_local.cluster.teardown import clear_runtime, remove_state


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """A state directory as a running platform has it, a killed Pulumi's files too."""
    paths = Paths(tmp_path / "state", tmp_path / "run")
    for name in ("containerd", "etcd", "log", "pki", "pulumi", "tmp/pulumi-x", "volumes"):
        (paths.state / name).mkdir(parents=True)
        (paths.state / name / "file").write_text("x")
    paths.lock.touch()
    return paths


def test_each_body_of_data_is_told_while_it_is_still_there(paths: Paths) -> None:
    there: dict[str, bool] = {}

    def progress(text: str) -> None:
        told = text.partition("(")[2].removesuffix(")")
        there[text] = (Path(told) / "file").exists()

    assert remove_state(paths, keep_data=False, progress=progress) == []
    assert there == {
        f"removing images and containers ({paths.containerd})": True,
        f"removing the cluster's objects ({paths.etcd})": True,
        f"removing Pulumi's state of the local stack ({paths.pulumi})": True,
        f"removing the volumes ({paths.volumes})": True,
    }
    assert not paths.state.exists()


def test_the_layers_of_the_images_are_counted_down(paths: Paths) -> None:
    snapshots = paths.containerd / "io.containerd.snapshotter.v1.overlayfs/snapshots"
    for number in range(25):
        (snapshots / str(number) / "fs").mkdir(parents=True)
    there: dict[str, int] = {}

    def progress(text: str) -> None:
        if text.startswith("removing image layer"):
            there[text] = len(list(snapshots.iterdir()))

    assert remove_state(paths, keep_data=False, progress=progress) == []
    assert there == {"removing image layer 10 of 25": 16, "removing image layer 20 of 25": 6}
    assert not paths.state.exists()


def test_kept_data_stays_but_not_what_pulumi_left(paths: Paths) -> None:
    told: list[str] = []
    assert remove_state(paths, keep_data=True, progress=told.append) == []
    assert told == []
    assert sorted(one.name for one in paths.state.iterdir()) == [
        "containerd",
        "etcd",
        "lock",
        "pki",
        "pulumi",
        "volumes",
    ]


def test_down_removes_the_kubeconfigs_that_pulumi_by_hand_left(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / "kubeconfig1"
    monkeypatch.setattr(provider_files, "remove_kubeconfigs", lambda: [left])
    monkeypatch.setattr(cgroups, "members", lambda *_: set())
    monkeypatch.setattr(cgroups, "kill_all", lambda *_, **__: True)
    monkeypatch.setattr(cgroups, "remove", list)
    monkeypatch.setattr(mounts, "unmount_below", lambda _: (0, []))
    monkeypatch.setattr(network, "remove_links", list)
    monkeypatch.setattr(firewall, "remove_firewall", lambda _: [])
    monkeypatch.setattr(machine, "restore_controllers", lambda _: None)
    monkeypatch.setattr(machine, "restore_sysctls", lambda _: [])
    monkeypatch.setattr(machine, "remove_borrowed", lambda *_: [])
    table = ProcessTable(paths.processes, paths.log)
    cleared = clear_runtime(paths, table, progress=lambda _: None)
    assert cleared.removed == [f"file {left}"]
