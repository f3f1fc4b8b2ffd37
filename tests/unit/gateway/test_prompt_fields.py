"""Every field that a surface takes has its place: it is read by guardrails, in whatever spelling,
or has a form with no room for a text. A field that is new must be put into a sample here, and one
of any name that the code knows is tried in every object of the samples."""

import ast
import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from terrace_gateway.edge.errors import ApiError
from terrace_gateway.surfaces import (
    chat_body,
    completions_body,
    converse_body,
    embeddings,
    messages_body,
    responses_body,
)

from .guardrail_world import guardrails_of, start
from .surface_calls import PNG, read, upstream

pytestmark = pytest.mark.unit

HIDDEN = "my card is 4111 1111 1111 1111"
KEY = "AKIAIOSFODNN7EXAMPLE"
SPELLED = f'first line\n{KEY}\t"quoted"\\'
"""In JSON an escape stands before the key, and the letter of it hides where the key begins."""

SCHEMA = {"type": "object", "properties": {"a": {"enum": ["b"]}}}
IMAGE = f"data:image/png;base64,{PNG}"
CACHED = {"cache_control": {"type": "ephemeral", "ttl": "5m"}}
CHAT_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": "b"}'}}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}
JSON_SCHEMA = {"name": "n", "description": "d", "schema": SCHEMA, "strict": True}
COMMON = {"temperature": 1, "top_p": 1, "stream": True}
SAMPLES: dict[str, tuple[str, set[str], dict[str, Any]]] = {
    # the model it is sent to, the fields that have an effect, and a body that has them all
    "/v1/chat/completions": ("sim-small", set(chat_body.FIELD_NAMES), {
        **COMMON, "model": "m", "user": "u", "stream_options": {"include_usage": True},
        "max_tokens": 5, "max_completion_tokens": 5, "presence_penalty": 1, "seed": 1,
        "frequency_penalty": 1, "logprobs": True, "top_logprobs": 1, "logit_bias": {"1": 1},
        "stop": ["s"], "reasoning_effort": "low", "parallel_tool_calls": True,
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {"type": "json_schema", "json_schema": JSON_SCHEMA},
        "messages": [
            {"role": "system", "name": "n", "content": "t"},
            {"role": "user", "content": [
                {"type": "text", "text": "t"},
                {"type": "image_url", "image_url": {"url": IMAGE, "detail": "low"}}]},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "r"}],
             "refusal": "r", "tool_calls": [CHAT_CALL]},
            {"role": "tool", "tool_call_id": "c", "content": "t"}]}),
    "/v1/completions": ("sim-small", set(completions_body.FIELD_NAMES), {
        **COMMON, "model": "m", "user": "u", "stream_options": {"include_usage": True},
        "prompt": "p", "suffix": "s", "max_tokens": 5, "presence_penalty": 1, "seed": 1,
        "frequency_penalty": 1, "stop": ["s"]}),
    "/v1/embeddings": ("sim-small", set(embeddings.FIELD_NAMES), {
        "model": "m", "input": ["t"], "dimensions": 5, "encoding_format": "float"}),
    "/v1/responses": ("sim-small", set(responses_body.FIELD_NAMES), {
        **COMMON, "model": "m", "user": "u", "prompt_cache_key": "k", "max_output_tokens": 5,
        "reasoning": {"effort": "low", "summary": "auto"}, "instructions": "i",
        "parallel_tool_calls": True, "truncation": "auto",
        "include": ["reasoning.encrypted_content"],
        "tools": [{"type": "function", **FUNCTION}],
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"verbosity": "low", "format": {"type": "json_schema", **JSON_SCHEMA}},
        "input": [
            {"type": "message", "role": "user", "content": [
                {"type": "input_text", "text": "t"},
                {"type": "input_image", "image_url": IMAGE, "detail": "low"}]},
            {"type": "message", "role": "assistant", "content": [
                {"type": "output_text", "text": "t"}, {"type": "refusal", "refusal": "r"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": "b"}'},
            {"type": "function_call_output", "call_id": "c", "output": [
                {"type": "input_text", "text": "t"}]},
            {"type": "reasoning", "id": "rs_1", "encrypted_content": "e",
             "summary": [{"type": "summary_text", "text": "t"}]}]}),
    "/v1/messages": ("sim-small", set(messages_body.FIELD_NAMES), {
        **COMMON, "model": "m", "max_tokens": 2000, "metadata": {"user_id": "u"}, "top_k": 1,
        "thinking": {"type": "enabled", "budget_tokens": 1024}, "stop_sequences": ["s"],
        "system": [{"type": "text", "text": "t", **CACHED}],
        "tools": [{"type": "custom", "name": "f", "description": "d", "input_schema": SCHEMA,
                   **CACHED}],
        "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "t", **CACHED},
                {"type": "image", "source": {
                    "type": "base64", "media_type": "image/png", "data": PNG}}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"},
                {"type": "redacted_thinking", "data": "d"},
                {"type": "tool_use", "id": "t", "name": "f", "input": {"a": ["b"]}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t", "is_error": False, "content": [
                    {"type": "text", "text": "t"}]}]}]}),
    "/model/m/converse": ("bedrock-claude", set(converse_body.FIELD_NAMES), {
        "inferenceConfig": {"maxTokens": 5, "temperature": 1, "topP": 1, "stopSequences": ["s"]},
        "system": [{"text": "t"}, {"cachePoint": {"type": "default", "ttl": "5m"}}],
        "toolConfig": {"toolChoice": {"tool": {"name": "f"}}, "tools": [
            {"toolSpec": {"name": "f", "description": "d", "inputSchema": {"json": SCHEMA}}}]},
        "messages": [
            {"role": "user", "content": [
                {"text": "t"}, {"image": {"format": "png", "source": {"bytes": PNG}}}]},
            {"role": "assistant", "content": [
                {"reasoningContent": {"reasoningText": {"text": "t", "signature": "s"}}},
                {"reasoningContent": {"redactedContent": "d"}},
                {"toolUse": {"toolUseId": "t", "name": "f", "input": {"a": ["b"]}}}]},
            {"role": "user", "content": [{"toolResult": {
                "toolUseId": "t", "status": "success", "content": [
                    {"text": "t"}, {"json": {"a": "b"}}]}}]}]}),
}  # fmt: skip
EVERY = pytest.mark.parametrize("path", SAMPLES)


def known_names() -> list[str]:
    """Every string of the surfaces' code that may be the name of a field."""
    found: set[str] = set()
    for module in Path(str(files("terrace_gateway.surfaces"))).glob("*.py"):
        for node in ast.walk(ast.parse(module.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return [name for name in sorted(found) if re.fullmatch(r"[A-Za-z_]\w{0,40}", name)]


NAMES = [*known_names(), HIDDEN]
SHAPES: list[Any] = [HIDDEN, [HIDDEN], {HIDDEN: 1}, {"text": HIDDEN}, [{"text": HIDDEN}]]


def containers(value: Any) -> Iterator[Any]:
    """Every object and list, to be changed in place."""
    if isinstance(value, dict | list):
        yield value
        for item in value.values() if isinstance(value, dict) else value:
            yield from containers(item)


def with_each(body: Any, shapes: list[Any], names: list[str]) -> Iterator[Any]:
    """``body`` with each of ``shapes`` in each place of it, and under each name in each object."""
    for container in list(containers(body)):
        if isinstance(container, dict):
            before = dict(container)
            for name in dict.fromkeys([*before, *names]):
                for shape in shapes:
                    container[name] = shape
                    yield body
                    container.pop(name)
                container.update({name: before[name]} if name in before else {})
        else:
            for index, item in enumerate(list(container)):
                for shape in (*shapes, *({name: shapes[0]} for name in names)):
                    container[index] = shape
                    yield body
                container[index] = item


def copy(value: Any) -> Any:
    return json.loads(json.dumps(value))


@EVERY
def test_the_sample_has_every_field_and_is_taken(path: str) -> None:
    model, fields, body = SAMPLES[path]
    assert set(body) == fields
    assert upstream(read(path, body), model).body


@EVERY
def test_what_is_sent_is_read_or_has_no_room_for_a_text(path: str) -> None:
    model, _, body = SAMPLES[path]
    sent = 0
    refusals: set[str] = set()
    for changed in with_each(copy(body), SHAPES, NAMES):
        try:
            request = read(path, changed)
            made = upstream(request, model).body
        except ApiError as error:
            refusals.add(error.message)
            continue
        if HIDDEN.encode() in made:
            sent += 1
            assert any(HIDDEN in text for text in request.texts()), json.dumps(changed)
    assert sent
    assert not any(HIDDEN in message for message in refusals)


@EVERY
async def test_no_spelling_hides_a_text(path: str) -> None:
    """A secret after an escape is masked wherever a text may be, and what is around it stays."""
    model, _, body = SAMPLES[path]
    guardrails = guardrails_of("  - {name: secrets, kind: secrets, action: mask}")
    shapes: list[Any] = [SPELLED, {"k": [SPELLED]}, json.dumps({"k": [SPELLED]})]
    sent = 0
    for changed in with_each(copy(body), shapes, []):
        try:
            request = read(path, changed)
            made = upstream(request, model).body
        except ApiError:
            continue
        if KEY.encode() not in made:
            continue
        sent += 1
        texts = await start(guardrails, "secrets").before(request.texts())
        masked = upstream(request.with_texts(texts), model).body
        assert KEY.encode() not in masked, json.dumps(changed)
        label = "[masked:aws-access-key-id]"
        assert said(masked) == said(made.replace(KEY.encode(), label.encode()))
    assert sent


def said(body: bytes) -> Any:
    """A body with the arguments of tools as their JSON."""

    def read_arguments(value: dict[str, Any]) -> dict[str, Any]:
        source = value.get("arguments")
        is_json = isinstance(source, str) and source.startswith("{")
        return {**value, "arguments": json.loads(source)} if is_json else value

    return json.loads(body, object_hook=read_arguments)


@pytest.mark.parametrize(
    ("number", "taken"), [("0", True), ("199999", True), ("-1", False), ("1 ", False), ("a", False)]
)
def test_a_bias_is_of_a_token(number: str, taken: bool) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    if taken:
        assert read("/v1/chat/completions", {**body, "logit_bias": {number: 1}})
        return
    with pytest.raises(ApiError, match="number of a token"):
        read("/v1/chat/completions", {**body, "logit_bias": {number: 1}})


@pytest.mark.parametrize("sealed", ["", "EqQBCg/+YIARgC==", "gAAAAABo-_x="])
def test_what_providers_seal_is_taken(sealed: str) -> None:
    block = {"type": "thinking", "thinking": "t", "signature": sealed}
    body = {"model": "m", "messages": [{"role": "assistant", "content": [block]}]}
    assert read("/v1/messages", body)
    reasoning = {"type": "reasoning", "id": "rs_1", "encrypted_content": sealed}
    assert read("/v1/responses", {"model": "m", "input": [reasoning]})
