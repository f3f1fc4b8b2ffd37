"""Wherever a provider puts a text, a filter has seen it before its client does, or the answer is
broken: every place of every surface's answers and events, in every shape of JSON."""

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from terrace_gateway.edge.errors import CONTENT_BLOCKED, ApiError
from terrace_gateway.surfaces.answer_fields import change_json
from terrace_gateway.surfaces.surface import AnswerStream, BrokenAnswerError

from .surface_calls import HoldBack, events
from .test_answers import frame
from .test_surface_answers import sse, surface

WORDS = "my secret"
"""Of no form that is harmless anywhere."""
KEY = "AKIAIOSFODNN7EXAMPLE"
"""Of the form of an id: ids, what is sealed for the provider and vectors are not looked at."""
NOT_READ = (
    "id",
    "call_id",
    "toolUseId",
    "signature",
    "data",
    "encrypted_content",
    "redactedContent",
    "embedding",
)
UNFILTERED = HoldBack("\0")

CALL = {"index": 0, "id": "c_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
LEGACY = {"function_call": {"name": "f", "arguments": "{}"}, "annotations": [{"url": "u"}]}
CHAT_USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5,
              "prompt_tokens_details": {"cached_tokens": 0},
              "completion_tokens_details": {"reasoning_tokens": 0}}  # fmt: skip
USAGE = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5,
         "cache_creation_input_tokens": 0, "cache_creation": {"ephemeral_5m_input_tokens": 0},
         "input_tokens_details": {"cached_tokens": 0}}  # fmt: skip
PART = {"type": "output_text", "text": "t", "annotations": [{"url": "u"}], "logprobs": []}
SUMMARY = {"type": "summary_text", "text": "t"}
ITEMS: list[dict[str, Any]] = [
    {"id": "i", "type": "message", "status": "completed", "role": "assistant",
     "content": [PART, {"type": "refusal", "refusal": "r"}]},
    {"id": "i", "type": "function_call", "status": "completed", "call_id": "c", "name": "f",
     "arguments": "{}"},
    {"id": "rs_1", "type": "reasoning", "summary": [SUMMARY], "encrypted_content": "e",
     "content": [{"type": "reasoning_text", "text": "t"}]},
    {"id": "i", "type": "web_search_call", "action": {"query": "q"}},
]  # fmt: skip
RESPONSE = {
    "id": "r", "created_at": 5, "status": "completed", "model": "m", "usage": USAGE,
    "incomplete_details": {"reason": "max_output_tokens"}, "max_output_tokens": 5,
    "output": ITEMS, "error": None, "instructions": "i", "metadata": {"a": "b"},
}  # fmt: skip
CONVERSE_USAGE = {"inputTokens": 3, "outputTokens": 2,
                  "cacheDetails": [{"ttl": "5m", "inputTokens": 0}]}  # fmt: skip
PLAIN: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "id": "i", "created": 5, "model": "m", "system_fingerprint": "s", "usage": CHAT_USAGE,
        "choices": [{"index": 0, "finish_reason": "stop", "logprobs": {"content": [{"token": "t"}]},
                     "message": {"role": "assistant", "content": "t", "refusal": "r",
                                 "reasoning_content": "t", "tool_calls": [CALL], **LEGACY}}]},
    "/v1/completions": {
        "id": "i", "created": 5, "model": "m", "usage": CHAT_USAGE,
        "choices": [{"index": 0, "text": "t", "finish_reason": "stop",
                     "logprobs": {"tokens": ["t"]}}]},
    "/v1/messages": {
        "id": "i", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
        "stop_sequence": "s", "usage": USAGE, "content": [
            {"type": "text", "text": "t", "citations": [{"cited_text": "c"}]},
            {"type": "thinking", "thinking": "t", "signature": "s"},
            {"type": "redacted_thinking", "data": "d"},
            {"type": "tool_use", "id": "t_1", "name": "f", "input": {"a": ["b"]}}]},
    "/v1/responses": RESPONSE,
    "/v1/embeddings": {
        "model": "m", "usage": CHAT_USAGE, "data": [{"index": 0, "embedding": [0.5, 1]}]},
    "/model/m/converse": {
        "stopReason": "end_turn", "usage": CONVERSE_USAGE, "metrics": {"latencyMs": 3},
        "output": {"message": {"role": "assistant", "content": [
            {"text": "t"},
            {"toolUse": {"toolUseId": "t_1", "name": "f", "input": {"a": "b"}}},
            {"reasoningContent": {"reasoningText": {"text": "t", "signature": "s"}}},
            {"reasoningContent": {"redactedContent": "d"}},
            {"citationsContent": {"content": [{"text": "t"}]}}]}}},
}  # fmt: skip

Event = dict[str, Any]


def chunks(*deltas: Event) -> list[Event]:
    head = {"id": "i", "created": 5, "model": "m"}
    return [
        *({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None,
                                "logprobs": {"content": [{"token": "t"}]}}]} for delta in deltas),
        {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {**head, "choices": [], "usage": CHAT_USAGE},
    ]  # fmt: skip


def response_events() -> list[Event]:
    begun = {"type": "response.created", "response": RESPONSE}
    found = [begun]
    for index, item in enumerate(ITEMS):
        at = {"output_index": index, "item_id": "i"}
        found.append({"type": "response.output_item.added", "output_index": index, "item": item})
        if item["type"] == "function_call":
            kind = "response.function_call_arguments"
            found.append({"type": f"{kind}.delta", **at, "delta": "{"})
            found.append({"type": f"{kind}.done", **at, "arguments": "{"})
        elif item["type"] == "message":
            part = {**at, "content_index": 0}
            found.append({"type": "response.content_part.added", **part, "part": PART})
            found.append({"type": "response.output_text.delta", **part, "delta": "t"})
            found.append({"type": "response.output_text.done", **part, "text": "t"})
            found.append({"type": "response.content_part.done", **part, "part": PART})
        elif item["type"] == "reasoning":
            part = {**at, "summary_index": 0}
            kind = "response.reasoning_summary"
            found.append({"type": f"{kind}_part.added", **part, "part": SUMMARY})
            found.append({"type": f"{kind}_text.delta", **part, "delta": "t"})
            found.append({"type": f"{kind}_text.done", **part, "text": "t"})
        found.append({"type": "response.output_item.done", "output_index": index, "item": item})
    return [*found, {"type": "response.completed", "response": RESPONSE}]


def message_events() -> list[Event]:
    found: list[Event] = [{"type": "message_start", "message": PLAIN["/v1/messages"]}]
    deltas: list[Event] = [
        {"type": "text_delta", "text": "t"}, {"type": "thinking_delta", "thinking": "t"},
        {"type": "signature_delta", "signature": "s"},
        {"type": "input_json_delta", "partial_json": "{}"},
    ]  # fmt: skip
    for index, block in enumerate(PLAIN["/v1/messages"]["content"]):
        found.append({"type": "content_block_start", "index": index, "content_block": block})
        found.append({"type": "content_block_delta", "index": index, "delta": deltas[index]})
        found.append({"type": "content_block_stop", "index": index})
    end = {"stop_reason": "end_turn", "stop_sequence": "s"}
    return [*found, {"type": "message_delta", "delta": end, "usage": USAGE}, {"type": "ping"},
            {"type": "message_stop"}]  # fmt: skip


STREAMS: dict[str, list[Event]] = {
    "/v1/chat/completions": chunks(
        {"role": "assistant", "content": "t", "refusal": "r", "reasoning_content": "t", **LEGACY},
        {"tool_calls": [CALL]}, {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]},
    ),
    "/v1/completions": [
        {"created": 5, "choices": [{"index": 0, "text": "t", "logprobs": {"tokens": ["t"]}}]},
        {"created": 5, "choices": [{"index": 0, "text": "", "finish_reason": "stop"}],
         "usage": CHAT_USAGE},
    ],
    "/v1/messages": message_events(),
    "/v1/responses": response_events(),
    "/model/m/converse-stream": [
        {"messageStart": {"role": "assistant", "p": "abc"}},
        {"contentBlockStart": {"contentBlockIndex": 0, "start": {
            "toolUse": {"toolUseId": "t_1", "name": "f"}}}},
        {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"toolUse": {"input": "{}"}}}},
        {"contentBlockStop": {"contentBlockIndex": 0}},
        {"contentBlockDelta": {"contentBlockIndex": 1, "delta": {"text": "t"}, "p": "abc"}},
        {"contentBlockDelta": {"contentBlockIndex": 2, "delta": {
            "reasoningContent": {"text": "t"}}}},
        {"contentBlockDelta": {"contentBlockIndex": 2, "delta": {
            "reasoningContent": {"signature": "s"}}}},
        {"contentBlockDelta": {"contentBlockIndex": 3, "delta": {"citation": {"title": "t"}}}},
        {"messageStop": {"stopReason": "end_turn", "additionalModelResponseFields": {"a": "b"}}},
        {"metadata": {"usage": CONVERSE_USAGE, "metrics": {"latencyMs": 3}, "trace": {"a": "b"}}},
        {"messageStop": {"stopReason": "end_turn"}},
    ],
}  # fmt: skip


def with_secret(value: Any, secret: str, key: str = "") -> Iterator[Any]:
    """``value`` once for each of its places and each shape, with the secret there."""
    text = {"type": "text", "text": secret}
    readable = secret == WORDS or key not in NOT_READ
    yield from [secret] if readable else []
    yield from ([secret], [text], {"k": secret}, {secret: 1}, [[{"k": [secret]}]])
    if isinstance(value, dict):
        yield {**value, "unknown": secret}
        yield {**value, secret: 1}
        for name, item in value.items():
            yield from ({**value, name: other} for other in with_secret(item, secret, name))
    if isinstance(value, list):
        yield [*value, secret]
        for index, item in enumerate(value):
            for other in with_secret(item, secret):
                yield [*value[:index], other, *value[index + 1 :]]


CONVERSE = {"messages": [{"role": "user", "content": [{"text": "hi"}]}]}


def answers(path: str) -> Any:
    if "converse" in path:
        return surface(path, **CONVERSE)
    streams = path in STREAMS and path not in ("/v1/messages", "/v1/responses")
    more: dict[str, Any] = {"stream_options": {"include_usage": True}} if streams else {}
    return surface(path, **({"stream": True, **more} if more else {}))


def encoded(path: str, event: Event) -> bytes:
    if "converse" not in path:
        return sse(event)
    [(kind, payload)] = event.items()
    return frame(kind, payload)


def shown(stream: AnswerStream, data: bytes) -> bytes:
    try:
        return stream.feed(data) + stream.ending()
    except BrokenAnswerError:
        return b""


def masked(path: str, answer: Any, secret: str) -> bytes:
    found = answers(path)
    texts = found.texts(answer)
    clean = [text.replace(secret, "[masked:x]") for text in texts]
    out: bytes = found.rebuild(found.replace_texts(answer, clean))
    return out


@pytest.mark.parametrize("secret", [WORDS, KEY])
@pytest.mark.parametrize("path", PLAIN)
def test_no_place_of_a_plain_answer_is_unread(path: str, secret: str) -> None:
    leaks = 0
    for answer in with_secret(PLAIN[path], secret):
        before = copy.deepcopy(answer)
        try:
            texts = answers(path).texts(answer)
            out = masked(path, answer, secret)
        except BrokenAnswerError:
            continue
        assert secret.encode() not in out, answer
        assert answer == before
        if secret.encode() in answers(path).rebuild(answers(path).replace_texts(answer, texts)):
            leaks += 1
            assert any(secret in text for text in texts), answer  # so a rule that blocks saw it
    assert leaks >= 10


@pytest.mark.parametrize("secret", [WORDS, KEY])
@pytest.mark.parametrize("path", STREAMS)
def test_no_place_of_a_streamed_answer_is_unread(path: str, secret: str) -> None:
    parts = STREAMS[path]
    data = [encoded(path, part) for part in parts]
    end = b"" if "converse" in path else b"data: [DONE]\n\n"
    leaks = 0
    for index, part in enumerate(parts):
        if "converse" in path:
            [(kind, payload)] = part.items()
            others: Any = ({kind: other} for other in with_secret(payload, secret))
        else:
            others = with_secret(part, secret)
        for other in others:
            whole = b"".join([*data[:index], encoded(path, other), *data[index + 1 :], end])
            leaks += secret.encode() in shown(answers(path).open_stream(), whole)
            out = shown(answers(path).open_stream(HoldBack(secret)), whole)
            assert secret.encode() not in out, other
    assert leaks >= 10


@pytest.mark.parametrize("path", STREAMS)
def test_a_usual_stream_says_the_same_through_a_filter(path: str) -> None:
    end = b"" if "converse" in path else b"data: [DONE]\n\n"
    whole = b"".join(encoded(path, part) for part in STREAMS[path]) + end
    stream = answers(path).open_stream(HoldBack("\0\0"))
    out = stream.feed(whole)
    assert (stream.done, stream.failed) == (True, False)
    for word in (b'"f"', b"c_1", b"t_1"):
        plain = shown(answers(path).open_stream(), whole)
        assert (word in out + stream.ending()) == (word in plain)


@pytest.mark.parametrize("path", PLAIN)
def test_a_usual_answer_is_the_same_through_a_filter(path: str) -> None:
    answer = copy.deepcopy(PLAIN[path])
    for choice in answer.get("choices", []):
        choice.pop("logprobs")
    found = answers(path)
    same = found.rebuild(found.replace_texts(answer, found.texts(answer)))
    assert json.loads(same) == json.loads(found.rebuild(answer))


class Blocks:
    """Blocks what has the secret."""

    def feed(self, text: str, part: object = None) -> str:
        if KEY in text:
            raise ApiError(CONTENT_BLOCKED, "no")
        return text

    def flush(self) -> str:
        return ""


@pytest.mark.parametrize(
    "delta",
    [
        {"content": [{"type": "text", "text": KEY}]},
        {"tool_calls": [{"index": 0, "function": {"name": KEY}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": {"k": KEY}}}]},
        {"reasoning_content": KEY},
        {"refusal": KEY},
    ],
)
def test_what_is_no_plain_string_is_blocked(delta: Event) -> None:
    with pytest.raises(ApiError):
        answers("/v1/chat/completions").open_stream(Blocks()).feed(
            encoded("/v1/chat/completions", chunks(delta)[0])
        )


def called(*functions: Event, index: int = 0, **more: Any) -> bytes:
    found = [{"tool_calls": [{"index": index, "function": one, **more}]} for one in functions]
    return b"".join(sse(chunk) for chunk in chunks(*found)) + b"data: [DONE]\n\n"


def test_a_name_in_pieces_is_broken_and_one_that_is_repeated_comes_once() -> None:
    path = "/v1/chat/completions"
    with pytest.raises(BrokenAnswerError):
        answers(path).open_stream(HoldBack(KEY)).feed(called({"name": KEY[:9]}, {"name": KEY[9:]}))
    stream = answers(path).open_stream(HoldBack(KEY))
    found = events(
        stream.feed(
            called({"name": "f", "arguments": "{"}, {"name": "f", "arguments": "}"}, id="c")
        )
    )
    calls = [call for e in found for c in e["choices"] for call in c["delta"].get("tool_calls", [])]
    assert [call["function"].get("name") for call in calls if "name" in call["function"]] == ["f"]
    assert [call["id"] for call in calls if "id" in call] == ["c"]
    assert "".join(call["function"].get("arguments", "") for call in calls) == "{}"


def test_parts_and_objects_in_pieces_are_one_text() -> None:
    path = "/v1/chat/completions"
    halves = [{"content": [{"type": "text", "text": half}]} for half in (KEY[:9], KEY[9:])]
    data = b"".join(sse(chunk) for chunk in chunks(*halves)) + b"data: [DONE]\n\n"
    found = events(answers(path).open_stream(HoldBack(KEY)).feed(data))
    said = "".join(c["delta"].get("content", "") for e in found for c in e["choices"])
    assert said == "*" * len(KEY)


def test_a_second_choice_is_broken_under_a_filter() -> None:
    chunk = {"choices": [{"index": 1, "delta": {"content": "t"}}]}
    assert answers("/v1/chat/completions").open_stream().feed(sse(chunk))
    with pytest.raises(BrokenAnswerError):
        answers("/v1/chat/completions").open_stream(HoldBack()).feed(sse(chunk))


Change = Callable[[str], str]


@pytest.mark.parametrize(
    "value", ["a\nb", "tab\tbed", "nul\0", 'quo"te', "back\\slash", "é\u2028", "\\n", "\\u0041"]
)
def test_an_escape_hides_nothing_in_json_and_nothing_is_lost(value: str) -> None:
    found: list[str] = []

    def keep(text: str) -> str:
        found.append(text)
        return text.replace("MARK", "")

    assert change_json({"k": [value, "MARK"]}, keep) == {"k": [value, ""]}
    if not {'"', "\\"} & set(value):
        assert value in found[0]
    assert change_json({"k": "v"}, lambda _: "") == {}
    with pytest.raises(BrokenAnswerError):
        change_json({"k": "v"}, lambda _: "no json")
