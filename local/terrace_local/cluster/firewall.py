"""Removing what kube-proxy, kube-router and we put into the packet filter, and nothing else."""

import json
import re

from terrace_local.cluster.machine import nft_tables
from terrace_local.cluster.network import TABLE, run

__all__ = ["foreign_rules_kept", "remove_firewall"]

OUR_TABLES = (f"ip {TABLE}", "ip kube-proxy", "ip6 kube-proxy")
# iptables and ip6tables chains of kube-router (netpol) and of the kubelet and iptables-mode
# helpers.
OUR_CHAIN = re.compile(
    r"(KUBE-ROUTER-|KUBE-NWPLCY-|KUBE-POD-FW-|KUBE-IPTABLES-HINT|KUBE-KUBELET-CANARY|KUBE-FIREWALL)"
)
OUR_SET = re.compile(r"(inet6:)?(KUBE-SRC-|KUBE-DST-|kube-router-)")
IPTABLES_TABLES = ("filter", "nat", "mangle", "raw", "security")


def remove_firewall(before: set[str] | None) -> list[str]:
    """Delete our nftables tables, kube-router's iptables chains and IP sets, and tables that only
    we made and are empty.

    `before`: the nftables tables that existed before `up`; None keeps every table that is not ours
    by name. Returns what was removed, for people.
    """
    removed: list[str] = []
    present = nft_tables()
    for table in OUR_TABLES:
        if table in present:
            run("nft", "delete", "table", *table.split())
            removed.append(f"nftables table {table}")
    for family, tool in (("ip", "iptables"), ("ip6", "ip6tables")):
        for table in IPTABLES_TABLES:
            # iptables-save would create the nftables table it is asked about.
            if f"{family} {table}" in present:
                chains = _remove_chains(tool, table)
                removed += [f"{tool} -t {table} chain {chain}" for chain in chains]
    removed += [f"IP set {name}" for name in _remove_sets()]
    if before is not None:
        for table in sorted(nft_tables() - before):
            family, name = table.split()
            if (
                family in {"ip", "ip6"}
                and name in IPTABLES_TABLES
                and not foreign_rules_kept(family, name)
            ):
                run("nft", "delete", "table", family, name, check=False)
                removed.append(f"nftables table {table}")
    return removed


def foreign_rules_kept(family: str, table: str) -> bool:
    """Whether the table does anything: holds a rule, set or own chain, or does not accept all."""
    listed = json.loads(
        run("nft", "--json", "list", "table", family, table, check=False) or '{"nftables": []}'
    )
    for item in listed["nftables"]:
        if "rule" in item or "set" in item or "map" in item:
            return True
        chain = item.get("chain")
        if chain and (chain.get("policy", "accept") != "accept" or "hook" not in chain):
            return True
    return False


def plan_chain_removal(saved: str) -> tuple[list[str], list[str]]:
    """From `iptables-save` text: the restore commands that take our chains out, and their names."""
    chains = [line[1:].split()[0] for line in saved.splitlines() if line.startswith(":")]
    ours = [chain for chain in chains if OUR_CHAIN.match(chain)]
    commands: list[str] = []
    for line in saved.splitlines():
        if not line.startswith("-A "):
            continue
        words = line.split()
        target = (
            words[words.index("-j") + 1]
            if "-j" in words
            else words[words.index("-g") + 1]
            if "-g" in words
            else ""
        )
        tagged = '--comment "kube-router' in line
        if not OUR_CHAIN.match(words[1]) and (OUR_CHAIN.match(target) or tagged):
            commands.append("-D " + line[3:])
    commands += [f"-F {chain}" for chain in ours] + [f"-X {chain}" for chain in ours]
    return commands, ours


def _remove_chains(tool: str, table: str) -> list[str]:
    commands, ours = plan_chain_removal(run(f"{tool}-save", "-t", table, check=False))
    if commands:
        text = "\n".join([f"*{table}", *commands, "COMMIT", ""])
        run(f"{tool}-restore", "--noflush", text=text)
    return ours


def _remove_sets() -> list[str]:
    names = run("ipset", "list", "-name", check=False).split()
    ours = [name for name in names if OUR_SET.match(name)]
    for name in ours:
        run("ipset", "destroy", name, check=False)
    return ours
