"""Responses on the wire: the JSON object, and the events of a stream."""

import json
import secrets
import time
from collections.abc import Mapping
from typing import Any

from terrace_model_simulator.exchange import Usage
from terrace_model_simulator.generation import Answer
from terrace_model_simulator.openai_format import request_id


class Response:
    """The plain answer."""

    streams = False
    content_type = "application/json"

    def __init__(self, model: str, answer: Answer, *, max_output_tokens: int | None) -> None:
        self._model = model
        self._answer = answer
        self._max_output_tokens = max_output_tokens
        self._id = f"resp_{secrets.token_hex(24)}"
        kind = "fc" if answer.tool is not None else "msg"
        self._item_id = f"{kind}_{secrets.token_hex(24)}"
        self._call_id = f"call_{secrets.token_hex(12)}"
        self._created = int(time.time())

    def headers(self, usage: Usage | None) -> Mapping[str, str]:
        del usage
        return {"x-request-id": request_id()}

    def opening(self) -> bytes:
        return b""

    def chunk(self, text: str) -> bytes:
        del text
        return b""

    def closing(self, usage: Usage | None) -> bytes:
        return _json(self._whole(usage))

    def _whole(self, usage: Usage | None) -> dict[str, Any]:
        cut = self._answer.finish == "length"
        document = self._begun("incomplete" if cut else "completed")
        document["output"] = [self._item("incomplete" if cut else "completed", self._answer.text)]
        if cut:
            document["incomplete_details"] = {"reason": "max_output_tokens"}
        if usage is not None:
            document["usage"] = {
                "input_tokens": usage.input_tokens,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": usage.output_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.input_tokens + usage.output_tokens,
            }
        return document

    def _begun(self, status: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "max_output_tokens": self._max_output_tokens,
            "model": self._model,
            "output": [],
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": 1.0,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "truncation": "disabled",
            "usage": None,
            "user": None,
            "metadata": {},
        }

    def _item(self, status: str, text: str) -> dict[str, Any]:
        item: dict[str, Any] = {"id": self._item_id, "status": status}
        if self._answer.tool is not None:
            return item | {
                "type": "function_call",
                "call_id": self._call_id,
                "name": self._answer.tool,
                "arguments": text,
            }
        content = [_text_part(text)] if status != "in_progress" else []
        return item | {"type": "message", "role": "assistant", "content": content}


class ResponseStream(Response):
    """The events; the last is ``response.completed`` or ``response.incomplete`` with usage."""

    streams = True
    content_type = "text/event-stream; charset=utf-8"

    def __init__(self, model: str, answer: Answer, *, max_output_tokens: int | None) -> None:
        super().__init__(model, answer, max_output_tokens=max_output_tokens)
        self._number = 0

    def opening(self) -> bytes:
        begun = self._begun("in_progress")
        first = self._event("response.created", response=begun)
        first += self._event("response.in_progress", response=begun)
        item = self._item("in_progress", "")
        first += self._event("response.output_item.added", output_index=0, item=item)
        if self._answer.tool is None:
            first += self._event(
                "response.content_part.added", **self._place(), part=_text_part("")
            )
        return first

    def chunk(self, text: str) -> bytes:
        if self._answer.tool is not None:
            kind = "response.function_call_arguments.delta"
            return self._event(kind, **self._place(), delta=text)
        return self._event("response.output_text.delta", **self._place(), delta=text, logprobs=[])

    def closing(self, usage: Usage | None) -> bytes:
        text = self._answer.text
        if self._answer.tool is not None:
            kind = "response.function_call_arguments.done"
            last = self._event(kind, **self._place(), name=self._answer.tool, arguments=text)
        else:
            last = self._event("response.output_text.done", **self._place(), text=text, logprobs=[])
            last += self._event(
                "response.content_part.done", **self._place(), part=_text_part(text)
            )
        whole = self._whole(usage)
        (item,) = whole["output"]
        last += self._event("response.output_item.done", output_index=0, item=item)
        return last + self._event(f"response.{whole['status']}", response=whole)

    def _place(self) -> dict[str, Any]:
        place: dict[str, Any] = {"item_id": self._item_id, "output_index": 0}
        return place if self._answer.tool is not None else {**place, "content_index": 0}

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + _json(event) + b"\n\n"


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
