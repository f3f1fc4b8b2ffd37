"""A provider on loopback that answers the warm-up calls, so that no real one is billed."""

import asyncio
import base64
import json
import struct
from binascii import crc32
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from uvicorn import Config, Server

from terrace_translator import no_redirects, rehearsal_answers

_OPENAI_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
_BEDROCK_USAGE = {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}


@asynccontextmanager
async def serving() -> AsyncGenerator[str]:
    """The base URL of a rehearsal provider, which is gone at the end of the block."""
    # No lifespan, no signal handlers: it lives inside another server's process.
    config = Config(
        _app(), host="127.0.0.1", port=0, lifespan="off", log_config=None, access_log=False
    )
    config.load()
    server = Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    port = server.servers[0].sockets[0].getsockname()[1]
    loop = asyncio.create_task(server.main_loop())
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        server.force_exit = True
        await loop
        await server.shutdown()


def _app() -> FastAPI:
    app = FastAPI(openapi_url=None)
    app.add_api_route(no_redirects.PATH, _elsewhere, methods=["POST"])
    app.add_api_route(f"{no_redirects.PATH}/followed", _followed, methods=["GET", "POST"])
    app.add_api_route("/v1/chat/completions", _chat, methods=["POST"])
    for path in ("completions", "responses", "responses/input_tokens", "embeddings"):
        app.add_api_route(f"/v1/{path}", _other, methods=["POST"])
    for call in ("invoke", "count-tokens"):
        app.add_api_route(f"/model/{{model}}/{call}", _other, methods=["POST"])
    stream = "/model/{model}/invoke-with-response-stream"
    app.add_api_route(stream, _invoke_stream, methods=["POST"])
    app.add_api_route("/model/{model}/converse", _converse, methods=["POST"])
    app.add_api_route("/model/{model}/converse-stream", _converse_stream, methods=["POST"])
    return app


async def _elsewhere(request: Request) -> Response:
    del request
    return Response(status_code=307, headers={"location": f"{no_redirects.PATH}/followed"})


async def _followed(request: Request) -> Response:
    del request
    return Response(status_code=204)


async def _chat(request: Request) -> Response:
    body = json.loads(await request.body())
    frame = {"id": "warm-up", "created": 1, "model": body["model"]}
    if not body.get("stream"):
        message = {"role": "assistant", "content": "ok"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        answer = {**frame, "object": "chat.completion", "choices": [choice], "usage": _OPENAI_USAGE}
        return JSONResponse(answer)
    frame["object"] = "chat.completion.chunk"
    delta = {"role": "assistant", "content": "ok"}
    frames: list[dict[str, Any]] = [
        {**frame, "choices": [{"index": 0, "delta": delta}]},
        {**frame, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {**frame, "choices": [], "usage": _OPENAI_USAGE},
    ]
    lines = [f"data: {json.dumps(item)}\n\n" for item in frames] + ["data: [DONE]\n\n"]
    return StreamingResponse(iter(lines), media_type="text/event-stream")


async def _converse(request: Request) -> Response:
    del request
    message = {"role": "assistant", "content": [{"text": "ok"}]}
    return JSONResponse(
        {
            "output": {"message": message},
            "stopReason": "end_turn",
            "usage": _BEDROCK_USAGE,
            "metrics": {"latencyMs": 1},
        }
    )


async def _converse_stream(request: Request) -> Response:
    del request
    frames = [
        _event_frame("messageStart", {"role": "assistant"}),
        _event_frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "ok"}}),
        _event_frame("contentBlockStop", {"contentBlockIndex": 0}),
        _event_frame("messageStop", {"stopReason": "end_turn"}),
        _event_frame("metadata", {"usage": _BEDROCK_USAGE, "metrics": {"latencyMs": 1}}),
    ]
    return StreamingResponse(iter(frames), media_type="application/vnd.amazon.eventstream")


async def _other(request: Request) -> Response:
    path, body = request.url.path, json.loads(await request.body())
    if path.endswith("/input_tokens"):
        return JSONResponse({"object": "response.input_tokens", "input_tokens": 1})
    if path.endswith("/count-tokens"):
        return JSONResponse({"inputTokens": 1})
    if path.endswith("/embeddings"):
        return JSONResponse(rehearsal_answers.embedding(body))
    if path.startswith("/model/"):
        embeds = "texts" in body
        return JSONResponse(
            rehearsal_answers.cohere_embedding() if embeds else rehearsal_answers.message()
        )
    if path.endswith("/completions"):
        answer, events = rehearsal_answers.completion(body), rehearsal_answers.completion_events
    else:
        answer, events = rehearsal_answers.response("completed"), rehearsal_answers.response_events
    if not body.get("stream"):
        return JSONResponse(answer)
    lines = [f"data: {json.dumps(event)}\n\n" for event in events(body)] + ["data: [DONE]\n\n"]
    return StreamingResponse(iter(lines), media_type="text/event-stream")


async def _invoke_stream(request: Request) -> Response:
    del request
    frames = [
        _event_frame("chunk", {"bytes": base64.b64encode(json.dumps(event).encode()).decode()})
        for event in rehearsal_answers.message_events()
    ]
    return StreamingResponse(iter(frames), media_type="application/vnd.amazon.eventstream")


def _event_frame(event_type: str, payload: Mapping[str, Any]) -> bytes:
    """A frame of AWS's event stream: lengths, their CRC, string headers, payload, CRC of it all."""
    headers = b""
    for name, value in ((":event-type", event_type), (":message-type", "event")):
        headers += struct.pack("!B", len(name)) + name.encode()
        headers += struct.pack("!BH", 7, len(value)) + value.encode()
    body = json.dumps(payload).encode()
    prelude = struct.pack("!II", 16 + len(headers) + len(body), len(headers))
    message = prelude + struct.pack("!I", crc32(prelude)) + headers + body
    return message + struct.pack("!I", crc32(message))
