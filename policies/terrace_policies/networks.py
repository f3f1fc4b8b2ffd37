"""Networks by arithmetic: two halves of the world are the world."""

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_network
from typing import Any

WIDEST = {4: 8, 6: 16}  # shortest prefixes that somebody may own


def open_networks(cidrs: Iterable[Any]) -> list[str]:
    """Those of ``cidrs`` that are, or together make, a network wider than anybody owns.

    Sorted; what is no network is left to AWS to refuse.
    """
    given: dict[str, IPv4Network | IPv6Network] = {}
    for cidr in cidrs:
        try:
            given[str(cidr)] = ip_network(str(cidr).strip(), strict=False)
        except ValueError:
            continue
    four = [n for n in given.values() if isinstance(n, IPv4Network)]
    six = [n for n in given.values() if isinstance(n, IPv6Network)]
    wide4 = [n for n in collapse_addresses(four) if n.prefixlen < WIDEST[4]]
    wide6 = [n for n in collapse_addresses(six) if n.prefixlen < WIDEST[6]]
    return sorted(
        text
        for text, network in given.items()
        if (isinstance(network, IPv4Network) and any(network.subnet_of(w) for w in wide4))
        or (isinstance(network, IPv6Network) and any(network.subnet_of(w) for w in wide6))
    )
