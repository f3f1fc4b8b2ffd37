"""Text completions and embeddings on the wire."""

import base64
import hashlib
import json
import random
import secrets
import struct
import time
from collections.abc import Mapping
from typing import Any

from terrace_model_simulator.exchange import Usage
from terrace_model_simulator.generation import Answer
from terrace_model_simulator.openai_format import request_id, usage_object

DIMENSIONS = 16

_FINISH = {"stop": "stop", "stop_sequence": "stop", "length": "length", "tool_call": "stop"}


class TextCompletion:
    """The plain answer."""

    streams = False
    content_type = "application/json"

    def __init__(self, model: str, answer: Answer) -> None:
        self._model = model
        self._answer = answer
        self._id = f"cmpl-{secrets.token_urlsafe(21)}"
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
        document = self._document([self._choice(self._answer.text, _FINISH[self._answer.finish])])
        if usage is not None:
            document["usage"] = usage_object(usage)
        return _json(document)

    def _document(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }

    def _choice(self, text: str, finish: str | None) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}


class TextCompletionStream(TextCompletion):
    """The answer as server-sent events, ending in ``data: [DONE]``."""

    streams = True
    content_type = "text/event-stream; charset=utf-8"

    def __init__(self, model: str, answer: Answer, *, include_usage: bool) -> None:
        super().__init__(model, answer)
        self._include_usage = include_usage

    def chunk(self, text: str) -> bytes:
        return self._event([self._choice(text, None)])

    def closing(self, usage: Usage | None) -> bytes:
        last = self._event([self._choice("", _FINISH[self._answer.finish])])
        if self._include_usage and usage is not None:
            last += self._event([], usage=usage_object(usage))
        return last + b"data: [DONE]\n\n"

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return b"data: " + _json({**self._document(choices), **more}) + b"\n\n"


class Embeddings:
    """Vectors of length 1 that follow from model and text alone."""

    streams = False
    content_type = "application/json"

    def __init__(self, model: str, texts: list[str], *, dimensions: int | None, packed: bool):
        self._model = model
        self._texts = texts
        self._dimensions = dimensions or DIMENSIONS
        self._packed = packed

    def headers(self, usage: Usage | None) -> Mapping[str, str]:
        del usage
        return {"x-request-id": request_id()}

    def opening(self) -> bytes:
        return b""

    def chunk(self, text: str) -> bytes:
        del text
        return b""

    def closing(self, usage: Usage | None) -> bytes:
        document: dict[str, Any] = {
            "object": "list",
            "model": self._model,
            "data": [
                {"object": "embedding", "index": index, "embedding": self._vector(text)}
                for index, text in enumerate(self._texts)
            ],
        }
        if usage is not None:
            tokens = usage.input_tokens
            document["usage"] = {"prompt_tokens": tokens, "total_tokens": tokens}
        return _json(document)

    def _vector(self, text: str) -> object:
        digest = hashlib.sha256(f"{self._model}\0{text}".encode()).digest()
        rng = random.Random(digest)  # noqa: S311  reproducible numbers, not a secret
        numbers = [rng.gauss() for _ in range(self._dimensions)]
        length = sum(number * number for number in numbers) ** 0.5
        vector = [number / length for number in numbers]
        if not self._packed:
            return vector
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
