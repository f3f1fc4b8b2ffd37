"""A call's span stands in its caller's trace and says what the call came to."""

from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from terrace_common.telemetry import semconv, setup_telemetry
from terrace_model_simulator.tracing import CallTracing

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_the_span_joins_the_trace() -> None:
    exporter = InMemorySpanExporter()
    telemetry = setup_telemetry(
        "model-simulator", instance="i", processor=SimpleSpanProcessor(exporter), environment={}
    )
    tracing = CallTracing(telemetry)
    span = tracing.start(
        headers={"traceparent": f"00-{TRACE}-{PARENT}-01"},
        model="sim-small",
        surface="converse",
        attempt_id="a-1",
    )
    tracing.end(span, outcome="ok", input_tokens=3, output_tokens=4)
    tracing.shutdown()
    (made,) = exporter.get_finished_spans()
    assert made.name == "chat sim-small"
    assert made.context is not None
    assert made.parent is not None
    assert f"{made.context.trace_id:032x}" == TRACE
    assert f"{made.parent.span_id:016x}" == PARENT
    attributes = dict(made.attributes or {})
    assert attributes[semconv.USAGE_INPUT_TOKENS] == 3
    assert attributes[semconv.USAGE_OUTPUT_TOKENS] == 4
    assert attributes[semconv.TERRACE_ATTEMPT_ID] == "a-1"
    assert attributes[semconv.TERRACE_OUTCOME] == "ok"
