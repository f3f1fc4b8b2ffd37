"""Attacks that only the real LiteLLM can answer: what it makes of bodies that pass the guard."""

import json
from typing import Any

import pytest
from gateway_rig.guard import InProcessGuard
from gateway_rig.real_upstream import CREDENTIALS, RealUpstream

CANARY = "canary-secret-prompt"


@pytest.fixture
def guard(real_guard: InProcessGuard) -> InProcessGuard:
    return real_guard


def tool(parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


def bomb(levels: int, definitions: str = "$defs") -> dict[str, Any]:
    """A few hundred bytes that LiteLLM writes out for Bedrock as 2**levels copies."""
    defs: dict[str, Any] = {"d0": {"type": "string", "description": "words and more words"}}
    for n in range(1, levels + 1):
        ref = {"$ref": f"#/{definitions}/d{n - 1}"}
        defs[f"d{n}"] = {"type": "object", "properties": {"a": ref, "b": ref}}
    return {
        "type": "object",
        "properties": {"x": {"$ref": f"#/{definitions}/d{levels}"}},
        definitions: defs,
    }


@pytest.mark.parametrize("definitions", ["$defs", "definitions"])
@pytest.mark.parametrize("model", ["bedrock-claude", "sim-small"])
@pytest.mark.parametrize("levels", [5, 7, 12])
async def test_schema_references_cannot_make_a_bill_above_the_reservation(
    guard: InProcessGuard, real: RealUpstream, definitions: str, model: str, levels: int
) -> None:
    key = await guard.key()
    schema = bomb(levels, definitions)
    format_ = {"type": "json_schema", "json_schema": {"name": "f", "schema": schema}}
    tools = await guard.chat(key, model=model, tools=[tool(schema)])
    assert tools.status_code == (400 if model == "bedrock-claude" and levels > 7 else 200)
    await guard.chat(key, model=model, response_format=format_)
    await assert_bounded(guard, real)


async def assert_bounded(guard: InProcessGuard, real: RealUpstream) -> None:
    for entry in await guard.entries():
        assert entry["amount_micro_usd"] <= entry["reserved_micro_usd"]
        assert entry["amount_micro_usd"] >= real.bill(entry["attempt_id"])["total_micro_usd"]


SHAPES: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": ""}] * 500},
    {"messages": [{"role": "assistant", "content": ""}, {"role": "user", "content": "x"}] * 200},
    {"messages": [{"role": "system", "content": "a"}] * 300 + [{"role": "user", "content": "b"}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 800}]},
    {"messages": [{"role": "user", "content": "\U0001f9d1\u200d\U0001f680" * 300}]},
    {"messages": [{"role": "user", "content": "\u0001\\\"" * 300}]},
    {"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_object"}},
    {"messages": [{"role": "user", "content": "x"}],
     "tools": [tool(None) for _ in range(60)]},
    {"messages": [{"role": "user", "content": "x"}], "stop": ["a b c d"] * 4, "max_tokens": 10**30},
    {"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 3, "max_tokens": 500},
    {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "r " * 500}]},
]  # fmt: skip


@pytest.mark.parametrize("model", ["bedrock-claude", "sim-small"])
@pytest.mark.parametrize("stream", [False, True])
async def test_no_shape_of_a_conversation_costs_more_than_its_reservation(
    guard: InProcessGuard, real: RealUpstream, model: str, stream: bool
) -> None:
    key = await guard.key()
    good = 0
    for shape in SHAPES:
        response = await guard.chat(key, model=model, stream=stream, **shape)
        good += response.status_code == 200
    assert good >= 8
    await assert_bounded(guard, real)


ODD: list[tuple[dict[str, Any], str]] = [
    ({"temperature": float("inf")}, "400"),
    ({"tools": [tool({"type": "object", "properties": {"a": {"$ref": 7}}})]}, "200 400"),
    ({"tools": [tool({"$ref": "#/$defs/" + CANARY, "$defs": [CANARY]})]}, "200 400"),
    ({"messages": [{"role": "assistant", "tool_calls": [
        {"id": "1", "type": "function",
         "function": {"name": "f", "arguments": "{" + CANARY}}]},
        {"role": "tool", "tool_call_id": "2", "content": CANARY}]}, "200 400"),
    ({"messages": [{"role": "tool", "tool_call_id": "x", "content": CANARY}]}, "200 400"),
    ({"messages": [{"role": "system", "content": CANARY}]}, "200 400"),
    ({"messages": [{"role": "user", "content": []}, {"role": "user", "content": CANARY}]},
     "200 400"),
    ({"tools": [tool({"type": CANARY})], "tool_choice":
        {"type": "function", "function": {"name": CANARY}}}, "200 400"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": CANARY}}}, "400"),
    ({"logit_bias": {CANARY: 10**300}}, "200 400"),
    ({"seed": 10**1000, "stop": [CANARY] * 100}, "200 400"),
]  # fmt: skip


@pytest.mark.parametrize("model", ["bedrock-claude", "sim-small"])
async def test_odd_bodies_leak_nothing_and_are_no_defect(
    guard: InProcessGuard, real: RealUpstream, model: str
) -> None:
    key = await guard.key()
    start = {"model": model, "max_tokens": 5, "messages": [{"role": "user", "content": CANARY}]}
    for fields, statuses in ODD:
        response = await guard.http.post(
            guard.public_url + "/v1/chat/completions",
            content=json.dumps({**start, **fields}).replace("Infinity", "1e999").encode(),
            headers={"authorization": f"Bearer {key}"},
        )
        assert str(response.status_code) in statuses, (str(fields)[:80], response.text)
    await assert_bounded(guard, real)
    logs = real.logs()
    for secret in (CANARY, key, *CREDENTIALS.values()):
        assert secret not in logs
