"""From a token to a caller of the governance spec, and to an administrator."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from terrace_gateway.authentication.bearer import person_id
from terrace_gateway.edge.errors import ApiError
from terrace_gateway.policy.feed import NoPolicyError

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


def boss(world: World, sub: str) -> str:
    return world.token(sub=sub, realm={"roles": ["boss"]})


async def not_admitted(world: World, token: str) -> tuple[int, str, str]:
    with pytest.raises(ApiError) as caught:
        await world.admin.authenticate(token, {})
    return caught.value.status, caught.value.code, caught.value.message


def stopped(world: World, kind: str, target: str) -> None:
    world.feed.in_force = InForce(snapshot_of(world.text, kills=frozenset({(kind, target)})))


@pytest.mark.parametrize(
    ("kind", "target"), [("user", "jo"), ("team", "search"), ("org", "acme"), ("key", "PERSON")]
)
async def test_a_kill_switch_holds_for_an_administrator(
    world: World, kind: str, target: str
) -> None:
    issuer: Any = world.snapshot.governance.authentication.issuers[0]  # type: ignore[union-attr]
    stopped(world, kind, target.replace("PERSON", person_id(issuer, "jo-subject")))
    status, code, message = await not_admitted(world, boss(world, "jo-subject"))
    assert (status, code) == (403, "killed")
    assert "admin key" in message
    other = await world.admin.authenticate(boss(world, "zoe"), {})  # whom the spec does not name
    assert other is not None
    assert other.may("admin")
    stopped(world, "key", person_id(issuer, "zoe"))
    assert (await not_admitted(world, boss(world, "zoe")))[:2] == (403, "killed")


async def test_the_switch_of_all_calls_leaves_administrators_who_can_lift_it(world: World) -> None:
    stopped(world, "all", "")
    for sub in ("jo-subject", "zoe"):
        identity = await world.admin.authenticate(boss(world, sub), {})
        assert identity is not None
        assert identity.may("admin")


async def test_an_administrator_needs_a_policy_that_is_confirmed(world: World) -> None:
    token = boss(world, "jo-subject")
    world.feed.in_force.fresh = False
    status, code, message = await not_admitted(world, token)
    assert (status, code) == (503, "authority_unavailable")
    assert "admin key" in message

    async def none_loaded() -> Any:
        raise NoPolicyError("no governance version is loaded yet")

    world.feed.confirm = none_loaded
    world.verifier.use(None)
    assert (await not_admitted(world, token))[:2] == (503, "authority_unavailable")
    assert await world.admin.authenticate("tadm-" + "x" * 40, {}) is None


async def test_an_administrator_whose_issuer_is_away_is_told_of_the_admin_key(world: World) -> None:
    world.idp.status = 500
    token = boss(world, "jo-subject")
    status, code, message = await not_admitted(world, token)
    assert (status, code) == (503, "authority_unavailable")
    assert "admin key" in message


async def test_an_administrator_who_is_removed_while_keys_are_fetched_is_none(
    world: World,
) -> None:
    verify = world.verifier.verify

    async def slowly(text: str) -> Any:
        found = await verify(text)
        without = world.text.replace("{value: boss, role: admin}, ", "")
        world.feed.in_force = InForce(snapshot_of(without))
        return found

    world.verifier.verify = slowly  # type: ignore[method-assign]
    identity = await world.admin.authenticate(boss(world, "jo-subject"), {})
    assert identity is not None
    assert identity.roles == frozenset()


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
