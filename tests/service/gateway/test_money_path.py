"""What one call costs, in every way that it can end."""

import asyncio
import json
from typing import Any

import pytest
from gateway_rig.fake_upstream import Behaviour, FakeUpstream
from gateway_rig.guard import CHAT, HELLO, InProcessGuard, plain_http

WORST_SMALL_UPPER = 1000  # micro-USD; far above HELLO's reservation on sim-small


async def test_a_plain_call_costs_what_the_provider_bills(
    guard: InProcessGuard, upstream: FakeUpstream
) -> None:
    key = await guard.key(budget_micro_usd=10_000)
    response = await guard.chat(key)
    assert response.status_code == 200, response.text
    body = response.json()
    assert body["model"] == "sim-small"
    assert body["choices"][0]["message"]["content"] == "hello"
    assert body["usage"] == {"prompt_tokens": 7, "completion_tokens": 11, "total_tokens": 18}
    assert "internal" not in response.text
    assert not [name for name in response.headers if "litellm" in name]
    assert response.headers["x-terrace-request-id"].startswith("req_")
    [entry] = await guard.entries()
    assert entry["kind"] == "attempt"
    assert entry["outcome"] == "ok"
    assert entry["usage_source"] == "response"
    assert entry["amount_micro_usd"] == upstream.bill_total == 8
    assert entry["reserved_micro_usd"] >= entry["amount_micro_usd"]
    assert entry["request_id"] == response.headers["x-terrace-request-id"]


@pytest.mark.parametrize("asked", [True, False])
async def test_a_stream_costs_what_the_provider_bills(
    guard: InProcessGuard, upstream: FakeUpstream, asked: bool
) -> None:
    key = await guard.key()
    options = {"stream_options": {"include_usage": True}} if asked else {}
    response = await guard.chat(key, stream=True, **options)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.endswith("data: [DONE]\n\n")
    assert "internal" not in response.text
    chunks = [json.loads(part[6:]) for part in response.text.split("\n\n")[:-2]]
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])
    assert text == "word0 word1 word2 "
    assert [chunk for chunk in chunks if "usage" in chunk] == (chunks[-1:] if asked else [])
    assert upstream.calls[0].body["stream_options"] == {"include_usage": True}
    [entry] = await guard.entries()
    assert (entry["amount_micro_usd"], entry["usage_source"]) == (upstream.bill_total, "stream")


async def test_the_settlement_comes_before_the_end_of_the_answer(
    guard: InProcessGuard, upstream: FakeUpstream
) -> None:
    key = await guard.key()
    for stream in (False, True):
        response = await guard.chat(key, stream=stream)
        assert response.status_code == 200
        spend = await guard.admin("GET", "/spend?by=key")
        assert spend["outstanding_micro_usd"] == 0
        assert spend["total_micro_usd"] == upstream.bill_total


UNPROVEN = [(422, "200"), (400, "200"), (400, None), (429, "200, 429"), (400, "lost, 400")]
"""(status of LiteLLM, what came off the wire): no proof that the provider refused."""


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("behaviour", "status", "outcome", "charged"),
    [
        (Behaviour(status=400), 400, "upstream_error", "nothing"),
        (Behaviour(status=401), 502, "upstream_error", "nothing"),
        (Behaviour(status=429, headers={"retry-after": "7"}), 429, "upstream_error", "nothing"),
        (Behaviour(status=500), 502, "unknown", "reservation"),
        (
            Behaviour(status=500, headers={"llm_provider-x-request-id": "r"}),
            502,
            "unknown",
            "reservation",
        ),
        (
            Behaviour(status=500, upstream_status="500 json"),
            502,
            "upstream_error",
            "nothing",
        ),
        (Behaviour(status=302), 502, "unknown", "reservation"),
        (Behaviour(status=400, upstream_status="none"), 400, "upstream_error", "nothing"),
        *[
            (Behaviour(status=status, upstream_status=seen), 502, "unknown", "reservation")
            for status, seen in UNPROVEN
        ],
        (Behaviour(status=408), 504, "unknown", "reservation"),
        (Behaviour(die_before_answer=True), 502, "unknown", "reservation"),
        (Behaviour(die_after_chunks=0, body=b"{"), 502, "unknown", "reservation"),
    ],
    ids=[
        "400",
        "401",
        "429",
        "500",
        "500-named",
        "500-answered",
        "302",
        "own",
        *(f"{status}-after-{seen}" for status, seen in UNPROVEN),
        "408",
        "died",
        "garbage",
    ],
)
async def test_failures(  # noqa: PLR0917  parameters by name
    guard: InProcessGuard,
    upstream: FakeUpstream,
    behaviour: Behaviour,
    status: int,
    outcome: str,
    charged: str,
    stream: bool,
) -> None:
    key = await guard.key(budget_micro_usd=10_000)
    upstream.behaviour = behaviour
    response = await guard.chat(key, stream=stream)
    assert response.status_code == status, response.text
    assert "internal" not in response.text
    assert "x-terrace-upstream-status" not in response.headers
    assert response.json()["error"]["code"]
    assert len(upstream.calls) == 1
    [entry] = await guard.entries()
    assert entry["outcome"] == outcome
    expected = entry["reserved_micro_usd"] if charged == "reservation" else 0
    assert entry["amount_micro_usd"] == expected
    assert entry["amount_micro_usd"] >= upstream.bill_total


@pytest.mark.parametrize(
    "behaviour",
    [Behaviour(die_after_chunks=2), Behaviour(error_event_after=2), Behaviour(report_usage=False)],
    ids=["cut", "error-event", "no-usage"],
)
async def test_a_stream_that_does_not_tell_its_usage_costs_its_reservation(
    guard: InProcessGuard, upstream: FakeUpstream, behaviour: Behaviour
) -> None:
    key = await guard.key()
    upstream.behaviour = behaviour
    response = await guard.chat(key, stream=True)
    assert response.status_code == 200
    assert "internal text" not in response.text
    if behaviour.report_usage:
        assert '"code": "upstream_error"' in response.text
        assert "[DONE]" not in response.text
    else:
        assert response.text.endswith("data: [DONE]\n\n")
    [entry] = await guard.entries()
    assert (entry["kind"], entry["usage_source"]) == ("unknown", "reservation")
    assert entry["amount_micro_usd"] == entry["reserved_micro_usd"] >= upstream.bill_total > 0


async def test_an_answer_without_usage_costs_its_reservation(
    guard: InProcessGuard, upstream: FakeUpstream
) -> None:
    upstream.behaviour = Behaviour(report_usage=False)
    assert (await guard.chat(await guard.key())).status_code == 200
    [entry] = await guard.entries()
    assert (entry["kind"], entry["amount_micro_usd"]) == ("unknown", entry["reserved_micro_usd"])


async def test_not_sent_costs_nothing_and_gives_the_request_back(
    guard: InProcessGuard, upstream: FakeUpstream
) -> None:
    key = await guard.key(max_requests=1)
    await upstream.stop_engine()
    response = await guard.chat(key)
    assert response.status_code == 502
    [entry] = await guard.entries()
    assert (entry["outcome"], entry["amount_micro_usd"]) == ("not_sent", 0)
    await upstream.restart_engine()
    assert (await guard.chat(key)).status_code == 200
    assert (await guard.chat(key)).json()["error"]["code"] == "budget_exhausted"
    assert len(upstream.calls) == 1


async def test_a_refusal_of_the_provider_uses_a_request_up(
    guard: InProcessGuard, upstream: FakeUpstream
) -> None:
    key = await guard.key(max_requests=1)
    upstream.behaviour = Behaviour(status=400)
    assert (await guard.chat(key)).status_code == 400
    response = await guard.chat(key)
    assert (response.status_code, response.json()["error"]["code"]) == (429, "budget_exhausted")
    assert "retry-after" not in response.headers


async def test_a_bill_above_the_reservation_is_recorded_whole(
    guard: InProcessGuard, upstream: FakeUpstream
) -> None:
    upstream.behaviour = Behaviour(input_tokens=1_000_000)
    await guard.chat(await guard.key(budget_micro_usd=10_000))
    [entry] = await guard.entries()
    assert entry["amount_micro_usd"] == upstream.bill_total > entry["reserved_micro_usd"]
    assert b'terrace_overruns_total{model="sim-small"} 1.0' in guard.runtime.metrics.exposition()


async def test_the_hard_limit_ends_a_call(
    make_guard: Any, governance_text: str, upstream: FakeUpstream
) -> None:
    text = governance_text.replace("hard_stream_limit_seconds: 600", "hard_stream_limit_seconds: 1")
    guard = await make_guard(governance=text)
    release = asyncio.Event()
    upstream.behaviour = Behaviour(hold=release, hold_after_chunks=1)
    key = await guard.key()
    plain = await guard.chat(key)
    assert (plain.status_code, plain.json()["error"]["code"]) == (504, "upstream_timeout")
    stream = await guard.chat(key, stream=True)
    assert '"code": "upstream_timeout"' in stream.text
    assert {entry["kind"] for entry in await guard.entries()} == {"unknown"}
    release.set()


@pytest.mark.parametrize("gone_after", [1, 2])
async def test_a_client_that_leaves_a_stream_pays_the_truth(
    guard: InProcessGuard, upstream: FakeUpstream, gone_after: int
) -> None:
    key = await guard.key()
    release = asyncio.Event()
    upstream.behaviour = Behaviour(chunks=5, hold=release, hold_after_chunks=gone_after)
    async with plain_http() as http:
        headers = {"authorization": f"Bearer {key}"}
        body = {**HELLO, "stream": True}
        async with http.stream(
            "POST", guard.public_url + CHAT, json=body, headers=headers
        ) as response:
            async for _ in response.aiter_lines():
                break
    await until(lambda: not guard.runtime.in_flight or release.set() is None)
    await until(lambda: not guard.runtime.in_flight)
    [entry] = await guard.entries()
    assert entry["amount_micro_usd"] == upstream.bill_total
    assert (entry["outcome"], entry["usage_source"]) == ("client_cancelled", "stream")
    assert upstream.calls[0].outcome == "ok"


async def test_a_client_that_leaves_a_plain_call_pays_the_truth(
    guard: InProcessGuard, upstream: FakeUpstream
) -> None:
    key = await guard.key()
    release = asyncio.Event()
    upstream.behaviour = Behaviour(hold=release)
    call = asyncio.create_task(guard.chat(key))
    await until(lambda: len(upstream.calls) == 1)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await asyncio.sleep(0.1)
    release.set()
    await until(lambda: not guard.runtime.in_flight)
    [entry] = await guard.entries()
    assert entry["amount_micro_usd"] == upstream.bill_total > 0
    assert entry["outcome"] == "client_cancelled"


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)
