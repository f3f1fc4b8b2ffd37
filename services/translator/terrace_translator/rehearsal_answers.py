"""What the rehearsal provider says, in the formats of the surfaces besides chat and converse."""

from collections.abc import Mapping
from typing import Any

_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
_ANTHROPIC_USAGE = {"input_tokens": 1, "output_tokens": 1}


def completion(body: Mapping[str, Any], text: str = "ok") -> dict[str, Any]:
    """A text completion."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": "stop"}
    head = {"id": "warm-up", "object": "text_completion", "created": 1, "model": body["model"]}
    return {**head, "choices": [choice], "usage": _USAGE}


def completion_events(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The same, streamed."""
    whole = completion(body)
    return [{**whole, "usage": None}, {**whole, "choices": []}]


def response(status: str) -> dict[str, Any]:
    """A response of OpenAI's."""
    part: dict[str, Any] = {"type": "output_text", "text": "ok", "annotations": []}
    item = {**_item(status), "content": [part]}
    return {
        "id": "resp_warmup",
        "object": "response",
        "created_at": 1,
        "model": "warm-up",
        "status": status,
        "output": [item],
        "usage": {
            "input_tokens": 1,
            "output_tokens": 1,
            "total_tokens": 2,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "temperature": 1.0,
        "top_p": 1.0,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
    }


def response_events(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The same, streamed."""
    del body
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": []}
    begin: dict[str, Any] = {**response("in_progress"), "output": [], "usage": None}
    done = response("completed")
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": begin},
        {"type": "response.output_item.added", "output_index": 0, "item": _item("in_progress")},
        {"type": "response.content_part.added", **place, "part": part},
        {"type": "response.output_text.delta", **place, "delta": "ok"},
        {"type": "response.output_text.done", **place, "text": "ok"},
        {"type": "response.content_part.done", **place, "part": {**part, "text": "ok"}},
        {"type": "response.output_item.done", "output_index": 0, "item": done["output"][0]},
        {"type": "response.completed", "response": done},
    ]
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def message() -> dict[str, Any]:
    """A message of Anthropic's."""
    return {
        "id": "msg_warmup",
        "type": "message",
        "role": "assistant",
        "model": "warm-up",
        "content": [{"type": "text", "text": "ok"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": _ANTHROPIC_USAGE,
    }


def message_events() -> list[dict[str, Any]]:
    """The same, streamed."""
    delta = {"type": "text_delta", "text": "ok"}
    return [
        {"type": "message_start", "message": {**message(), "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 1},
        },
        {"type": "message_stop"},
    ]


def embedding(body: Mapping[str, Any]) -> dict[str, Any]:
    """One vector of OpenAI's."""
    vector = {"object": "embedding", "index": 0, "embedding": [0.5]}
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    return {"object": "list", "model": body["model"], "data": [vector], "usage": usage}


def cohere_embedding() -> dict[str, Any]:
    """One vector of Cohere's on Bedrock."""
    kind = "embeddings_floats"
    return {"embeddings": [[0.5]], "id": "warm-up", "response_type": kind, "texts": ["ok"]}


def _item(status: str) -> dict[str, Any]:
    item: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant"}
    return {**item, "status": status, "content": []}
