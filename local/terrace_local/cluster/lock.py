"""One cluster per machine: a lock that a command holds while it works, a holder in between."""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from terrace_local.cluster.errors import HeldByAnother
from terrace_local.cluster.files import read_json, write_json
from terrace_local.cluster.paths import Paths
from terrace_local.cluster.processes import ProcessTable, boot_id, start_time

__all__ = [
    "describe_holder",
    "machine_lock",
    "refuse_other_command",
    "refuse_other_holder",
    "take_hold",
]


@contextlib.contextmanager
def machine_lock(
    paths: Paths, *, clone: Path, command: str, progress: Callable[[str], None], wait: float = 600.0
) -> Iterator[None]:
    """Hold the machine's lock. A second command of the same clone waits `wait` seconds; another
    clone's is refused at once.

    Raises HeldByAnother, which names the command that holds it. The kernel drops the lock with its
    process, so a killed command never leaves it behind.
    """
    paths.state.mkdir(parents=True, exist_ok=True, mode=0o755)
    deadline = time.monotonic() + wait
    told = False
    while True:
        descriptor = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _owner(descriptor)
            os.close(descriptor)
            _refuse_of_another_clone(owner, clone)
            if time.monotonic() > deadline:
                raise HeldByAnother(
                    f"{_say(owner)} has not finished for {wait:.0f} s; gave up waiting for it"
                ) from None
            if not told:
                progress(f"waiting for {_say(owner)} to finish")
                told = True
            time.sleep(0.2)
            continue
        # `down` removes the file at its end: a lock on a removed file protects nothing.
        with contextlib.suppress(FileNotFoundError):
            if paths.lock.stat().st_ino == os.fstat(descriptor).st_ino:
                break
        os.close(descriptor)
        paths.state.mkdir(parents=True, exist_ok=True, mode=0o755)
    try:
        owner = {"pid": os.getpid(), "clone": str(clone), "command": command, "since": time.time()}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(owner).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def refuse_other_command(paths: Paths, *, clone: Path) -> None:
    """Raise HeldByAnother while a command of another clone works; changes nothing.

    A command of the same clone is no reason: `machine_lock` waits for it.
    """
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(paths.lock, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            _refuse_of_another_clone(_owner(descriptor), clone)
        finally:
            os.close(descriptor)


def refuse_other_holder(
    paths: Paths, table: ProcessTable, *, clone: Path, allow_orphan: bool = False
) -> bool:
    """Raise HeldByAnother when another clone's cluster lives. Returns True when a dead holder's
    leftovers may be taken over.

    It lives as long as one of its recorded processes does. `allow_orphan`: a cluster whose clone
    was deleted may be touched, or nobody could ever stop it.
    """
    holder = read_json(paths.holder)
    if holder is None or holder.get("clone") == str(clone):
        return False
    running = table.running()
    if not running:
        return True
    orphan = not Path(str(holder.get("clone"))).exists()
    if allow_orphan and orphan:
        return True
    remedy = (
        "that clone no longer exists, so `terrace down` may be run from here"
        if orphan
        else "use that clone, or run `terrace down` there first"
    )
    raise HeldByAnother(
        f"the cluster on this machine belongs to {describe_holder(holder)} and is running "
        f"({', '.join(sorted(running))}); {remedy}"
    )


def take_hold(paths: Paths, *, clone: Path) -> None:
    """Write down who owns the cluster from now on; keeps the time when this clone already did."""
    holder = read_json(paths.holder) or {}
    if holder.get("clone") == str(clone) and holder.get("boot_id") == boot_id():
        return
    write_json(
        paths.holder,
        {
            "clone": str(clone),
            "user": os.environ.get("SUDO_USER") or os.environ.get("USER") or str(os.getuid()),
            "pid": os.getpid(),
            "start_time": start_time(os.getpid()),
            "boot_id": boot_id(),
            "started_at": time.time(),
        },
    )


def describe_holder(holder: dict[str, Any]) -> str:
    """`the clone at PATH (user U, since TIME)` for messages."""
    since = holder.get("started_at")
    when = (
        datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%d %H:%M UTC")
        if isinstance(since, (int, float))
        else "unknown"
    )
    clone, user = holder.get("clone", "unknown"), holder.get("user", "unknown")
    return f"the clone at {clone} (user {user}, since {when})"


def _refuse_of_another_clone(owner: dict[str, Any], clone: Path) -> None:
    if owner.get("clone") not in (None, str(clone)):
        raise HeldByAnother(
            f"{_say(owner)} is working on this machine's cluster; try again when it is done"
        )


def _owner(descriptor: int) -> dict[str, Any]:
    try:
        value = json.loads(os.pread(descriptor, 4096, 0))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _say(owner: dict[str, Any]) -> str:
    command, clone = owner.get("command", "?"), owner.get("clone", "an unknown clone")
    return f"`terrace {command}` of {clone} (pid {owner.get('pid', '?')})"
