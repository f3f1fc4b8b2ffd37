"""Structured logs: one JSON object per line on stdout. No keys, no credentials."""

import logging
import re
import sys
from typing import TextIO

import structlog
from structlog.types import EventDict, WrappedLogger

# The second wall: nothing of this shape is ever logged on purpose.
_SECRETS = re.compile(r"(tadm-|tk-|AKIA|ASIA)[A-Za-z0-9_-]{8,}|(Bearer |Credential=)\S+")


def configure_logs(*, replica: str, stream: TextIO | None = None) -> None:
    """Configure structlog and the standard library's root logger for the process."""
    target = stream or sys.stdout

    def add_replica(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        event["replica"] = replica
        return event

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            add_replica,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.ExceptionRenderer(
                structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
            ),
            structlog.processors.JSONRenderer(),
            _redacted,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=target),
        cache_logger_on_first_use=False,
    )
    # botocore tells of requests with their headers at DEBUG.
    logging.getLogger().handlers[:] = [logging.NullHandler()]


def _redacted(_: WrappedLogger, __: str, line: object) -> str:
    return _SECRETS.sub(lambda found: f"{found[1] or found[2]}[redacted]", str(line))
