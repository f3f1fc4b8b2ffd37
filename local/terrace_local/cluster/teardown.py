"""`down`: stops exactly what was started and takes away everything it left, whatever state it is
in.

Each step looks at the machine rather than at a memory of it, so it can be killed anywhere and run
again.
"""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from terrace_local.cluster import cgroups, firewall, machine, mounts, network, provider_files
from terrace_local.cluster.containers import Containers
from terrace_local.cluster.errors import ClusterError
from terrace_local.cluster.files import read_json
from terrace_local.cluster.parts import STOP_ORDER
from terrace_local.cluster.paths import Paths
from terrace_local.cluster.processes import ProcessTable, boot_id, start_time, terminate

__all__ = ["DownReport", "clear_runtime", "remove_state", "sizes"]

# Long enough for a database to write its checkpoint.
POD_GRACE_SECONDS = 10.0
DATA = ("etcd", "volumes", "pulumi", "containerd")
LAYERS_A_STEP = 10
WHAT = {
    "containerd": "images and containers",
    "etcd": "the cluster's objects",
    "pulumi": "Pulumi's state of the local stack",
    "volumes": "the volumes",
}
KEPT = frozenset({*DATA, "pki", "kubeconfig", "substrate.json", "cluster.json", "lock"})


@dataclass(frozen=True)
class DownReport:
    """What `down` did.

    `data`: bytes by kind (etcd, volumes, pulumi, containerd images) that were removed, or kept.
    """

    stopped: tuple[str, ...] = ()
    containers: int = 0
    mounts: int = 0
    removed: tuple[str, ...] = ()
    data: dict[str, int] = field(default_factory=dict)
    data_kept: bool = False
    left: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass
class Cleared:
    stopped: list[str] = field(default_factory=list)
    containers: int = 0
    mounts: int = 0
    removed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def clear_runtime(paths: Paths, table: ProcessTable, *, progress: Callable[[str], None]) -> Cleared:
    """Stop processes and containers; remove mounts, links, firewall rules, cgroups. Data stays."""
    cleared = Cleared()
    records = table.records()
    first, *others = STOP_ORDER
    progress("stopping the node")
    cleared.stopped += terminate([records[name] for name in first if name in records], grace=10)
    _stop_pods(paths, cleared, progress)
    progress("stopping the control plane")
    for group in others:
        cleared.stopped += terminate([records[name] for name in group if name in records], grace=10)
    # A part of an older version of this program, or one whose record was lost.
    cleared.stopped += terminate(records.values(), grace=5)
    sockets = _shim_sockets(paths)
    _end_shims(paths)
    if not cgroups.kill_all():
        cleared.left.append(f"processes that cannot be killed: {sorted(cgroups.members())}")
    for name in records:
        table.forget(name)
    progress("removing mounts, links, firewall rules and cgroups")
    cleared.removed += [f"file {path}" for path in provider_files.remove_kubeconfigs()]
    cleared.mounts, stuck = mounts.unmount_below((paths.state, paths.run))
    cleared.left += stuck
    cleared.removed += [f"link {name}" for name in network.remove_links()]
    cleared.removed += firewall.remove_firewall(machine.tables_before(paths))
    cleared.left += [f"cgroup {path}" for path in cgroups.remove()]
    machine.restore_controllers(paths)
    cleared.removed += [
        f"setting {name} (old value restored)" for name in machine.restore_sysctls(paths)
    ]
    cleared.removed += machine.remove_borrowed(paths, sockets)
    if not mounts.mounts_below((paths.run,)):
        shutil.rmtree(paths.run, ignore_errors=True)
    for directory in (paths.processes, paths.kubelet, paths.cni, paths.log / "pods"):
        if not mounts.mounts_below((directory,)):
            shutil.rmtree(directory, ignore_errors=True)
    paths.machine.unlink(missing_ok=True)
    return cleared


def remove_state(paths: Paths, *, keep_data: bool, progress: Callable[[str], None]) -> list[str]:
    """Remove the state directory, or all of it but the data. Returns what could not be removed.

    The lock file goes last. `progress` hears of each body of data before it goes: a disk that is
    busy takes minutes for the hundred thousand small files of the images.
    """
    left: list[str] = []
    if mounts.mounts_below((paths.state,)):
        # Deleting through a mount would delete what is mounted.
        return [f"{paths.state}: something is still mounted below it"]
    for entry in sorted(paths.state.iterdir()):
        if entry.name == "lock" or (keep_data and entry.name in KEPT):
            continue
        if entry.is_dir() and not entry.is_symlink():
            if entry.name in WHAT:
                progress(f"removing {WHAT[entry.name]} ({entry})")
            if entry == paths.containerd:
                _remove_layers(entry, progress)
            shutil.rmtree(entry, onerror=lambda _f, path, info: left.append(f"{path}: {info[1]}"))
        else:
            entry.unlink(missing_ok=True)
    if not keep_data:
        paths.lock.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            paths.state.rmdir()
    return left


def _remove_layers(containerd: Path, progress: Callable[[str], None]) -> None:
    """Nearly all of the files, in steps that can be told; what stays is tried again and reported
    with the rest.
    """
    layers = sorted(containerd.glob("io.containerd.snapshotter.*/snapshots/*"))
    for number, layer in enumerate(layers, start=1):
        if number % LAYERS_A_STEP == 0:
            progress(f"removing image layer {number} of {len(layers)}")
        shutil.rmtree(layer, ignore_errors=True)


def sizes(paths: Paths) -> dict[str, int]:
    """Bytes on disk by kind of data; mounts below are not followed."""
    return {name: _disk_usage(paths.state / name) for name in DATA if (paths.state / name).exists()}


def _disk_usage(top: Path) -> int:
    total = 0
    device = top.stat().st_dev
    for directory, names, files in os.walk(top):
        for name in [*names, *files]:
            with contextlib.suppress(OSError):
                status = os.lstat(os.path.join(directory, name))  # noqa: PTH118
                if status.st_dev == device:
                    total += status.st_blocks * 512
        names[:] = [n for n in names if _device(f"{directory}/{n}") == device]
    return total


def _device(path: str) -> int | None:
    try:
        return os.lstat(path).st_dev
    except OSError:
        return None


def _stop_pods(paths: Paths, cleared: Cleared, progress: Callable[[str], None]) -> None:
    """Ask the pods' processes to end, then have containerd delete every container.

    The kubelet is gone by now.
    """
    if cgroups.members("kubepods"):
        progress(f"stopping the pods (at most {POD_GRACE_SECONDS:.0f} s)")
        cgroups.kill_all("kubepods", number=signal.SIGTERM, timeout=POD_GRACE_SECONDS)
    binaries = Path(str((read_json(paths.cluster) or {}).get("toolchain_bin", "")))
    containers = Containers(paths, binaries)
    try:
        if (binaries / "ctr").exists() and containers.answers():
            cleared.containers = containers.end_all()
    except (ClusterError, OSError, subprocess.TimeoutExpired):
        # A containerd that hangs is dealt with below, by killing what is in our cgroups.
        cleared.removed.append("containers (containerd did not answer; killed)")
    cgroups.kill_all("kubepods")


def _end_shims(paths: Paths) -> None:
    """End shims of our containerd: the argument after -address is exactly its socket."""
    wanted = str(paths.containerd_socket)
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            argv = (directory / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if "containerd-shim" in argv[0] and ("-address", wanted) in itertools.pairwise(argv):
            pid = int(directory.name)
            terminate([{"pid": pid, "start_time": start_time(pid), "boot_id": boot_id()}], grace=1)


def _shim_sockets(paths: Paths) -> set[Path]:
    """Sockets that our shims made in containerd's hard-coded directory."""
    found: set[Path] = set()
    for bootstrap in paths.containerd_run.glob("io.containerd.runtime.v2.task/*/*/bootstrap.json"):
        address = str((read_json(bootstrap) or {}).get("address", ""))
        if address.startswith("unix://"):
            found.add(Path(address.removeprefix("unix://")))
    return found
