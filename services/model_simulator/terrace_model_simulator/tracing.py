"""One server span per model call. The only module that imports Terrace's telemetry."""

from collections.abc import Mapping

from opentelemetry.trace import Span, SpanKind

from terrace_common.telemetry import Telemetry, context_from_headers, semconv, setup_telemetry


class CallTracing:
    """Spans of the simulated provider, in the caller's W3C trace."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def start(
        self, *, headers: Mapping[str, str], model: str, surface: str, attempt_id: str | None
    ) -> Span:
        """Start a call's span; the caller ends it."""
        attributes = {
            semconv.OPERATION_NAME: semconv.OPERATION_CHAT,
            semconv.PROVIDER_NAME: "terrace.simulator",
            semconv.REQUEST_MODEL: model,
            semconv.TERRACE_SURFACE: surface,
        }
        if attempt_id is not None:
            attributes[semconv.TERRACE_ATTEMPT_ID] = attempt_id
        return self._telemetry.tracer.start_span(
            semconv.chat_span_name(model),
            context=context_from_headers(headers),
            kind=SpanKind.SERVER,
            attributes=attributes,
        )

    def end(
        self, span: Span, *, outcome: str, input_tokens: int = 0, output_tokens: int = 0
    ) -> None:
        """Close a call's span with what it came to."""
        span.set_attributes(
            {
                semconv.TERRACE_OUTCOME: outcome,
                semconv.USAGE_INPUT_TOKENS: input_tokens,
                semconv.USAGE_OUTPUT_TOKENS: output_tokens,
            }
        )
        span.end()

    def shutdown(self) -> None:
        """Flush what is queued."""
        self._telemetry.shutdown()


def start_tracing(instance: str) -> CallTracing:
    """Tracing as the environment configures it (``OTEL_EXPORTER_OTLP_ENDPOINT``)."""
    return CallTracing(setup_telemetry("model-simulator", instance=instance))
