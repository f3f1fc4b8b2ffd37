"""A process is known by pid, start time and boot, or not at all."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from terrace_local.cluster import processes
from terrace_local.cluster.processes import boot_id, is_running, start_time, terminate


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def record(process: subprocess.Popen[bytes], **changes: object) -> dict[str, object]:
    return {
        "name": "x",
        "pid": process.pid,
        "start_time": start_time(process.pid),
        "boot_id": boot_id(),
    } | changes


def test_the_recorded_process_is_running(sleeper: subprocess.Popen[bytes]) -> None:
    assert is_running(record(sleeper))


@pytest.mark.parametrize(
    "changes",
    [
        {"start_time": 1},
        {"boot_id": "00000000-0000-0000-0000-000000000000"},
        {"pid": 0},
        {"pid": -1},
        {"pid": None},
        {"pid": "1"},
        {"start_time": None},
    ],
)
def test_a_stranger_with_the_same_pid_is_not_and_lives(
    sleeper: subprocess.Popen[bytes], changes: dict[str, object]
) -> None:
    stale = record(sleeper, **changes)
    assert not is_running(stale)
    assert terminate([stale], grace=0.1) == []
    assert sleeper.poll() is None


def test_terminate_ends_the_one_and_spares_the_other(sleeper: subprocess.Popen[bytes]) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        assert terminate(
            [record(sleeper, name="a"), record(other, name="b", start_time=7)], grace=5
        ) == ["a"]
        assert sleeper.wait() == -signal.SIGTERM
        assert other.poll() is None
        other.kill()


def test_one_that_ignores_the_request_is_killed() -> None:
    script = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as stubborn:
        assert stubborn.stdout is not None
        assert stubborn.stdout.readline() == b"ready\n"
        assert terminate([record(stubborn)], grace=0.3) == ["x"]
        assert stubborn.wait() == -signal.SIGKILL


def test_a_zombie_is_not_running() -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert start_time(pid) is None


def test_a_name_with_parentheses_does_not_shift_the_fields(
    tmp_path: Path,
) -> None:
    odd = tmp_path / "a) R 1 (b"
    odd.symlink_to("/bin/sleep")
    with (
        subprocess.Popen([str(odd), "600"]) as process,
        subprocess.Popen(["sleep", "600"]) as plain,
    ):
        started, reference = start_time(process.pid), start_time(plain.pid)
        assert started is not None
        assert reference is not None
        assert abs(started - reference) < 6000
        process.kill()
        plain.kill()


def test_the_fingerprint_follows_arguments_environment_and_inputs(
    tmp_path: Path,
) -> None:
    config = tmp_path / "config"
    config.write_text("one")
    base = processes.Process("p", ("/bin/true", "--a"), {"X": "1"}, (config,))
    prints = {base.fingerprint()}
    prints.add(processes.Process("p", ("/bin/true", "--b"), {"X": "1"}, (config,)).fingerprint())
    prints.add(processes.Process("p", ("/bin/true", "--a"), {"X": "2"}, (config,)).fingerprint())
    same = base.fingerprint()
    config.write_text("two")
    prints.add(base.fingerprint())
    assert same in prints
    assert len(prints) == 4


def test_a_record_that_is_not_json_is_no_record(tmp_path: Path) -> None:
    (tmp_path / "etcd.json").write_text('{"pid": 1')
    (tmp_path / "kubelet.json").write_text("[1]")
    assert processes.ProcessTable(tmp_path, tmp_path).running() == {}
