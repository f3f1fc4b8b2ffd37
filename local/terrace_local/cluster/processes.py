"""Host processes that outlive the command which starts them, known again by pid, start time and
boot.

A record alone never decides: a process is ours only if the kernel still gives its pid the recorded
start time in the recorded boot. So a pid file that outlived its process can point at anybody, and
that body lives.
"""

import contextlib
import hashlib
import json
import os
import select
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from terrace_local.cluster import cgroups
from terrace_local.cluster.errors import ClusterError
from terrace_local.cluster.files import read_json, write_json

__all__ = [
    "Process",
    "ProcessTable",
    "boot_id",
    "describe",
    "is_running",
    "start_time",
    "terminate",
]

LOG_LIMIT_BYTES = 20 * 1024 * 1024
# Joins the part's cgroups before anything else, then becomes the program: no instant in which it is
# nowhere.
LAUNCHER = (
    'n=$1; shift; while [ "$n" -gt 0 ]; do echo 0 > "$1" || exit 111; shift; n=$((n-1)); done; '
    'exec "$@"'
)


@dataclass(frozen=True)
class Process:
    """A part to run.

    `inputs` are files it reads at start: when one changes, the part is started again.
    """

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[Path, ...] = ()

    def fingerprint(self) -> str:
        """Changes when the program, an argument, its environment or an input file does."""
        program = Path(self.argv[0]).stat()
        digest = hashlib.sha256(
            json.dumps(
                [self.argv, dict(self.environment), program.st_size, program.st_mtime_ns]
            ).encode()
        )
        for path in self.inputs:
            digest.update(path.read_bytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Record:
    name: str
    pid: int
    start_time: int
    boot_id: str
    fingerprint: str
    argv: list[str]
    started_at: float


def boot_id() -> str:
    """The kernel's identifier of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_time(pid: int) -> int | None:
    """Clock ticks since boot at which `pid` started (field 22 of its stat).

    None when it is gone or a zombie.
    """
    # A child of ours that ended stays a zombie until somebody asks.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name may hold blanks and parentheses; fields are counted from after its end.
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] in {"Z", "X"} else int(fields[19])


def is_running(record: Mapping[str, Any]) -> bool:
    """Whether the very process that `record` describes (pid, start_time, boot_id) lives."""
    pid, started = record.get("pid"), record.get("start_time")
    if not isinstance(pid, int) or not isinstance(started, int) or pid <= 0:
        return False
    return record.get("boot_id") == boot_id() and start_time(pid) == started


def describe(pid: int) -> str:
    """`pid (command line)` for messages."""
    try:
        command = (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")
            .strip()
        )
    except OSError:
        command = ""
    return f"pid {pid} ({command[:100] or 'kernel or gone'})"


def terminate(records: Iterable[Mapping[str, Any]], *, grace: float) -> list[str]:
    """Stop exactly these processes: SIGTERM to all, SIGKILL to those alive after `grace` seconds.

    Returns the names of those that were running. A record whose pid belongs to another process is
    left alone.
    """
    handles: dict[int, str] = {}
    for record in records:
        try:
            handle = os.pidfd_open(record["pid"]) if is_running(record) else None
        except (ProcessLookupError, OSError):
            handle = None
        if handle is None:
            continue
        # The handle pins the process, so the second look cannot be outrun by a recycled pid.
        if is_running(record):
            handles[handle] = str(record.get("name", record["pid"]))
        else:
            os.close(handle)
    try:
        for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, 10.0)):
            pending = [h for h in handles if not _ended(h, 0)]
            for handle in pending:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, number)
            deadline = time.monotonic() + seconds
            for handle in pending:
                _ended(handle, max(0.0, deadline - time.monotonic()))
        return list(handles.values())
    finally:
        for handle in handles:
            os.close(handle)


class ProcessTable:
    """The recorded processes of one cluster."""

    def __init__(self, records: Path, logs: Path) -> None:
        self._records = records
        self._logs = logs

    def records(self) -> dict[str, dict[str, Any]]:
        """Every readable record by part name."""
        found = {path.stem: read_json(path) for path in sorted(self._records.glob("*.json"))}
        return {name: record for name, record in found.items() if record is not None}

    def running(self) -> dict[str, dict[str, Any]]:
        """The records whose process lives."""
        return {name: record for name, record in self.records().items() if is_running(record)}

    def log_path(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def ensure(self, process: Process) -> bool:
        """Have `process` running with its present fingerprint.

        Returns whether it had to be started.
        """
        fingerprint = process.fingerprint()
        record = read_json(self._records / f"{process.name}.json")
        if record and is_running(record):
            if record.get("fingerprint") == fingerprint:
                return False
            terminate([record], grace=10)
        self._end_unrecorded(process)
        pid = self._spawn(process)
        started = start_time(pid)
        if started is None:
            raise ClusterError(f"{process.name} ended at once:\n{self.tail(process.name)}")
        write_json(
            self._records / f"{process.name}.json",
            asdict(
                Record(
                    process.name,
                    pid,
                    started,
                    boot_id(),
                    fingerprint,
                    list(process.argv),
                    time.time(),
                )
            ),
        )
        return True

    def forget(self, name: str) -> None:
        (self._records / f"{name}.json").unlink(missing_ok=True)

    def tail(self, name: str, lines: int = 8) -> str:
        """The last lines of the part's log, indented."""
        try:
            with self.log_path(name).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 16384))
                text = file.read().decode(errors="replace")
        except FileNotFoundError:
            return "    (no log)"
        return (
            "\n".join(f"    {line[:300]}" for line in text.splitlines()[-lines:])
            or "    (the log is empty)"
        )

    def _spawn(self, process: Process) -> int:
        log = self.log_path(process.name)
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.exists() and log.stat().st_size > LOG_LIMIT_BYTES:
            log.replace(log.with_suffix(".log.1"))
        procs = [str(path) for path in cgroups.create(process.name)]
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        return os.posix_spawn(
            "/bin/sh",
            ["sh", "-c", LAUNCHER, "launcher", str(len(procs)), *procs, *process.argv],
            dict(process.environment),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), append, 0o640),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGHUP],
        )

    def _end_unrecorded(self, process: Process) -> None:
        """End what a start left that was killed before it wrote its record.

        It is in our cgroup and has our argv.
        """
        for pid in cgroups.members(process.name):
            try:
                argv = (
                    Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
                )
            except OSError:
                continue
            started = start_time(pid)
            if started is not None and (
                argv[0] == process.argv[0] or argv[1:3] == ["-c", LAUNCHER]
            ):
                terminate([{"pid": pid, "start_time": started, "boot_id": boot_id()}], grace=5)


def _ended(handle: int, timeout: float) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(timeout * 1000))
