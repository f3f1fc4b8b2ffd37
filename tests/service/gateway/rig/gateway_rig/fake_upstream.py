"""A translator and provider in one, fast, with a book of its own.

It speaks the translator's side of the Unix socket and serves the provider's bill over TCP. What it
charges is computed here, from its own table, so a test compares two independent records.
"""

import asyncio
import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from gateway_rig import fake_surfaces

PRICES = {  # micro-USD per million tokens, typed anew on purpose
    "sim-small": (150_000, 600_000),
    "sim-large": (2_500_000, 10_000_000),
    "sim-spare": (300_000, 1_200_000),
    "bedrock-claude": (3_000_000, 15_000_000),
    "vectors": (1_000_000, 0),
}


@dataclass
class Behaviour:
    """How the next calls go. Tokens are what the provider counts and bills."""

    input_tokens: int = 7
    output_tokens: int = 11
    cache_write_tokens: int = 0  # of the input, as a chat says it
    chunks: int = 3
    status: int = 200
    param: str | None = None  # of an error, as OpenAI names the field
    headers: dict[str, str] = field(default_factory=dict)
    upstream_status: str | None = ""  # seen of a refusal by the translator; "": ``status``
    die_before_answer: bool = False
    die_after_chunks: int | None = None
    die_behind_the_end: bool = False  # of a stream that was whole
    report_usage: bool = True
    usage_so_far: bool = False  # in every chunk of a stream, as some providers do
    error_event_after: int | None = None
    hold: asyncio.Event | None = None
    hold_after_chunks: int | None = None
    delay: float = 0.0
    padding: str = ""  # of each chunk of a chat stream
    body: bytes | None = None


@dataclass
class Call:
    """What arrived, and the line of the book that it caused."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    attempt_id: str
    model: str
    seq: int
    status: str = "in_flight"
    outcome: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0

    @property
    def cost(self) -> int:
        price_in, price_out = PRICES[self.model]
        exact = self.input_tokens * price_in + self.output_tokens * price_out
        return exact // 1_000_000 + (exact % 1_000_000 > 0)


class FakeUpstream:
    """Start it with ``start``; set ``behaviour``; read ``calls`` and ``bill_total``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "engine.sock"
        self.key_file = folder / "master-key"
        self.behaviour = Behaviour()
        self.plan_for: Callable[[Call], Behaviour] | None = None
        """Instead of ``behaviour``, call by call."""
        self.calls: list[Call] = []
        self.bill_up = True
        self._runners: list[web.AppRunner] = []
        self.bill_port = 0

    async def start(self) -> None:
        self.key_file.write_text("sk-canary-master-key-0123456789")
        await self._serve_engine()
        bill = web.Application()
        bill.router.add_get("/bill", self._bill)
        runner = web.AppRunner(bill)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.bill_port = runner.addresses[0][1]
        self._runners.append(runner)

    async def _serve_engine(self) -> None:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_get("/health/liveliness", self._alive)
        app.router.add_post("/v1/chat/completions", self._chat)
        for path in fake_surfaces.PATHS:
            app.router.add_post(path, self._other)
        app.router.add_post("/bedrock/model/{model}/converse", self._converse)
        app.router.add_post("/bedrock/model/{model}/converse-stream", self._converse)
        self._engine = web.AppRunner(app, shutdown_timeout=0.1)
        await self._engine.setup()
        await web.UnixSite(self._engine, str(self.socket)).start()
        (self.folder / "ready").touch()

    async def serve_relay(self) -> int:
        """The chat face as an OpenAI-compatible provider over TCP. Returns its port."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._chat)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self._runners.append(runner)
        return runner.addresses[0][1]

    async def stop_engine(self) -> None:
        (self.folder / "ready").unlink(missing_ok=True)
        await self._engine.cleanup()
        self.socket.unlink(missing_ok=True)

    async def restart_engine(self) -> None:
        await self._serve_engine()

    async def stop(self) -> None:
        await self.stop_engine()
        for runner in self._runners:
            await runner.cleanup()

    @property
    def bill_total(self) -> int:
        return sum(call.cost for call in self.calls)

    def billed(self, attempt_id: str) -> int:
        return sum(call.cost for call in self.calls if call.attempt_id == attempt_id)

    async def _alive(self, _: web.Request) -> web.Response:
        return web.json_response("alive")

    async def _bill(self, request: web.Request) -> web.Response:
        if not self.bill_up:
            return web.Response(status=500)
        after = int(request.query.get("after", "0"))
        wanted = request.query.get("attempt_id")
        entries = [
            {
                "seq": call.seq, "attempt_id": call.attempt_id, "model": call.model,
                "surface": "fake", "input_tokens": call.input_tokens,
                "output_tokens": call.output_tokens, "cost_micro_usd": call.cost,
                "status": call.status, "outcome": call.outcome,
                "started_at": "2026-01-01T00:00:00Z", "ended_at": None,
            }
            for call in self.calls
            if call.seq > after and wanted in (None, call.attempt_id)
            and call.outcome != "refused"
        ]  # fmt: skip
        return web.json_response({"entries": entries[:2], "total_micro_usd": 0, "in_flight": 0})

    def _open(self, request: web.Request, body: dict[str, Any], model: str, attempt: str) -> Call:
        call = Call(
            path=request.path, headers=dict(request.headers), body=body, attempt_id=attempt,
            model=model, seq=len(self.calls) + 1,
        )  # fmt: skip
        self.calls.append(call)
        return call

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        call = self._open(
            request,
            body,
            body["model"],
            (body.get("extra_headers") or request.headers)["x-terrace-attempt-id"],
        )
        limit = body.get("max_completion_tokens") or body["max_tokens"]
        plan = self._plan(call)
        refused = await self._refuse(request, call, plan)
        if refused is not None:
            return refused
        call.input_tokens, output = plan.input_tokens, min(plan.output_tokens, limit)
        usage = {
            "prompt_tokens": plan.input_tokens, "completion_tokens": output,
            "total_tokens": plan.input_tokens + output, "cost": 0.5,
        }  # fmt: skip
        if plan.cache_write_tokens:
            usage["cache_creation_input_tokens"] = plan.cache_write_tokens
        if not body.get("stream"):
            call.output_tokens = output
            await self._wait(plan)
            self._final(call)
            if plan.body is not None:
                return web.Response(body=plan.body, content_type="application/json")
            answer = {
                "id": "chatcmpl-internal", "object": "chat.completion", "created": 1,
                "model": body["model"], "provider_specific_fields": {"secret": "internal"},
                "choices": [{"index": 0, "finish_reason": "stop",
                             "message": {"role": "assistant", "content": "hello",
                                         "provider_specific_fields": {}}}],
            }  # fmt: skip
            if plan.report_usage:
                answer["usage"] = usage
            return web.json_response(
                answer, headers={"x-litellm-model-api-base": "http://internal"}
            )
        events = [
            {"id": "chatcmpl-internal", "object": "chat.completion.chunk", "created": 1,
             "model": body["model"], "system_fingerprint": "internal",
             "choices": [{"index": 0, "delta": {"content": f"word{n} {plan.padding}"}}]}
            for n in range(plan.chunks)
        ]  # fmt: skip
        if plan.usage_so_far:
            events = [
                {**event, "usage": {"prompt_tokens": plan.input_tokens, "completion_tokens": n}}
                for n, event in enumerate(events)
            ]
        frames = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
        end = {**events[0], "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        tail = [b"data: " + json.dumps(end).encode() + b"\n\n"]
        if plan.report_usage:
            last = {**events[0], "choices": [{"index": 0, "delta": {}}], "usage": usage}
            tail.append(b"data: " + json.dumps(last).encode() + b"\n\n")
        tail.append(b"data: [DONE]\n\n")
        error = b'data: {"error":{"message":"internal text","code":"500"}}\n\n'
        return await self._stream(request, call, (frames, tail, error), output, "text/event-stream")

    async def _other(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        counting = request.path.endswith("count_tokens")  # no bill and no attempt id
        attempt = "" if counting else body["extra_headers"]["x-terrace-attempt-id"]
        call = self._open(request, body, body["model"], attempt)
        plan = self._plan(call)
        refused = await self._refuse(request, call, plan)
        if refused is not None:
            return refused
        field = fake_surfaces.LIMITS.get(request.path, "max_tokens")
        output = min(plan.output_tokens, body.get(field, 0))
        if not counting:
            call.input_tokens = plan.input_tokens
        said = fake_surfaces.Said(
            request.path, body["model"], plan.input_tokens, output, plan.chunks, plan.report_usage
        )
        if not body.get("stream"):
            call.output_tokens = output
            await self._wait(plan)
            self._final(call)
            return web.json_response(said.plain(), headers=plan.headers)
        return await self._stream(request, call, said.events(), output, "text/event-stream")

    async def _converse(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        call = self._open(
            request, body, request.match_info["model"],
            body["requestMetadata"]["terrace-attempt-id"],
        )  # fmt: skip
        plan = self._plan(call)
        refused = await self._refuse(request, call, plan)
        if refused is not None:
            return refused
        call.input_tokens = plan.input_tokens
        output = min(plan.output_tokens, body["inferenceConfig"]["maxTokens"])
        usage = {"inputTokens": plan.input_tokens, "outputTokens": output,
                 "totalTokens": plan.input_tokens + output}  # fmt: skip
        if not request.path.endswith("-stream"):
            call.output_tokens = output
            await self._wait(plan)
            self._final(call)
            answer: dict[str, Any] = {
                "output": {"message": {"role": "assistant", "content": [{"text": "hello"}]}},
                "stopReason": "end_turn", "metrics": {"latencyMs": 1}, "internal": "text",
            }  # fmt: skip
            if plan.report_usage:
                answer["usage"] = usage
            return web.json_response(answer)
        frames = [
            aws_frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": f"w{n} "}})
            for n in range(plan.chunks)
        ]
        tail = [aws_frame("messageStop", {"stopReason": "end_turn"})]
        if plan.report_usage:
            tail.append(aws_frame("metadata", {"usage": usage, "metrics": {"latencyMs": 1}}))
        error = aws_frame("internalServerException", {"message": "internal text"}, "exception")
        kind = "application/vnd.amazon.eventstream"
        return await self._stream(request, call, (frames, tail, error), output, kind)

    def _plan(self, call: Call) -> Behaviour:
        return self.behaviour if self.plan_for is None else self.plan_for(call)

    async def _refuse(
        self, request: web.Request, call: Call, plan: Behaviour
    ) -> web.Response | None:
        if plan.status != 200:
            if plan.hold is not None:
                await plan.hold.wait()
            call.outcome, call.status = "refused", "final"
            error = {"error": {"message": "internal provider text", "param": plan.param}}
            seen = str(plan.status) if plan.upstream_status == "" else plan.upstream_status
            own = {} if seen is None else {"x-terrace-upstream-status": seen}
            return web.json_response(error, status=plan.status, headers={**plan.headers, **own})
        if plan.die_before_answer:
            call.input_tokens = plan.input_tokens
            call.output_tokens = plan.output_tokens
            self._final(call, "failed_after_start")
            assert request.transport is not None
            request.transport.abort()
            await asyncio.sleep(0)
            return web.Response(status=500)
        return None

    async def _stream(
        self, request: web.Request, call: Call,
        parts: tuple[list[bytes], list[bytes], bytes], output: int, content_type: str,
    ) -> web.StreamResponse:  # fmt: skip
        plan = self._plan(call)
        frames, tail, error = parts
        response = web.StreamResponse(headers={"content-type": content_type})
        try:
            await response.prepare(request)
        except ConnectionError:
            self._final(call, "client_gone")
            return response
        for number, frame in enumerate(frames):
            if plan.hold_after_chunks == number:
                await self._wait(plan)
            if plan.error_event_after == number:
                await response.write(error)
                self._final(call, "failed_after_start")
                return response
            if plan.die_after_chunks == number:
                self._final(call, "failed_after_start")
                assert request.transport is not None
                request.transport.abort()
                return response
            call.output_tokens = output * (number + 1) // len(frames)
            try:
                await response.write(frame)
            except ConnectionError:
                self._final(call, "client_gone")
                return response
            await asyncio.sleep(plan.delay)
        if plan.hold_after_chunks == len(frames):
            await self._wait(plan)
        call.output_tokens = output
        self._final(call)
        for frame in tail:
            try:
                await response.write(frame)
            except ConnectionError:
                break
        if plan.die_behind_the_end:
            await self._wait(plan)
            assert request.transport is not None
            request.transport.abort()
        return response

    async def _wait(self, plan: Behaviour) -> None:
        if plan.hold is not None:
            await plan.hold.wait()
        await asyncio.sleep(plan.delay)

    def _final(self, call: Call, outcome: str = "ok") -> None:
        call.status, call.outcome = "final", outcome


def aws_frame(event: str, payload: dict[str, Any], kind: str = "event") -> bytes:
    """An AWS event-stream frame, after the public description of the format."""
    name = ":event-type" if kind == "event" else ":exception-type"
    pairs = ((":message-type", kind), (name, event), (":content-type", "application/json"))
    headers = b"".join(
        bytes([len(key)]) + key.encode() + b"\x07" + struct.pack("!H", len(value)) + value.encode()
        for key, value in pairs
    )
    body = json.dumps(payload).encode()
    prelude = struct.pack("!II", 16 + len(headers) + len(body), len(headers))
    whole = prelude + struct.pack("!I", zlib.crc32(prelude)) + headers + body
    return whole + struct.pack("!I", zlib.crc32(whole))
