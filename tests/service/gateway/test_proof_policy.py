"""Proof 5: what an administrator takes away is gone everywhere after one policy lease, under load;
a kill switch cuts what runs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from gateway_rig.fake_upstream import Behaviour, Call, FakeUpstream
from gateway_rig.guard import InProcessGuard
from gateway_rig.postgres import Postgres
from gateway_rig.proofs import QUICK, Books, Said, say, spec, until

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
CONVERSE = "/model/bedrock-claude/converse-stream"
ORDINARY = Behaviour(input_tokens=60, output_tokens=90, chunks=4, delay=0.005)
LARGE = {"model": "sim-large"}  # it has no fallback
CONVERSE_BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": [{"text": "hello"}]}],
    "inferenceConfig": {"maxTokens": 100},
}


@pytest.fixture
def books(postgres: Postgres, database: str, upstream: FakeUpstream) -> Books:
    return Books(postgres, database, upstream)


@pytest.fixture
async def two(make_guard: Any, upstream: FakeUpstream) -> list[InProcessGuard]:
    governance = spec(upstream)
    return [
        await make_guard(**QUICK, governance=governance, replica=f"replica-{n}") for n in range(2)
    ]


@contextlib.asynccontextmanager
async def load(guards: list[InProcessGuard]) -> AsyncIterator[None]:
    """Eight callers with a key of another team, on both replicas, plain and streams."""
    key = await guards[0].key(team="team-z")
    stop = asyncio.Event()

    async def caller(number: int) -> None:
        while not stop.is_set():
            said = await say(guards[number % 2], key, model="sim-spare", stream=number % 4 < 2)
            assert said.status == 200, said

    callers = [asyncio.create_task(caller(number)) for number in range(8)]
    try:
        yield
    finally:
        stop.set()
        await asyncio.gather(*callers)


async def one_lease(guard: InProcessGuard) -> None:
    """A policy lease of the replica's own clock passes, and what it goes by is fresh: a busy
    machine may be late with a beat, and then says that it is limited."""
    clock, lease = guard.runtime.clock, guard.runtime.settings.policy_lease_seconds
    since = clock.monotonic()
    while clock.monotonic() - since < lease:
        await asyncio.sleep(0.02)
    await until(lambda: guard.runtime.policy.current().fresh)


async def converse(guard: InProcessGuard, key: str) -> Said:
    headers = {"authorization": f"Bearer {key}"}
    answer = await guard.http.post(guard.public_url + CONVERSE, json=CONVERSE_BODY, headers=headers)
    return Said(answer.status_code, answer.content.decode("latin-1"), answer.headers)


async def test_a_revoked_key_is_refused_everywhere_after_one_lease_under_load(
    two: list[InProcessGuard], upstream: FakeUpstream, books: Books
) -> None:
    upstream.behaviour = ORDINARY
    async with load(two):
        for _ in range(3):
            minted = await two[0].new_key()
            for guard in two:
                assert (await say(guard, minted["key"])).status == 200
            path = f"/keys/{minted['key_id']}/revoke"
            await two[0].admin("POST", path, json={"reason": "left"})
            await one_lease(two[1])
            for guard in reversed(two):
                said = await say(guard, minted["key"])
                assert (said.status, said.code) == (401, "invalid_api_key")
    await books.balance(two[0])


async def test_a_change_of_policy_holds_everywhere_after_one_lease_under_load(
    two: list[InProcessGuard], upstream: FakeUpstream, books: Books
) -> None:
    upstream.behaviour = ORDINARY
    key = await two[0].key(team="team-a")
    teams = "teams: [{name: team-z}, {name: team-a, policies: [tight]}]\n"
    tight = "policies: [{name: tight, deny_models: [sim-small], max_output_tokens: 7}]\n"
    async with load(two):
        for guard in two:
            assert (await say(guard, key)).status == 200
        base = (await two[0].admin("GET", "/governance"))["version"]
        text = spec(upstream, more=teams + tight)
        body = {"text": text, "reason": "a test", "base_version": base}
        body["allow"] = ["key-loses-models"]
        await two[0].admin("POST", "/governance/apply", json=body)
        await one_lease(two[1])
        for guard in reversed(two):
            said = await say(guard, key)
            assert (said.status, said.code) == (403, "model_not_allowed")
            said = await say(guard, key, model="sim-large")
            assert (said.status, said.headers["x-terrace-clamped"]) == (200, "max_tokens=7")
    await books.balance(two[0])


SWITCHES = {  # what each cuts of: chat on sim-large, messages on sim-large, converse
    "key": (True, True, True),
    "team:team-a": (True, True, True),
    "model:sim-large": (True, True, False),
    "provider:bedrock": (False, False, True),
    "all": (True, True, True),
}


@pytest.mark.parametrize("switch", list(SWITCHES))
async def test_a_kill_switch_cuts_what_runs_and_refuses_what_comes(
    two: list[InProcessGuard], upstream: FakeUpstream, books: Books, switch: str
) -> None:
    cuts = SWITCHES[switch] * 2
    minted = await two[0].new_key()
    key, target = minted["key"], f"key:{minted['key_id']}" if switch == "key" else switch
    stranger = await two[0].key(team="team-z")
    release = asyncio.Event()
    upstream.behaviour = Behaviour(
        input_tokens=60, output_tokens=90, chunks=6, hold=release, hold_after_chunks=2
    )
    running: list[asyncio.Task[Said]] = []
    for guard in two:
        running.append(asyncio.create_task(say(guard, key, CHAT, **LARGE, stream=True)))
        running.append(asyncio.create_task(say(guard, key, MESSAGES, **LARGE, stream=True)))
        running.append(asyncio.create_task(converse(guard, key)))
    await until(lambda: sum(call.output_tokens > 0 for call in upstream.calls) == 6)
    await two[0].admin("POST", "/kill", json={"target": target, "reason": "incident"})
    # Those that are cut end although the provider is silent; the others wait for it.
    for task, cut in zip(running, cuts, strict=True):
        if cut:
            await asyncio.wait_for(asyncio.shield(task), 30)
    assert [task.done() for task in running] == list(cuts)
    asked = len(upstream.calls)
    await one_lease(two[1])
    for guard in reversed(two):
        comes = [
            lambda guard=guard: say(guard, key, CHAT, **LARGE),
            lambda guard=guard: say(guard, key, MESSAGES, **LARGE),
            lambda guard=guard: converse(guard, key),
        ]
        for ask, cut in zip(comes, cuts, strict=False):
            if cut:
                said = await ask()
                assert (said.status, said.code) == (403, "killed")
    assert len(upstream.calls) == asked
    release.set()
    answers = await asyncio.gather(*running)
    for said, cut, ends in zip(answers, cuts, ERRORS * 2, strict=True):
        assert said.status == 200
        assert (ends in said.text) == cut, said.text
        assert ("stopped by an administrator" in said.text) == cut
    if switch in ("key", "team:team-a"):
        assert (await say(two[1], stranger)).status == 200
    await two[0].admin("POST", "/unkill", json={"target": target, "reason": "over"})
    await one_lease(two[1])
    assert (await say(two[1], key)).status == 200
    ledger = await books.balance(two[0])
    outcomes = [outcome for _, outcome in ledger.values()]
    assert outcomes.count("cut") == sum(cuts)
    for entry in await two[0].entries():
        if entry["outcome"] == "cut" and entry["kind"] == "unknown":
            assert entry["amount_micro_usd"] == entry["reserved_micro_usd"] > 0


ERRORS = ('data: {"error"', "event: error", ":exception-type")


async def test_a_body_that_comes_slowly_is_judged_when_it_is_there(
    two: list[InProcessGuard], upstream: FakeUpstream
) -> None:
    upstream.behaviour = ORDINARY
    revoked, killed = await two[0].new_key(), await two[0].new_key(team="team-k")
    go_on = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield b'{"model":"sim-small","max_tokens":10,'
        await go_on.wait()
        yield b'"messages":[{"role":"user","content":"hello"}]}'

    async def call(key: str) -> tuple[int, str]:
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        answer = await two[1].http.post(two[1].public_url + CHAT, content=slowly(), headers=headers)
        return answer.status_code, answer.json()["error"]["code"]

    calls = [asyncio.create_task(call(key["key"])) for key in (revoked, killed)]
    await asyncio.sleep(0.3)  # both are admitted and wait for their bodies
    path = f"/keys/{revoked['key_id']}/revoke"
    await two[0].admin("POST", path, json={"reason": "left"})
    await two[0].admin("POST", "/kill", json={"target": "team:team-k", "reason": "incident"})
    await one_lease(two[1])
    go_on.set()
    assert await asyncio.gather(*calls) == [(401, "invalid_api_key"), (403, "killed")]
    assert upstream.calls == []


async def test_a_fallback_is_judged_when_its_turn_comes(
    two: list[InProcessGuard], upstream: FakeUpstream, books: Books
) -> None:
    release = asyncio.Event()

    def plan(call: Call) -> Behaviour:
        if call.model == "sim-small":
            return Behaviour(status=503, hold=release)
        return ORDINARY

    upstream.plan_for = plan
    minted = await two[0].new_key(), await two[0].new_key()
    calls = [asyncio.create_task(say(two[1], key["key"])) for key in minted]
    await until(lambda: len(upstream.calls) == 2)
    path = f"/keys/{minted[0]['key_id']}/revoke"
    await two[0].admin("POST", path, json={"reason": "left"})
    body = {"target": "model:sim-spare", "reason": "incident"}
    await two[0].admin("POST", "/kill", json=body)
    await one_lease(two[1])
    release.set()
    first, second = await asyncio.gather(*calls)
    assert (first.status, first.code) == (401, "invalid_api_key")
    assert (second.status, second.code) == (403, "killed")
    assert {call.model for call in upstream.calls} == {"sim-small"}
    await books.balance(two[0])
