"""Metrics of OpenTelemetry's GenAI conventions, by the names that Prometheus gives them.

Names, buckets and labels: ``terrace_common.telemetry.semconv``. Tokens are the billable ones.
"""

from prometheus_client import CollectorRegistry, Histogram

from terrace_common.telemetry import semconv
from terrace_gateway.calls.ports import Usage

_LABELS = (
    semconv.prometheus_name(semconv.OPERATION_NAME),
    semconv.prometheus_name(semconv.PROVIDER_NAME),
    semconv.prometheus_name(semconv.REQUEST_MODEL),
)


class GenAiMetrics:
    """One observation per upstream attempt that was answered."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._tokens = Histogram(
            semconv.prometheus_name(semconv.METRIC_TOKEN_USAGE),
            "Billable tokens of one call.",
            (*_LABELS, semconv.prometheus_name(semconv.TOKEN_TYPE)),
            registry=registry,
            buckets=semconv.TOKEN_BUCKETS,
        )
        self._duration = Histogram(
            semconv.prometheus_name(semconv.METRIC_OPERATION_DURATION, unit="seconds"),
            "From the sending of a call to its end.",
            _LABELS,
            registry=registry,
            buckets=semconv.SECONDS_BUCKETS,
        )
        self._first_chunk = Histogram(
            semconv.prometheus_name(semconv.METRIC_TIME_TO_FIRST_CHUNK, unit="seconds"),
            "From the sending of a call to the first chunk of its streamed answer.",
            _LABELS,
            registry=registry,
            buckets=semconv.SECONDS_BUCKETS,
        )

        self._known: dict[tuple[str, str, str], tuple[Histogram, Histogram, Histogram]] = {}

    def answered(
        self,
        *,
        operation: str,
        provider: str,
        model: str,
        usage: Usage,
        seconds: float,
        first_chunk_seconds: float | None,
    ) -> None:
        """One call: ``model`` is the catalogue's name; ``first_chunk_seconds`` of streams only."""
        labels = (operation, provider, model)
        known = self._known.get(labels)
        if known is None:  # looking children up by their labels costs more than observing
            known = self._known[labels] = (
                self._tokens.labels(*labels, "input"),
                self._tokens.labels(*labels, "output"),
                self._duration.labels(*labels),
            )
        input_tokens, output_tokens, duration = known
        input_tokens.observe(usage.all_input_tokens)
        output_tokens.observe(usage.output_tokens)
        duration.observe(seconds)
        if first_chunk_seconds is not None:
            self._first_chunk.labels(*labels).observe(first_chunk_seconds)
