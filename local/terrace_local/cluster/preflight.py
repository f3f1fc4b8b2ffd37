"""What must be true before anything is changed.

Every check only looks, or tries in a network namespace that is thrown away.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterable
from ipaddress import IPv4Network
from pathlib import Path

from terrace_local.cluster import cgroups
from terrace_local.cluster.errors import Problem
from terrace_local.cluster.network import routes
from terrace_local.cluster.parts import PARTS, PORTS
from terrace_local.cluster.paths import (
    BRIDGE,
    NODE_LINK,
    NODE_NETWORK,
    PLUGIN_DIR,
    POD_NETWORK,
    SERVICE_NETWORK,
    SYSTEM_PATH,
    Paths,
)
from terrace_local.cluster.processes import describe

__all__ = ["check_machine", "listeners", "owner_of"]

GIB = 1024**3
DISK_BYTES = 10 * GIB
MEMORY_BYTES = 4 * GIB
LOOKS = 30
PROGRAMS = {
    "runc": "runc",
    "ip": "iproute2",
    "nft": "nftables",
    "iptables": "iptables",
    "iptables-save": "iptables",
    "iptables-restore": "iptables",
    "ipset": "ipset",
    "conntrack": "conntrack",
    "unshare": "util-linux",
    "mount": "mount",
}
PLUGINS = ("bridge", "host-local", "loopback")
# Tried for real: /proc/config.gz is often absent, and a module list says nothing about what is
# built in.
TRIAL = """
ip link add t0 type bridge || echo "bridge links"
ip link add t1 type veth peer name t2 || echo "veth links"
nft 'add table ip t; add chain ip t c { type nat hook postrouting priority 100; };
  add rule ip t c masquerade' || echo "nftables with NAT"
iptables -w -A INPUT -m comment --comment t -m mark --mark 1 -j ACCEPT ||
  echo "iptables with comment and mark matches"
ipset create t hash:ip && iptables -w -A INPUT -m set --match-set t src -j ACCEPT ||
  echo "IP sets and iptables' set match"
"""


def check_machine(
    paths: Paths, *, binaries: Path, ours: Iterable[int], cold: bool
) -> list[Problem]:
    """Everything that keeps the cluster from running here; empty when nothing does.

    `ours`: pids of the cluster's own running processes, whose ports are not "in use". `cold`:
    nothing of it runs yet, so its memory has to be free.
    """
    if os.uname().sysname != "Linux":
        return [
            Problem(
                "system", f"{os.uname().sysname} cannot run it", "use a Linux machine or a Linux VM"
            )
        ]
    if os.geteuid() != 0:
        return [
            Problem(
                "rights",
                f"this needs root, and you are uid {os.geteuid()}",
                "run it with sudo or as root",
            )
        ]
    problems = [
        *_programs(binaries),
        *_resources(paths, cold=cold),
        *_ports(set(ours)),
        *_networks(),
    ]
    if not any(p.subject == "program" for p in problems):
        problems += _kernel()
    return problems


def _programs(binaries: Path) -> Iterable[Problem]:
    for program, package in PROGRAMS.items():
        if shutil.which(program, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}") is None:
            yield Problem(
                "program", f"`{program}` is not installed", f"on Debian: apt-get install {package}"
            )
    for plugin in PLUGINS:
        if not (PLUGIN_DIR / plugin).exists():
            yield Problem(
                "program",
                f"the CNI plugin {PLUGIN_DIR / plugin} is absent",
                "on Debian: apt-get install containernetworking-plugins",
            )
    for name in (*PARTS, "ctr", "kubectl", "coredns", "pause", "containerd-shim-runc-v2"):
        if not os.access(binaries / name, os.X_OK):
            yield Problem(
                "toolchain",
                f"{binaries / name} is absent or not executable",
                "run `terrace toolchain status`",
            )


def _resources(paths: Paths, *, cold: bool) -> Iterable[Problem]:
    place = paths.state
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    needed = DISK_BYTES if cold and not paths.containerd.exists() else 2 * GIB
    if free < needed:
        yield Problem(
            "disk",
            f"{free / GIB:.1f} GiB free at {place}, {needed / GIB:.0f} GiB needed",
            "free some space on that file system",
        )
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    if cold and available < MEMORY_BYTES:
        yield Problem(
            "memory",
            f"{available / GIB:.1f} GiB available, {MEMORY_BYTES / GIB:.0f} GiB needed",
            "close something, or use a machine with 8 GiB",
        )


def _ports(ours: set[int]) -> Iterable[Problem]:
    for address, port, part in PORTS:
        who = _occupant(address, port, ours)
        if who is not None:
            message = f"{address}:{port}, which {part} needs, is in use by {who}"
            yield Problem("port", message, "stop it, then try again")


def _occupant(address: str, port: int, ours: set[int]) -> str | None:
    owners: set[int | None] = set()
    covering = {address, "0.0.0.0", "::"}  # noqa: S104 - compared with, not bound to
    for _ in range(LOOKS):
        sockets = [inode for held, inode in listeners().get(port, ()) if held in covering]
        owners = {owner_of(inode) for inode in sockets}
        if None not in owners:
            break
        # A process that was just killed keeps its sockets until its last thread is gone.
        time.sleep(0.1)
    strangers = owners - ours
    if not strangers:
        return None
    seen = [describe(pid) for pid in strangers if pid is not None]
    return " and ".join(sorted(seen)) or "a process that cannot be seen from here"


def _networks() -> Iterable[Problem]:
    for route in routes():
        if route.get("dev") in {BRIDGE, NODE_LINK} or route.get("dst") in {None, "default"}:
            continue
        try:
            network = IPv4Network(route["dst"], strict=False)
        except ValueError:
            continue
        # A half-Internet route of a VPN (0.0.0.0/1) contains ours without being about them.
        if network.prefixlen < 8:
            continue
        for name, wanted in (
            ("pods", POD_NETWORK),
            ("the node", NODE_NETWORK),
            ("Services", SERVICE_NETWORK),
        ):
            if network.overlaps(wanted):
                yield Problem(
                    "network",
                    f"the addresses for {name}, {wanted}, overlap the route {route['dst']} "
                    f"via {route.get('dev', '?')}",
                    "take that link down (a VPN?) while the cluster runs",
                )


def _kernel() -> Iterable[Problem]:
    missing = cgroups.missing_controllers()
    if missing:
        yield Problem(
            "kernel",
            f"cgroup controllers are absent: {', '.join(missing)}",
            "enable them on the kernel command line",
        )
    if "overlay" not in Path("/proc/filesystems").read_text().split() and not _loadable("overlay"):
        yield Problem(
            "kernel", "it has no overlay file system", "use a kernel with CONFIG_OVERLAY_FS"
        )
    if not Path("/proc/sys/net/bridge").exists() and not _loadable("br_netfilter"):
        yield Problem(
            "kernel",
            "it does not filter bridged packets",
            "use a kernel with CONFIG_BRIDGE_NETFILTER",
        )
    tried = subprocess.run(
        ["unshare", "--net", "--", "sh", "-c", TRIAL],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PATH": SYSTEM_PATH},
    )
    for feature in tried.stdout.splitlines():
        yield Problem("kernel", f"it does not do {feature}", "use a kernel of a stock distribution")
    if tried.returncode and not tried.stdout:
        yield Problem(
            "rights",
            f"network namespaces cannot be made: {tried.stderr.strip()}",
            "run it outside of a container",
        )


def _loadable(module: str) -> bool:
    if shutil.which("modprobe", path="/usr/sbin:/sbin:/usr/bin:/bin") is None:
        return False
    return (
        subprocess.run(
            ["modprobe", "--dry-run", module], capture_output=True, check=False
        ).returncode
        == 0
    )


def listeners() -> dict[int, list[tuple[str, str]]]:
    """Listening TCP sockets: port -> (address, inode)."""
    found: dict[int, list[tuple[str, str]]] = {}
    for file, version in (("/proc/net/tcp", 4), ("/proc/net/tcp6", 6)):
        try:
            lines = Path(file).read_text().splitlines()[1:]
        except FileNotFoundError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] != "0A":
                continue
            address, port = fields[1].split(":")
            found.setdefault(int(port, 16), []).append((_address(address, version), fields[9]))
    return found


def _address(text: str, version: int) -> str:
    raw = bytes.fromhex(text)
    if version == 6:
        if raw == bytes(16):
            return "::"
        # ::ffff:a.b.c.d, as a dual-stack socket shows it
        return ".".join(str(b) for b in raw[:11:-1]) if raw[8:12] == b"\x00\x00\xff\xff" else "v6"
    return ".".join(str(b) for b in reversed(raw))


def owner_of(inode: str) -> int | None:
    """A process that has the socket with this inode open, as far as can be seen from here."""
    wanted = f"socket:[{inode}]"
    for directory in Path("/proc").glob("[0-9]*/fd"):
        try:
            if any(str(entry.readlink()) == wanted for entry in directory.iterdir()):
                return int(directory.parent.name)
        except OSError:
            continue
    return None
