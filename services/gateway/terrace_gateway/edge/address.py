"""The caller's network address: the connection's peer, or what trusted proxies say of it."""

import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Network = IPv4Network | IPv6Network
MAX_HOPS = 16
_WITH_PORT = re.compile(r"\[(?P<six>[0-9A-Fa-f:.]+)\](?::[0-9]{1,5})?|(?P<four>[0-9.]+):[0-9]{1,5}")


def trusted_networks(cidrs: Sequence[str]) -> tuple[Network, ...]:
    """Networks whose proxies are believed. Raises ``ValueError`` naming the wrong one."""
    return tuple(ip_network(cidr) for cidr in cidrs)


def client_address(peer: str, forwarded_for: Sequence[str], trusted: Sequence[Network]) -> str:
    """The address that policies see.

    ``forwarded_for`` are the values of every ``X-Forwarded-For`` header, in order. Each proxy adds
    its own peer at the right, some with its port, so they are read from the right for as long as
    who says it is trusted: what a client wrote itself is never reached past the first stranger.

    Nothing where a trusted proxy names its peer otherwise (``unknown``): that is in no network, and
    the proxy's own address would be in ours.
    """
    hops = [hop.strip() for value in forwarded_for for hop in value.split(",")]
    address = peer
    for hop in reversed([hop for hop in hops if hop][-MAX_HOPS:]):
        if not _is_in(address, trusted):
            break
        address = _without_port(hop)
        if _parse(address) is None:
            return ""
    return address


def _without_port(hop: str) -> str:
    found = _WITH_PORT.fullmatch(hop)
    return hop if found is None else found["six"] or found["four"]


def _parse(text: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(text)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def _is_in(text: str, networks: Sequence[Network]) -> bool:
    found = _parse(text)
    return found is not None and any(found in network for network in networks)
