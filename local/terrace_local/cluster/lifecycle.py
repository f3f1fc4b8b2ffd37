"""`up`: from whatever state the machine is in to a ready cluster."""

import contextlib
import os
import secrets
import shutil
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from terrace_local.cluster import addons, cgroups, machine, network
from terrace_local.cluster.api import Api
from terrace_local.cluster.configuration import upstream_resolvers, write_configuration
from terrace_local.cluster.containers import Containers
from terrace_local.cluster.errors import PreflightFailed, Problem, Unanswered
from terrace_local.cluster.files import read_json, write_json
from terrace_local.cluster.health import (
    CHECKED,
    dns_problem,
    node_problem,
    part_problem,
    registered,
)
from terrace_local.cluster.lock import machine_lock, refuse_other_holder, take_hold
from terrace_local.cluster.parts import PARTS, parts
from terrace_local.cluster.paths import NODE_ADDRESS, NODE_NAME, SYSTEM_PATH, Paths
from terrace_local.cluster.pki import ensure_pki
from terrace_local.cluster.preflight import check_machine
from terrace_local.cluster.processes import ProcessTable
from terrace_local.cluster.scratch_image import image_reference
from terrace_local.cluster.starting import IMAGES, Progress, Starter
from terrace_local.cluster.teardown import clear_runtime

__all__ = ["ClusterInfo", "Progress", "clone_path", "preflight", "require_root", "up"]

MODULES = ("overlay", "br_netfilter", "nf_conntrack", "nf_tables")


@dataclass(frozen=True)
class ClusterInfo:
    """A cluster that is ready. `started`: the parts that this call had to start.

    Empty when all was well already.
    """

    kubeconfig: Path
    node_name: str
    node_address: str
    cluster_identifier: str
    volumes_root: Path
    started: tuple[str, ...] = ()
    seconds: float = 0.0
    new: bool = field(default=False, kw_only=True)


def clone_path() -> Path:
    """The checkout this code runs from: what `holder.json` names."""
    return Path(__file__).resolve().parents[3]


def preflight(toolchain_bin: Path, *, paths: Paths | None = None) -> list[Problem]:
    """What keeps this machine from running the cluster, nothing changed; empty when all is well."""
    paths = paths or Paths.default()
    running = ProcessTable(paths.processes, paths.log).running()
    pids = {record["pid"] for record in running.values()}
    return check_machine(
        paths, binaries=toolchain_bin, ours=pids | cgroups.members(), cold=not running
    )


def require_root() -> None:
    """Raise PreflightFailed unless this is root on Linux."""
    if os.geteuid() != 0:
        raise PreflightFailed(
            [
                Problem(
                    "rights",
                    f"this needs root, and you are uid {os.geteuid()}",
                    "run it with sudo or as root",
                )
            ]
        )


def up(
    toolchain_bin: Path,
    *,
    progress: Progress,
    clone: Path | None = None,
    paths: Paths | None = None,
) -> ClusterInfo:
    """Have the cluster running and ready, starting only what is not; returns when pods can be
    scheduled and names resolve.

    Raises PreflightFailed before anything is changed, HeldByAnother when another clone's cluster
    lives, StartTimeout with the log's last lines when a part does not come up.
    """
    paths, clone, began = paths or Paths.default(), clone or clone_path(), time.monotonic()
    require_root()
    existed = paths.state.exists()
    try:
        with machine_lock(paths, clone=clone, command="up", progress=progress):
            return _up(paths, toolchain_bin.resolve(), clone, progress, began)
    except PreflightFailed:
        if not existed:
            # Nothing may be left of a refusal.
            with contextlib.suppress(OSError):
                paths.lock.unlink()
                paths.state.rmdir()
        raise


def _up(paths: Paths, binaries: Path, clone: Path, progress: Progress, began: float) -> ClusterInfo:
    table = ProcessTable(paths.processes, paths.log)
    takeover = refuse_other_holder(paths, table, clone=clone)
    problems = preflight(binaries, paths=paths)
    if problems:
        raise PreflightFailed(problems)
    if takeover:
        progress(
            "the clone that held this cluster is gone: clearing what it left, keeping its data"
        )
        clear_runtime(paths, table, progress=progress)
    new = not paths.etcd.exists()
    if new:
        write_json(
            paths.cluster,
            {"identifier": f"terrace-local-{secrets.token_hex(4)}", "created_at": time.time()},
        )
    machine.record_machine(paths)
    take_hold(paths, clone=clone)
    described = read_json(paths.cluster) or {}
    described.setdefault("identifier", f"terrace-local-{secrets.token_hex(4)}")
    write_json(paths.cluster, described | {"toolchain_bin": str(binaries)})

    references = {
        name: image_reference(binaries / name, name, arguments=a) for name, a in IMAGES.items()
    }
    resolvers = upstream_resolvers()
    _prepare(paths, references["pause"], resolvers)
    starter = Starter(paths, table, parts(paths, binaries), progress)
    starter.start_control_plane(Containers(paths, binaries), binaries, references)
    with Api(paths) as api:
        starter.wait(
            "kube-apiserver",
            "the API server to take the rights",
            partial(addons.apply_rights, api),
            again=Unanswered,
        )
        starter.start("kube-proxy")
        # kube-router ends at once when its node is not there yet.
        starter.wait(
            "kubelet",
            "the node to register",
            lambda: None if registered(api) else "the kubelet has not done so",
        )
        starter.start("kube-router")
        apply_dns = partial(addons.apply_dns, api, image=references["coredns"], resolvers=resolvers)
        starter.wait(
            "kube-apiserver",
            "the API server to take cluster DNS",
            apply_dns,
            again=Unanswered,
        )
        starter.wait("kubelet", "the node to be Ready", lambda: node_problem(api))
        for name in CHECKED:
            starter.wait(name, f"{name} to be healthy", partial(part_problem, name, paths))
        starter.wait("kubelet", "cluster DNS to answer", lambda: dns_problem(api))
    for name in PARTS:
        starter.require_alive(name)
    return ClusterInfo(
        kubeconfig=paths.kubeconfig,
        node_name=NODE_NAME,
        node_address=NODE_ADDRESS,
        cluster_identifier=str(described["identifier"]),
        volumes_root=paths.volumes,
        started=tuple(starter.started),
        seconds=time.monotonic() - began,
        new=new,
    )


def _prepare(paths: Paths, pause: str, resolvers: list[str]) -> None:
    """Directories, modules, link, cgroups, certificates, configuration."""
    for directory in (paths.etcd, paths.pki):
        directory.mkdir(mode=0o700, exist_ok=True)
    for directory in (
        paths.volumes,
        paths.pulumi,
        paths.log / "pods",
        paths.cni / "conf",
        paths.kubelet,
        paths.run,
    ):
        directory.mkdir(parents=True, exist_ok=True)
    if not Path("/proc/sys/net/bridge").exists():
        network.run("modprobe", "--all", *MODULES, check=False)
    cgroups.create()
    network.set_up_network(forwarded_before=machine.forwarded_before(paths))
    ensure_pki(paths)
    runc = (
        shutil.which("runc", path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}") or "/usr/sbin/runc"
    )
    write_configuration(paths, runc=Path(runc), pause_ref=pause, resolvers=resolvers)
