"""A tracer for a service that exports nothing: its spans carry ids and record nothing."""

import random
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import (
    INVALID_SPAN_ID,
    INVALID_TRACE_ID,
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    TraceFlags,
    Tracer,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.util.types import Attributes

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)  # whether others record is not ours to say


class UnrecordedTracer(Tracer):
    """Continues a caller's trace or begins one, so that logs and calls onward have its ids.

    Attributes, events and times are dropped at once: nobody would read them.
    """

    def start_span(  # noqa: PLR0917  the API has it so
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
    ) -> Span:
        """A span with an id of its own in its parent's trace."""
        parent = get_current_span(context).get_span_context()
        span_id = random.getrandbits(64) or INVALID_SPAN_ID + 1
        if parent.is_valid:
            return NonRecordingSpan(
                SpanContext(parent.trace_id, span_id, False, parent.trace_flags, parent.trace_state)
            )
        trace_id = random.getrandbits(128) or INVALID_TRACE_ID + 1
        return NonRecordingSpan(SpanContext(trace_id, span_id, False, _SAMPLED))

    @contextmanager
    def start_as_current_span(  # pyright: ignore[reportIncompatibleMethodOverride]  # noqa: PLR0917
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
        end_on_exit: bool = True,
    ) -> Generator[Span]:
        """The same, current inside of the block."""
        span = self.start_span(name, context)
        token = attach(set_span_in_context(span, context))
        try:
            yield span
        finally:
            detach(token)
