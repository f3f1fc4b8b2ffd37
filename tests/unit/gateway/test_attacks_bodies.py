"""Bodies and answers made to be misread. The service tier has those that need a real translator."""

import json
from importlib.resources import files
from typing import Any

import pytest

from terrace_common.governance import load_governance
from terrace_gateway.edge.errors import ApiError
from terrace_gateway.surfaces.chat_answer import ChatSurface, ChunkStream
from terrace_gateway.surfaces.chat_body import read_chat_body
from terrace_gateway.surfaces.json_body import parse_json_object
from terrace_gateway.surfaces.schema_size import expanded_bytes
from terrace_gateway.surfaces.surface import Identity

GOVERNANCE = load_governance(
    (files("terrace_common") / "examples" / "governance.local.yaml").read_text("utf-8"), "g"
)


def bound(model: str, **fields: Any) -> int:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], **fields}
    found = GOVERNANCE.find_model(model)
    assert found is not None
    sent = read_chat_body(body).upstream(
        governance=GOVERNANCE,
        model=found,
        attempt_id="att_1",
        traceparent="t",
        max_output_tokens=9,
    )
    return sent.bound_bytes


@pytest.mark.parametrize("text", ["1e999", "-1e999", "[1e400]", '{"a": [1E+4000]}'])
def test_numbers_that_cannot_be_sent_on_are_refused(text: str) -> None:
    with pytest.raises(ApiError, match="not valid JSON"):
        parse_json_object(b'{"temperature": ' + text.encode() + b"}", max_depth=64, max_values=1000)


@pytest.mark.parametrize("field", ["schema", "name", "description", "strict"])
def test_response_format_fields_have_types(field: str) -> None:
    json_schema = {"name": "n", "schema": {}, field: ["x"]}
    with pytest.raises(ApiError, match=field):
        bound("sim-small", response_format={"type": "json_schema", "json_schema": json_schema})


def chain(levels: int) -> dict[str, Any]:
    defs: dict[str, Any] = {"d0": {"type": "string", "description": "x" * 20}}
    for n in range(1, levels + 1):
        ref = {"$ref": f"#/$defs/d{n - 1}"}
        defs[f"d{n}"] = {"type": "object", "properties": {"a": ref, "b": ref}}
    return {"properties": {"x": {"$ref": f"#/$defs/d{levels}"}}, "$defs": defs}


def test_references_are_bounded_as_they_are_written_out() -> None:
    assert expanded_bytes([(chain(8), "tools")]) > 256 * 20
    tool = {"type": "function", "function": {"name": "f", "parameters": chain(8)}}
    assert bound("bedrock-claude", tools=[tool]) > bound("sim-small", tools=[tool]) + 256 * 20
    with pytest.raises(ApiError, match="too large to bound"):
        expanded_bytes([(chain(40), "tools")])


def test_circles_of_references_end() -> None:
    names = [f"d{n}" for n in range(12)]
    every = {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in names]}
    with pytest.raises(ApiError, match="too large to bound"):  # LiteLLM would make 12! copies
        expanded_bytes([({**every, "$defs": dict.fromkeys(names, every)}, "tools")])
    node = {"properties": {"next": {"$ref": "#/$defs/node"}}}
    assert expanded_bytes([({"$ref": "#/$defs/node", "$defs": {"node": node}}, "t")]) < 400


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": 7},
        {"properties": {"$ref": {}}},
        {"$ref": "#/$defs/a", "$defs": [1]},
        {"$ref": "#/$defs/a", "$defs": {"a": [1]}},
        {"$ref": "#/$defs/a", "$defs": {"a": {}}, "items": {"$defs": {"a": {}}}},
    ],
)
def test_references_that_cannot_be_followed_are_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ApiError):
        expanded_bytes([(schema, "tools")])


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def usage(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion}


def stream() -> ChunkStream:
    return ChunkStream(Identity("r", "m"), include_usage=False)


def test_usage_so_far_is_not_usage() -> None:
    """Some providers count in every chunk: a stream that breaks costs more than it said."""
    broken = stream()
    broken.feed(event(choices=[{"delta": {"content": "a"}}], usage=usage(7, 1)))
    assert broken.usage is None
    broken.feed(event(choices=[{"delta": {}, "finish_reason": "stop"}], usage=usage(7, 9)))
    assert broken.usage is not None
    assert broken.usage.output_tokens == 9
    ended = stream()
    ended.feed(
        event(choices=[{"delta": {"content": "a"}}], usage=usage(7, 1)) + b"data: [DONE]\n\n"
    )
    assert ended.usage is not None


def test_half_a_surrogate_pair_of_a_model_reaches_the_client() -> None:
    answer = {"choices": [{"message": {"content": "\ud83d"}, "finish_reason": "length"}]}
    body = ChatSurface(Identity("r", "m"), stream=False, include_usage=False).rebuild(answer)
    assert json.loads(body)["choices"][0]["message"]["content"] == "\ud83d"
