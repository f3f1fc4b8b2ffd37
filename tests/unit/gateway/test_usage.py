"""Usage as providers report it, in one form. Where it leaves something open, the dearer reading."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from terrace_gateway.calls.ports import Usage
from terrace_gateway.surfaces.surface import Surface
from terrace_gateway.surfaces.usage import (
    chat_usage,
    converse_usage,
    embeddings_usage,
    messages_usage,
    responses_usage,
)

from .surface_calls import IDENTITY, read
from .test_answers import frame

USER = {"role": "user", "content": "hi"}


def sse(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def surface(path: str, **more: Any) -> Surface:
    return read(path, {"model": "m", "messages": [USER], **more}).answers(IDENTITY)


@pytest.mark.parametrize(
    ("read_usage", "usage", "expected"),
    [
        (responses_usage, {"input_tokens": 20, "output_tokens": 5}, Usage(20, 5)),
        (responses_usage, {"input_tokens": 0, "output_tokens": 5}, None),
        (responses_usage, {"input_tokens": 9, "output_tokens": 5, "output_tokens_details": {
            "text_tokens": 5}}, None),
        (messages_usage, {"input_tokens": 0, "output_tokens": 0}, None),
        (messages_usage, {"input_tokens": 0, "output_tokens": 2, "cache_read_input_tokens": 9},
         Usage(0, 2, 9)),
        (messages_usage, {"input_tokens": 1, "output_tokens": 2, "cache_creation_input_tokens": 9,
                          "cache_creation": {"ephemeral_1h_input_tokens": 4}},
         Usage(1, 2, 0, 9, 4)),
        (converse_usage, {"inputTokens": 1, "outputTokens": 2, "cacheWriteInputTokens": 9,
                          "cacheDetails": [{"ttl": "1h", "inputTokens": 4}, {"ttl": "5m"}]},
         Usage(1, 2, 0, 9, 4)),
        (chat_usage, {"prompt_tokens": 127, "completion_tokens": 5, "prompt_tokens_details": {
            "cached_tokens": 100}, "cache_creation_input_tokens": 7}, Usage(20, 5, 100, 7)),
        (chat_usage, {"prompt_tokens": 20, "completion_tokens": 5, "prompt_tokens_details": {
            "cached_tokens": 100}}, Usage(20, 5, 100)),  # it contradicts itself: both count
        # What is in the total only was billed as output: reasoning, on Gemini's and xAI's chat.
        (chat_usage, {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 1015},
         Usage(10, 1005)),
        (chat_usage, {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 12},
         Usage(10, 5)),
        (chat_usage, {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 2**60},
         Usage(10, 5)),
        (chat_usage, {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 125,
                      "prompt_tokens_details": {"cached_tokens": 100}}, Usage(20, 5, 100)),
        (responses_usage, {"input_tokens": 10, "output_tokens": 5, "total_tokens": 1015,
                           "input_tokens_details": {"cached_tokens": 4}}, Usage(6, 1005, 4)),
        (embeddings_usage, {"prompt_tokens": 7}, Usage(7, 0)),
        (embeddings_usage, {"prompt_tokens": 0}, None),
        (embeddings_usage, {"prompt_tokens": True}, None),
    ],
)  # fmt: skip
def test_usage_keeps_the_cache_apart(
    read_usage: Callable[[object], Usage | None], usage: object, expected: Usage | None
) -> None:
    assert read_usage({"usage": usage}) == expected


HOUR = {"type": "ephemeral", "ttl": "1h"}
SHORT = {"type": "ephemeral"}


@pytest.mark.parametrize(
    ("marks", "detail", "long"),
    [
        ([HOUR], {}, 9),
        ([SHORT], {}, 0),
        ([HOUR, SHORT], {}, 9),  # which of them is not told: the dearer
        ([HOUR, SHORT], {"5m": 9}, 0),
        ([HOUR, SHORT], {"5m": 2}, 7),
        ([HOUR, SHORT], {"5m": 5, "1h": 4}, 4),
        ([], {"1h": 4}, 4),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_cache_writes_are_long_where_such_were_asked_and_the_answer_does_not_say(
    stream: bool, marks: list[dict[str, str]], detail: dict[str, int], long: int
) -> None:
    texts = [{"type": "text", "text": "hi", "cache_control": mark} for mark in marks]
    user = {"role": "user", "content": [*texts, {"type": "text", "text": "hi"}]}
    usage: dict[str, Any] = {
        "input_tokens": 1, "output_tokens": 2, "cache_creation_input_tokens": 9,
    }  # fmt: skip
    if detail:
        usage["cache_creation"] = {f"ephemeral_{k}_input_tokens": v for k, v in detail.items()}
    found = surface("/v1/messages", max_tokens=9, messages=[user], stream=stream)
    if stream:
        reader = found.open_stream()
        reader.feed(sse({"type": "message_start", "message": {"usage": usage}}))
        reader.feed(sse({"type": "message_delta", "delta": {"stop_reason": "end_turn"},
                         "usage": {"output_tokens": 2}}))  # fmt: skip
        assert reader.usage == Usage(1, 2, 0, 9, long)
    else:
        assert found.usage({"usage": usage}) == Usage(1, 2, 0, 9, long)


@pytest.mark.parametrize(
    ("ttl", "details", "long"),
    [("1h", [], 9), ("5m", [], 0), ("1h", [{"ttl": "5m", "inputTokens": 7}], 2),
     ("1h", [{"ttl": "5m", "inputTokens": 5}, {"ttl": "1h", "inputTokens": 4}], 4)],
)  # fmt: skip
def test_cache_writes_of_converse_are_read_the_same_way(
    ttl: str, details: list[dict[str, Any]], long: int
) -> None:
    content = [{"text": "hi"}, {"cachePoint": {"type": "default", "ttl": ttl}}]
    usage = {"inputTokens": 1, "outputTokens": 2, "cacheWriteInputTokens": 9,
             "cacheDetails": details}  # fmt: skip
    for path in ("/model/m/converse", "/model/m/converse-stream"):
        found = surface(path, messages=[{"role": "user", "content": content}])
        assert found.usage({"usage": usage}) == Usage(1, 2, 0, 9, long)
    reader = found.open_stream()
    reader.feed(frame("metadata", {"usage": usage}))
    assert reader.usage == Usage(1, 2, 0, 9, long)


ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/responses")


@pytest.mark.parametrize("path", ROUTES)
def test_streams_count_what_only_the_total_has(path: str) -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 1015}
    answer: dict[str, Any] = {"choices": [], "usage": usage}
    more: dict[str, Any] = {"prompt": "hi"}
    if path == "/v1/responses":
        usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 1015}
        answer = {"type": "response.completed", "response": {"output": [], "usage": usage}}
        more = {"input": "hi"}
    reader = surface(path, stream=True, **more).open_stream()
    reader.feed(sse(answer) + b"data: [DONE]\n\n")
    assert reader.usage == Usage(10, 1005)
