"""What a translator answers on the surfaces besides chat and converse: plain, and in events."""

import json
from dataclasses import dataclass
from typing import Any

PATHS = (
    "/v1/completions",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/responses",
)
LIMITS = {"/v1/responses": "max_output_tokens", "/v1/embeddings": "none"}


@dataclass(frozen=True)
class Said:
    """One answer."""

    path: str
    model: str
    input_tokens: int
    output_tokens: int
    chunks: int
    report_usage: bool

    @property
    def usage(self) -> dict[str, Any]:
        if self.path in ("/v1/messages", "/v1/responses"):
            names = ("input_tokens", "output_tokens")
        else:
            names = ("prompt_tokens", "completion_tokens")
        found = dict(zip(names, (self.input_tokens, self.output_tokens), strict=True))
        total = self.input_tokens + self.output_tokens
        return {**found, "total_tokens": total, "cost": 0.5} if self.report_usage else {}

    def plain(self) -> dict[str, Any]:
        """The answer at once."""
        head: dict[str, Any] = {"id": "resp_internal", "model": "internal", "usage": self.usage}
        if self.path == "/v1/completions":
            return {**head, "choices": [{"index": 0, "text": "hello", "finish_reason": "stop"}]}
        if self.path == "/v1/embeddings":
            return {**head, "data": [{"index": 0, "embedding": [0.5, 0.25]}]}
        if self.path == "/v1/messages":
            block = {"type": "text", "text": "hello"}
            return {**head, "content": [block], "stop_reason": "end_turn", "internal": 1}
        if self.path == "/v1/messages/count_tokens":
            return {"input_tokens": self.input_tokens}
        return {**head, "status": "completed", "output": [self._item("hello")]}

    def events(self) -> tuple[list[bytes], list[bytes], bytes]:
        """One frame per chunk, what follows the last, and an error."""
        words = [f"word{n} " for n in range(self.chunks)]
        if self.path == "/v1/completions":
            frames = [_sse({"choices": [{"index": 0, "text": word}]}) for word in words]
            tail = [_sse({"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]})]
            if self.report_usage:
                tail.append(_sse({"choices": [], "usage": self.usage}))
            return frames, [*tail, b"data: [DONE]\n\n"], _sse({"error": {"message": "internal"}})
        error = _sse({"type": "error", "error": {"message": "internal text"}})
        if self.path == "/v1/messages":
            return *self._message_events(words), error
        return *self._response_events(words), error

    def _message_events(self, words: list[str]) -> tuple[list[bytes], list[bytes]]:
        start = _sse({"type": "message_start", "message": {"id": "internal", "usage": {
            "input_tokens": 0, "output_tokens": 0}}})  # fmt: skip
        block = {"type": "text", "text": ""}
        start += _sse({"type": "content_block_start", "index": 0, "content_block": block})
        frames = [
            _sse({"type": "content_block_delta", "index": 0,
                  "delta": {"type": "text_delta", "text": word}})
            for word in words
        ]  # fmt: skip
        end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": self.usage}
        tail = [_sse({"type": "content_block_stop", "index": 0}), _sse(end)]
        return [start + frames[0], *frames[1:]], [*tail, _sse({"type": "message_stop"})]

    def _response_events(self, words: list[str]) -> tuple[list[bytes], list[bytes]]:
        head = {"id": "resp_internal", "model": "internal"}
        begin = {**head, "status": "in_progress", "output": []}
        start = _sse({"type": "response.created", "response": begin})
        item = {**self._item(""), "content": []}
        start += _sse({"type": "response.output_item.added", "output_index": 0, "item": item})
        place = {"item_id": "internal", "output_index": 0, "content_index": 0}
        frames = [
            _sse({"type": "response.output_text.delta", **place, "delta": word}) for word in words
        ]
        whole = {**head, "status": "completed", "output": [self._item("".join(words))],
                 "usage": self.usage or None}  # fmt: skip
        end = _sse({"type": "response.completed", "response": whole})
        return [start + frames[0], *frames[1:]], [end, b"data: [DONE]\n\n"]

    def _item(self, text: str) -> dict[str, Any]:
        part = {"type": "output_text", "text": text, "annotations": []}
        return {"id": "msg_internal", "type": "message", "status": "completed", "content": [part]}


def _sse(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"
