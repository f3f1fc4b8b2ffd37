"""Policies against one request: times, places, features, sizes; and whose address it is."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terrace_gateway.calls.admission import admit, output_limit
from terrace_gateway.calls.ports import Caller, EffectivePolicy, Hours, Needs, Principal
from terrace_gateway.edge.address import client_address, trusted_networks
from terrace_gateway.edge.errors import ApiError

NEEDS = Needs("chat", input_bound_tokens=100, output_tokens=50, features=frozenset({"streaming"}))
NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)  # a Monday
NIGHT_SHIFT = Hours("UTC", frozenset({0}), 22 * 60, 6 * 60)
OFFICE = Hours("Europe/Berlin", frozenset(range(5)), 9 * 60, 17 * 60)


def principal(policy: EffectivePolicy, audit: EffectivePolicy | None = None) -> Principal:
    return Principal(Caller("key_1", "team-a"), policy, (), audit=audit)


def denied(policy: EffectivePolicy, needs: Needs = NEEDS, **where: object) -> str | None:
    values = {"address": "10.0.0.1", "now": NOON} | where
    try:
        admit(principal(policy), needs, **values)  # pyright: ignore[reportArgumentType]
    except ApiError as error:
        return f"{error.status} {error.message}"
    return None


def test_an_empty_policy_allows() -> None:
    assert denied(EffectivePolicy()) is None


@pytest.mark.parametrize(
    ("policy", "word"),
    [
        (EffectivePolicy(denied_features=frozenset({"streaming"})), "streaming"),
        (EffectivePolicy(max_context_tokens=99), "99"),
        (EffectivePolicy(max_output_tokens=49, over_output="refuse"), "49"),
        (EffectivePolicy(networks=(("10.0.0.0/24",), ("10.0.1.0/24",))), "address"),
        (EffectivePolicy(hours=((NIGHT_SHIFT,),)), "time"),
        (EffectivePolicy(hours=((OFFICE,), (NIGHT_SHIFT,))), "time"),
    ],
)
def test_each_rule_refuses_and_in_audit_only_tells(policy: EffectivePolicy, word: str) -> None:
    said = denied(policy) or ""
    assert said.startswith("403 ")
    assert word in said
    told = admit(principal(EffectivePolicy(), policy), NEEDS, address="10.0.0.1", now=NOON)
    assert [word in violation.message for violation in told] == [True]


@pytest.mark.parametrize(
    ("when", "inside"),
    [
        ("2026-11-30T21:59", False),
        ("2026-11-30T22:00", True),
        ("2026-12-01T05:59", True),  # Tuesday morning belongs to Monday's night
        ("2026-12-01T06:00", False),
        ("2026-11-30T05:00", False),  # Monday morning belongs to Sunday's
        ("2026-12-01T23:00", False),
    ],
)
def test_hours_over_midnight(when: str, inside: bool) -> None:
    now = datetime.fromisoformat(when).replace(tzinfo=UTC)
    assert (denied(EffectivePolicy(hours=((NIGHT_SHIFT,),)), now=now) is None) == inside


@given(st.integers(0, 400 * 24 * 60))
def test_hours_are_those_of_their_zone(minutes: int) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes)
    local = now.astimezone(ZoneInfo("Europe/Berlin"))
    inside = local.weekday() < 5 and 9 <= local.hour < 17
    assert (denied(EffectivePolicy(hours=((OFFICE,),)), now=now) is None) == inside


@pytest.mark.parametrize(
    ("address", "allowed"),
    [("10.1.2.3", True), ("::ffff:10.1.2.3", True), ("11.0.0.1", False), ("", False), ("x", False)],
)
def test_networks(address: str, allowed: bool) -> None:
    policy = EffectivePolicy(networks=(("10.0.0.0/8", "fd00::/8"),))
    assert (denied(policy, address=address) is None) == allowed


@given(
    asked=st.none() | st.integers(1, 10_000),
    default=st.integers(1, 10_000),
    model=st.integers(1, 10_000),
    allowed=st.none() | st.integers(1, 10_000),
)
def test_output_is_never_above_any_limit_and_what_changed_is_said(
    asked: int | None, default: int, model: int, allowed: int | None
) -> None:
    policy = EffectivePolicy(max_output_tokens=allowed)
    limit = output_limit(policy, asked=asked, default=default, model_limit=model)
    assert 1 <= limit.tokens <= min(model, allowed or model)
    assert limit.tokens <= (default if asked is None else asked)
    assert (limit.clamped is None) == (limit.tokens == asked)


@pytest.mark.parametrize("asked", [0, -1])
def test_an_output_of_nothing_is_refused(asked: int) -> None:
    with pytest.raises(ApiError, match="at least 1"):
        output_limit(EffectivePolicy(), asked=asked, default=10, model_limit=10)


def test_only_limits_that_were_asked_for_refuse() -> None:
    policy = EffectivePolicy(max_output_tokens=10, over_output="refuse")
    assert denied(policy, replace(NEEDS, output_tokens=None)) is None


TRUSTED = trusted_networks(["10.0.0.0/8"])


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("203.0.113.9", [], "203.0.113.9"),
        ("203.0.113.9", ["10.9.9.9"], "203.0.113.9"),  # a stranger's word
        ("10.0.0.1", ["198.51.100.7"], "198.51.100.7"),
        ("10.0.0.1", ["192.0.2.1, 198.51.100.7, 10.0.0.2"], "198.51.100.7"),
        ("10.0.0.1", ["192.0.2.1", "198.51.100.7"], "198.51.100.7"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.7, ,"], "198.51.100.7"),
        ("::ffff:10.0.0.1", ["198.51.100.7"], "198.51.100.7"),
    ],
)
def test_the_first_stranger_from_the_right_is_the_client(
    peer: str, forwarded: list[str], address: str
) -> None:
    assert client_address(peer, forwarded, TRUSTED) == address


@pytest.mark.parametrize(
    ("hop", "address"),
    [
        ("198.51.100.7:4711", "198.51.100.7"),  # an AWS load balancer that keeps the client's port
        ("[2001:db8::1]:4711", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("10.0.0.2:80", "10.0.0.2"),
        ("2001:db8::1:4711", "2001:db8::1:4711"),
        *((hop, "") for hop in ("unknown", "_hidden", "[10.0.0.9", "10.0.0.9:port", "10.0.0:80",
                                "[fe80::1]:80:80", "10.0.0.9:999999", "a:b:c", "10.0.0.9/8")),
    ],
)  # fmt: skip
def test_a_hop_may_have_a_port_and_one_that_is_no_address_is_in_no_network(
    hop: str, address: str
) -> None:
    """The proxy's own address stood then, and was inside."""
    beyond = "192.0.2.1" if address == "10.0.0.2" else address  # a proxy of ours
    assert client_address("10.0.0.1", [f"192.0.2.1, {hop}"], TRUSTED) == beyond
    assert client_address("10.0.0.1", [hop], TRUSTED) == address
    inside = EffectivePolicy(networks=(("10.0.0.0/8",),))
    assert inside.admits(address) is (address == "10.0.0.2")


def test_without_trusted_proxies_headers_say_nothing() -> None:
    assert client_address("10.0.0.1", ["198.51.100.7"], ()) == "10.0.0.1"
