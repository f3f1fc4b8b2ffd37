"""From nothing to a platform, through every way in which `terrace up` can be refused or cut off."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from machine_snapshot import differences, take_snapshot
from platform_bench import TERRACE, Platform, kill, resident_bytes, terrace

from terrace_cli.tools import bin_directory

REPOSITORY = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.timeout(3600)


@pytest.mark.usefixtures("empty_machine")
def test_somebody_who_is_not_root_is_told_so() -> None:
    before = take_snapshot()
    # Modules are imported first: the interpreter may lie where only root can read.
    script = (
        "import os, sys\n"
        "from terrace_cli import local_errors, platform_up\n"
        "from terrace_cli.commands import platform\n"
        "from terrace_cli.main import main\n"
        "sys.argv = ['terrace', 'up']\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 3, done.stderr
    assert "needs root" in done.stderr
    assert "Traceback" not in done.stderr
    assert differences(before, take_snapshot()) == {}


@pytest.mark.usefixtures("empty_machine")
def test_a_taken_port_is_said_before_anything_changes() -> None:
    before = take_snapshot()
    with socket.socket() as taken:
        # A cluster that has just ended leaves connections in TIME_WAIT on this port.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("0.0.0.0", 6443))
        taken.listen()
        done = terrace("up", expect=3)
    assert "6443" in done.stderr
    assert f"pid {os.getpid()}" in done.stderr
    assert differences(before, take_snapshot()) == {}


@pytest.mark.usefixtures("empty_machine")
@pytest.mark.parametrize("moment", ["started kube-apiserver", "pulumi: created"])
def test_an_up_that_is_killed_in_the_middle_is_finished_by_the_next(
    moment: str, tmp_path: Path
) -> None:
    log = tmp_path / "up.log"
    with log.open("w") as sink:
        process = subprocess.Popen([TERRACE, "up"], stderr=sink, stdout=sink)
        while moment not in log.read_text():
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        process.kill()
        process.wait()
    terrace("up")
    terrace("status")


@pytest.mark.usefixtures("empty_machine")
def test_a_pulumi_that_is_killed_in_mid_create_is_finished_by_the_next_up(tmp_path: Path) -> None:
    """Objects that the API server has and Pulumi's state has not are adopted, not refused."""
    log = tmp_path / "up.log"
    with log.open("w") as sink:
        process = subprocess.Popen([TERRACE, "up"], stderr=sink, stdout=sink)
        while "pulumi: created" not in log.read_text():
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        (lock,) = Path("/var/lib/terrace/pulumi/.pulumi/locks").rglob("*.json")
        kill(int(json.loads(lock.read_text())["pid"]))
        assert process.wait(timeout=120) != 0
    assert "Traceback" not in log.read_text()
    terrace("up")
    terrace("status")


def test_up_again_changes_nothing_and_two_at_once_both_end_well(platform: Platform) -> None:
    del platform
    settings = (REPOSITORY / "Pulumi.local.yaml").read_text()
    began = time.monotonic()
    done = terrace("up")
    print(f"\n  up again with no change: {time.monotonic() - began:.1f} s")
    assert "created" not in done.stderr
    assert "updated" not in done.stderr
    both = [
        subprocess.Popen([TERRACE, "up"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=300)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert any("waiting for it" in text for text in said)
    assert (REPOSITORY / "Pulumi.local.yaml").read_text() == settings


def test_a_preview_by_hand_expects_no_changes(platform: Platform) -> None:
    del platform
    done = subprocess.run(
        [
            "sh",
            "-c",
            f'eval "$({TERRACE} env)" && pulumi preview --stack local --expect-no-changes',
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_smoke_passes(platform: Platform) -> None:
    del platform
    done = terrace("smoke", expect=None)
    print(f"\n{done.stdout}")
    assert done.returncode == 0


def test_status_is_well_and_the_idle_stack_fits(platform: Platform) -> None:
    platform.wait_ready()
    status = json.loads(terrace("status", "--json").stdout)
    assert status["well"], status
    used = resident_bytes()
    print(f"\n  memory of the idle stack: {used / 2**20:.0f} MiB (goal: 4096)")
    assert used < 6 * 2**30


def test_no_secret_is_in_pulumis_state_or_settings(platform: Platform) -> None:
    secrets = json.loads(platform.kubectl("get", "secrets", "-A", "-o", "json"))["items"]
    import base64

    values = {
        base64.b64decode(value)
        for secret in secrets
        if secret["metadata"]["namespace"].startswith("terrace-")
        for value in secret.get("data", {}).values()
    }
    assert len(values) > 5
    for path in [*Path("/var/lib/terrace/pulumi").rglob("*"), *REPOSITORY.glob("Pulumi.*")]:
        if path.is_file():
            content = path.read_bytes()
            assert not any(value in content for value in values if len(value) > 15), path


def test_a_second_clone_is_refused_while_the_first_holds(
    platform: Platform, tmp_path: Path
) -> None:
    clone = tmp_path / "second"
    clone.mkdir()
    for name in ("Pulumi.yaml", "Pulumi.local.yaml"):
        shutil.copy(REPOSITORY / name, clone / name)
    for command in (("up",), ("down", "--yes")):
        done = terrace(*command, expect=4, TERRACE_REPOSITORY=str(clone))
        assert str(REPOSITORY) in done.stderr
    platform.wait_ready()


def test_settings_that_are_wrong_are_named(platform: Platform) -> None:
    del platform
    settings = REPOSITORY / "Pulumi.local.yaml"
    before = settings.read_bytes()
    try:
        settings.write_bytes(before + b"  terrace:stge: 1\n")
        done = terrace("up", expect=2)
        assert re.search(r"terrace:stge.*did you mean .terrace:stage", done.stderr)
    finally:
        settings.write_bytes(before)
    done = terrace("up", "--stage", "4", expect=2)
    assert "1, 2 and 3" in done.stderr


def test_tools_by_hand_use_the_toolchain(platform: Platform) -> None:
    del platform
    done = subprocess.run(
        ["sh", "-c", f'eval "$({TERRACE} env)" && command -v pulumi kubectl && kubectl get nodes'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(bin_directory()) in done.stdout
    assert "terrace-local" in done.stdout
