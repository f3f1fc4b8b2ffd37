"""From a token to a caller of the governance spec, and to an administrator."""

import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from terrace_common.governance import load_governance
from terrace_common.governance.compile import compile_governance
from terrace_gateway.authentication.admin_tokens import AdminTokens
from terrace_gateway.authentication.chain import AuthenticatorChain
from terrace_gateway.authentication.directory import PolicyDirectory
from terrace_gateway.authentication.oidc import TokenAuthenticator
from terrace_gateway.authentication.tokens import TokenVerifier
from terrace_gateway.calls.ports import AuthorityUnavailableError, Cap, Presented, Window
from terrace_gateway.edge.errors import ApiError
from terrace_gateway.policy.snapshot import Snapshot

sys.path.insert(0, str(Path(__file__).parents[2] / "service" / "gateway" / "rig"))

from gateway_rig.fake_idp import FakeIdp, SetClock

pytestmark = pytest.mark.unit

EXAMPLE = (files("terrace_common") / "examples" / "governance.local.yaml").read_text("utf-8")
SPEC = """
orgs: [{{name: acme}}]
teams: [{{name: search, org: acme}}, {{name: ads, org: acme}}]
users:
  - {{name: jo, team: search, subject: jo-subject}}
  - {{name: al, team: ads, subject: "corp:al"}}
apps: [{{name: bot, team: search, user: jo}}]
authentication:
  issuers:
    - name: corp
      kind: oidc
      issuer: {issuer}
      audiences: [terrace]
      team_claim: groups
      teams: [{{value: g-ads, team: ads}}, {{value: g-search, team: search}}]
      role_claim: realm.roles
      admins: [{{value: boss, role: admin}}, {{value: audit, role: auditor}}]
      require_claims: [verified]
"""
CLUSTER = """
    - name: cluster
      kind: kubernetes
      issuer: {issuer}
      audiences: [terrace]
      workloads: [{{namespace: agents, service_account: runner, app: bot}}]
"""
PER_USER = Cap(1, "user", "jo", "micro_usd", Window("lifetime"), 5)


@dataclass
class InForce:
    snapshot: Snapshot
    fresh: bool = True


class Feed:
    """A policy feed whose database a test controls."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.in_force = InForce(snapshot)
        self.next: Snapshot | None = None
        self.away = False
        self.refreshes = 0

    def current(self) -> InForce:
        return self.in_force

    async def refresh(self) -> None:
        self.refreshes += 1
        if self.away:
            raise AuthorityUnavailableError("away")
        if self.next is not None:
            self.in_force = InForce(self.next)


def snapshot_of(text: str) -> Snapshot:
    return Snapshot(
        version=1, digest="", text=text, epoch=1, timeline=0,
        compiled=compile_governance(load_governance(EXAMPLE + text, "g.yaml")),
        keys={}, secrets={}, caps={("user", "jo"): (PER_USER,)},
    )  # fmt: skip


class World:
    def __init__(self, idp: FakeIdp, *, cluster: bool) -> None:
        self.idp = idp
        text = SPEC.format(issuer=idp.issuer)
        if cluster:
            head = text[: text.index("    - name: corp")]
            text = head + CLUSTER.format(issuer=idp.issuer).lstrip("\n")
        self.snapshot = snapshot_of(text)
        self.feed: Any = Feed(self.snapshot)
        authentication = self.snapshot.governance.authentication
        self.verifier = TokenVerifier(authentication, SetClock())
        self.chain = AuthenticatorChain(
            [TokenAuthenticator(self.verifier, PolicyDirectory(self.feed))]
        )
        self.admin = AdminTokens(self.verifier)

    def token(self, **claims: Any) -> str:
        return self.idp.sign("k", **{"verified": True, **claims})

    async def call(self, token: str | None) -> Any:
        return await self.chain.authenticate(Presented(token, "10.0.0.1", {}))

    async def refused(self, token: str | None) -> int:
        with pytest.raises(ApiError) as caught:
            await self.call(token)
        return caught.value.status


@pytest.fixture(scope="module")
def shared() -> FakeIdp:
    idp = FakeIdp()
    idp.rotate("k", "ES256")
    return idp


@pytest.fixture
async def idp(shared: FakeIdp) -> AsyncIterator[FakeIdp]:
    async with shared.running():
        yield shared


@pytest.fixture
async def world(idp: FakeIdp) -> AsyncIterator[World]:
    made = World(idp, cluster=False)
    yield made
    await made.verifier.close()


@pytest.fixture
async def cluster(idp: FakeIdp) -> AsyncIterator[World]:
    made = World(idp, cluster=True)
    yield made
    await made.verifier.close()


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


async def test_a_required_claim_must_be_true(world: World) -> None:
    assert await world.refused(world.token(sub="jo-subject", verified=False)) == 401
    assert await world.refused(world.token(sub="jo-subject", verified=None)) == 401


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


def service_account(namespace: str, name: str, **changes: Any) -> dict[str, Any]:
    inside = {"namespace": namespace, "serviceaccount": {"name": name, "uid": "u"}}
    return {
        "sub": f"system:serviceaccount:{namespace}:{name}", "kubernetes.io": inside, **changes,
    }  # fmt: skip


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
