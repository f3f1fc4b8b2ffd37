"""The cgroup `/terrace`: everything the cluster runs is below it, so nothing of ours can hide or be
mistaken.

A pid file can lie; membership cannot: a process is in `/terrace` because this package put it, or an
ancestor of it, there. Layout: `/terrace/<part>` for a host process (containerd's shims stay in
containerd's), `/terrace/kubepods` for pods.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

__all__ = [
    "ROOT",
    "create",
    "disable_at_root",
    "enabled_at_root",
    "hierarchies",
    "kill_all",
    "members",
    "missing_controllers",
    "remove",
]

ROOT = "terrace"
# What the kubelet requires below its cgroup root (kubelet cm/cgroup_manager_linux.go).
REQUIRED = ("cpu", "cpuacct", "cpuset", "memory", "pids")
CONTROLLERS = {
    *REQUIRED,
    "blkio",
    "devices",
    "freezer",
    "hugetlb",
    "misc",
    "net_cls",
    "net_prio",
    "perf_event",
    "rdma",
}
MOUNTINFO = Path("/proc/self/mountinfo")
UNIFIED_REQUIRED = ("cpu", "cpuset", "memory", "pids")


def hierarchies(mountinfo: Path = MOUNTINFO) -> dict[str, Path]:
    """Mount point per hierarchy that accounts, by v1 controllers, or {"": path} for v2 alone.

    In the hybrid layout v2 has no controllers, and v1 is what counts.
    """
    version1: dict[str, Path] = {}
    unified: dict[str, Path] = {}
    for kind, options, point in _mounts(mountinfo):
        if kind == "cgroup2":
            unified.setdefault("", point)
        else:
            names = [o for o in options.split(",") if o in CONTROLLERS or o.startswith("name=")]
            version1.setdefault(",".join(names), point)
    return version1 or unified


def _mounts(mountinfo: Path) -> Iterator[tuple[str, str, Path]]:
    for line in mountinfo.read_text().splitlines():
        fields, _, tail = line.partition(" - ")
        kind, _, options = tail.split(" ", 2)
        if kind in {"cgroup", "cgroup2"}:
            yield kind, options, Path(fields.split()[4])


def missing_controllers() -> list[str]:
    """Controllers that pods need and this kernel does not offer."""
    found = hierarchies()
    if "" in found:
        offered = (found[""] / "cgroup.controllers").read_text().split()
        return [name for name in UNIFIED_REQUIRED if name not in offered]
    offered = [name for names in found for name in names.split(",")]
    return [name for name in REQUIRED if name not in offered]


def create(part: str = "") -> list[Path]:
    """Make `/terrace[/part]` in every hierarchy.

    Returns the `cgroup.procs` files to write a pid into.
    """
    procs: list[Path] = []
    for names, mount_point in hierarchies().items():
        parent = mount_point
        for step in (ROOT, part) if part else (ROOT,):
            directory = parent / step
            if names == "":
                _enable_controllers(parent)
            directory.mkdir(exist_ok=True)
            if "cpuset" in names.split(","):
                # A v1 cpuset starts empty and takes no process until it has both.
                for file in ("cpuset.cpus", "cpuset.mems"):
                    if not (directory / file).read_text().strip():
                        (directory / file).write_text((parent / file).read_text())
            parent = directory
        procs.append(parent / "cgroup.procs")
    return procs


def members(part: str = "") -> set[int]:
    """Pids in `/terrace[/part]` and below, over all hierarchies."""
    return {pid for directory in _directories(part) for pid in _pids(directory)}


def kill_all(
    part: str = "",
    *,
    number: int = signal.SIGKILL,
    timeout: float = 10.0,
    keep: frozenset[int] = frozenset(),
) -> bool:
    """Signal every member of `/terrace[/part]` until none is left.

    Returns False when some outlived `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    sent: set[int] = set()
    while True:
        left = members(part) - keep - {os.getpid()}
        if not left:
            return True
        for pid in left if number == signal.SIGKILL else left - sent:
            # Membership was read a moment ago; a pid that ended since can only be recycled after 4
            # million others.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        sent |= left
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)


def enabled_at_root() -> list[str] | None:
    """Controllers that cgroup v2's root hands down; None where v1 accounts."""
    root = hierarchies().get("")
    return (root / "cgroup.subtree_control").read_text().split() if root else None


def disable_at_root(names: Iterable[str]) -> None:
    """Stop handing these controllers down, where nobody else has begun to use them."""
    root = hierarchies().get("")
    if root is None:
        return
    for name in names:
        with contextlib.suppress(OSError):
            (root / "cgroup.subtree_control").write_text(f"-{name}")


def remove() -> list[str]:
    """Remove `/terrace` from every hierarchy, deepest first. Returns what would not go."""
    stuck: list[str] = []
    for directory in sorted(_directories(""), key=lambda d: len(d.parts), reverse=True):
        for attempt in range(20):
            try:
                directory.rmdir()
                break
            except FileNotFoundError:
                break
            except OSError:
                # An exiting task is still charged for a moment.
                time.sleep(0.05)
                if attempt == 19:
                    stuck.append(str(directory))
    return stuck


def _directories(part: str) -> Iterator[Path]:
    # The kubelet makes its cgroups in every mount there is, hybrid v2 included.
    for _, _, mount_point in _mounts(MOUNTINFO):
        top = mount_point / ROOT / part
        for directory, _, _ in os.walk(top):
            yield Path(directory)


def _pids(directory: Path) -> list[int]:
    try:
        return [int(pid) for pid in (directory / "cgroup.procs").read_text().split() if pid != "0"]
    except OSError:
        return []


def _enable_controllers(directory: Path) -> None:
    offered = set((directory / "cgroup.controllers").read_text().split())
    enabled = set((directory / "cgroup.subtree_control").read_text().split())
    for name in sorted(offered & {*UNIFIED_REQUIRED, "hugetlb", "io"} - enabled):
        with contextlib.suppress(OSError):
            (directory / "cgroup.subtree_control").write_text(f"+{name}")
