"""Streams that began before their callers or models came under what a kill switch stops."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from gateway_rig.changes import apply, in_force, outcomes
from gateway_rig.fake_idp import FakeIdp
from gateway_rig.fake_upstream import Behaviour, FakeUpstream
from gateway_rig.guard import InProcessGuard
from gateway_rig.proofs import Said, say, spec, until

Make = Callable[..., Awaitable[InProcessGuard]]

SUBJECTS = """
orgs: [{name: acme}, {name: other}]
teams: [{name: team-a, org: acme}, {name: team-b, org: other}]
users: [{name: jo, team: team-a, subject: jo-subject}]
apps: [{name: bot, team: team-a}]
"""
ISSUER = """
authentication:
  issuers:
    - {name: corp, kind: oidc, issuer: "ISSUER", audiences: [terrace], team_claim: groups,
       teams: [{value: g-a, team: team-a}]}
"""
JO = {"user": "jo", "team": None}
BOT = {"app": "bot", "team": None}
MOVED = ("{name: jo, team: team-a", "{name: jo, team: team-b")
MOVED_APP = ("{name: bot, team: team-a}", "{name: bot, team: team-b}")
USED_APP = ("{name: bot, team: team-a}", "{name: bot, team: team-a, user: jo}")
OTHER_ORG = ("{name: team-a, org: acme}", "{name: team-a, org: other}")


async def streaming(
    guard: InProcessGuard, upstream: FakeUpstream, *secrets: str
) -> tuple[list[asyncio.Task[Said]], asyncio.Event]:
    """A stream with each secret, of which a first part came, and what lets them go on."""
    release = asyncio.Event()
    upstream.behaviour = Behaviour(hold=release, hold_after_chunks=1)
    tasks = [
        asyncio.create_task(say(guard, secret, stream=True, model="sim-large"))
        for secret in secrets
    ]
    await until(lambda: sum(call.output_tokens > 0 for call in upstream.calls) == len(secrets))
    return tasks, release


async def kill(guard: InProcessGuard, target: str) -> None:
    await guard.admin("POST", "/kill", json={"target": target, "reason": "incident"})
    await in_force(guard, lambda snapshot: bool(snapshot.kills))


@pytest.mark.parametrize(
    ("owner", "edit", "target"),
    [
        (JO, MOVED, "team:team-b"),
        (JO, OTHER_ORG, "org:other"),
        (JO, ("team-a", "team-c"), "team:team-c"),
        (BOT, MOVED_APP, "org:other"),
        (BOT, USED_APP, "user:jo"),
        (JO, MOVED, "team:team-a"),  # as of its admission
    ],
)
async def test_a_switch_cuts_the_streams_of_who_came_under_it(
    make_guard: Make,
    upstream: FakeUpstream,
    *,
    owner: dict[str, str | None],
    edit: tuple[str, str],
    target: str,
) -> None:
    text = spec(upstream, more=SUBJECTS)
    guard = await make_guard(governance=text)
    (stream,), _ = await streaming(guard, upstream, await guard.key(**owner))
    await apply(guard, text.replace(*edit))
    assert not stream.done()
    await kill(guard, target)
    assert (await stream).code == "killed"
    assert [outcome for outcome, _ in await outcomes(guard)] == ["cut"]


async def test_who_comes_under_a_switch_by_an_apply_is_cut(
    make_guard: Make, upstream: FakeUpstream
) -> None:
    text = spec(upstream, more=SUBJECTS)
    guard = await make_guard(governance=text)
    await kill(guard, "team:team-b")
    (stream,), _ = await streaming(guard, upstream, await guard.key(**JO))
    changed = text.replace(*MOVED)
    await guard.runtime.versions.apply(changed, actor="a", reason="r", check_base=False)
    assert (await stream).code == "killed"


async def test_a_switch_of_the_provider_that_the_model_has_now_cuts(
    make_guard: Make, upstream: FakeUpstream
) -> None:
    text = spec(upstream, more=SUBJECTS)
    guard = await make_guard(governance=text)
    (stream,), _ = await streaming(guard, upstream, await guard.key(**JO))
    changed = text.replace("- name: main", "- name: moved").replace(
        "provider: main", "provider: moved"
    )
    base = (await guard.admin("GET", "/governance"))["version"]
    change = {"text": changed, "reason": "r", "base_version": base, "allow": ["model-not-deployed"]}
    await guard.admin("POST", "/governance/apply", json=change)
    await in_force(guard, lambda snapshot: snapshot.version > base)
    assert not stream.done()
    await kill(guard, "provider:moved")
    assert (await stream).code == "killed"


async def test_bearers_of_tokens_who_moved_are_cut_and_no_others(
    make_guard: Make, upstream: FakeUpstream, idp: FakeIdp
) -> None:
    text = spec(upstream, more=SUBJECTS + ISSUER.replace("ISSUER", idp.issuer))
    guard = await make_guard(governance=text)
    long = {"iat": None, "exp": 2**32}
    user = idp.sign("k", **long, sub="jo-subject")
    member = idp.sign("k", **long, sub="zoe", groups=["g-a"])
    (moved, stays), release = await streaming(guard, upstream, user, member)
    await apply(guard, text.replace(*MOVED))
    await kill(guard, "team:team-b")
    assert (await moved).code == "killed"
    assert not stays.done()
    release.set()
    assert "[DONE]" in (await stays).text


async def test_one_who_is_gone_is_cut_by_the_names_of_then_and_hides_nobody(
    make_guard: Make, upstream: FakeUpstream
) -> None:
    text = spec(upstream, more=SUBJECTS)
    guard = await make_guard(governance=text)
    gone = await guard.new_key(**BOT)
    secrets = (gone["key"], await guard.key(**JO))
    (revoked, moved), _ = await streaming(guard, upstream, *secrets)
    await guard.admin("POST", f"/keys/{gone['key_id']}/revoke", json={"reason": "left"})
    await apply(guard, text.replace(*MOVED))
    await kill(guard, "team:team-b")
    assert (await moved).code == "killed"
    assert not revoked.done()
    await kill(guard, "app:bot")
    assert (await revoked).code == "killed"
