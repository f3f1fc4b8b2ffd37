"""Running programs: output to a log file, never outliving this process, stoppable at any moment."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event

from terrace_local.toolchain.errors import Stopped, ToolchainError

_SUPERVISOR = Path(__file__).with_name("supervise.py")
_POLL_SECONDS = 0.1
_LAST_LINES = 12


def run_logged(
    argv: Sequence[str],
    *,
    subject: str,
    step: str,
    log: Path,
    folder: Path,
    environment: Mapping[str, str],
    stop: Event,
) -> None:
    """Run to the end, stdout and stderr appended to `log`.

    Raises `ToolchainError` with the last lines when it fails, `Stopped` when `stop` is set first;
    then, and when this process dies in whatever way, the program and its children are killed.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    read_end, write_end = os.pipe()
    try:
        with log.open("ab") as output:
            output.write(f"$ {' '.join(argv)}\n".encode())
            output.flush()
            supervised = subprocess.Popen(
                [sys.executable, "-I", str(_SUPERVISOR), str(read_end), *argv],
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(read_end,),
                start_new_session=True,
            )
        try:
            code = _wait(supervised, stop)
        except BaseException:
            _kill_group(supervised)
            raise
    finally:
        os.close(read_end)
        os.close(write_end)
    if code != 0:
        raise ToolchainError(
            f"{argv[0]} ended with exit code {code}",
            subject=subject,
            step=step,
            log=log,
            last_lines=last_lines(log),
        )


def last_lines(log: Path, count: int = _LAST_LINES) -> list[str]:
    """The last non-empty lines of a log file."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - 16384))
            text = stream.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-count:]


def _wait(process: subprocess.Popen[bytes], stop: Event) -> int:
    while True:
        try:
            return process.wait(timeout=_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if stop.is_set():
                raise Stopped from None


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    # Our own child leads the group and is not reaped yet, so its id can't belong to anybody else.
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
