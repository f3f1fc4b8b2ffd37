"""What a provider answers besides chat and converse: plain, and as the frames of a stream."""

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

INPUT_TOKENS = 17
OUTPUT_TOKENS = 5
CACHE_READ = 100
CACHE_WRITE = 7
WORDS = ("hel", "lo ", "there")
THOUGHT = "let me see"

Frame = Callable[[str, Mapping[str, Any]], bytes]


def answer(path: str, model: str, *, thinks: bool = False) -> dict[str, Any]:
    """A plain answer."""
    if path.endswith("/embeddings"):
        vector = {"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}
        usage = {"prompt_tokens": INPUT_TOKENS, "total_tokens": INPUT_TOKENS}
        return {"object": "list", "model": model, "data": [vector], "usage": usage}
    if path.endswith("/input_tokens"):
        return {"object": "response.input_tokens", "input_tokens": INPUT_TOKENS}
    if path.endswith("/count-tokens"):
        return {"inputTokens": INPUT_TOKENS}
    if path.endswith("/completions"):
        return {**_text(model, "hello there", "stop"), "usage": _openai_usage()}
    if path.endswith("/responses"):
        return _response(model, "completed")
    thought = [{"type": "thinking", "thinking": THOUGHT, "signature": "sig"}] if thinks else []
    return {**_message(), "content": [*thought, {"type": "text", "text": "hello there"}],
            "stop_reason": "end_turn", "usage": _anthropic_usage()}  # fmt: skip


def frames(
    path: str, model: str, aws_frame: Frame, *, thinks: bool = False
) -> tuple[str, list[bytes]]:
    """Content type and frames of a stream; the first three are the words."""
    if path.endswith("/completions"):
        words = [_sse(_text(model, word, None)) for word in WORDS]
        end = [_sse(_text(model, "", "stop"))]
        end.append(_sse({**_text(model, "", None), "choices": [], "usage": _openai_usage()}))
        return "text/event-stream", [*words, *end, b"data: [DONE]\n\n"]
    if path.endswith("/responses"):
        return "text/event-stream", _response_frames(model)
    return "application/vnd.amazon.eventstream", [
        aws_frame("chunk", {"bytes": base64.b64encode(json.dumps(event).encode()).decode()})
        for event in _message_events(thinks=thinks)
    ]


def _response_frames(model: str) -> list[bytes]:
    item = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    part = {"type": "output_text", "text": "", "annotations": []}
    begin = {**_response(model, "in_progress"), "output": [], "usage": None}
    first: list[dict[str, Any]] = [
        {"type": "response.created", "response": begin},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", **place, "part": part},
    ]
    words = [{"type": "response.output_text.delta", **place, "delta": word} for word in WORDS]
    done = {**part, "text": "hello there"}
    last: list[dict[str, Any]] = [
        {"type": "response.output_text.done", **place, "text": "hello there"},
        {"type": "response.content_part.done", **place, "part": done},
        {"type": "response.output_item.done", "output_index": 0, "item": {
            **item, "status": "completed", "content": [done]}},
        {"type": "response.completed", "response": _response(model, "completed")},
    ]  # fmt: skip
    events = [{**event, "sequence_number": n} for n, event in enumerate([*first, *words, *last])]
    written = [_sse(event) for event in events]
    return [b"".join(written[:4]), *written[4:]]


def _message_events(*, thinks: bool) -> list[dict[str, Any]]:
    usage = _anthropic_usage()
    start = {**_message(), "content": [], "usage": {**usage, "output_tokens": 1}}
    at = 1 if thinks else 0
    words = [
        {"type": "content_block_delta", "index": at, "delta": {"type": "text_delta", "text": word}}
        for word in WORDS
    ]
    block = {"type": "text", "text": ""}
    thought: list[dict[str, Any]] = [
        {"type": "content_block_start", "index": 0,
         "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
        {"type": "content_block_delta", "index": 0,
         "delta": {"type": "thinking_delta", "thinking": THOUGHT}},
        {"type": "content_block_delta", "index": 0,
         "delta": {"type": "signature_delta", "signature": "sig"}},
        {"type": "content_block_stop", "index": 0},
    ]  # fmt: skip
    return [
        {"type": "message_start", "message": start},
        *(thought if thinks else []),
        {"type": "content_block_start", "index": at, "content_block": block},
        *words,
        {"type": "content_block_stop", "index": at},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"},
         "usage": {"output_tokens": OUTPUT_TOKENS}},
        {"type": "message_stop", "amazon-bedrock-invocationMetrics": {
            "inputTokenCount": INPUT_TOKENS, "outputTokenCount": OUTPUT_TOKENS}},
    ]  # fmt: skip


def _text(model: str, text: str, finish: str | None) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    head = {"id": "cmpl-fake", "object": "text_completion", "created": 1, "model": model}
    return {**head, "choices": [choice]}


def _response(model: str, status: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": "hello there", "annotations": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
            "content": [part]}  # fmt: skip
    usage = {
        "input_tokens": INPUT_TOKENS + CACHE_READ, "output_tokens": OUTPUT_TOKENS,
        "total_tokens": INPUT_TOKENS + CACHE_READ + OUTPUT_TOKENS,
        "input_tokens_details": {"cached_tokens": CACHE_READ},
        "output_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip
    return {
        "id": "resp_fake", "object": "response", "created_at": 1, "model": model, "status": status,
        "output": [item], "usage": usage, "parallel_tool_calls": True, "tool_choice": "auto",
        "tools": [], "temperature": 1.0, "top_p": 1.0, "error": None, "incomplete_details": None,
        "instructions": None, "metadata": {},
    }  # fmt: skip


def _message() -> dict[str, Any]:
    return {"id": "msg_bdrk_fake", "type": "message", "role": "assistant", "model": "claude",
            "stop_reason": None, "stop_sequence": None}  # fmt: skip


def _openai_usage() -> dict[str, Any]:
    return {
        "prompt_tokens": INPUT_TOKENS + CACHE_READ, "completion_tokens": OUTPUT_TOKENS,
        "total_tokens": INPUT_TOKENS + CACHE_READ + OUTPUT_TOKENS,
        "prompt_tokens_details": {"cached_tokens": CACHE_READ},
    }  # fmt: skip


def _anthropic_usage() -> dict[str, Any]:
    return {
        "input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS,
        "cache_read_input_tokens": CACHE_READ, "cache_creation_input_tokens": CACHE_WRITE,
    }  # fmt: skip


def _sse(value: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"
