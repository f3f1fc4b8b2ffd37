"""Spans carry ids from W3C headers; nothing is exported unless an endpoint is set."""

from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from terrace_common.telemetry import (
    context_from_headers,
    current_traceparent,
    setup_telemetry,
    trace_id_of,
)

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def test_a_callers_trace_is_continued() -> None:
    exporter = InMemorySpanExporter()
    telemetry = setup_telemetry(
        "gateway", instance="i", processor=SimpleSpanProcessor(exporter), environment={}
    )
    parent = context_from_headers({"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"})
    with telemetry.tracer.start_as_current_span("a", context=parent) as span:
        assert trace_id_of(span) == TRACE
        assert current_traceparent(span).startswith(f"00-{TRACE}-")
        assert "00f067aa0ba902b7" not in current_traceparent(span)
    telemetry.shutdown()
    [finished] = exporter.get_finished_spans()
    assert finished.resource.attributes["service.name"] == "gateway"


def test_a_broken_traceparent_starts_a_new_trace() -> None:
    telemetry = setup_telemetry("gateway", instance="i", environment={})
    for header in ("", "garbage", "00-" + "0" * 32 + "-00f067aa0ba902b7-01"):
        context = context_from_headers({"traceparent": header})
        with telemetry.tracer.start_as_current_span("a", context=context) as span:
            assert int(trace_id_of(span), 16) != 0
    telemetry.shutdown()
