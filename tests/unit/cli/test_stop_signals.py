"""Whatever ends `terrace up --stack`, Pulumi ends what it has begun, and is told once."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import STANDING
from .fake_users_pulumi import UsersPulumiOnPath

COMMAND = [sys.executable, "-m", "terrace_cli", "up", "--stack", "aws-a", "--yes"]
# A terminal window: runs a command in it, and hangs up when it is killed.
TERMINAL = """
import os, pty, sys
pid, screen = pty.fork()
if not pid:
    os.execv(sys.argv[1], sys.argv[1:])
print(pid, flush=True)
try:
    while os.read(screen, 1024):
        pass
except OSError:
    pass
"""
_LONGEST = 60  # seconds


def heed_signals() -> None:
    """Whatever runs these tests (nohup, a job in the background) may ignore some, and children
    inherit that."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def start(command: list[str], files: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        preexec_fn=heed_signals,  # noqa: PLW1509  no threads here
        env={**os.environ, "TERRACE_REPOSITORY": str(files)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _LONGEST
    while not condition():
        assert time.monotonic() < deadline, f"waited {_LONGEST} s in vain"
        time.sleep(0.02)


def wait_until_pulumi_works(pulumi: UsersPulumiOnPath, process: subprocess.Popen[str]) -> None:
    def works() -> bool:
        assert process.poll() is None, process.communicate()
        return (pulumi.folder / "running").exists()

    wait_for(works)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_pulumi_end_what_it_has_begun(
    files: Path, pulumi: UsersPulumiOnPath, number: signal.Signals
) -> None:
    pulumi.state(stacks=STANDING, slow=["aws-a"])
    process = start(COMMAND, files)
    wait_until_pulumi_works(pulumi, process)
    process.send_signal(number)
    _, said = process.communicate(timeout=_LONGEST)
    assert process.returncode == 130
    assert (pulumi.folder / "ended").exists()
    assert "it ends what it has begun" in said
    assert "Traceback" not in said
    assert len(pulumi.changes()) == 1, "the platform was started"


def test_a_runner_that_insists_does_not_make_pulumi_drop_its_work(
    files: Path, pulumi: UsersPulumiOnPath
) -> None:
    """CI runners send SIGINT and then SIGTERM; Pulumi drops its work at the second SIGINT."""
    pulumi.state(stacks=STANDING, slow=["aws-a"])
    process = start(COMMAND, files)
    wait_until_pulumi_works(pulumi, process)
    process.send_signal(signal.SIGINT)
    wait_for((pulumi.folder / "told").exists)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=_LONGEST)
    assert process.returncode == 130
    assert (pulumi.folder / "told").read_text() == "x"
    assert (pulumi.folder / "ended").exists()


@pytest.mark.parametrize("how", ["SIGTERM", "closed"])
def test_at_a_terminal_pulumi_is_told_of_what_does_not_reach_it(
    files: Path, pulumi: UsersPulumiOnPath, how: str
) -> None:
    pulumi.state(stacks=STANDING, slow=["aws-a"])
    terminal = start([sys.executable, "-c", TERMINAL, *COMMAND], files)
    assert terminal.stdout is not None
    terrace = int(terminal.stdout.readline())
    wait_until_pulumi_works(pulumi, terminal)
    if how == "closed":
        terminal.kill()
    else:
        os.kill(terrace, signal.SIGTERM)
    wait_for((pulumi.folder / "ended").exists)
    terminal.communicate(timeout=_LONGEST)
    wait_for(lambda: not is_running(terrace))
    assert (pulumi.folder / "told").read_text() == "x"
    assert len(pulumi.changes()) == 1


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def test_what_is_ignored_stays_ignored(files: Path, pulumi: UsersPulumiOnPath) -> None:
    """`nohup terrace up`: the terminal may close."""
    pulumi.state(stacks=STANDING, slow=["aws-a"])
    process = start(["/bin/sh", "-c", 'trap "" HUP; exec "$0" "$@"', *COMMAND], files)
    wait_until_pulumi_works(pulumi, process)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=_LONGEST)
    assert said.count("it ends what it has begun") == 1
    assert (pulumi.folder / "told").read_text() == "x"
