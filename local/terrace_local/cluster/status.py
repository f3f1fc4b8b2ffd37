"""`status`: what is wrong, in words, one problem for each part."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from terrace_local.cluster import network
from terrace_local.cluster.api import Api
from terrace_local.cluster.containers import Containers
from terrace_local.cluster.errors import ClusterError, Problem
from terrace_local.cluster.files import read_json
from terrace_local.cluster.health import CHECKED, dns_problem, node_problem, part_problem
from terrace_local.cluster.lock import describe_holder
from terrace_local.cluster.parts import PARTS
from terrace_local.cluster.paths import NODE_ADDRESS, NODE_LINK, Paths
from terrace_local.cluster.processes import ProcessTable, boot_id, describe, start_time

__all__ = ["ClusterStatus", "PartStatus", "status"]


@dataclass(frozen=True)
class PartStatus:
    """One host process. `pid` is None when it does not run.

    `running_seconds` is since its start.
    """

    name: str
    pid: int | None
    running_seconds: float | None
    resident_bytes: int | None
    log: Path


@dataclass(frozen=True)
class ClusterStatus:
    """What stands, and what is wrong with it.

    `state`: "absent" (nothing of it on this machine), "stopped" (data, no process), "running" (no
    problem), "degraded".
    """

    state: str
    parts: tuple[PartStatus, ...] = ()
    problems: tuple[Problem, ...] = ()
    holder: str | None = None
    holder_clone: Path | None = None
    cluster_identifier: str | None = None

    @property
    def healthy(self) -> bool:
        return self.state == "running"


def status(*, paths: Paths | None = None) -> ClusterStatus:
    """Look at the cluster and change nothing. Needs root to look inside.

    Without, it says so as a problem.
    """
    paths = paths or Paths.default()
    table = ProcessTable(paths.processes, paths.log)
    records, running = table.records(), table.running()
    if not records and not paths.cluster.exists():
        return ClusterStatus("absent")
    holder = read_json(paths.holder)
    known = (read_json(paths.cluster) or {}).get("identifier")
    parts = tuple(_part(name, running.get(name), table) for name in PARTS)
    problems = [_dead(name, records.get(name), table) for name in PARTS if name not in running]
    if running:
        problems += _deeper(paths, set(running))
    state = "stopped" if not running else "degraded" if problems else "running"
    return ClusterStatus(
        state=state,
        parts=parts,
        problems=tuple(problems) if running or records else (),
        holder=describe_holder(holder) if holder else None,
        holder_clone=Path(str(holder["clone"])) if holder and "clone" in holder else None,
        cluster_identifier=str(known) if known else None,
    )


def _part(name: str, record: dict[str, object] | None, table: ProcessTable) -> PartStatus:
    if record is None:
        return PartStatus(name, None, None, None, table.log_path(name))
    pid = int(str(record["pid"]))
    try:
        resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf(
            "SC_PAGE_SIZE"
        )
    except (OSError, IndexError):
        resident = None
    since = max(0.0, time.time() - float(str(record.get("started_at", 0))))
    return PartStatus(name, pid, since, resident, table.log_path(name))


def _dead(name: str, record: dict[str, object] | None, table: ProcessTable) -> Problem:
    if record is None:
        return Problem(name, "was never started, or its record is gone", "run `terrace up`")
    pid = int(str(record["pid"]))
    if record.get("boot_id") != boot_id():
        reason = "has not run since the machine was started anew"
    elif start_time(pid) is not None:
        reason = f"ended; its pid now belongs to somebody else, {describe(pid)}, who is left alone"
    else:
        log, tail = table.log_path(name), table.tail(name, 3)
        reason = f"ended (it was pid {pid}); the end of its log, {log}:\n{tail}\n   "
    return Problem(name, reason, "run `terrace up`")


def _deeper(paths: Paths, running: set[str]) -> list[Problem]:
    if os.geteuid() != 0:
        said = f"only root can read {paths.pki}, so the inside was not looked at"
        return [Problem("rights", said, "run it with sudo")]
    problems: list[Problem] = []
    if NODE_ADDRESS not in network.addresses_on_links().get(NODE_LINK, ()):
        problems.append(
            Problem("network", f"{NODE_ADDRESS} is not on the link {NODE_LINK}", "run `terrace up`")
        )
    binaries = Path(str((read_json(paths.cluster) or {}).get("toolchain_bin", "")))
    if "containerd" in running:
        if not (binaries / "ctr").exists():
            problems.append(Problem("toolchain", f"{binaries / 'ctr'} is gone", "run `terrace up`"))
        elif not Containers(paths, binaries).answers():
            problems.append(
                Problem(
                    "containerd",
                    "runs but does not answer on its socket",
                    f"see {paths.log}/containerd.log",
                )
            )
    for name in [name for name in CHECKED if name in running]:
        said = part_problem(name, paths)
        if said:
            problems.append(
                Problem(name, f"runs but is not healthy: {said}", f"see {paths.log}/{name}.log")
            )
    if "kube-apiserver" in running:
        problems += _inside(paths)
    return problems


def _inside(paths: Paths) -> list[Problem]:
    try:
        with Api(paths) as api:
            said = api.not_ready()
            if said:
                return [
                    Problem(
                        "kube-apiserver",
                        f"runs but is not ready: {said}",
                        f"see {paths.log}/kube-apiserver.log",
                    )
                ]
            checks = (
                ("node", "is not Ready", node_problem(api)),
                ("cluster DNS", "is not available", dns_problem(api)),
            )
    except (ClusterError, OSError) as error:
        return [Problem("kube-apiserver", str(error), "run `terrace up`")]
    return [Problem(subject, f"{what}: {said}") for subject, what, said in checks if said]
