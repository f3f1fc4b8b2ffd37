"""The node's link, the machine's sysctls, and the one nftables table that is ours.

The table does three things: gives pods a way out (masquerade), keeps everybody but this machine
away from the node's, the pods' and the Services' addresses (Linux would accept a packet for
10.89.0.1 on any link), and, on a machine that forwarded nothing before, keeps it from becoming a
router for others.
"""

import contextlib
import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from terrace_local.cluster.errors import ClusterError
from terrace_local.cluster.paths import (
    BRIDGE,
    NODE_ADDRESS,
    NODE_LINK,
    NODE_NETWORK,
    POD_NETWORK,
    SERVICE_NETWORK,
    SYSTEM_PATH,
)

__all__ = [
    "SYSCTLS",
    "addresses_on_links",
    "links",
    "read_sysctl",
    "remove_links",
    "routes",
    "run",
    "set_up_network",
    "write_sysctl",
]

TABLE = "terrace"
# What the cluster needs, and what the kubelet sets on any machine it runs on
# (cm/container_manager_linux.go).
SYSCTLS: dict[str, str] = {
    "net/ipv4/ip_forward": "1",
    "net/bridge/bridge-nf-call-iptables": "1",
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


def run(*argv: str, text: str | None = None, check: bool = True) -> str:
    """Run a system tool and return its output. Raises ClusterError with the tool's own words.

    Without `check`, a tool that fails or is not installed gives what it wrote, or nothing.
    """
    # A root shell without a login often lacks the sbin directories.
    environment = os.environ | {"PATH": f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"}
    try:
        done = subprocess.run(
            argv, input=text, capture_output=True, text=True, check=False, env=environment
        )
    except FileNotFoundError:
        if check:
            raise ClusterError(f"`{argv[0]}` is not installed") from None
        return ""
    if check and done.returncode:
        said = done.stderr.strip() or done.stdout.strip()
        raise ClusterError(f"`{' '.join(argv)}` failed: {said}")
    return done.stdout


def set_up_network(*, forwarded_before: bool) -> None:
    """Have the node's link with its address, the sysctls and our table.

    Changes only what is not so already.
    """
    if NODE_LINK not in links():
        # A bridge without ports serves as the dummy link: every kernel that can run pods has
        # bridges, not all have dummies.
        run("ip", "link", "add", NODE_LINK, "type", "bridge")
    if NODE_ADDRESS not in addresses_on_links().get(NODE_LINK, ()):
        run("ip", "address", "add", f"{NODE_ADDRESS}/32", "dev", NODE_LINK)
    run("ip", "link", "set", NODE_LINK, "up")
    for name, value in SYSCTLS.items():
        if read_sysctl(name) != value:
            write_sysctl(name, value)
    run("nft", "-f", "-", text=_table(forwarded_before))


def _table(forwarded_before: bool) -> str:
    ours = f"{{ {NODE_NETWORK}, {POD_NETWORK}, {SERVICE_NETWORK} }}"
    inside = f'{{ "lo", "{NODE_LINK}", "{BRIDGE}" }}'
    transit = (
        ""
        if forwarded_before
        else f'iifname != "{BRIDGE}" oifname != "{BRIDGE}" ct status & dnat == 0 drop'
    )
    # add, delete, add: replaces the table in one transaction whether or not it exists.
    return f"""
add table ip {TABLE}
delete table ip {TABLE}
table ip {TABLE} {{
  chain outside {{
    type filter hook prerouting priority raw; policy accept;
    iifname != {inside} ip daddr {ours} drop
  }}
  chain transit {{
    type filter hook forward priority filter; policy accept;
    {transit}
  }}
  chain egress {{
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr {POD_NETWORK} ip daddr != {ours} oifname != "{BRIDGE}" masquerade
  }}
}}
"""


def links() -> dict[str, dict[str, Any]]:
    """Every network link of this namespace by name."""
    return {
        link["ifname"]: link
        for link in json.loads(run("ip", "-json", "-details", "link", "show", check=False) or "[]")
    }


def addresses_on_links() -> dict[str, list[str]]:
    """IPv4 addresses by link."""
    shown = json.loads(run("ip", "-json", "-4", "address", "show", check=False) or "[]")
    return {
        link["ifname"]: [a["local"] for a in link.get("addr_info", ()) if "local" in a]
        for link in shown
        if link
    }


def routes() -> list[dict[str, Any]]:
    """IPv4 routes of the main table."""
    return json.loads(run("ip", "-json", "-4", "route", "show", check=False) or "[]")


def remove_links(also: Iterable[str] = ()) -> list[str]:
    """Remove the bridge with the pod ends on it, the node's link, and `also`.

    Returns what was removed.
    """
    present = links()
    ports = [name for name, link in present.items() if link.get("master") == BRIDGE]
    removed: list[str] = []
    for name in dict.fromkeys([*ports, BRIDGE, NODE_LINK, *also]):
        if name in present:
            # Deleting one end of a veth pair, or the namespace of the other, may have taken it
            # along.
            run("ip", "link", "delete", name, check=False)
            removed.append(name)
    return removed


def read_sysctl(name: str) -> str | None:
    """The value of `net/ipv4/ip_forward` and the like.

    None where this kernel has no such setting.
    """
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return None


def write_sysctl(name: str, value: str) -> None:
    with contextlib.suppress(OSError):
        Path("/proc/sys", name).write_text(value)
