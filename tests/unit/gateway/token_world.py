"""A policy with issuers, callers with tokens, and a policy feed that tests move."""

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
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
from terrace_gateway.calls.ports import (
    AuthorityUnavailableError,
    Cap,
    EffectivePolicy,
    Presented,
    Window,
)
from terrace_gateway.edge.errors import ApiError
from terrace_gateway.policy.lease import Standing
from terrace_gateway.policy.snapshot import Snapshot

sys.path.insert(0, str(Path(__file__).parents[2] / "service" / "gateway" / "rig"))

from gateway_rig.fake_idp import FakeIdp, SetClock

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

    def standing(self, _: EffectivePolicy) -> Standing:
        return Standing("fresh" if self.fresh else "ended", 1.0)


class Feed:
    """A policy feed whose database a test controls."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.in_force = InForce(snapshot)
        self.next: Snapshot | None = None
        self.away = False
        self.refreshes = 0

    def current(self) -> InForce:
        return self.in_force

    async def confirm(self) -> InForce:
        return self.in_force

    async def refresh(self) -> None:
        self.refreshes += 1
        if self.away:
            raise AuthorityUnavailableError("away")
        if self.next is not None:
            self.in_force = InForce(self.next)


def snapshot_of(text: str, **changes: Any) -> Snapshot:
    made = Snapshot(
        version=1, digest="", text=text, epoch=1, timeline=0,
        compiled=compile_governance(load_governance(EXAMPLE + text, "g.yaml")),
        keys={}, secrets={}, caps={("user", "jo"): (PER_USER,)},
    )  # fmt: skip
    return replace(made, **changes)


class World:
    def __init__(self, idp: FakeIdp, *, cluster: bool) -> None:
        self.idp = idp
        self.text = SPEC.format(issuer=idp.issuer)
        if cluster:
            head = self.text[: self.text.index("    - name: corp")]
            self.text = head + CLUSTER.format(issuer=idp.issuer).lstrip("\n")
        self.snapshot = snapshot_of(self.text)
        self.feed: Any = Feed(self.snapshot)
        authentication = self.snapshot.governance.authentication
        self.clock = SetClock()
        self.verifier = TokenVerifier(authentication, self.clock)
        self.chain = AuthenticatorChain(
            [TokenAuthenticator(self.verifier, PolicyDirectory(self.feed, self.clock))]
        )
        self.admin = AdminTokens(self.verifier, self.feed, self.clock)

    def token(self, **claims: Any) -> str:
        return self.idp.sign("k", **{"verified": True, **claims})

    async def call(self, token: str | None) -> Any:
        return await self.chain.authenticate(Presented(token, "10.0.0.1", {}))

    async def refused(self, token: str | None) -> int:
        with pytest.raises(ApiError) as caught:
            await self.call(token)
        return caught.value.status


@asynccontextmanager
async def a_world(*, cluster: bool = False) -> AsyncGenerator[World]:
    """Before an identity provider of its own."""
    idp = FakeIdp()
    idp.rotate("k", "ES256")
    async with idp.running():
        made = World(idp, cluster=cluster)
        yield made
        await made.verifier.close()


def service_account(namespace: str, name: str, **changes: Any) -> dict[str, Any]:
    inside = {"namespace": namespace, "serviceaccount": {"name": name, "uid": "u"}}
    return {
        "sub": f"system:serviceaccount:{namespace}:{name}", "kubernetes.io": inside, **changes,
    }  # fmt: skip
