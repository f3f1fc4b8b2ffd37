"""OpenTelemetry for Terrace's services: names in ``semconv``, set-up in ``setup``. Needs the extra
``terrace-common[telemetry]``."""

from terrace_common.telemetry import semconv
from terrace_common.telemetry.setup import (
    Telemetry,
    context_from_headers,
    current_traceparent,
    setup_telemetry,
    trace_id_of,
)

__all__ = [
    "Telemetry",
    "context_from_headers",
    "current_traceparent",
    "semconv",
    "setup_telemetry",
    "trace_id_of",
]
