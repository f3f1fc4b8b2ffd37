"""What the machine was before the cluster changed it, so that `down` can put it back.

Several parts have hard-coded places outside our state directory (the kubelet's device-plugin
socket, containerd's shim sockets, libcni's result cache, the symbolic links to pod logs). What was
not there before `up` goes with `down`; what was there stays.
"""

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from terrace_local.cluster import cgroups
from terrace_local.cluster.configuration import CNI_NETWORK
from terrace_local.cluster.files import read_json, write_json
from terrace_local.cluster.network import SYSCTLS, read_sysctl, run, write_sysctl
from terrace_local.cluster.paths import Paths
from terrace_local.cluster.processes import boot_id

__all__ = [
    "BORROWED",
    "forwarded_before",
    "nft_tables",
    "record_machine",
    "remove_borrowed",
    "restore_controllers",
    "restore_sysctls",
    "tables_before",
]

# Directories outside ours that parts make. Only ever emptied of files known to be ours and removed
# when then empty: somebody else (a Docker that is installed while the cluster runs) may move in at
# any time.
BORROWED: tuple[Path, ...] = tuple(
    Path(path)
    for path in (
        "/var/lib/kubelet/device-plugins",
        "/var/lib/kubelet",
        "/var/log/containers",
        "/var/lib/cni/results",
        "/var/lib/cni",
        "/run/containerd/s",
        "/run/containerd",
    )
)


def record_machine(paths: Paths) -> None:
    """Write down sysctls, places and firewall tables before anything is changed, once a boot."""
    recorded = read_json(paths.machine)
    if recorded and recorded.get("boot_id") == boot_id():
        return
    write_json(
        paths.machine,
        {
            "boot_id": boot_id(),
            "sysctls": {name: read_sysctl(name) for name in SYSCTLS},
            "dependents": {name: read_sysctl(name) for name in _dependents()},
            # Places on disk outlive a boot: what an earlier record called ours still is.
            "absent": sorted(
                {str(p) for p in BORROWED if not p.exists()}
                | set((recorded or {}).get("absent", ()))
            ),
            "nft_tables": sorted(nft_tables()),
            "controllers": cgroups.enabled_at_root(),
        },
    )


def _recorded(paths: Paths) -> dict[str, Any]:
    record = read_json(paths.machine) or {}
    return record if record.get("boot_id") == boot_id() else {}


def forwarded_before(paths: Paths) -> bool:
    """Whether the machine forwarded packets before the cluster was there."""
    return _recorded(paths).get("sysctls", {}).get("net/ipv4/ip_forward") == "1"


def tables_before(paths: Paths) -> set[str] | None:
    """The nftables tables (`family name`) that were there before.

    None when that is not known (another boot).
    """
    tables = _recorded(paths).get("nft_tables")
    return None if tables is None else set(tables)


def restore_sysctls(paths: Paths) -> list[str]:
    """Give every sysctl that still has the value we set its old one. Returns their names."""
    restored: list[str] = []
    recorded = _recorded(paths)
    for name, old in recorded.get("sysctls", {}).items():
        if old is not None and old != SYSCTLS.get(name) and read_sysctl(name) == SYSCTLS.get(name):
            write_sysctl(name, old)
            restored.append(name)
    if "net/ipv4/ip_forward" in restored:
        for name, old in recorded.get("dependents", {}).items():
            if old is not None and read_sysctl(name) not in {old, None}:
                write_sysctl(name, old)
    return restored


def _dependents() -> list[str]:
    """What the kernel resets when ip_forward changes (Documentation/networking/ip-sysctl.rst)."""
    links = sorted(path.name for path in Path("/proc/sys/net/ipv4/conf").iterdir())
    return [
        f"net/ipv4/conf/{link}/{name}"
        for link in links
        for name in ("forwarding", "accept_redirects")
    ]


def restore_controllers(paths: Paths) -> None:
    """Undo what `up` made cgroup v2's root hand down. Call when `/terrace` is gone."""
    before = _recorded(paths).get("controllers")
    if before is not None:
        cgroups.disable_at_root(set(cgroups.enabled_at_root() or ()) - set(before))


def nft_tables() -> set[str]:
    """`family name` of every nftables table."""
    listed = json.loads(run("nft", "--json", "list", "tables", check=False) or '{"nftables": []}')[
        "nftables"
    ]
    return {f"{t['table']['family']} {t['table']['name']}" for t in listed if "table" in t}


def remove_borrowed(paths: Paths, shim_sockets: Iterable[Path]) -> list[str]:
    """Remove what the parts left outside our state directory. Returns the directories that went."""
    absent = set((read_json(paths.machine) or {}).get("absent", ()))
    ours = [*shim_sockets, *Path("/var/lib/cni/results").glob(f"{CNI_NETWORK}-*")]
    for link in Path("/var/log/containers").glob("*.log"):
        if link.is_symlink() and str(link.readlink()).startswith(f"{paths.log}/"):
            ours.append(link)
    if "/var/lib/kubelet" in absent:
        ours += [
            Path("/var/lib/kubelet/device-plugins", name)
            for name in ("kubelet.sock", "DEPRECATION")
        ]
    for path in ours:
        path.unlink(missing_ok=True)
    removed: list[str] = []
    for place in BORROWED:
        if str(place) in absent:
            with contextlib.suppress(OSError):
                place.rmdir()
                removed.append(str(place))
    return removed
