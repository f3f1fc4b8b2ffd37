"""Bodies with anything anywhere: a refusal or a billed answer, never a server error."""

import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CLAUDE = "anthropic.claude-sonnet-4-5-20250929-v1:0"
CHAT: dict[str, Any] = {
    "model": "sim-small",
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "r"}]},
        {"role": "user", "content": "[[tool]] [[tokens=9]]"},
    ],
    "max_tokens": 20,
    "stop": ["a"],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "properties": {"a": {"type": "string", "enum": ["x"]}}}}}],
    "tool_choice": "auto",
    "metadata": {"terrace-attempt-id": "a"},
    "response_format": {"type": "text"},
    "stream": False,
    "user": "u",
}  # fmt: skip
CONVERSE: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": [{"text": "[[tool]]"}]},
        {"role": "assistant", "content": [
            {"toolUse": {"toolUseId": "1", "name": "f", "input": {}}}]},
        {"role": "user", "content": [{"toolResult": {
            "toolUseId": "1", "content": [{"json": {"a": [1]}}, {"text": "t"}]}}]},
    ],
    "system": [{"text": "s"}],
    "inferenceConfig": {"maxTokens": 9, "temperature": 0.5, "topP": 0.5, "stopSequences": ["a"]},
    "toolConfig": {"tools": [{"toolSpec": {"name": "f", "inputSchema": {"json": {
        "type": "object", "properties": {"a": {"type": "number"}}}}}}], "toolChoice": {"any": {}}},
    "requestMetadata": {"terrace-attempt-id": "a"},
}  # fmt: skip
INVOKE: dict[str, Any] = {
    "anthropic_version": "bedrock-2023-05-31",
    "max_tokens": 9,
    "system": [{"type": "text", "text": "s"}],
    "messages": [{"role": "user", "content": [
        {"type": "tool_result", "content": [{"type": "text", "text": "r"}]},
        {"type": "text", "text": "[[tool]]"}]}],
    "tools": [{"name": "f", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "any"},
    "metadata": {"user_id": "attempt:a"},
}  # fmt: skip
FACES = {
    "/v1/chat/completions": CHAT,
    f"/model/{CLAUDE}/converse": CONVERSE,
    f"/model/{CLAUDE}/converse-stream": CONVERSE,
    f"/model/{CLAUDE}/invoke": INVOKE,
    f"/model/{CLAUDE}/invoke-with-response-stream": INVOKE,
}
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    | st.sampled_from(["\ud800", 10**30, -1, 0, "", "user", "object", "[[tokens=0]]", "\0"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["type", "text", "properties", "enum", "a"]), inner),
    max_leaves=6,
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of every value inside a document."""
    inside = value.items() if isinstance(value, dict) else ()
    inside = enumerate(value) if isinstance(value, list) else inside
    return [path, *(place for key, item in inside for place in places(item, (*path, key)))]


def put(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The document with another value at a place."""
    if not path:
        return value
    changed = copy.deepcopy(document)
    target = changed
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return changed


@pytest.mark.parametrize("path", FACES)
def test_the_whole_body_is_answered(simulator: Any, path: str) -> None:
    assert simulator.http.post(path, json=FACES[path]).status_code == 200


@pytest.mark.parametrize("path", FACES)
@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_anything_anywhere(simulator: Any, path: str, data: st.DataObject) -> None:
    place = data.draw(st.sampled_from(places(FACES[path])))
    body = put(FACES[path], place, data.draw(ANYTHING))
    calls = simulator.http.get("/bill/total").json()
    answer = simulator.http.post(path, content=json.dumps(body).encode("utf-8", "surrogatepass"))
    after = simulator.http.get("/bill/total").json()
    assert answer.status_code in {200, 400, 404}
    assert after["calls"] - calls["calls"] == (1 if answer.status_code == 200 else 0)
    assert after["in_flight"] == 0
    if answer.status_code != 200:
        assert (answer.json().get("error") or answer.json())["message"]
