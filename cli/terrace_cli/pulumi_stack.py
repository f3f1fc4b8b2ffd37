"""The local stack through the Pulumi command line: select, configure, up, outputs, locks.

`pulumi` writes to a file that this process follows, not to a pipe: when `terrace` is killed, Pulumi
finishes what it began and gives its lock back, instead of dying half way on a closed pipe.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from terrace_cli.errors import CliError, NotUpInTimeError, UsageError
from terrace_cli.local_backend import backend_folder
from terrace_cli.places import STACK, state_directory
from terrace_cli.pulumi_environment import pulumi_environment
from terrace_cli.pulumi_progress import UpdateLog
from terrace_cli.stack_settings import configuration, settings_file
from terrace_cli.state_repair import repair_state

_CANCEL_GRACE_SECONDS = 60
_LOCK_WAIT_SECONDS = 900
_TRIES_FOR_THE_LOCK = 5


class PulumiStack:
    """The stack `local` of the clone's Pulumi program. `say` gets a sentence at a time."""

    def __init__(self, clone: Path, bin_directory: Path, say: Callable[[str], None]) -> None:
        self._clone = clone
        self._environment = pulumi_environment(bin_directory)
        self._program = bin_directory / "pulumi"
        self._say = say
        self._backend = backend_folder()
        self._project = _project_name(clone)

    def ensure_selected(self) -> None:
        """Create the stack where it is missing; select it, so that Pulumi by hand finds it."""
        (self._backend / "home").mkdir(parents=True, exist_ok=True)
        states = self._backend / ".pulumi" / "stacks" / self._project
        repair_state(self._backend, states / f"{STACK}.json", self._say)
        self._run("stack", "select", "--stack", STACK, "--create", "--non-interactive")

    def ensure_stage(self, stage: int) -> None:
        """Set `terrace:stage` only if it differs: the settings file is committed."""
        if self.configured_stage() != str(stage):
            self._say(f"setting terrace:stage to {stage} in {settings_file(self._clone).name}")
            self._run("config", "set", "--stack", STACK, "terrace:stage", str(stage))

    def configured_stage(self) -> str | None:
        """The stage that the stack's settings file names, or None."""
        value = configuration(self._clone).get("terrace:stage")
        return None if value is None else str(value)

    def release_stale_lock(self) -> None:
        """Let go of the lock of a Pulumi that is dead; wait for one that still works.

        Raises NotUpInTimeError when a living one does not finish.
        """
        directory = self._backend / ".pulumi" / "locks" / "organization" / self._project / STACK
        deadline = time.monotonic() + _LOCK_WAIT_SECONDS
        while lock := next(iter(sorted(directory.glob("*.json"))), None):
            owner = _lock_owner(lock)
            if owner is None:
                self._say(f"the lock {lock.name} belongs to a Pulumi that is dead; releasing it")
                self._run("cancel", "--stack", STACK, "--yes", "--non-interactive")
                lock.unlink(missing_ok=True)
            elif time.monotonic() > deadline:
                raise NotUpInTimeError(
                    f"Pulumi (pid {owner}) has held the stack for "
                    f"{_LOCK_WAIT_SECONDS // 60} minutes. Let it finish or stop it."
                )
            else:
                self._say(
                    f"a Pulumi of an earlier run (pid {owner}) still works on the stack; waiting"
                )
                time.sleep(1)

    def up(self) -> None:
        """`pulumi up`. Raises NotUpInTimeError with diagnostics, UsageError for settings."""
        failure: CliError | None = None
        for _ in range(_TRIES_FOR_THE_LOCK):
            self.release_stale_lock()
            failure, log = self._up_once()
            # A Pulumi that was only starting when the lock was looked for.
            if log.was_locked_out:
                continue
            # The stack was ours, so what lies there is of runs that were killed.
            shutil.rmtree(_temporary(), ignore_errors=True)
            if failure is None:
                return
            raise failure
        raise NotUpInTimeError(f"{failure}\nAnother Pulumi keeps taking the stack; see `ps`.")

    def _up_once(self) -> tuple[CliError | None, UpdateLog]:
        log_file = state_directory() / "log" / "pulumi-up.log"
        log_file.parent.mkdir(parents=True, exist_ok=True)
        # Another file, not the same one emptied: a Pulumi of a killed run may still write to that.
        log_file.unlink(missing_ok=True)
        command = ("up", "--stack", STACK, "--yes", "--non-interactive", "--skip-preview",
                   "--suppress-progress", "--color", "never")  # fmt: skip
        with _temporary_folder() as temporary:
            with log_file.open("wb") as sink:
                # A session of its own: Ctrl-C in the terminal reaches this process alone, which
                # then tells Pulumi to cancel in order.
                child = subprocess.Popen(
                    [self._program, *command],
                    cwd=self._clone,
                    env={**self._environment, "TMPDIR": temporary},
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            log = UpdateLog(log_file, self._say)
            try:
                while child.poll() is None:
                    log.follow()
                    time.sleep(0.1)
            except BaseException:
                _stop(child)
                raise
            log.follow()
        return (log.failure(child.returncode) if child.returncode else None), log

    def outputs(self) -> dict[str, str]:
        """The stack's outputs."""
        return dict(json.loads(self._run("stack", "output", "--stack", STACK, "--json")))

    def _run(self, *arguments: str) -> str:
        done = self._complete(*arguments)
        if done.returncode:
            said = " ".join((done.stderr or done.stdout).split())[:600]
            raise CliError(f"`pulumi {' '.join(arguments)}` failed: {said}")
        return done.stdout

    def _complete(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._program, *arguments],
            cwd=self._clone,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )


def _temporary() -> Path:
    """Ours alone, and `down` removes it."""
    return state_directory() / "tmp"


@contextmanager
def _temporary_folder() -> Iterator[str]:
    """A folder that ends with the run: the Kubernetes provider writes the cluster's kubeconfig,
    with its key, to a temporary file at every start, and leaves it there.
    """
    _temporary().mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(
        prefix="pulumi-", dir=_temporary(), ignore_cleanup_errors=True
    ) as folder:
        yield folder


def _project_name(clone: Path) -> str:
    try:
        return str(yaml.safe_load((clone / "Pulumi.yaml").read_text())["name"])
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise UsageError(f"{clone / 'Pulumi.yaml'} has no project name: {error}") from None


def _lock_owner(lock: Path) -> int | None:
    """Pid of the Pulumi that holds the lock, or None when there is no such process any more."""
    try:
        document = json.loads(lock.read_text())
        pid = int(document["pid"])
        if document.get("hostname") not in (None, socket.gethostname()):
            return None  # the state belongs to this machine; its name has changed since
        # A pid alone may belong to somebody else by now, or to a process that has ended unnoticed.
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")
        lives = name.partition(" (")[2] == "pulumi" and rest[0] != "Z"
    except (ValueError, KeyError, TypeError, IndexError, OSError):
        return None
    return pid if lives else None


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Ask Pulumi to cancel (it ends running operations and saves), then insist."""
    if child.poll() is None:
        child.send_signal(signal.SIGINT)
        try:
            child.wait(_CANCEL_GRACE_SECONDS)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
