"""From a token to a caller of the governance spec, and to an administrator."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from terrace_gateway.edge.errors import ApiError

from .token_world import PER_USER, SPEC, InForce, World, a_world, service_account, snapshot_of

pytestmark = pytest.mark.unit


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


@pytest.fixture
async def cluster() -> AsyncIterator[World]:
    async with a_world(cluster=True) as made:
        yield made


async def test_an_employee_of_the_spec_has_its_own_caps(world: World) -> None:
    token = world.token(sub="jo-subject", groups=["g-ads"])
    principal = await world.call(token)
    caller = principal.caller
    assert (caller.org, caller.team, caller.user, caller.app) == ("acme", "search", "jo", None)
    assert principal.caps == (PER_USER,)
    assert principal.method == "oidc"
    assert principal.expires_at is not None
    assert caller.key_id.startswith("oidc:")
    assert len(caller.key_id) == 29
    assert "jo-subject" not in repr(principal)
    assert "g-ads" not in repr(principal)
    assert "jo-subject" not in repr(principal.token)
    assert token not in repr(principal)
    again = await world.call(world.token(sub="jo-subject", exp=world.idp.claims()["exp"] + 5))
    assert again.caller == caller


async def test_a_subject_may_be_of_its_issuer_and_an_unknown_one_has_its_team(world: World) -> None:
    assert (await world.call(world.token(sub="al"))).caller.user == "al"
    stranger = await world.call(world.token(sub="zoe", groups=["g-search", "g-ads", "x"]))
    assert (stranger.caller.user, stranger.caller.team) == (None, "ads")
    assert await world.refused(world.token(sub="zoe", groups=["x"])) == 403
    assert await world.refused(world.token(sub="zoe")) == 403
    assert await world.refused(world.token(sub="corp:al")) == 403


@pytest.mark.parametrize(
    "said", [False, None, "false", "0", "true", "", 0, 1, [], [True], {"a": 1}]
)
async def test_a_required_claim_must_be_true(world: World, said: object) -> None:
    assert await world.refused(world.token(sub="jo-subject", verified=said)) == 401


@pytest.mark.parametrize(
    ("said", "had"),
    [
        ("mfa", True), (["pwd", "mfa"], True), ({"mfa": True}, False), ("MFA", False),
        ("mfa pwd", False), (["pwd"], False), (True, False), (None, False), ("", False),
    ],
)  # fmt: skip
async def test_a_required_value_is_compared(world: World, said: object, had: bool) -> None:
    text = world.text.replace("[verified]", "[verified, {claim: login.acr, value: mfa}]")
    world.feed.in_force = InForce(snapshot_of(text))
    token = world.token(sub="jo-subject", login={"acr": said})
    if had:
        assert (await world.call(token)).caller.user == "jo"
    else:
        assert await world.refused(token) == 401


async def test_what_is_no_token_is_401(world: World) -> None:
    assert await world.refused(None) == 401
    assert await world.refused("hello") == 401
    assert await world.refused("tk-" + "a" * 43) == 401


async def test_who_is_not_in_an_old_policy_is_looked_for_in_the_database(world: World) -> None:
    text = SPEC.format(issuer=world.idp.issuer).replace("jo-subject", "zoe")
    world.feed.next = snapshot_of(text)
    assert (await world.call(world.token(sub="zoe"))).caller.user == "jo"
    assert world.feed.refreshes == 1


async def test_who_cannot_be_looked_up_is_503_never_403(world: World) -> None:
    world.feed.away = True
    assert await world.refused(world.token(sub="zoe")) == 503
    world.feed.away, world.feed.in_force.fresh = False, False
    assert await world.refused(world.token(sub="zoe")) == 503
    assert (await world.call(world.token(sub="jo-subject"))).caller.user == "jo"


async def test_a_pod_is_its_app(cluster: World) -> None:
    principal = await cluster.call(cluster.token(**service_account("agents", "runner")))
    caller = principal.caller
    assert (caller.app, caller.user, principal.method) == ("bot", "jo", "workload")
    assert caller.key_id.startswith("workload:")
    assert principal.caps == (PER_USER,)


@pytest.mark.parametrize(
    ("claims", "status"),
    [
        (service_account("agents", "other"), 403),
        (service_account("default", "runner"), 403),
        (service_account("agents", "runner", sub="system:serviceaccount:x:runner"), 401),
        (service_account("agents", "runner", sub="jo"), 401),
        ({"sub": "system:serviceaccount:agents:runner"}, 401),
        ({"sub": "jo", "kubernetes.io": "x"}, 401),
    ],
)
async def test_another_pod_is_not(cluster: World, claims: dict[str, Any], status: int) -> None:
    assert await cluster.refused(cluster.token(**claims)) == status


async def test_administrators_have_the_roles_of_their_claim(world: World) -> None:
    headers = {"x-terrace-actor": "somebody else"}
    token = world.token(sub="jo-subject", realm={"roles": ["boss", "audit", "x"]})
    identity = await world.admin.authenticate(token, headers)
    assert identity is not None
    assert identity.actor == "corp:jo-subject"
    assert identity.roles == {"admin", "auditor"}
    plain = await world.admin.authenticate(world.token(sub="zoe", realm={"roles": "boss2"}), {})
    assert plain is not None
    assert plain.roles == frozenset()
    assert not plain.may("viewer")
    assert await world.admin.authenticate("tadm-" + "x" * 40, {}) is None


async def test_a_pod_is_no_administrator(cluster: World) -> None:
    claims = service_account("agents", "runner", realm={"roles": ["boss"]})
    with pytest.raises(ApiError) as caught:
        await cluster.admin.authenticate(cluster.token(**claims), {})
    assert caught.value.status == 403


async def test_a_policy_that_comes_while_keys_are_fetched_is_the_one_that_decides(
    world: World,
) -> None:
    token = world.token(sub="jo-subject")
    find = world.verifier.verify

    async def verify(text: str) -> Any:
        found = await find(text)
        # Its other parts still name the user: only the issuer is gone.
        text = SPEC.format(issuer="https://other.example")
        world.feed.in_force.snapshot = snapshot_of(text)
        return found

    world.verifier.verify = verify  # type: ignore[method-assign]
    assert await world.refused(token) == 401
