"""One trace per request, exported by OTLP to a collector that keeps what it was sent."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from gateway_rig.guard import GuardProcess
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

PROMPT = "canary-prompt-7f3a"


class Collector:
    """The trace half of an OTLP/HTTP collector."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        self.raw = b""

    async def receive(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.raw += body
        export = ExportTraceServiceRequest.FromString(body)
        for resource in export.resource_spans:
            self.services |= {
                a.value.string_value
                for a in resource.resource.attributes
                if a.key == "service.name"
            }
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        return web.Response(content_type="application/x-protobuf")


def attributes(span: Span) -> dict[str, Any]:
    return {a.key: getattr(a.value, str(a.value.WhichOneof("value"))) for a in span.attributes}


@pytest.fixture
async def collector(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    kept = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", kept.receive)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    yield kept
    await runner.cleanup()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_is_one_trace_with_genai_names_and_no_secret(
    collector: Collector, make_process: Callable[..., Awaitable[GuardProcess]], stream: bool
) -> None:
    guard = await make_process()
    key = await guard.key(team="tracing")
    caller = "0af7651916cd43dd8448eb211c80319c"
    answer = await guard.http.post(
        f"{guard.public_url}/v1/chat/completions",
        headers={
            "Authorization": f"Bearer {key}",
            "traceparent": f"00-{caller}-b7ad6b7169203331-01",
        },
        json={
            "model": "sim-small",
            "stream": stream,
            "messages": [{"role": "user", "content": PROMPT}],
        },
    )
    assert answer.status_code == 200
    async with asyncio.timeout(60):
        while not any(span.trace_id.hex() == caller and _is_root(span) for span in collector.spans):
            await asyncio.sleep(0.05)
    ours = [span for span in collector.spans if span.trace_id.hex() == caller]
    by_name = {span.name: span for span in ours}
    assert len(by_name) == len(ours) == 4, "the request, its reservation, the call, its settlement"
    root = next(span for span in ours if _is_root(span))
    call = next(span for span in ours if span.kind == Span.SPAN_KIND_CLIENT)
    assert call.parent_span_id == root.span_id
    assert by_name["terrace.reserve"].parent_span_id == root.span_id
    assert by_name["terrace.settle"].parent_span_id == call.span_id
    (entry,) = await guard.entries()
    seen = attributes(call)
    assert seen["gen_ai.operation.name"] == "chat"
    assert seen["gen_ai.usage.input_tokens"] == entry["input_tokens"]
    assert seen["gen_ai.usage.output_tokens"] == entry["output_tokens"]
    assert seen["terrace.amount_micro_usd"] == entry["amount_micro_usd"]
    assert seen["terrace.attempt.id"] == entry["attempt_id"]
    assert entry["trace_id"] == caller
    assert collector.services == {"gateway"}
    assert PROMPT.encode() not in collector.raw
    assert key.encode() not in collector.raw


async def test_a_collector_that_is_away_costs_no_call(
    monkeypatch: pytest.MonkeyPatch, make_process: Callable[..., Awaitable[GuardProcess]]
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    guard = await make_process()
    key = await guard.key(team="tracing")
    assert [(await guard.chat(key)).status_code for _ in range(5)] == [200] * 5


def _is_root(span: Span) -> bool:
    return span.kind == Span.SPAN_KIND_SERVER
