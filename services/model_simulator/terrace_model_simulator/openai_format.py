"""Chat completions on the wire: the JSON object, the server-sent events, the error object."""

import json
import secrets
import time
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse, Response

from terrace_model_simulator.exchange import Usage
from terrace_model_simulator.generation import Answer

SYSTEM_FINGERPRINT = "fp_terrace_sim"

_FINISH = {
    "stop": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "tool_call": "tool_calls",
}
_ERROR_TYPES = {401: "invalid_request_error", 403: "invalid_request_error", 429: "requests"}
_ERROR_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}


def openai_error(
    status: int,
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """An error in OpenAI's shape."""
    kind = "server_error" if status >= 500 else _ERROR_TYPES.get(status, "invalid_request_error")
    error = {
        "message": message,
        "type": kind,
        "param": param,
        "code": code or _ERROR_CODES.get(status),
    }
    return JSONResponse({"error": error}, status, {"x-request-id": request_id(), **(headers or {})})


def request_id() -> str:
    """A fresh id in the style of the public API's request ids."""
    return f"req_{secrets.token_hex(16)}"


def usage_object(usage: Usage) -> dict[str, Any]:
    """The ``usage`` object; nothing is cached and nothing is reasoning."""
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


class _Completion:
    def __init__(self, model: str, answer: Answer) -> None:
        self._model = model
        self._answer = answer
        self._id = f"chatcmpl-{secrets.token_urlsafe(21)}"
        self._created = int(time.time())
        self._started = time.monotonic()
        self._tool_call_id = f"call_{secrets.token_hex(12)}"

    def headers(self, usage: Usage | None) -> Mapping[str, str]:
        del usage
        return {
            "x-request-id": request_id(),
            "openai-version": "2020-10-01",
            "openai-processing-ms": str(int((time.monotonic() - self._started) * 1000)),
        }


class ChatCompletion(_Completion):
    """The plain answer."""

    streams = False
    content_type = "application/json"

    def opening(self) -> bytes:
        return b""

    def chunk(self, text: str) -> bytes:
        del text
        return b""

    def closing(self, usage: Usage | None) -> bytes:
        answer = self._answer
        message: dict[str, Any] = {
            "role": "assistant",
            "content": answer.text,
            "refusal": None,
            "annotations": [],
        }
        if answer.tool is not None:
            message["content"] = None
            message["tool_calls"] = [
                {
                    "id": self._tool_call_id,
                    "type": "function",
                    "function": {"name": answer.tool, "arguments": answer.text},
                }
            ]
        document: dict[str, Any] = {
            "id": self._id,
            "object": "chat.completion",
            "created": self._created,
            "model": self._model,
            "choices": [
                {
                    "index": 0,
                    "message": message,
                    "logprobs": None,
                    "finish_reason": _FINISH[answer.finish],
                }
            ],
            "service_tier": "default",
            "system_fingerprint": SYSTEM_FINGERPRINT,
        }
        if usage is not None:
            document["usage"] = usage_object(usage)
        return _json(document)


class ChatCompletionStream(_Completion):
    """The answer as server-sent events, ending in ``data: [DONE]``."""

    streams = True
    content_type = "text/event-stream; charset=utf-8"

    def __init__(self, model: str, answer: Answer, *, include_usage: bool) -> None:
        super().__init__(model, answer)
        self._include_usage = include_usage
        head = _json(
            {
                "id": self._id,
                "object": "chat.completion.chunk",
                "created": self._created,
                "model": self._model,
                "service_tier": "default",
                "system_fingerprint": SYSTEM_FINGERPRINT,
            }
        )
        # The same for every chunk: kept ready, so that a chunk costs one small dump.
        self._before = b"data: " + head[:-1] + b',"choices":'
        self._after = (b',"usage":null' if include_usage else b"") + b"}\n\n"

    def opening(self) -> bytes:
        delta: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None}
        if self._answer.tool is not None:
            call = {
                "index": 0,
                "id": self._tool_call_id,
                "type": "function",
                "function": {"name": self._answer.tool, "arguments": ""},
            }
            delta = {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None}
        return self._event(delta, None)

    def chunk(self, text: str) -> bytes:
        if self._answer.tool is not None:
            call = {"index": 0, "function": {"arguments": text}}
            return self._event({"tool_calls": [call]}, None)
        return self._event({"content": text}, None)

    def closing(self, usage: Usage | None) -> bytes:
        last = self._event({}, _FINISH[self._answer.finish])
        if self._include_usage and usage is not None:
            tail = b',"usage":' + _json(usage_object(usage)) + b"}\n\n"
            last += self._before + b"[]" + tail
        return last + b"data: [DONE]\n\n"

    def _event(self, delta: dict[str, Any], finish: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return self._before + _json([choice]) + self._after


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
