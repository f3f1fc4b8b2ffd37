"""A caller with a token whose subject, team, issuer or time ends while its call waits or runs."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
from gateway_rig.changes import Gate, apply, outcomes
from gateway_rig.fake_idp import FakeIdp
from gateway_rig.fake_upstream import Behaviour, FakeUpstream
from gateway_rig.guard import InProcessGuard
from gateway_rig.proofs import say, spec, until

Make = Callable[..., Awaitable[InProcessGuard]]

TOKENS = """
orgs: [{name: acme}]
teams: [{name: team-a, org: acme}]
users: [{name: jo, team: team-a, subject: "corp:jo-subject"}]
apps: [{name: bot, team: team-a}]
authentication:
  issuers:
    - {name: corp, kind: oidc, issuer: "ISSUER", audiences: [terrace], team_claim: groups,
       teams: [{value: g-a, team: team-a}]}
    - {name: cluster, kind: kubernetes, issuer: "ISSUER/cluster", audiences: [terrace],
       jwks_url: "ISSUER/keys",
       workloads: [{namespace: agents, service_account: runner, app: bot}]}
"""
POD = {"namespace": "agents", "serviceaccount": {"name": "runner"}}


def callers(idp: FakeIdp) -> dict[str, str]:
    """Tokens of a user, of somebody with a mapped team only, and of a pod."""
    long = {"iat": None, "exp": 2**32}
    pod = {"iss": f"{idp.issuer}/cluster", "sub": "system:serviceaccount:agents:runner"}
    return {
        "user": idp.sign("k", **long, sub="jo-subject"),
        "member": idp.sign("k", **long, sub="zoe", groups=["g-a"]),
        "pod": idp.sign("k", **long, **pod, **{"kubernetes.io": POD}),
    }


@pytest.mark.parametrize(
    ("who", "old", "new", "refusal"),
    [
        ("user", "corp:jo-subject", "corp:somebody", (403, "policy_denied")),
        ("member", "value: g-a", "value: g-b", (403, "policy_denied")),
        ("pod", "service_account: runner", "service_account: other", (403, "policy_denied")),
        ("pod", "/cluster", "/cluster2", (401, "invalid_api_key")),
    ],
)
async def test_a_token_that_leads_nowhere_any_more_while_its_call_waits(
    make_guard: Make,
    upstream: FakeUpstream,
    idp: FakeIdp,
    *,
    who: str,
    old: str,
    new: str,
    refusal: tuple[int, str],
) -> None:
    text = spec(upstream, more=TOKENS.replace("ISSUER", idp.issuer))
    guard, gate = await make_guard(governance=text), Gate()
    guard.runtime.journal.open = gate.behind(guard.runtime.journal.open)
    task = asyncio.create_task(say(guard, callers(idp)[who], stream=True))
    await gate.reached.wait()
    await apply(guard, text.replace(old, new))
    fetches = idp.fetches
    gate.go.set()
    said = await task
    assert (said.status, said.code) == refusal
    assert not upstream.calls
    assert await outcomes(guard) == [("not_sent", 0)]
    assert idp.fetches == fetches


async def test_no_fallback_for_a_token_whose_issuer_is_gone(
    make_guard: Make, upstream: FakeUpstream, idp: FakeIdp
) -> None:
    text = spec(upstream, more=TOKENS.replace("ISSUER", idp.issuer))
    guard, gate = await make_guard(governance=text), Gate()
    upstream.plan_for = lambda _: Behaviour(status=500, upstream_status="500 json")
    guard.runtime.journal.close = gate.behind(guard.runtime.journal.close)
    task = asyncio.create_task(say(guard, callers(idp)["user"]))
    await gate.reached.wait()
    await apply(guard, text[: text.index("authentication:")])
    gate.go.set()
    said = await task
    assert (said.status, said.code) == (401, "invalid_api_key")
    assert [call.model for call in upstream.calls] == ["sim-small"]


async def test_a_token_that_expires_while_its_call_waits(
    make_guard: Make, upstream: FakeUpstream, idp: FakeIdp, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = spec(upstream, more=TOKENS.replace("ISSUER", idp.issuer))
    guard, gate = await make_guard(governance=text), Gate()
    clock = guard.runtime.clock
    now = clock.database_now
    token = idp.sign("k", sub="jo-subject", iat=None, exp=now().timestamp() + 3000)
    guard.runtime.journal.open = gate.behind(guard.runtime.journal.open)
    task = asyncio.create_task(say(guard, token))
    await gate.reached.wait()
    with monkeypatch.context() as patch:
        patch.setattr(clock, "database_now", lambda: now() + timedelta(seconds=3030))
        gate.go.set()
        said = await task
    assert (said.status, said.code) == (401, "invalid_api_key")
    assert not upstream.calls
    assert await outcomes(guard) == [("not_sent", 0)]


@pytest.mark.parametrize(
    ("target", "cuts"),
    [
        ("user:jo", {"user"}),
        ("subject:corp:jo-subject", {"user"}),
        ("subject:corp:zoe", {"member"}),
        ("app:bot", {"pod"}),
        ("team:team-a", {"user", "member", "pod"}),
        ("org:acme", {"user", "member", "pod"}),
    ],
)
async def test_a_kill_switch_cuts_streams_of_callers_with_tokens(
    make_guard: Make, upstream: FakeUpstream, idp: FakeIdp, target: str, cuts: set[str]
) -> None:
    guard = await make_guard(governance=spec(upstream, more=TOKENS.replace("ISSUER", idp.issuer)))
    release = asyncio.Event()
    upstream.behaviour = Behaviour(hold=release, hold_after_chunks=1)
    streams = {
        who: asyncio.create_task(say(guard, token, stream=True, model="sim-large"))
        for who, token in callers(idp).items()
    }
    await until(lambda: sum(call.output_tokens > 0 for call in upstream.calls) == len(streams))
    await guard.admin("POST", "/kill", json={"target": target, "reason": "incident"})
    await asyncio.gather(*(streams[who] for who in cuts))
    assert {who for who, stream in streams.items() if stream.done()} == cuts
    release.set()
    said = {who: await stream for who, stream in streams.items()}
    assert {who for who, one in said.items() if one.code == "killed"} == cuts
    found = await outcomes(guard, len(streams))
    assert sorted(outcome for outcome, _ in found) == sorted(
        "cut" if who in cuts else "ok" for who in streams
    )
