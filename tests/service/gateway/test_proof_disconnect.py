"""Proof 3: a client leaves at every chunk of every streaming surface, and before a plain answer.

The policy says what then happens: the call is drained and costs the truth, or it is cut and costs
its reservation until the provider's log is read. Either way the books are equal and nothing leaks.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from gateway_rig.fake_upstream import Behaviour, Call, FakeUpstream
from gateway_rig.guard import GuardProcess, InProcessGuard
from gateway_rig.leaving_client import How, LeavingClient

Make = Callable[..., Awaitable[InProcessGuard]]
USER = [{"role": "user", "content": "hi"}]
CONVERSE: dict[str, Any] = {
    "messages": [{"role": "user", "content": [{"text": "hi"}]}],
    "inferenceConfig": {"maxTokens": 40},
}
CHAT = {"model": "sim-small", "messages": USER, "max_tokens": 40}
STREAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {**CHAT, "stream": True}),
    "relay": ("/v1/chat/completions", {**CHAT, "model": "relayed", "stream": True}),
    "completions": (
        "/v1/completions",
        {"model": "sim-small", "prompt": "hi", "max_tokens": 40, "stream": True},
    ),
    "responses": (
        "/v1/responses",
        {"model": "sim-small", "input": "hi", "max_output_tokens": 40, "stream": True},
    ),
    "messages": ("/v1/messages", {**CHAT, "stream": True}),
    "converse": ("/model/bedrock-claude/converse-stream", CONVERSE),
}
PLAIN = {
    **{name: (path, {**body, "stream": False}) for name, (path, body) in STREAMS.items()},
    "converse": ("/model/bedrock-claude/converse", CONVERSE),
}
CHUNKS = 4
HOW: tuple[How, ...] = ("abort", "close", "half")
ENDS = {  # what a client of the surface takes for the whole answer
    "chat": b"[DONE]", "relay": b"[DONE]", "completions": b"[DONE]", "messages": b"message_stop",
    "responses": b"response.completed", "converse": b"messageStop",
}  # fmt: skip
ERRORS = {  # and for its breaking off
    "chat": b'data: {"error"', "relay": b'data: {"error"', "completions": b'data: {"error"',
    "messages": b"event: error", "responses": b"event: error", "converse": b":exception-type",
}  # fmt: skip
POLICIES = """
teams: [{name: team-a}]
policies:
  - {name: drain, on_disconnect: drain}
  - {name: cut, on_disconnect: cut}
  - {name: guarded-drain, on_disconnect: drain, guardrails: [block, mask]}
  - {name: guarded-cut, on_disconnect: cut, guardrails: [block, mask]}
guardrails:
  - {name: block, kind: content, action: block, words: [word3, w3, hello], phases: [stream, after]}
  - {name: mask, kind: content, action: mask, words: [word1, w1], phases: [stream, after]}
"""
RELAYED_MODEL = """
  - {name: relayed, provider: relayed, upstream_model: sim-small, context_tokens: 32768,
     max_output_tokens: 4096, price: {input_micro_usd_per_mtok: 150000,
                                      output_micro_usd_per_mtok: 600000}}
"""


@pytest.fixture
async def governance(
    governance_text: str, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> str:
    monkeypatch.setenv("RELAY_KEY", "sk-canary-relay-0123456789")
    base = f"http://127.0.0.1:{await upstream.serve_relay()}/v1"
    bill = f"http://127.0.0.1:{upstream.bill_port}/bill"
    provider = (
        f'  - {{name: relayed, kind: openai, api_base: "{base}", relay: true,'
        f' api_key_env: RELAY_KEY, bill_url: "{bill}"}}\nmodels:\n'
    )
    return governance_text.replace("models:\n", provider, 1) + RELAYED_MODEL + POLICIES


@pytest.fixture
async def gate(make_guard: Make, governance: str) -> InProcessGuard:
    return await make_guard(governance=governance, reconcile_grace_seconds=0)


async def until(condition: Callable[[], object], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


async def shipped(guard: Any, attempts: int) -> dict[str, dict[str, Any]]:
    """The entries of so many attempts, by attempt."""
    async with asyncio.timeout(60):
        while len(found := await guard.entries()) < attempts:
            await asyncio.sleep(0.05)
    assert len(found) == attempts
    return {entry["attempt_id"]: entry for entry in found}


def is_quiet(guard: InProcessGuard) -> bool:
    runtime = guard.runtime
    return not runtime.in_flight and not len(runtime.running)


async def assert_nothing_leaks(guard: InProcessGuard) -> None:
    """No open attempt, no reservation, no place of a bulkhead, no connection is left."""
    await until(lambda: is_quiet(guard))
    runtime = guard.runtime
    assert runtime.journal.open_attempts == 0
    assert runtime.slices.running(runtime.slices.incarnation) == 0
    assert runtime.metrics.open_attempts._value.get() == 0
    for _, bulkhead in runtime.bulkheads.items():
        assert (bulkhead.running, bulkhead.waiting) == (0, 0)
    spend = await guard.admin("GET", "/spend?by=key")
    assert spend["outstanding_micro_usd"] == 0


async def assert_the_policy_is_kept(
    guard: InProcessGuard, upstream: FakeUpstream, policies: dict[str, str]
) -> None:
    """``policies`` has the policy of each attempt."""
    entries = await shipped(guard, len(policies))
    assert set(entries) == set(policies) == {call.attempt_id for call in upstream.calls}
    for attempt, policy in policies.items():
        entry = entries[attempt]
        told = (entry["kind"], entry["outcome"])
        if policy == "drain":
            assert told == ("attempt", "client_cancelled")
            assert entry["amount_micro_usd"] == upstream.billed(attempt) > 0
        else:
            assert told == ("unknown", "cut")
            assert entry["amount_micro_usd"] == entry["reserved_micro_usd"]
            assert entry["amount_micro_usd"] >= upstream.billed(attempt)
    await until(lambda: all(call.status == "final" for call in upstream.calls))
    cut = sum(policy == "cut" for policy in policies.values())
    result = await guard.admin("POST", "/reconcile", json={})
    assert (result["trued_up"] + result["not_billed"], result["still_open"]) == (cut, 0)
    for attempt in policies:
        assert await guard.cost(attempt) == upstream.billed(attempt)
    spend = await guard.admin("GET", "/spend?by=key")
    assert spend["total_micro_usd"] == upstream.bill_total
    await assert_nothing_leaks(guard)


async def leave_at(
    guard: InProcessGuard, upstream: FakeUpstream, behaviour: Behaviour, *,
    call: tuple[str, str, dict[str, Any]], chunks: int, how: How, cut: bool,
) -> Call:  # fmt: skip
    """One call whose client leaves once it has read so many chunks and the model says no more."""
    path, key, body = call
    before = len(upstream.calls)
    behaviour.hold = asyncio.Event()
    upstream.behaviour = behaviour
    connections = len(guard.servers[0].server_state.connections)
    async with await LeavingClient.call(guard.public_url, path, key, body) as client:
        await until(lambda: len(upstream.calls) == before + 1)
        await client.read_chunks(chunks)
        await client.leave(how)
        await until(lambda: len(guard.servers[0].server_state.connections) <= connections)
    if cut:  # at once, although the model is silent
        await until(lambda: is_quiet(guard))
    else:
        await asyncio.sleep(0)
        assert not is_quiet(guard)
    behaviour.hold.set()
    await until(lambda: is_quiet(guard))
    return upstream.calls[before]


@pytest.mark.parametrize("surface", STREAMS)
async def test_a_client_leaves_a_stream_at_every_chunk(
    gate: InProcessGuard, upstream: FakeUpstream, surface: str
) -> None:
    path, body = STREAMS[surface]
    keys = {name: await gate.key(policies=[name]) for name in ("drain", "cut")}
    policies: dict[str, str] = {}
    for policy, key in keys.items():
        for chunks in range(CHUNKS + 1):  # at the last the end and the usage are still to come
            for how in HOW if surface == "chat" else HOW[chunks % 2 :][:1]:
                call = await leave_at(
                    gate, upstream,
                    Behaviour(chunks=CHUNKS, hold_after_chunks=chunks, output_tokens=20),
                    call=(path, key, body), chunks=chunks, how=how, cut=policy == "cut",
                )  # fmt: skip
                policies[call.attempt_id] = policy
    await assert_the_policy_is_kept(gate, upstream, policies)


@pytest.mark.parametrize("surface", PLAIN)
async def test_a_client_leaves_before_a_plain_answer(
    gate: InProcessGuard, upstream: FakeUpstream, surface: str
) -> None:
    path, body = PLAIN[surface]
    keys = {name: await gate.key(policies=[name]) for name in ("drain", "cut")}
    policies: dict[str, str] = {}
    for policy, key in keys.items():
        for how in HOW:
            call = await leave_at(
                gate, upstream, Behaviour(), call=(path, key, body), chunks=0, how=how,
                cut=policy == "cut",
            )  # fmt: skip
            policies[call.attempt_id] = policy
    await assert_the_policy_is_kept(gate, upstream, policies)


async def test_usage_so_far_is_not_what_a_cut_stream_costs(
    gate: InProcessGuard, upstream: FakeUpstream
) -> None:
    """Some providers report usage in each chunk: until the last it is not the truth."""
    path, body = STREAMS["chat"]
    key = await gate.key(policies=["cut"])
    behaviour = Behaviour(chunks=CHUNKS, hold_after_chunks=2, output_tokens=20, usage_so_far=True)
    call = await leave_at(
        gate, upstream, behaviour, call=(path, key, body), chunks=2, how="abort", cut=True
    )
    await assert_the_policy_is_kept(gate, upstream, {call.attempt_id: "cut"})


async def test_a_crowd_that_leaves_at_once(gate: InProcessGuard, upstream: FakeUpstream) -> None:
    keys = {name: await gate.key(policies=[name]) for name in ("drain", "cut")}
    upstream.behaviour = Behaviour(chunks=CHUNKS, hold=asyncio.Event(), hold_after_chunks=2)

    async def one(number: int) -> None:
        path, body = list(STREAMS.values())[number % len(STREAMS)]
        key = keys["drain" if number % 2 else "cut"]
        marked = {**body, "user": f"u{number}"} if "messages" in body else body
        async with await LeavingClient.call(gate.public_url, path, key, marked) as client:
            await client.read_chunks(number % 3)
            if number % 3 == 0:
                await asyncio.sleep(0.005 * (number % 7))

    await asyncio.gather(*(one(number) for number in range(60)))
    assert upstream.behaviour.hold is not None
    upstream.behaviour.hold.set()
    await until(lambda: is_quiet(gate))
    entries = await gate.entries()
    async with asyncio.timeout(60):
        while len(entries) < len(upstream.calls):
            await asyncio.sleep(0.05)
            entries = await gate.entries()
    for entry in entries:
        if entry["outcome"] == "not_sent":  # it had left before anything was sent
            assert entry["amount_micro_usd"] == upstream.billed(entry["attempt_id"]) == 0
        else:
            assert entry["amount_micro_usd"] >= upstream.billed(entry["attempt_id"])
    await until(lambda: all(call.status == "final" for call in upstream.calls))
    await gate.admin("POST", "/reconcile", json={})
    spend = await gate.admin("GET", "/spend?by=key")
    assert spend["total_micro_usd"] == upstream.bill_total
    await assert_nothing_leaks(gate)


@pytest.mark.parametrize("policy", ["drain", "cut"])
async def test_a_reader_that_stalls_is_one_that_left(
    make_process: Callable[..., Awaitable[GuardProcess]], governance: str, upstream: FakeUpstream,
    policy: str,
) -> None:  # fmt: skip
    guard = await make_process(
        governance=governance, stalled_reader_seconds=0.5, reconcile_grace_seconds=0
    )
    key = await guard.key(policies=[policy])
    # More than the buffers between can take, and every chunk is one that somebody waits with.
    upstream.behaviour = Behaviour(chunks=200, output_tokens=40, padding="x" * 65536)
    path, body = STREAMS["chat"]
    async with await LeavingClient.call(
        guard.public_url, path, key, body, small_buffer=True
    ) as client:
        await client.read_chunks(1)
        await until(lambda: upstream.calls[0].status == "final")
    entry = (await shipped(guard, 1))[upstream.calls[0].attempt_id]
    if policy == "drain":
        assert (entry["kind"], entry["outcome"]) == ("attempt", "client_cancelled")
        assert entry["amount_micro_usd"] == upstream.bill_total
    else:
        assert (entry["kind"], entry["outcome"]) == ("unknown", "cut")
        assert upstream.calls[0].outcome == "client_gone"
    await guard.admin("POST", "/reconcile", json={})
    assert await guard.cost(entry["attempt_id"]) == upstream.bill_total > 0
    metrics = (await guard.http.get(guard.metrics_url)).text
    assert "\nterrace_open_attempts 0.0\n" in metrics


@pytest.mark.parametrize("surface", STREAMS)
async def test_a_guardrail_masks_and_then_blocks_in_mid_stream(
    gate: InProcessGuard, upstream: FakeUpstream, surface: str
) -> None:
    path, body = STREAMS[surface]
    for policy in ("drain", "cut"):
        key = await gate.key(policies=[f"guarded-{policy}"])
        upstream.behaviour = Behaviour(chunks=3, output_tokens=20)
        answer = (await post(gate, path, key, body)).content
        assert b"[masked:" in answer
        assert ENDS[surface] in answer
        upstream.behaviour = Behaviour(chunks=9, output_tokens=20, delay=0.001)
        answer = (await post(gate, path, key, body)).content
        assert b"[masked:" in answer
        for hidden in (b"word1", b"w1 ", b"word3", b"w3 ", b"word5", b"w5 ", ENDS[surface]):
            assert hidden not in answer
        assert ERRORS[surface] in answer
        assert b"content_blocked" in answer or b"guardrail block blocked" in answer
    entries = await shipped_money(gate, 4)
    told = {call.attempt_id: entries[call.attempt_id] for call in upstream.calls}
    assert [(e["kind"], e["outcome"]) for e in told.values()] == [
        ("attempt", "ok"), ("attempt", "ok"), ("attempt", "ok"), ("unknown", "cut")
    ]  # fmt: skip
    await until(lambda: all(call.status == "final" for call in upstream.calls))
    await gate.admin("POST", "/reconcile", json={})
    for call in upstream.calls:
        assert await gate.cost(call.attempt_id) == call.cost > 0
    await assert_nothing_leaks(gate)


@pytest.mark.parametrize("surface", PLAIN)
async def test_a_guardrail_blocks_a_plain_answer_that_was_paid_for(
    gate: InProcessGuard, upstream: FakeUpstream, surface: str
) -> None:
    path, body = PLAIN[surface]
    answer = await post(gate, path, await gate.key(policies=["guarded-cut"]), body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "content_blocked"
    assert "hello" not in answer.text
    entries = await shipped_money(gate, 1)
    assert entries[upstream.calls[0].attempt_id]["amount_micro_usd"] == upstream.bill_total > 0
    await assert_nothing_leaks(gate)


async def post(guard: InProcessGuard, path: str, key: str, body: dict[str, Any]) -> Any:
    headers = {"authorization": f"Bearer {key}"}
    return await guard.http.post(guard.public_url + path, json=body, headers=headers)


async def shipped_money(guard: InProcessGuard, attempts: int) -> dict[str, dict[str, Any]]:
    """As ``shipped``, beside decisions."""
    async with asyncio.timeout(60):
        while True:
            found = [e for e in await guard.entries() if e["kind"] in ("attempt", "unknown")]
            if len(found) >= attempts:
                return {entry["attempt_id"]: entry for entry in found}
            await asyncio.sleep(0.05)
