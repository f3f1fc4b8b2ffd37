"""The user's own Pulumi: their login, backend, passphrase and credentials, and its own output.

Nothing of `PULUMI_*` in the environment is touched. What changes things runs in the foreground with
the terminal as it is; its stderr passes through here, because Pulumi says there that a stack is
locked.
"""

import codecs
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from terrace_cli.errors import CliError, HeldByAnotherError, MachineError, UsageError
from terrace_cli.interruption import StopSignals

_SECONDS = 300
_HOLDER = re.compile(r"created by (?P<who>\S+) \(pid (?P<pid>\d+)\) at (?P<when>\S+)")
_LOCKED = ("the stack is currently locked", "Another update is currently in progress")
_NOT_CONFIRMED = "confirmation cancelled"
# A closed terminal hangs up on Pulumi too, which must not die of it but be told as by Ctrl-C.
_DEAF_TO_HANGUP = ("/bin/sh", "-c", 'trap "" HUP; exec "$0" "$@"')
_TOOLS = ("pulumi", "pulumi-language-python")


class UsersPulumi:
    """`pulumi` on PATH, else the one of the toolchain, run in the clone's folder."""

    def __init__(self, clone: Path) -> None:
        self._clone = clone
        found = shutil.which("pulumi")
        self._program = Path(found) if found else _program_of_the_toolchain()
        # The language host takes Python from PATH: ours, which has the program's packages.
        path = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
        if not found:
            path.append(str(self._program.parent))
        self._environment = {**os.environ, "PATH": os.pathsep.join(path)}

    def stack_names(self) -> set[str]:
        """Names of this project's stacks in the user's backend. Raises UsageError for no login."""
        listed = json.loads(self.read("stack", "ls", "--json"))
        return {str(stack["name"]).rpartition("/")[2] for stack in listed}

    def make_stack(self, name: str) -> None:
        """A new, empty stack in the backend."""
        self.read("stack", "init", name, "--no-select", "--non-interactive")

    def outputs(self, name: str) -> dict[str, Any]:
        """The stack's outputs, empty before its first update."""
        return dict(json.loads(self.read("stack", "output", "--stack", name, "--json")))

    def state(self, name: str) -> dict[str, Any]:
        """The stack's state as `pulumi stack export` writes it, secrets still encrypted."""
        return dict(json.loads(self.read("stack", "export", "--stack", name)))

    def set_stage(self, name: str, stage: int) -> None:
        """`terrace:stage` in the stack's settings file."""
        self.read("config", "set", "--stack", name, "terrace:stage", str(stage))

    def read(self, *arguments: str) -> str:
        """Run a command that shows nothing. Raises UsageError with what Pulumi said."""
        done = subprocess.run(
            [self._program, *arguments],
            cwd=self._clone,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
        if done.returncode:
            said = (done.stderr or done.stdout).strip()
            raise UsageError(f"`pulumi {' '.join(arguments)}` failed:\n{said[-2000:]}")
        return done.stdout

    def show(self, *arguments: str, stack: str) -> int:
        """Run a command with its own output, and return its exit code.

        Raises HeldByAnotherError for a stack that another run has locked, CliError when the user
        did not confirm, and KeyboardInterrupt once Pulumi has ended what it had begun.
        """
        at_a_terminal = sys.stdin is not None and sys.stdin.isatty()
        command = [str(self._program), *arguments, "--stack", stack]
        if not at_a_terminal:
            command.append("--non-interactive")
        with StopSignals(ctrl_c_reaches_the_child=at_a_terminal) as signals:
            child = subprocess.Popen(
                [*_DEAF_TO_HANGUP, *command],
                cwd=self._clone,
                env=self._environment,
                stdin=None if at_a_terminal else subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                # At a terminal Ctrl-C reaches Pulumi by itself; twice would make it drop its work.
                start_new_session=not at_a_terminal,
            )
            signals.forward_to(child)
            said = _follow(child)
        if signals.came:
            raise KeyboardInterrupt
        if child.returncode == 0:
            return 0
        if any(sign in said for sign in _LOCKED):
            raise HeldByAnotherError(describe_lock(stack, said))
        if _NOT_CONFIRMED in said:
            raise CliError(f"Not confirmed. Nothing was changed in {stack}.")
        return child.returncode


def _follow(child: "subprocess.Popen[bytes]") -> str:
    """What the child says on stderr until its end; it passes through here."""
    assert child.stderr is not None  # noqa: S101 - it is a pipe
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    said = ""
    with child.stderr:
        while chunk := os.read(child.stderr.fileno(), 65536):
            text = decoder.decode(chunk)
            said += text
            # A terminal or pipe that is gone must not keep Pulumi from ending in order.
            with suppress(OSError):
                sys.stderr.write(text)
                sys.stderr.flush()
        child.wait()
    return said


def describe_lock(stack: str, said: str) -> str:
    """Who holds the stack, as Pulumi says it, and how to go on."""
    holders = [
        f"{match['who']} (process {match['pid']}), since {match['when']}"
        for match in _HOLDER.finditer(said)
    ]
    who = "; ".join(holders) or "Pulumi does not say by whom: see the stack's page in its backend"
    return (
        f"The stack {stack} is locked by another run: {who}.\n"
        f"Nothing was changed in {stack}. Let that run end, then use the same command again. "
        f"Only if it is dead: `pulumi cancel --stack {stack}`, then docs/runbooks/aws.md."
    )


def _program_of_the_toolchain() -> Path:
    from terrace_local import toolchain  # noqa: PLC0415

    there = {tool.name for tool in toolchain.status() if tool.source in ("downloaded", "built")}
    if not set(_TOOLS) <= there:
        raise MachineError(
            "There is no `pulumi` on PATH. Install it (https://www.pulumi.com/docs/install/), or "
            "let Terrace bring it: `python -m terrace_local.toolchain ensure 1 "
            f"{' '.join(_TOOLS)}`."
        )
    return toolchain.ensure(1, only=_TOOLS).path("pulumi")
