"""The machine as a set of facts, to prove that `down` leaves none of ours behind."""

import json
import os
import re
import subprocess
from pathlib import Path

__all__ = ["Snapshot", "differences", "take_snapshot"]

Snapshot = dict[str, set[str]]

TREES = (
    "/var/lib",
    "/run",
    "/etc",
    "/opt",
    "/var/log",
    "/usr/libexec",
    "/var/cache",
)
# Written by others all the time: package tools, the session's own daemons.
IGNORED_TREES = (
    "/var/lib/apt",
    "/var/lib/dpkg",
    "/var/cache/apt",
    "/var/cache/debconf",
    "/var/cache/man",
    "/var/log/apt",
    "/var/log/journal",
    "/run/log",
    "/run/systemd",
    "/run/udev",
    "/run/user",
    "/var/lib/systemd",
    "/var/lib/postgresql",
    "/run/postgresql",
    "/var/cache/ldconfig",
    "/run/lock",
    "/var/lib/man-db",
    "/var/lib/containers",
    "/run/containers",
    "/run/crun",
    "/run/runc",
    "/run/sudo",
)
# State below these is compared by name, deep; a cluster writes nothing of its own elsewhere.
SYSCTL_TREES = (
    "net/ipv4/ip_forward",
    "net/ipv4/conf",
    "net/bridge",
    "vm",
    "kernel",
    "net/netfilter",
)
VOLATILE_SYSCTL = re.compile(
    r"kernel/(random/|ns_last_pid|pty/nr|perf_|sched_|tainted)|net/netfilter/nf_conntrack_(count|buckets)|"
    r"vm/(stat|numa_stat|drop_caches|compact_memory)|kernel/keys/gc_delay"
)
PROGRAMS = {
    "etcd",
    "containerd",
    "containerd-shim-runc-v2",
    "kube-apiserver",
    "kube-controller",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "kube-router",
    "coredns",
    "pause",
    "runc",
}


def take_snapshot() -> Snapshot:
    """Everything that a cluster could leave: processes, network, firewall, cgroups, files..."""
    return {
        "process": _processes(),
        "mount": {
            line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()
        },
        "link": {link["ifname"] for link in _json("ip", "-json", "link")},
        "address": {
            f"{link.get('ifname')} {a.get('local')}"
            for link in _json("ip", "-json", "address")
            for a in link.get("addr_info", ())
        },
        "route": set(_run("ip", "route", "show", "table", "all").splitlines()),
        "rule": set(_run("ip", "rule").splitlines()),
        "nftables": _ruleset(),
        "ipset": set(_run("ipset", "list", "-name").splitlines()),
        "netns": set(_run("ip", "netns", "list").splitlines()),
        "cgroup": _cgroups(),
        "sysctl": _sysctls(),
        "file": _files(),
        "listener": _listeners(),
    }


def differences(before: Snapshot, after: Snapshot) -> dict[str, list[str]]:
    """By kind, what appeared ("+ ...") and what went ("- ...").

    Empty when the machine is as it was.
    """
    found: dict[str, list[str]] = {}
    for kind in before.keys() | after.keys():
        added = after.get(kind, set()) - before.get(kind, set())
        gone = before.get(kind, set()) - after.get(kind, set())
        if added or gone:
            found[kind] = [f"+ {item}" for item in sorted(added)] + [
                f"- {item}" for item in sorted(gone)
            ]
    return found


def _processes() -> set[str]:
    """A cluster's programs with their pid, and any process below a `terrace` cgroup."""
    found: set[str] = set()
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            name = (directory / "comm").read_text().strip()
            groups = (directory / "cgroup").read_text()
            zombie = (directory / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
        except OSError:
            continue
        if not zombie and (name in {p[:15] for p in PROGRAMS} or ":/terrace" in groups):
            found.add(f"{directory.name} {name}")
    return found


def _listeners() -> set[str]:
    """Listening sockets on fixed ports; ephemeral ones come and go with anybody's programs."""
    sockets = {line.split()[3] for line in _run("ss", "-Hltn").splitlines()}
    return {name for name in sockets if int(name.rpartition(":")[2]) < 32768}


def _ruleset() -> set[str]:
    """Every table, chain, rule, set of every family; counters and handles do not matter."""
    text = _run("nft", "--stateless", "list", "ruleset")
    table = chain = ""
    found: set[str] = set()
    for raw in text.splitlines():
        line = raw.strip()
        if line.startswith("table "):
            table, chain = line, ""
        elif line.startswith(("chain ", "set ", "map ")):
            chain = line
        if line not in {"", "}"}:
            found.add(f"{table} | {chain} | {line}")
    return found


def _cgroups() -> set[str]:
    found: set[str] = set()
    for directory, names, _ in os.walk("/sys/fs/cgroup"):
        # Cgroups of whatever runs this test come and go; one named like ours counts wherever it is.
        if directory.count("/") <= 4:
            found |= {f"{directory}/{n}" for n in names}
        else:
            found |= {f"{directory}/{n}" for n in names if "terrace" in n or "kubepods" in n}
    return {path for path in found if "process_api" not in path}


def _sysctls() -> set[str]:
    found: set[str] = set()
    for tree in SYSCTL_TREES:
        top = Path("/proc/sys", tree)
        for path in [top] if top.is_file() else top.rglob("*"):
            name = str(path.relative_to("/proc/sys"))
            if VOLATILE_SYSCTL.search(name):
                continue
            try:
                if path.is_file():
                    found.add(f"{name} = {path.read_text(errors='replace').strip()}")
            except OSError:
                continue
    return found


def _files() -> set[str]:
    found: set[str] = set()
    for tree in TREES:
        for directory, names, files in os.walk(tree):
            names[:] = [n for n in names if f"{directory}/{n}" not in IGNORED_TREES]
            found |= {f"{directory}/{n}" for n in (*names, *files)}
    # buildah, which builds the images, makes this lock in CNI's default place.
    return {p for p in found if p not in {"/etc/cni", "/etc/cni/net.d", "/etc/cni/net.d/cni.lock"}}


def _json(*argv: str) -> list[dict]:
    return json.loads(_run(*argv) or "[]")


def _run(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout
