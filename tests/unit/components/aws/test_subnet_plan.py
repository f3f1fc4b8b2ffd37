"""Address arithmetic: subnets never overlap or move, and hold the pods that they are said to."""

import ipaddress
import itertools
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terrace_components.aws.subnet_plan import (
    ADDRESSES_PER_NODE,
    OTHER_INTERFACES,
    PODS_PER_NODE,
    RESERVED_BY_AWS,
    SMALLEST_SUBNET,
    ZONE_LETTERS,
    check_pods,
    check_vpc_range,
    pods_that_fit,
    subnet_plan,
)

vpc_ranges = st.builds(
    lambda base, prefix: str(ipaddress.IPv4Interface(f"{base}/{prefix}").network),
    st.sampled_from(["10.20.0.0", "172.16.64.0", "192.168.0.0", "100.64.128.0"]),
    st.integers(16, 28),
)
zone_letters = st.lists(st.sampled_from(ZONE_LETTERS), min_size=2, max_size=6, unique=True)


def suggested(error: pytest.ExceptionInfo[ValueError]) -> str:
    found = re.search(r"such as (\S+)", str(error.value))
    assert found, str(error.value)
    return found[1]


@given(vpc_ranges, zone_letters, st.booleans())
def test_subnets_lie_apart_inside_the_vpc_or_the_right_size_is_named(
    cidr: str, letters: list[str], public: bool
) -> None:
    try:
        plan = subnet_plan(cidr, letters, public=public)
    except ValueError as error:
        found = re.search(r"such as (\S+)", str(error))
        assert found
        wider = ipaddress.IPv4Network(found[1])
        assert wider.supernet_of(ipaddress.IPv4Network(cidr))
        subnet_plan(str(wider), letters, public=public)
        with pytest.raises(ValueError, match="too small"):  # it is the smallest that does
            subnet_plan(f"{wider.network_address}/{wider.prefixlen + 1}", letters, public=public)
        return
    subnets = [ipaddress.IPv4Network(s) for s in (*plan.private.values(), *plan.public.values())]
    assert len(subnets) == len(letters) * (2 if public else 1)
    assert all(s.subnet_of(ipaddress.IPv4Network(cidr)) for s in subnets)
    assert all(s.prefixlen <= SMALLEST_SUBNET for s in subnets)
    assert not any(a.overlaps(b) for a, b in itertools.combinations(subnets, 2))


@given(st.integers(16, 20), zone_letters, zone_letters)
def test_no_subnet_moves_when_zones_come_and_go(
    prefix: int, before: list[str], after: list[str]
) -> None:
    cidr = f"10.0.0.0/{prefix}"
    old = subnet_plan(cidr, before, public=True)
    new = subnet_plan(cidr, after, public=True)
    for letter in {*before} & {*after}:
        assert old.private[letter] == new.private[letter]
        assert old.public[letter] == new.public[letter]


def test_an_eighth_of_the_vpc_stays_free_for_what_comes_later() -> None:
    plan = subnet_plan("10.20.0.0/16", ZONE_LETTERS, public=True)
    later = ipaddress.IPv4Network("10.20.192.0/19")
    for subnet in (*plan.private.values(), *plan.public.values()):
        assert not later.overlaps(ipaddress.IPv4Network(subnet))


@given(st.integers(16, 28), st.integers(1, 6))
def test_pods_that_fit_leave_room_for_nodes_and_the_rest(prefix: int, count: int) -> None:
    subnets = [f"10.{n}.0.0/{prefix}" for n in range(count)]
    pods = pods_that_fit(subnets)
    per_zone = pods // count
    used = per_zone + ADDRESSES_PER_NODE * math.ceil(per_zone / PODS_PER_NODE)
    if per_zone:
        assert used <= 2 ** (32 - prefix) - RESERVED_BY_AWS - OTHER_INTERFACES
    # And it is not timid: one more node's worth of pods would not fit.
    more = per_zone + PODS_PER_NODE + ADDRESSES_PER_NODE
    used = more + ADDRESSES_PER_NODE * math.ceil(more / PODS_PER_NODE)
    assert used > 2 ** (32 - prefix) - RESERVED_BY_AWS - OTHER_INTERFACES


@given(st.integers(16, 25), st.integers(2, 6))
def test_one_pod_too_many_is_refused_with_the_range_that_would_do(prefix: int, zones: int) -> None:
    cidr = f"10.0.0.0/{prefix}"
    fit = pods_that_fit([f"10.{n}.0.0/{prefix + 3}" for n in range(zones)])
    check_pods(fit, cidr, zones)
    with pytest.raises(ValueError, match=f"hold {fit} ") as error:
        check_pods(fit + 1, cidr, zones)
    if prefix == 16:
        assert "no VPC range holds that many" in str(error.value)
    else:
        check_pods(fit + 1, suggested(error), zones)


@pytest.mark.parametrize("cidr", ["10.0.0.0/15", "10.0.0.0/29", "10.0.0.0/8"])
def test_aws_has_limits_of_its_own(cidr: str) -> None:
    with pytest.raises(ValueError, match="from /16 to /28"):
        check_vpc_range(cidr)


@pytest.mark.parametrize(
    "cidr", ["8.8.0.0/16", "172.32.0.0/16", "100.128.0.0/16", "192.169.0.0/16"]
)
def test_ranges_of_the_internet_are_refused(cidr: str) -> None:
    with pytest.raises(ValueError, match="private range"):
        check_vpc_range(cidr)


@pytest.mark.parametrize(
    "cidr", ["10.0.0.0/16", "172.31.0.0/16", "100.127.0.0/16", "192.168.0.0/28"]
)
def test_private_ranges_are_taken(cidr: str) -> None:
    check_vpc_range(cidr)
