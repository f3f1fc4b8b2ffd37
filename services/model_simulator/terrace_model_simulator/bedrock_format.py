"""Bedrock Runtime on the wire: Converse answers and events, Anthropic's through InvokeModel."""

import base64
import json
import secrets
import time
import uuid
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse, Response

from terrace_model_simulator.event_stream import CONTENT_TYPE, event_frame
from terrace_model_simulator.exchange import Usage
from terrace_model_simulator.generation import Answer

_CONVERSE_STOP = {
    "stop": "end_turn",
    "length": "max_tokens",
    "stop_sequence": "stop_sequence",
    "tool_call": "tool_use",
}


def bedrock_error(status: int, error_type: str, message: str) -> Response:
    """An error in the shape of AWS's REST-JSON protocol."""
    headers = {"x-amzn-errortype": error_type, "x-amzn-requestid": str(uuid.uuid4())}
    return JSONResponse({"message": message}, status, headers)


class _BedrockAnswer:
    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._started = time.monotonic()
        self._request_id = str(uuid.uuid4())
        self._tool_use_id = f"tooluse_{secrets.token_urlsafe(16)}"

    def headers(self, usage: Usage | None) -> Mapping[str, str]:
        del usage
        return {"x-amzn-requestid": self._request_id}

    def _latency_ms(self) -> int:
        return int((time.monotonic() - self._started) * 1000)

    def _tool_input(self) -> object:
        # Arguments cut by the token limit are no JSON; the API then has no input to show.
        return json.loads(self._answer.text) if self._answer.finish == "tool_call" else {}


class Converse(_BedrockAnswer):
    """The plain Converse answer."""

    streams = False
    content_type = "application/json"

    def opening(self) -> bytes:
        return b""

    def chunk(self, text: str) -> bytes:
        del text
        return b""

    def closing(self, usage: Usage | None) -> bytes:
        answer = self._answer
        block: dict[str, Any] = {"text": answer.text}
        if answer.tool is not None:
            block = {
                "toolUse": {
                    "toolUseId": self._tool_use_id,
                    "name": answer.tool,
                    "input": self._tool_input(),
                }
            }
        document: dict[str, Any] = {
            "metrics": {"latencyMs": self._latency_ms()},
            "output": {"message": {"role": "assistant", "content": [block]}},
            "stopReason": _CONVERSE_STOP[answer.finish],
        }
        if usage is not None:
            document["usage"] = _converse_usage(usage)
        return _json(document)


class ConverseStream(_BedrockAnswer):
    """The ConverseStream events; the last is ``metadata`` with usage and metrics."""

    streams = True
    content_type = CONTENT_TYPE

    def opening(self) -> bytes:
        first = event_frame("messageStart", {"role": "assistant"})
        if self._answer.tool is not None:
            tool = {"toolUseId": self._tool_use_id, "name": self._answer.tool}
            first += event_frame(
                "contentBlockStart", {"contentBlockIndex": 0, "start": {"toolUse": tool}}
            )
        return first

    def chunk(self, text: str) -> bytes:
        delta = {"text": text} if self._answer.tool is None else {"toolUse": {"input": text}}
        return event_frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": delta})

    def closing(self, usage: Usage | None) -> bytes:
        metadata: dict[str, Any] = {"metrics": {"latencyMs": self._latency_ms()}}
        if usage is not None:
            metadata["usage"] = _converse_usage(usage)
        return (
            event_frame("contentBlockStop", {"contentBlockIndex": 0})
            + event_frame("messageStop", {"stopReason": _CONVERSE_STOP[self._answer.finish]})
            + event_frame("metadata", metadata)
        )


class AnthropicMessageAnswer(_BedrockAnswer):
    """Anthropic's message object, as InvokeModel returns it."""

    streams = False
    content_type = "application/json"

    def __init__(self, model: str, answer: Answer, *, input_tokens: int) -> None:
        super().__init__(answer)
        self._model = model.removeprefix("anthropic.").partition("-v1:")[0]
        self._message_id = f"msg_bdrk_{secrets.token_hex(12)}"
        self._input_tokens = input_tokens

    def opening(self) -> bytes:
        return b""

    def chunk(self, text: str) -> bytes:
        del text
        return b""

    def closing(self, usage: Usage | None) -> bytes:
        answer = self._answer
        block: dict[str, Any] = {"type": "text", "text": answer.text}
        if answer.tool is not None:
            block = {**self._tool_block(), "input": self._tool_input()}
        document: dict[str, Any] = {
            **self._message(),
            "content": [block],
            "stop_reason": _CONVERSE_STOP[answer.finish],
            "stop_sequence": answer.stop_sequence,
        }
        if usage is not None:
            document["usage"] = _anthropic_usage(usage.input_tokens, usage.output_tokens)
        return _json(document)

    def headers(self, usage: Usage | None) -> Mapping[str, str]:
        found = dict(super().headers(usage))
        if usage is not None:
            found["x-amzn-bedrock-input-token-count"] = str(usage.input_tokens)
            found["x-amzn-bedrock-output-token-count"] = str(usage.output_tokens)
            found["x-amzn-bedrock-invocation-latency"] = str(self._latency_ms())
        return found

    def _message(self) -> dict[str, Any]:
        return {
            "model": self._model,
            "id": self._message_id,
            "type": "message",
            "role": "assistant",
        }

    def _tool_block(self) -> dict[str, Any]:
        return {"type": "tool_use", "id": self._tool_use_id, "name": self._answer.tool}


class AnthropicStream(AnthropicMessageAnswer):
    """Anthropic's events, each in a ``chunk`` frame (InvokeModelWithResponseStream)."""

    streams = True
    content_type = CONTENT_TYPE

    def opening(self) -> bytes:
        message: dict[str, Any] = {
            **self._message(),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _anthropic_usage(self._input_tokens, 1),
        }
        block: dict[str, Any] = {"type": "text", "text": ""}
        if self._answer.tool is not None:
            block = {**self._tool_block(), "input": {}}
        return _anthropic_event({"type": "message_start", "message": message}) + _anthropic_event(
            {"type": "content_block_start", "index": 0, "content_block": block}
        )

    def chunk(self, text: str) -> bytes:
        delta = {"type": "text_delta", "text": text}
        if self._answer.tool is not None:
            delta = {"type": "input_json_delta", "partial_json": text}
        return _anthropic_event({"type": "content_block_delta", "index": 0, "delta": delta})

    def closing(self, usage: Usage | None) -> bytes:
        answer = self._answer
        delta: dict[str, Any] = {
            "type": "message_delta",
            "delta": {
                "stop_reason": _CONVERSE_STOP[answer.finish],
                "stop_sequence": answer.stop_sequence,
            },
        }
        stop: dict[str, Any] = {"type": "message_stop"}
        if usage is not None:
            delta["usage"] = {"output_tokens": usage.output_tokens}
            stop["amazon-bedrock-invocationMetrics"] = {
                "inputTokenCount": usage.input_tokens,
                "outputTokenCount": usage.output_tokens,
                "invocationLatency": self._latency_ms(),
                "firstByteLatency": 0,
            }
        return (
            _anthropic_event({"type": "content_block_stop", "index": 0})
            + _anthropic_event(delta)
            + _anthropic_event(stop)
        )

    def headers(self, usage: Usage | None) -> Mapping[str, str]:
        del usage
        return {
            "x-amzn-requestid": self._request_id,
            "x-amzn-bedrock-content-type": "application/json",
        }


def _anthropic_event(event: dict[str, Any]) -> bytes:
    return event_frame("chunk", {"bytes": base64.b64encode(_json(event)).decode()})


def _anthropic_usage(input_tokens: int, output_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": input_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": output_tokens,
    }


def _converse_usage(usage: Usage) -> dict[str, int]:
    return {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "totalTokens": usage.input_tokens + usage.output_tokens,
    }


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
