"""Answers: every split of the bytes gives the same stream; internals stay inside; usage is believed
only when a provider reported it."""

import json
import struct
import zlib
from itertools import pairwise
from typing import Any

import pytest
from botocore.eventstream import EventStreamBuffer
from hypothesis import given
from hypothesis import strategies as st

from terrace_gateway.calls.ports import Usage
from terrace_gateway.surfaces.chat_answer import ChunkStream, rebuild_completion
from terrace_gateway.surfaces.converse_answer import FrameStream, exception_frame, rebuild_converse
from terrace_gateway.surfaces.surface import BrokenAnswerError, Identity
from terrace_gateway.surfaces.usage import chat_usage, converse_usage

IDENTITY = Identity("req_1", "asked-name")


def chunk(**fields: Any) -> bytes:
    body = {
        "id": "resp_internal", "model": "group", "created": 5, "system_fingerprint": "internal",
        "choices": [{"index": 0, "delta": {}}], **fields,
    }  # fmt: skip
    return b"data: " + json.dumps(body).encode() + b"\n\n"


STREAM = (
    chunk(choices=[{"index": 0, "delta": {"role": "assistant", "content": "a"}}])
    + b": comment\n\n"
    + chunk(choices=[{"index": 0, "delta": {"content": "é", "provider_specific_fields": {}}}])
    + chunk(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
    + chunk(usage={"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "cost": 1})
    + b"data: [DONE]\n\n"
)


def feed_in(parts: list[bytes], *, include_usage: bool) -> tuple[bytes, ChunkStream]:
    stream = ChunkStream(IDENTITY, include_usage=include_usage)
    return b"".join(stream.feed(part) for part in parts), stream


@given(st.lists(st.integers(0, len(STREAM)), max_size=12), st.booleans())
def test_every_split_gives_the_same_stream(cuts: list[int], include_usage: bool) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    parts = [STREAM[a:b] for a, b in pairwise(edges)]
    split, stream = feed_in(parts, include_usage=include_usage)
    whole, _ = feed_in([STREAM], include_usage=include_usage)
    assert split == whole
    assert stream.usage == Usage(3, 2)
    assert stream.done
    assert b"internal" not in split
    assert b"cost" not in split
    events = [json.loads(event[6:]) for event in split.split(b"\n\n")[:-1]]
    assert {event["model"] for event in events} == {"asked-name"}
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events if e["choices"]) == (
        "aé"
    )
    assert [e["choices"] for e in events if "usage" in e] == ([[]] if include_usage else [])


def test_windows_line_ends_are_events_as_well() -> None:
    text, stream = feed_in([STREAM.replace(b"\n", b"\r\n")], include_usage=False)
    assert stream.done
    assert text == feed_in([STREAM], include_usage=False)[0]


def test_an_error_event_ends_the_stream() -> None:
    text, stream = feed_in([b'data: {"error": {"message": "internal"}}\n\n', STREAM],
                           include_usage=True)  # fmt: skip
    assert (text, stream.failed, stream.usage) == (b"", True, None)


@pytest.mark.parametrize("data", [b"data: {\n\n", b"data: 1\n\n", b'data: {"choices": [1]}\n\n'])
def test_broken_events_are_told(data: bytes) -> None:
    with pytest.raises(BrokenAnswerError):
        feed_in([data], include_usage=False)


def test_a_completion_is_rebuilt() -> None:
    answer = {
        "id": "internal", "model": "group", "created": 5,
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "cost": 2},
        "choices": [{"index": 0, "finish_reason": "tool_calls", "provider_specific_fields": {},
                     "message": {"role": "assistant", "content": None, "annotations": [],
                                 "tool_calls": [{"id": "c", "type": "function", "x": 1,
                                                 "function": {"name": "f", "arguments": "{}"}}]}}],
    }  # fmt: skip
    assert rebuild_completion(answer, IDENTITY) == {
        "id": "chatcmpl-req_1",
        "object": "chat.completion",
        "created": 5,
        "model": "asked-name",
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "c",
                            "type": "function",
                            "function": {"name": "f", "arguments": "{}"},
                        }
                    ],
                },
            }
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    }


@pytest.mark.parametrize("answer", [None, [], {}, {"choices": []}, {"choices": [3]}])
def test_an_answer_without_choices_is_broken(answer: object) -> None:
    with pytest.raises(BrokenAnswerError):
        rebuild_completion(answer, IDENTITY)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 0}, Usage(3, 0)),
        ({"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": {"a": 0},
          "completion_tokens_details": {"text_tokens": 4}}, Usage(3, 4)),
        ({"prompt_tokens": 9, "completion_tokens": 17,
          "completion_tokens_details": {"reasoning_tokens": 0, "text_tokens": 17}}, None),
        ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, None),
        ({"prompt_tokens": -1, "completion_tokens": 4}, None),
        ({"prompt_tokens": True, "completion_tokens": 4}, None),
        ({"prompt_tokens": "3", "completion_tokens": 4}, None),
        ({"prompt_tokens": 3}, None),
        ({"prompt_tokens": 2**60, "completion_tokens": 4}, None),
        (None, None),
        ([], None),
    ],
)  # fmt: skip
def test_chat_usage(usage: object, expected: Usage | None) -> None:
    assert chat_usage({"usage": usage}) == expected


def test_converse_usage_keeps_the_cache_apart() -> None:
    usage = {"inputTokens": 20, "outputTokens": 5, "cacheReadInputTokens": 100,
             "cacheWriteInputTokens": 7}  # fmt: skip
    assert converse_usage({"usage": usage}) == Usage(20, 5, 100, 7)


def frame(event: str, payload: dict[str, Any], kind: str = "event") -> bytes:
    pairs = ((":message-type", kind), (f":{kind}-type", event))
    headers = b"".join(
        bytes([len(k)]) + k.encode() + b"\x07" + struct.pack("!H", len(v)) + v.encode()
        for k, v in pairs
    )
    body = json.dumps(payload).encode()
    prelude = struct.pack("!II", 16 + len(headers) + len(body), len(headers))
    start = prelude + struct.pack("!I", zlib.crc32(prelude)) + headers + body
    return start + struct.pack("!I", zlib.crc32(start))


DELTAS = [frame("contentBlockDelta", {"delta": {"text": f"metadata {n}"}}) for n in range(3)]
METADATA = frame("metadata", {"usage": {"inputTokens": 4, "outputTokens": 6}})
FRAMES = b"".join(DELTAS) + METADATA


@given(st.lists(st.integers(0, len(FRAMES)), max_size=10))
def test_frames_pass_whole_and_metadata_waits(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(FRAMES)]
    stream = FrameStream()
    passed = b"".join(stream.feed(FRAMES[a:b]) for a, b in pairwise(edges))
    assert passed == b"".join(DELTAS)
    assert stream.ending() == METADATA
    assert stream.usage == Usage(4, 6)
    assert stream.done


def test_an_exception_frame_ends_the_stream() -> None:
    stream = FrameStream()
    bad = frame("throttlingException", {"message": "internal"}, "exception")
    assert stream.feed(DELTAS[0] + bad + DELTAS[1]) == DELTAS[0]
    assert stream.failed


def test_bytes_that_are_no_frames_are_told() -> None:
    with pytest.raises(BrokenAnswerError):
        FrameStream().feed(b"HTTP/1.1 500 whatever it is")
    damaged = bytearray(METADATA)
    damaged[-6] ^= 1
    with pytest.raises(BrokenAnswerError):
        FrameStream().feed(bytes(damaged))


def test_our_exception_frame_is_read_by_botocore() -> None:
    buffer = EventStreamBuffer()
    buffer.add_data(exception_frame("internalServerException", "it broke"))
    message = next(buffer)
    assert message.headers[":exception-type"] == "internalServerException"
    assert json.loads(message.payload) == {"message": "it broke"}


def test_converse_answers_are_rebuilt() -> None:
    assert rebuild_converse({"output": {}, "stopReason": "x", "trace": {}, "usage": {}}) == {
        "output": {},
        "stopReason": "x",
        "usage": {},
    }
    with pytest.raises(BrokenAnswerError):
        rebuild_converse({"message": "x"})


@pytest.mark.parametrize("include_usage", [True, False])
def test_both_forms_of_the_translator_s_last_frames_are_read(include_usage: bool) -> None:
    """LiteLLM 1.110 sends the usage without a choice, and an end mark after an error."""
    word = chunk(choices=[{"index": 0, "delta": {"content": "hi"}}])
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    end = b"data: [DONE]\n\n"
    for choices in ([], [{"index": 0, "delta": {}}]):
        whole = ChunkStream(IDENTITY, include_usage=include_usage)
        shown = whole.feed(word + chunk(choices=choices, usage=usage) + end) + whole.ending()
        assert (whole.usage, whole.done, whole.failed) == (Usage(3, 2), True, False)
        assert (b'"usage"' in shown) == include_usage
        assert shown.endswith(end)
    error = b'data: {"error": {"message": "internal", "code": "500"}}\n\n'
    broken = ChunkStream(IDENTITY, include_usage=include_usage)
    shown = broken.feed(word + error + end)
    assert (broken.usage, broken.done, broken.failed) == (None, False, True)
    assert b"[DONE]" not in shown
