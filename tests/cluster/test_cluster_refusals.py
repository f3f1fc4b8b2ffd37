"""What the machine lacks is said before anything is changed."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from machine_snapshot import differences, take_snapshot

from terrace_local import cluster


@pytest.fixture(autouse=True)
def _stopped(quiet_machine: None, paths: cluster.Paths) -> None:
    cluster.down(keep_data=False, progress=print, paths=paths)


def test_a_port_that_is_taken(paths: cluster.Paths, binaries: Path) -> None:
    before = take_snapshot()
    with socket.socket() as taken:
        # A cluster that has just ended leaves connections in TIME_WAIT on this port.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("0.0.0.0", 6443))
        taken.listen()
        with pytest.raises(cluster.PreflightFailed) as caught:
            cluster.up(binaries, progress=print, paths=paths)
        [problem] = caught.value.problems
        assert problem.subject == "port"
        assert "10.89.0.1:6443" in problem.message
        assert f"pid {os.getpid()} (" in problem.message
    assert differences(before, take_snapshot()) == {}


def test_a_port_on_another_address_is_not_in_the_way(binaries: Path) -> None:
    with socket.socket() as other:
        # A cluster that has just ended leaves connections in TIME_WAIT on this port.
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 6443))
        other.listen()
        assert cluster.preflight(binaries) == []


def test_somebody_without_rights(paths: cluster.Paths, binaries: Path) -> None:
    before = take_snapshot()
    script = (
        "import os, sys; from pathlib import Path; from terrace_local import cluster\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "paths = cluster.Paths(Path(sys.argv[2]), Path(sys.argv[3]))\n"
        "for call in (lambda: cluster.up(Path(sys.argv[1]), progress=print, paths=paths),\n"
        "             lambda: cluster.down(keep_data=False, progress=print, paths=paths)):\n"
        "    try: call()\n"
        "    except cluster.PreflightFailed as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(binaries), str(paths.state), str(paths.run)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count("rights: this needs root, and you are uid 65534") == 2, (
        done.stdout + done.stderr
    )
    assert differences(before, take_snapshot()) == {}


def test_addresses_that_a_route_already_uses(paths: cluster.Paths, binaries: Path) -> None:
    subprocess.run(["ip", "link", "add", "terrace-trial", "type", "bridge"], check=True)
    try:
        subprocess.run(["ip", "address", "add", "10.96.7.1/24", "dev", "terrace-trial"], check=True)
        subprocess.run(["ip", "link", "set", "terrace-trial", "up"], check=True)
        with pytest.raises(cluster.PreflightFailed, match=r"Services.*overlap.*terrace-trial"):
            cluster.up(binaries, progress=print, paths=paths)
    finally:
        subprocess.run(["ip", "link", "delete", "terrace-trial"], check=True)


def test_a_toolchain_that_is_not_whole(
    paths: cluster.Paths, binaries: Path, tmp_path: Path
) -> None:
    for program in binaries.iterdir():
        if program.name != "kubelet":
            (tmp_path / program.name).symlink_to(program)
    with pytest.raises(cluster.PreflightFailed, match="kubelet is absent"):
        cluster.up(tmp_path, progress=print, paths=paths)
    assert not paths.state.exists()


def test_calls_that_need_a_cluster_say_so(paths: cluster.Paths, tmp_path: Path) -> None:
    archive = tmp_path / "image.tar"
    archive.touch()
    for call in (
        lambda: cluster.load_image(archive, "terrace.local/x:1", paths=paths),
        lambda: cluster.has_image("terrace.local/x:1", paths=paths),
        lambda: cluster.write_substrate({}, paths=paths),
    ):
        with pytest.raises(cluster.NotRunning, match="terrace up"):
            call()
    assert cluster.status(paths=paths).state == "absent"
