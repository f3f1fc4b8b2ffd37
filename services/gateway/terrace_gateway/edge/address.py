"""The caller's network address: the connection's peer, or what trusted proxies say of it."""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Network = IPv4Network | IPv6Network
MAX_HOPS = 16


def trusted_networks(cidrs: Sequence[str]) -> tuple[Network, ...]:
    """Networks whose proxies are believed. Raises ``ValueError`` naming the wrong one."""
    return tuple(ip_network(cidr) for cidr in cidrs)


def client_address(peer: str, forwarded_for: Sequence[str], trusted: Sequence[Network]) -> str:
    """The address that policies see.

    ``forwarded_for`` are the values of every ``X-Forwarded-For`` header, in order. Each proxy adds
    its own peer at the right, so they are read from the right for as long as who says it is
    trusted: what a client wrote itself is never reached past the first stranger.
    """
    hops = [hop.strip() for value in forwarded_for for hop in value.split(",")]
    address = peer
    for hop in reversed(hops[-MAX_HOPS:]):
        if not _is_in(address, trusted):
            break
        if _parse(hop) is None:
            break  # a name or garbage: the last address that is one stands
        address = hop
    return address


def _parse(text: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(text)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def _is_in(text: str, networks: Sequence[Network]) -> bool:
    found = _parse(text)
    return found is not None and any(found in network for network in networks)
