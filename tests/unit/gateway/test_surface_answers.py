"""Answers of every surface: any split of the bytes gives the same stream, internals stay inside, a
filter is not undone, usage is believed only when it is final."""

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terrace_gateway.calls.ports import Usage
from terrace_gateway.edge.errors import BUDGET_EXHAUSTED, ApiError
from terrace_gateway.edge.routes import error_shape
from terrace_gateway.surfaces.model_list import model_body, models_body
from terrace_gateway.surfaces.surface import AnswerStream, BrokenAnswerError, Surface

from .surface_calls import IDENTITY, HoldBack, events, read

USER = {"role": "user", "content": "hi"}
LEAK = {"provider_specific_fields": {"x": "internal"}, "model": "internal", "cost": 1}
TEXTS = ["a sec", "ret ", "and é", " no more"]
WHOLE = "".join(TEXTS)
MASKED = "a ****** and é no more"


def sse(value: dict[str, Any], name: str | None = None) -> bytes:
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + json.dumps(value).encode() + b"\n\n"


def surface(path: str, **more: Any) -> Surface:
    body = {"model": "m", "messages": [USER], **more}
    field = {"/v1/completions": "prompt", "/v1/responses": "input", "/v1/embeddings": "input"}
    if path in field:
        body[field[path]] = "hi"
    return read(path, body).answers(IDENTITY)


def chat_stream() -> bytes:
    def chunk(**fields: Any) -> bytes:
        return sse({"id": "internal", "created": 5, **LEAK, **fields})

    deltas = [chunk(choices=[{"index": 0, "delta": {"content": t}}]) for t in TEXTS]
    usage = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25, "cost": 1,
             "prompt_tokens_details": {"cached_tokens": 4, "cache_creation_tokens": 3}}  # fmt: skip
    end = chunk(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
    return b"".join(deltas) + end + chunk(choices=[], usage=usage) + b"data: [DONE]\n\n"


def text_stream() -> bytes:
    return chat_stream().replace(b'"delta": {"content": ', b'"text": ').replace(b'"}}]', b'"}]')


def message_stream() -> bytes:
    usage = {"input_tokens": 13, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 3}
    parts: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"id": "resp_internal", "content": [], **LEAK,
                                              "usage": {**usage, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        *({"type": "content_block_delta", "index": 0,
           "delta": {"type": "text_delta", "text": text, **LEAK}} for text in TEXTS),
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1,
         "content_block": {"type": "server_tool_use", "id": "internal"}},
        {"type": "content_block_delta", "index": 1,
         "delta": {"type": "input_json_delta", "partial_json": "internal"}},
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None},
         "usage": {"output_tokens": 5}, **LEAK},
        {"type": "message_stop", "amazon-bedrock-invocationMetrics": {"x": "internal"}},
    ]  # fmt: skip
    return b"".join(sse(part, part["type"]) for part in parts)


def response_stream() -> bytes:
    part = {"type": "output_text", "text": WHOLE, "annotations": [{"file_id": "internal"}]}
    item = {"id": "internal", "type": "message", "role": "assistant", "content": [part]}
    begun = {"id": "resp_internal", "created_at": 5, "status": "in_progress", "output": [], **LEAK}
    usage = {"input_tokens": 20, "output_tokens": 5, "total_tokens": 25, "cost": 1,
             "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3}}  # fmt: skip
    place = {"item_id": "internal", "output_index": 0, "content_index": 0}
    parts: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
        {"type": "response.content_part.added", **place, "part": {**part, "text": ""}},
        *({"type": "response.output_text.delta", **place, "delta": t, **LEAK} for t in TEXTS),
        {"type": "response.output_text.done", **place, "text": WHOLE},
        {"type": "response.content_part.done", **place, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.web_search_call.searching", "output_index": 1, "item_id": "internal"},
        {"type": "response.completed", "response": {
            **begun, "status": "completed", "usage": usage,
            "output": [item, {"type": "internal"}]}},
    ]  # fmt: skip
    return b"".join(sse(part) for part in parts) + b"data: [DONE]\n\n"


def said_chat(found: list[dict[str, Any]]) -> str:
    return "".join(c["delta"].get("content", "") for e in found for c in e["choices"])


def said_text(found: list[dict[str, Any]]) -> str:
    return "".join(c["text"] for e in found for c in e["choices"])


def said_message(found: list[dict[str, Any]]) -> str:
    return "".join(e["delta"]["text"] for e in found if e["type"] == "content_block_delta")


def said_response(found: list[dict[str, Any]]) -> str:
    text = "".join(e["delta"] for e in found if e["type"] == "response.output_text.delta")
    done = [e for e in found if e["type"].endswith(".done")]
    assert done[0]["text"] == text
    assert done[1]["part"]["text"] == text
    assert done[2]["item"]["content"][0]["text"] == text
    assert found[-1]["response"]["output"][0]["content"][0]["text"] == text
    assert [e["sequence_number"] for e in found] == list(range(len(found)))
    assert {e["item_id"] for e in found if "item_id" in e} == {"msg_req_1_0"}
    return text


Said = Callable[[list[dict[str, Any]]], str]
STREAMS: dict[str, tuple[bytes, Said, Usage]] = {
    "/v1/chat/completions": (chat_stream(), said_chat, Usage(13, 5, 4, 3)),
    "/v1/completions": (text_stream(), said_text, Usage(13, 5, 4, 3)),
    "/v1/messages": (message_stream(), said_message, Usage(13, 5, 4, 3)),
    "/v1/responses": (response_stream(), said_response, Usage(13, 5, 4, 3)),
}
EVERY = pytest.mark.parametrize("path", STREAMS)


def run(stream: AnswerStream, parts: list[bytes]) -> bytes:
    passed = b"".join(stream.feed(part) for part in parts)
    return passed + stream.ending()


@EVERY
@given(cuts=st.lists(st.integers(0, 4000), max_size=12), masked=st.booleans())
def test_every_split_gives_the_same_stream(path: str, cuts: list[int], masked: bool) -> None:
    data, said, usage = STREAMS[path]
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    stream = surface(path).open_stream(HoldBack() if masked else None)
    out = run(stream, [data[a:b] for a, b in pairwise(edges)])
    assert out == run(surface(path).open_stream(HoldBack() if masked else None), [data])
    assert said(events(out)) == (MASKED if masked else WHOLE)
    assert (stream.usage, stream.done, stream.failed) == (usage, True, False)
    assert b"internal" not in out
    assert b"cost" not in out


@EVERY
def test_the_end_waits_for_the_settlement(path: str) -> None:
    data, _, usage = STREAMS[path]
    stream = surface(path).open_stream()
    passed = stream.feed(data)
    assert stream.usage == usage
    end = stream.ending()
    assert end
    assert not passed.endswith(end)
    marks = (b"[DONE]", b"message_stop", b"response.completed")
    assert any(mark in end for mark in marks)
    assert not any(mark in passed for mark in marks)


@EVERY
@given(length=st.integers(0, 4000))
def test_a_stream_that_breaks_off_is_not_done_and_usage_so_far_is_not_usage(
    path: str, length: int
) -> None:
    data, _, usage = STREAMS[path]
    cut = data[: min(length, len(data) - 40)]
    stream = surface(path).open_stream(HoldBack())
    stream.feed(cut)
    assert stream.usage in (None, usage)


@EVERY
@pytest.mark.parametrize(
    "event",
    [b'event: error\ndata: {"type": "error", "error": {"message": "internal"}}\n\n',
     b'data: {"error": {"message": "internal"}}\n\n'],
)  # fmt: skip
def test_an_error_event_fails_the_stream(path: str, event: bytes) -> None:
    data, _, _ = STREAMS[path]
    stream = surface(path).open_stream()
    assert stream.feed(event + data) == b""
    assert (stream.failed, stream.done) == (True, False)


def test_a_failed_response_with_usage_costs_it() -> None:
    failed = {"type": "response.failed", "response": {
        "output": [], "usage": {"input_tokens": 9, "output_tokens": 1}}}  # fmt: skip
    stream = surface("/v1/responses").open_stream()
    stream.feed(sse(failed))
    assert (stream.failed, stream.usage) == (True, Usage(9, 1))


@EVERY
@given(
    data=st.binary(max_size=200)
    | st.text(max_size=60).map(lambda t: b"data: " + t.encode() + b"\n\n")
)
def test_garbage_is_broken_or_nothing(path: str, data: bytes) -> None:
    stream = surface(path).open_stream(HoldBack())
    try:
        stream.feed(data)
    except BrokenAnswerError:
        return
    assert not stream.done or b"[DONE]" in data


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "choices", "delta", "message", "content", "text", "index", "usage", "item",
                 "output", "response", "part", "output_index", "content_block", "tool_calls",
                 "function", "arguments", "finish_reason", "input_tokens", "summary", "error"]
            ),
            inner | st.sampled_from(
                ["text", "message", "message_start", "content_block_start", "content_block_delta",
                 "message_delta", "response.completed", "response.output_item.added",
                 "response.output_item.done", "response.output_text.delta", "text_delta",
                 "output_text", "response.content_part.added", "function_call", "reasoning"]),
            max_size=5,
        )
    ),
    max_leaves=14,
)  # fmt: skip


@EVERY
@given(values=st.lists(JSON, max_size=5), masked=st.booleans())
def test_any_json_of_a_provider_is_rebuilt_or_broken(
    path: str, values: list[Any], masked: bool
) -> None:
    found = surface(path)
    stream = found.open_stream(HoldBack() if masked else None)
    for value in values:
        try:
            stream.feed(sse(value))
            found.usage(value)
            texts = found.texts(value)
            assert found.texts(found.replace_texts(value, texts)) == texts
            found.rebuild(value)
        except BrokenAnswerError:
            continue


def tool_events(path: str) -> bytes:
    if path == "/v1/chat/completions":
        calls = [[{"index": 0, "id": "c", "type": "function", "function": {"name": "f"}}],
                 *([{"index": 0, "function": {"arguments": t}}] for t in TEXTS),
                 [{"index": 1, "id": "d",
                   "function": {"name": "g", "arguments": "{}"}}]]  # fmt: skip
        chunks = [sse({"choices": [{"delta": {"tool_calls": call}}]}) for call in calls]
        end = sse({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})
        return b"".join(chunks) + end + b"data: [DONE]\n\n"
    if path == "/v1/messages":
        return message_stream().replace(
            b'"type": "text_delta", "text":', b'"type": "input_json_delta", "partial_json":'
        )
    kind = b"response.function_call_arguments"
    return response_stream().replace(b"response.output_text", kind)


def test_arguments_of_tools_are_filtered_apart() -> None:
    stream = surface("/v1/chat/completions").open_stream(HoldBack())
    found = events(run(stream, [tool_events("/v1/chat/completions")]))
    calls = [call for e in found for c in e["choices"] for call in c["delta"].get("tool_calls", [])]
    texts = ["".join(c["function"].get("arguments", "") for c in calls if c["index"] == i)
             for i in (0, 1)]  # fmt: skip
    assert texts == [MASKED, "{}"]
    assert found[-1]["choices"][0]["finish_reason"] == "tool_calls"
    stream = surface("/v1/messages").open_stream(HoldBack())
    found = events(run(stream, [tool_events("/v1/messages")]))
    said = "".join(e["delta"]["partial_json"] for e in found if e["type"] == "content_block_delta")
    assert said == MASKED
    stream = surface("/v1/responses").open_stream(HoldBack())
    found = events(run(stream, [tool_events("/v1/responses")]))
    kind = "response.function_call_arguments.delta"
    assert "".join(e["delta"] for e in found if e["type"] == kind) == MASKED


def test_a_text_that_never_streamed_is_filtered_where_it_is_repeated() -> None:
    call = {"id": "x", "type": "function_call", "call_id": "c", "name": "f",
            "arguments": '{"a": "secret"}'}  # fmt: skip
    data = sse({"type": "response.output_item.added", "output_index": 0, "item": call})
    data += sse({"type": "response.output_item.done", "output_index": 0, "item": call})
    data += sse({"type": "response.completed", "response": {"output": [call], "usage": {
        "input_tokens": 3, "output_tokens": 1}}})  # fmt: skip
    out = run(surface("/v1/responses").open_stream(HoldBack()), [data])
    assert b"secret" not in out
    assert events(out)[-1]["response"]["output"][0]["arguments"] == '{"a": "******"}'


class Blocks(HoldBack):
    def feed(self, text: str, part: object = None) -> str:
        if "and" in text:
            raise ApiError(BUDGET_EXHAUSTED, "no more of this")
        return text


@EVERY
def test_a_filter_may_end_the_answer(path: str) -> None:
    data, _, _ = STREAMS[path]
    found = surface(path)
    with pytest.raises(ApiError) as caught:
        found.open_stream(Blocks()).feed(data)
    broken = found.broken(caught.value)
    assert b"no more of this" in broken
    assert broken.endswith(b"\n\n")


PLAIN: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"choices": [{"message": {
        "content": "secret", "reasoning_content": "secret", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "secret"}}]},
        "logprobs": {"content": [{"token": "secret"}]}, "finish_reason": "stop"}], **LEAK},
    "/v1/completions": {
        "choices": [{"text": "secret", "logprobs": {"tokens": ["secret"]}}], **LEAK},
    "/v1/messages": {"id": "resp_internal", "content": [
        {"type": "text", "text": "secret", "citations": ["internal"]},
        {"type": "thinking", "thinking": "secret", "signature": "s"},
        {"type": "tool_use", "id": "t", "name": "f", "input": {"a": ["secret"]}},
        {"type": "internal"}], "stop_details": "internal", **LEAK},
    "/v1/responses": {"id": "resp_internal", "output": [
        {"type": "reasoning", "id": "internal", "summary": [
            {"type": "summary_text", "text": "secret"}]},
        {"type": "message", "content": [{"type": "output_text", "text": "secret",
                                         "logprobs": [{"token": "secret"}]}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "secret"},
        {"type": "web_search_call", "id": "internal"}], **LEAK},
    "/model/m/converse": {"output": {"message": {"role": "assistant", "content": [
        {"text": "secret"}, {"toolUse": {"toolUseId": "t", "name": "f", "input": {"a": "secret"}}},
        {"reasoningContent": {"reasoningText": {"text": "secret", "signature": "s"}}}]}},
        "trace": "internal"},
}  # fmt: skip


@pytest.mark.parametrize("path", PLAIN)
def test_plain_answers_are_rebuilt_and_can_be_masked(path: str) -> None:
    converse = {"messages": [{"role": "user", "content": [{"text": "hi"}]}]}
    found = surface(path, **(converse if "converse" in path else {}))
    answer = PLAIN[path]
    texts = found.texts(answer)
    named = [text for text in texts if text != "f"]  # the name of a tool is a text as well
    assert "".join(named).count("secret") == len(named) > 0
    shown = found.rebuild(answer)
    assert b"internal" not in shown
    assert b"secret" in shown
    masked = found.replace_texts(answer, [text.replace("secret", "[gone]") for text in texts])
    assert b"secret" not in found.rebuild(masked)
    assert answer == PLAIN[path]
    for broken in (None, [], 3, {}):
        with pytest.raises(BrokenAnswerError):
            found.rebuild(broken)


def test_embeddings_leave_as_the_client_asked() -> None:
    answer = {"data": [{"embedding": [0.5, -1.0], "index": 0}], "model": "internal",
              "usage": {"prompt_tokens": 3, "total_tokens": 3, "cost": 1}}  # fmt: skip
    numbers = json.loads(surface("/v1/embeddings").rebuild(answer))
    assert numbers["data"][0]["embedding"] == [0.5, -1.0]
    assert (numbers["model"], numbers["usage"]) == (
        "asked-name", {"prompt_tokens": 3, "total_tokens": 3},
    )  # fmt: skip
    packed = json.loads(surface("/v1/embeddings", encoding_format="base64").rebuild(answer))
    assert packed["data"][0]["embedding"] == "AAAAPwAAgL8="
    for broken in ({"data": []}, {"data": [{"embedding": ["x"]}]}):
        with pytest.raises(BrokenAnswerError):
            surface("/v1/embeddings", encoding_format="base64").rebuild(broken)


def test_errors_have_the_shape_of_the_surface() -> None:
    error = ApiError(BUDGET_EXHAUSTED, "no", param="max_tokens")
    anthropic = json.loads(error.body("anthropic"))
    assert (anthropic["type"], anthropic["error"]["type"]) == ("error", "rate_limit_error")
    assert json.loads(error.body("bedrock"))["message"] == "no"
    assert (b"x-amzn-errortype", b"ThrottlingException") in error.headers("bedrock")
    assert "type" not in json.loads(error.body())
    shapes = {
        path: error_shape(path, {})
        for path in ("/v1/messages", "/v1/messages/x", "/v1/messagesx", "/model/m/x", "/v1/models")
    }
    assert list(shapes.values()) == ["anthropic", "anthropic", "openai", "bedrock", "openai"]
    assert error_shape("/v1/models/m", {"anthropic-version": "2023-06-01"}) == "anthropic"


def test_the_list_of_models_has_the_shape_of_the_client() -> None:
    assert json.loads(models_body(["a", "b"], "openai"))["data"][0]["object"] == "model"
    page = json.loads(models_body(["a", "b"], "anthropic"))
    assert (page["first_id"], page["last_id"], page["has_more"]) == ("a", "b", False)
    assert page["data"][1] == json.loads(model_body("b", "anthropic"))
    assert json.loads(models_body([], "anthropic"))["first_id"] is None
