"""A provider that keeps its own book of calls: OpenAI chat and Bedrock converse, plain and stream.

It lives in the test process, so a test reads `calls` directly and compares it with what the
translator answered. Faults are queued per test: each is used by exactly one call.
"""

import asyncio
import json
import struct
from binascii import crc32
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from . import fake_faces

INPUT_TOKENS = 17
OUTPUT_TOKENS = 5


@dataclass(frozen=True)
class Call:
    """One billable request as it arrived."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]


@dataclass(frozen=True)
class Said:
    """An answer in place of the usual one, as it goes over the wire."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "application/json"})


@dataclass
class FakeProvider:
    """Its book (`calls`), what else was asked (`other_paths`), what goes wrong next (`faults`)."""

    address: str = ""
    calls: list[Call] = field(default_factory=list)
    other_paths: list[str] = field(default_factory=list)
    faults: list[int | str] = field(default_factory=list)
    """Per call: an HTTP status, "close" (drop the connection) or "cut" (drop it in mid-stream)."""
    says: list[Said] = field(default_factory=list)
    """What is answered next instead, whatever the path."""
    refuse: str | None = None
    """Begin of the paths that are answered with 429."""
    gate: asyncio.Event | None = None
    """If set, a chat stream stops after each frame until somebody sets the event."""

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await self._record(request)
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, int):
            error = {"error": {"message": "the fake says no", "type": "fake", "code": str(fault)}}
            return web.json_response(error, status=fault, headers={"x-request-id": "fake-req"})
        if fault == "close":
            _drop(request)
        if body.get("stream"):
            return await self._chat_stream(request, body, cut=fault == "cut")
        return web.json_response(
            {
                "id": "chatcmpl-fake",
                "object": "chat.completion",
                "created": 1,
                "model": body["model"],
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": "hello there"},
                        "finish_reason": "stop",
                    }
                ],
                "usage": _openai_usage(),
            },
            headers={"x-request-id": "fake-req"},
        )

    async def converse(self, request: web.Request) -> web.StreamResponse:
        await self._record(request)
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, int):
            return web.json_response(
                {"message": "the fake says no"},
                status=fault,
                headers={"x-amzn-ErrorType": _AWS_ERRORS.get(fault, "InternalServerException")},
            )
        if fault == "close":
            _drop(request)
        if request.path.endswith("/converse-stream"):
            return await self._converse_stream(request, cut=fault == "cut")
        return web.json_response(
            {
                "output": {"message": {"role": "assistant", "content": [{"text": "hello there"}]}},
                "stopReason": "end_turn",
                "usage": _bedrock_usage(),
                "metrics": {"latencyMs": 3},
            },
            headers={"x-amzn-RequestId": "fake-req"},
        )

    async def other(self, request: web.Request) -> web.StreamResponse:
        """Responses, completions, embeddings, Anthropic's invoke, and the free counters."""
        body = await self._record(request)
        fault = self.faults.pop(0) if self.faults else None
        path, model = request.path, str(body.get("model"))
        bedrock = path.startswith("/model/")
        if isinstance(fault, int) and bedrock:
            name = _AWS_ERRORS.get(fault, "InternalServerException")
            return web.json_response(
                {"message": "the fake says no"}, status=fault, headers={"x-amzn-ErrorType": name}
            )
        if isinstance(fault, int):
            error = {"error": {"message": "the fake says no", "type": "fake", "code": str(fault)}}
            return web.json_response(error, status=fault)
        if fault == "close":
            _drop(request)
        if not body.get("stream") and not path.endswith("-stream"):
            counted = {"x-amzn-bedrock-input-token-count": str(COUNTED_BESIDE)} if bedrock else {}
            answer = fake_faces.answer(path, model, thinks="thinking" in body)
            return web.json_response(answer, headers=counted)
        content_type, frames = fake_faces.frames(path, model, aws_event, thinks="thinking" in body)
        response = web.StreamResponse(headers={"content-type": content_type})
        await response.prepare(request)
        for number, frame in enumerate(frames):
            await response.write(frame)
            await asyncio.sleep(0)
            if fault == "cut" and number == 2:
                _drop(request)
        return response

    async def anything_else(self, request: web.Request) -> web.Response:
        self.other_paths.append(f"{request.method} {request.path}")
        return web.json_response({"object": "list", "data": []})

    @web.middleware
    async def instead(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        refused = self.refuse is not None and request.path.startswith(self.refuse)
        if request.method != "POST" or not (self.says or refused):
            return await handler(request)
        await self._record(request)
        said = Said(429, b'{"error": {"message": "later"}}') if refused else self.says.pop(0)
        return web.Response(status=said.status, body=said.body, headers=said.headers)

    async def _record(self, request: web.Request) -> dict[str, Any]:
        body = json.loads(await request.read())
        # raw_path: a model id arrives percent-encoded (%3A) and the signature covers that form.
        self.calls.append(Call(request.raw_path, dict(request.headers), body))
        return body

    async def _chat_stream(
        self, request: web.Request, body: Mapping[str, Any], *, cut: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        frame = {
            "id": "chatcmpl-fake",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": body["model"],
        }
        for text in ("hel", "lo ", "there"):
            choice = {"index": 0, "delta": {"role": "assistant", "content": text}}
            await response.write(_sse({**frame, "choices": [choice]}))
            await asyncio.sleep(0)
            if self.gate:
                await self.gate.wait()
            if cut:
                _drop(request)
        stop = {"index": 0, "delta": {}, "finish_reason": "stop"}
        await response.write(_sse({**frame, "choices": [stop]}))
        if (body.get("stream_options") or {}).get("include_usage"):
            await response.write(_sse({**frame, "choices": [], "usage": _openai_usage()}))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _converse_stream(self, request: web.Request, *, cut: bool) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"content-type": "application/vnd.amazon.eventstream"}
        )
        await response.prepare(request)
        await response.write(aws_event("messageStart", {"role": "assistant"}))
        for text in ("hel", "lo ", "there"):
            delta = {"contentBlockIndex": 0, "delta": {"text": text}}
            await response.write(aws_event("contentBlockDelta", delta))
            await asyncio.sleep(0)
            if cut:
                _drop(request)
        await response.write(aws_event("contentBlockStop", {"contentBlockIndex": 0}))
        await response.write(aws_event("messageStop", {"stopReason": "end_turn"}))
        metadata = {"usage": _bedrock_usage(), "metrics": {"latencyMs": 3}}
        await response.write(aws_event("metadata", metadata))
        return response


@asynccontextmanager
async def serving() -> AsyncIterator[FakeProvider]:
    """A fake provider on a free loopback port; `address` is its base URL without a path."""
    provider = FakeProvider()
    app = web.Application(middlewares=[provider.instead])
    app.router.add_post("/v1/chat/completions", provider.chat)
    app.router.add_post("/model/{model}/converse", provider.converse)
    app.router.add_post("/model/{model}/converse-stream", provider.converse)
    for path in ("responses", "responses/input_tokens", "completions", "embeddings"):
        app.router.add_post(f"/v1/{path}", provider.other)
    for call in ("invoke", "invoke-with-response-stream", "count-tokens"):
        app.router.add_post(f"/model/{{model}}/{call}", provider.other)
    app.router.add_route("*", "/{rest:.*}", provider.anything_else)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    provider.address = f"http://127.0.0.1:{port}"
    try:
        yield provider
    finally:
        await runner.cleanup()


COUNTED_BESIDE = 4711
"""Input tokens that Bedrock tells beside the answer of InvokeModel."""
_AWS_ERRORS = {
    401: "UnrecognizedClientException",
    403: "AccessDeniedException",
    429: "ThrottlingException",
    500: "InternalServerException",
    503: "ServiceUnavailableException",
}


def _drop(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()
    raise ConnectionResetError


def _openai_usage() -> dict[str, int]:
    return {
        "prompt_tokens": INPUT_TOKENS,
        "completion_tokens": OUTPUT_TOKENS,
        "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
    }


def _bedrock_usage() -> dict[str, int]:
    return {
        "inputTokens": INPUT_TOKENS,
        "outputTokens": OUTPUT_TOKENS,
        "totalTokens": INPUT_TOKENS + OUTPUT_TOKENS,
    }


def _sse(payload: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def aws_event(event_type: str, payload: Mapping[str, Any], kind: str = "event") -> bytes:
    """One frame of application/vnd.amazon.eventstream (prelude, headers, payload, checksums)."""
    headers = b"".join(
        struct.pack("!B", len(name))
        + name.encode()
        + b"\x07"
        + struct.pack("!H", len(value))
        + value.encode()
        for name, value in (
            (f":{kind}-type", event_type),
            (":content-type", "application/json"),
            (":message-type", kind),
        )
    )
    body = json.dumps(payload).encode()
    prelude = struct.pack("!II", 16 + len(headers) + len(body), len(headers))
    message = prelude + struct.pack("!I", crc32(prelude)) + headers + body
    return message + struct.pack("!I", crc32(message))
