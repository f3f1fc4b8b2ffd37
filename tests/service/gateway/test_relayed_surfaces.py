"""Every surface that a relay serves, through the whole guard: the provider's bytes, its price."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from gateway_rig.guard import InProcessGuard
from gateway_rig.relay_upstream import RawUpstream, Wire, plain

Make = Callable[..., Awaitable[InProcessGuard]]
HERE = 'api_base: "http://model-simulator.terrace-providers:8080/v1"'
USAGE = {"prompt_tokens": 1000, "completion_tokens": 0, "total_tokens": 1000}
VECTOR = {"object": "embedding", "index": 0, "embedding": [0.1, -2e-05, 1.0]}
CHOICE = {"index": 0, "finish_reason": "stop"}
Surface = tuple[str, dict[str, Any], dict[str, Any], int]
SURFACES: list[Surface] = [
    ("/v1/chat/completions", {"model": "sim-small", "messages": [{"role": "user", "content": "x"}]},
     {"choices": [{**CHOICE, "message": {"role": "assistant", "content": "hi"}}]}, 150),
    ("/v1/completions", {"model": "sim-small", "prompt": "x"},
     {"choices": [{**CHOICE, "text": "hi"}]}, 150),
    ("/v1/embeddings", {"model": "sim-embed", "input": "x"}, {"data": [VECTOR]}, 20),
]  # fmt: skip
EVERY = pytest.mark.parametrize("surface", SURFACES, ids=lambda surface: surface[0])


async def ask(
    make_guard: Make, upstream: RawUpstream, text: str, path: str, body: dict[str, Any]
) -> tuple[Any, list[tuple[str, int]]]:
    """The answer, and each attempt's outcome and amount."""
    relayed = f'api_base: "http://127.0.0.1:{upstream.port}/v1"\n    relay: true'
    assert HERE in text
    guard = await make_guard(governance=text.replace(HERE, relayed))
    headers = {"authorization": f"Bearer {await guard.key()}"}
    said = await guard.http.post(guard.public_url + path, json=body, headers=headers)
    entries = await guard.entries()
    return said, [(entry["outcome"], entry["amount_micro_usd"]) for entry in entries]


@pytest.fixture(autouse=True)
def credential(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERRACE_SIMULATOR_API_KEY", "sk-canary-relay-0123456789")


@EVERY
async def test_the_providers_bytes_are_passed_and_priced(
    make_guard: Make, governance_text: str, surface: Surface
) -> None:
    path, body, answer, cost = surface
    bytes_of = json.dumps({**answer, "usage": USAGE, "own": "field"}, indent=1).encode()

    async def script(wire: Wire) -> None:
        await wire.send(plain(bytes_of))

    async with RawUpstream(script).running() as upstream:
        said, attempts = await ask(make_guard, upstream, governance_text, path, body)
    assert (said.status_code, said.content) == (200, bytes_of)
    assert attempts == [("ok", cost)]
    assert [received.line for received in upstream.book] == [f"POST {path} HTTP/1.1"]


@EVERY
async def test_what_is_no_answer_of_the_surface_is_unknown(
    make_guard: Make, governance_text: str, surface: Surface
) -> None:
    path, body, _, _ = surface

    async def script(wire: Wire) -> None:
        await wire.send(plain(json.dumps({"other": [1], "usage": USAGE}).encode()))

    async with RawUpstream(script).running() as upstream:
        said, attempts = await ask(make_guard, upstream, governance_text, path, body)
    assert said.status_code == 502
    assert [outcome for outcome, _ in attempts] == ["unknown"]
    assert len(upstream.book) == 1


async def test_more_vectors_than_an_answer_can_hold_are_not_asked_for(
    make_guard: Make, governance_text: str
) -> None:
    async def script(wire: Wire) -> None:
        await wire.send(plain(b"{}"))

    body = {"model": "sim-embed", "input": ["x"] * 2048, "dimensions": 1536}
    async with RawUpstream(script).running() as upstream:
        said, attempts = await ask(make_guard, upstream, governance_text, "/v1/embeddings", body)
    error = said.json()["error"]
    assert (said.status_code, error["param"]) == (400, "input")
    assert "at most 1365 texts" in error["message"]
    assert attempts == []
    assert upstream.book == []
