"""What changes while a call reserves, waits for a place or connects holds for it: then nothing is
sent any more, and it costs nothing. What changes while a candidate fails holds for the next."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from gateway_rig.changes import Gate, applying, in_force, outcomes, team
from gateway_rig.fake_upstream import Behaviour, FakeUpstream
from gateway_rig.guard import InProcessGuard
from gateway_rig.postgres import Postgres
from gateway_rig.proofs import Said, say, spec, until

Make = Callable[..., Awaitable[InProcessGuard]]
CUTTING = """
policies: [{name: cutting, on_disconnect: cut}]
teams: [{name: team-a, policies: [cutting]}]
"""
CLOSED = """
policies: [{name: closed, outage: closed}]
teams: [{name: team-a, policies: [closed]}]
"""


async def test_a_kill_switch_between_the_record_and_the_call(
    make_guard: Make, upstream: FakeUpstream
) -> None:
    guard, gate = await make_guard(), Gate()
    key = await guard.key()
    guard.runtime.journal.open = gate.behind(guard.runtime.journal.open)
    task = asyncio.create_task(say(guard, key, stream=True))
    await gate.reached.wait()
    await guard.admin("POST", "/kill", json={"target": "all", "reason": "incident"})
    await in_force(guard, lambda snapshot: bool(snapshot.kills))
    gate.go.set()
    said = await task
    assert (said.status, said.code) == (403, "killed")
    assert not upstream.calls
    assert await outcomes(guard) == [("not_sent", 0)]


async def test_a_key_that_is_revoked_while_its_call_reserves(
    make_guard: Make, upstream: FakeUpstream
) -> None:
    guard, gate = await make_guard(), Gate()
    made = await guard.new_key()
    guard.runtime.slices.reserve = gate.behind(guard.runtime.slices.reserve)
    task = asyncio.create_task(say(guard, made["key"]))
    await gate.reached.wait()
    await guard.admin("POST", f"/keys/{made['key_id']}/revoke", json={"reason": "left"})
    await in_force(guard, lambda snapshot: made["key_id"] not in snapshot.keys)
    gate.go.set()
    said = await task
    assert (said.status, said.code) == (401, "invalid_api_key")
    assert not upstream.calls
    assert await outcomes(guard) == [("not_sent", 0)]


async def test_a_lease_that_ends_between_the_record_and_the_call(
    make_guard: Make, upstream: FakeUpstream, postgres: Postgres
) -> None:
    guard, gate = await make_guard(governance=spec(upstream, more=CLOSED)), Gate()
    key = await guard.key()
    guard.runtime.journal.open = gate.behind(guard.runtime.journal.open)
    task = asyncio.create_task(say(guard, key))
    await gate.reached.wait()
    await asyncio.to_thread(postgres.stop)
    try:
        await until(lambda: not guard.runtime.policy.current().fresh)
        gate.go.set()
        said = await task
    finally:
        await asyncio.to_thread(postgres.start)
    assert (said.status, said.code) == (503, "authority_unavailable")
    assert not upstream.calls
    await until(lambda: guard.runtime.policy.current().fresh)
    assert await outcomes(guard) == [("not_sent", 0)]


async def test_a_client_that_leaves_the_queue_costs_nothing(
    make_guard: Make, upstream: FakeUpstream
) -> None:
    guard = await make_guard(
        governance=spec(upstream, more=CUTTING), provider_places=1, provider_wait_seconds=20
    )
    key = await guard.key()
    release = asyncio.Event()
    upstream.behaviour = Behaviour(hold=release, hold_after_chunks=1)
    calls = [asyncio.create_task(say(guard, key, stream=True, model="sim-large"))]
    await until(lambda: len(upstream.calls) == 1)
    calls.append(asyncio.create_task(say(guard, key, stream=True, model="sim-large")))
    await until(lambda: [one.waiting for _, one in guard.runtime.bulkheads.items()] == [1])
    calls[1].cancel()
    await until(lambda: len(guard.runtime.running) == 1)
    release.set()
    assert (await calls[0]).status == 200
    await asyncio.gather(*calls, return_exceptions=True)
    assert sorted(outcome for outcome, _ in await outcomes(guard, 2)) == ["not_sent", "ok"]
    assert len(upstream.calls) == 1


async def test_a_kill_switch_while_the_call_connects_costs_nothing(
    make_guard: Make, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard, gate = await make_guard(), Gate()
    key = await guard.key()
    pool: Any = guard.runtime.translator._pool
    real = pool.acquire

    async def connecting() -> Any:
        if guard.runtime.in_flight:  # else it is a probe
            await gate.passed()
        return await real()

    monkeypatch.setattr(pool, "acquire", connecting)
    task = asyncio.create_task(say(guard, key))
    await gate.reached.wait()
    await guard.admin("POST", "/kill", json={"target": "all", "reason": "incident"})
    said: Said = await task
    assert (said.status, said.code) == (403, "killed")
    gate.go.set()
    assert not upstream.calls
    assert await outcomes(guard) == [("not_sent", 0)]


async def test_the_next_candidate_has_the_limits_and_prices_in_force_now(
    make_guard: Make, upstream: FakeUpstream
) -> None:
    guard, gate = await make_guard(governance=spec(upstream)), Gate()
    key = await guard.key()
    upstream.plan_for = lambda call: Behaviour(
        status=500 if call.model == "sim-small" else 200, upstream_status="500 json"
    )
    guard.runtime.journal.close = gate.behind(guard.runtime.journal.close)
    task = asyncio.create_task(say(guard, key))
    await gate.reached.wait()
    tight = "policies: [{name: tight, max_output_tokens: 7}]\n"
    text = spec(upstream, more=tight + "teams: [{name: team-a, policies: [tight]}]\n")
    dear = "input_micro_usd_per_mtok: 3000000, output_micro_usd_per_mtok: 12000000"
    text = text.replace('price_version: "proof"', 'price_version: "dearer"').replace(
        "input_micro_usd_per_mtok: 300000, output_micro_usd_per_mtok: 1200000", dear
    )
    base = (await guard.admin("GET", "/governance"))["version"]
    change = {"text": text, "reason": "a test", "base_version": base}
    applied = await guard.admin("POST", "/governance/apply", json=change)
    await in_force(guard, lambda snapshot: snapshot.price_version == "dearer")
    gate.go.set()
    said = await task
    assert (said.status, said.headers["x-terrace-clamped"]) == (200, "max_tokens=7")
    assert upstream.calls[-1].model == "sim-spare"
    await outcomes(guard, 2)
    [entry] = [one for one in await guard.entries() if one["model"] == "sim-spare"]
    assert entry["amount_micro_usd"] == 7 * 3 + 7 * 12
    assert (entry["price_version"], entry["policy_version"]) == ("dearer", applied["version"])


async def test_the_next_candidate_is_held_by_a_cap_that_is_new(
    make_guard: Make, upstream: FakeUpstream
) -> None:
    guard, gate = await make_guard(governance=spec(upstream)), Gate()
    made = await guard.new_key()
    upstream.plan_for = lambda _: Behaviour(status=500, upstream_status="500 json")
    guard.runtime.journal.close = gate.behind(guard.runtime.journal.close)
    task = asyncio.create_task(say(guard, made["key"]))
    await gate.reached.wait()
    with_cap = (
        "teams: [{name: team-a, quotas: [{dimension: micro_usd, amount: 1, per: lifetime}]}]\n"
    )
    base = (await guard.admin("GET", "/governance"))["version"]
    text = spec(upstream, more=with_cap)
    change = {"text": text, "reason": "a test", "base_version": base}
    await guard.admin("POST", "/governance/apply", json=change)
    await in_force(guard, lambda snapshot: ("team", "team-a") in snapshot.caps)
    gate.go.set()
    said = await task
    assert (said.status, said.code) == (429, "budget_exhausted")
    assert [call.model for call in upstream.calls] == ["sim-small"]


async def test_counting_tokens_costs_nothing_and_freezes_nothing(
    make_guard: Make, upstream: FakeUpstream
) -> None:
    text = spec(upstream).replace(
        "output_micro_usd_per_mtok: 15000000",
        "output_micro_usd_per_mtok: 15000000, micro_usd_per_request: 5000",
    )
    guard = await make_guard(governance=text)
    key = await guard.key(budget_micro_usd=12_000)
    body = {"model": "bedrock-claude", "max_tokens": 10}
    body["messages"] = [{"role": "user", "content": "hello"}]
    for behaviour in (Behaviour(), Behaviour(), Behaviour(die_before_answer=True)):
        upstream.behaviour = behaviour
        await say(guard, key, "/v1/messages/count_tokens", **body)
    upstream.behaviour = Behaviour()
    found = await outcomes(guard, 3)
    assert sorted(found) == [("ok", 0), ("ok", 0), ("unknown", 0)]
    assert {entry["kind"] for entry in await guard.entries()} == {"attempt"}
    other = await guard.key()
    assert (await say(guard, other, "/v1/messages", **body)).status == 200


DEARER = (
    ("input_micro_usd_per_mtok: 150000", "input_micro_usd_per_mtok: 1500000"),
    ('price_version: "proof"', 'price_version: "dearer"'),
)


@pytest.mark.parametrize("what", ["clamp", "price", "cap"])
async def test_what_is_reserved_by_an_older_policy_is_reserved_anew(
    make_guard: Make, upstream: FakeUpstream, what: str
) -> None:
    guard = await make_guard(governance=spec(upstream, more=team()))
    key = await guard.key()
    cap = ", quotas: [{dimension: micro_usd, amount: 1000000, per: lifetime}]"
    text = {
        "clamp": spec(upstream, more=team("{name: p, max_output_tokens: 7}")),
        "price": spec(upstream, more=team()),
        "cap": spec(upstream, more=team(more=cap)),
    }[what]
    for old, new in DEARER if what == "price" else ():
        text = text.replace(old, new)
    guard.runtime.journal.open = applying(guard, [text])
    assert (await say(guard, key)).status == 200
    assert sorted(outcome for outcome, _ in await outcomes(guard, 2)) == ["not_sent", "ok"]
    [sent] = upstream.calls
    entries = await guard.entries()
    [entry] = [one for one in entries if one["attempt_id"] == sent.attempt_id]
    assert (entry["outcome"], entry["policy_version"]) == ("ok", 2)
    if what == "clamp":
        assert sent.body["max_tokens"] == 7
    if what == "price":
        assert entry["price_version"] == "dearer"
    if what == "cap":
        caps = (await guard.admin("GET", "/caps"))["caps"]
        [team_cap] = [one for one in caps if one["scope"] == "team"]
        assert team_cap["settled"] == entry["amount_micro_usd"]


async def test_a_cap_that_is_new_at_the_sending_refuses(
    make_guard: Make, upstream: FakeUpstream
) -> None:
    guard = await make_guard(governance=spec(upstream, more=team()))
    key = await guard.key()
    cap = ", quotas: [{dimension: micro_usd, amount: 1, per: lifetime}]"
    guard.runtime.journal.open = applying(guard, [spec(upstream, more=team(more=cap))])
    said = await say(guard, key)
    assert (said.status, said.code) == (429, "budget_exhausted")
    assert not upstream.calls
    assert await outcomes(guard) == [("not_sent", 0)]


async def test_a_policy_that_changes_again_and_again_is_told(
    make_guard: Make, upstream: FakeUpstream
) -> None:
    guard = await make_guard(governance=spec(upstream, more=team()))
    key = await guard.key()
    texts = [
        spec(upstream, more=team(f"{{name: p, max_output_tokens: {most}}}")) for most in (7, 8)
    ]
    guard.runtime.journal.open = applying(guard, texts)
    said = await say(guard, key)
    assert (said.status, said.code) == (503, "authority_unavailable")
    assert said.headers["retry-after"] == "1"
    assert not upstream.calls
    assert await outcomes(guard, 2) == [("not_sent", 0)] * 2


CONTENT = "guardrails: [{{name: g, kind: content, action: block, words: [{word}]}}]\n"


@pytest.mark.parametrize("phase", ["open", "guarded"])
async def test_texts_that_other_guardrails_let_pass_are_not_sent(
    make_guard: Make, upstream: FakeUpstream, phase: str
) -> None:
    named = team("{name: p, guardrails: [g]}")
    text, other = (
        spec(upstream, more=CONTENT.format(word=word) + named) for word in ("zeus", "hello")
    )
    guard = await make_guard(governance=text)
    key = await guard.key()
    if phase == "open":
        guard.runtime.journal.open = applying(guard, [other])
    else:
        start, gate = guard.runtime.guardrails.start, Gate()

        def started(*args: Any) -> Any:
            run = start(*args)
            run.before = gate.behind(run.before)
            return run

        guard.runtime.guardrails.start = started  # type: ignore[method-assign]
    task = asyncio.create_task(say(guard, key))
    if phase == "guarded":
        await gate.reached.wait()
        change = {"text": other, "reason": "a test", "base_version": 1}
        await guard.admin("POST", "/governance/apply", json=change)
        gate.go.set()
    said = await task
    assert (said.status, said.code) == (503, "authority_unavailable")
    assert not upstream.calls
    again = await say(guard, key)
    assert (again.status, again.code) == (400, "content_blocked")


@pytest.mark.parametrize(("network", "status"), [("10.0.0.0/8", 403), ("127.0.0.1/32", 200)])
async def test_an_address_that_is_not_allowed_any_more(
    make_guard: Make, upstream: FakeUpstream, network: str, status: int
) -> None:
    text, other = (
        spec(upstream, more=team(f"{{name: p, networks: [{one}]}}"))
        for one in ("127.0.0.0/8", network)
    )
    guard = await make_guard(governance=text)
    key = await guard.key()
    guard.runtime.journal.open = applying(guard, [other])
    said = await say(guard, key)
    assert said.status == status
    if status == 403:
        assert said.code == "policy_denied"
        assert not upstream.calls
        assert await outcomes(guard) == [("not_sent", 0)]
