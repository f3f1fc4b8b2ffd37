"""OpenTelemetry SDK set-up: one tracer provider per service, OTLP/HTTP when an endpoint is set."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from terrace_common.telemetry.unrecorded import UnrecordedTracer

_PROPAGATOR = TraceContextTextMapPropagator()


@dataclass(frozen=True)
class Telemetry:
    """A service's tracer. Nothing is registered globally: tests can hold several side by side."""

    tracer: Tracer
    provider: TracerProvider

    def shutdown(self) -> None:
        """Flush and stop. Blocks for at most the exporter's own timeout."""
        self.provider.shutdown()


def setup_telemetry(
    service: str,
    *,
    instance: str,
    version: str = "0.1.0",
    processor: SpanProcessor | None = None,
    environment: Mapping[str, str] | None = None,
) -> Telemetry:
    """Make the tracer of ``service``.

    Spans are exported by OTLP/HTTP when ``OTEL_EXPORTER_OTLP_ENDPOINT`` (or the traces variant) is
    set, else they only carry ids. ``processor`` is added in any case (tests read spans with it).
    """
    env = os.environ if environment is None else environment
    resource = Resource.create(
        {
            "service.name": service,
            "service.namespace": "terrace",
            "service.instance.id": instance,
            "service.version": version,
        }
    )
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exported = env.get("OTEL_EXPORTER_OTLP_ENDPOINT") or env.get(
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
    )
    if not exported and processor is None:
        return Telemetry(UnrecordedTracer(), provider)
    if exported:
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    if processor is not None:
        provider.add_span_processor(processor)
    return Telemetry(provider.get_tracer(f"terrace.{service}", version), provider)


def context_from_headers(headers: Mapping[str, str]) -> Context:
    """The W3C trace context that a caller sent, or an empty one. Keys must be lower case."""
    if "traceparent" not in headers:  # a tracestate alone says nothing
        return Context()
    return _PROPAGATOR.extract(headers, context=Context())


def current_traceparent(span: Span) -> str:
    """Value of the ``traceparent`` header for a call made inside ``span``."""
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def trace_id_of(span: Span) -> str:
    """Trace id as 32 hex digits."""
    return f"{span.get_span_context().trace_id:032x}"
