"""Structured logs: one JSON object per line on stdout. No keys, prompts or credentials."""

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import TextIO, cast

import orjson
import structlog
from structlog.types import EventDict, WrappedLogger

# The second wall: nothing of this shape is ever logged on purpose.
_SECRETS = re.compile(
    r"(tk-|tadm-|sk-)[A-Za-z0-9_-]{8,}|(postgres(?:ql)?://[^:/\s]+:)[^@\s]+@|(Bearer )\S+"
)
# What every match of it contains, also as JSON; a line without any of these has nothing to blank.
_MARKS = re.compile("tk-|tadm-|sk-|postgres|Bearer ")


def configure_logs(
    *, replica: str, stream: TextIO | None = None, level: int = logging.INFO
) -> None:
    """Configure structlog and the standard library's root logger for the process."""
    target = stream or sys.stdout

    def add_replica(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        event["replica"] = replica
        return event

    described: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        add_replica,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.ExceptionRenderer(
            # no locals: they hold prompts and keys
            structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        ),
    ]
    structlog.configure(
        processors=[*described, render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=target),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=described,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    # One line per second and connection while Postgres is away; the guard says it once itself.
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
    # It warns of every malformed request and upgrade: a stranger could fill the disk.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)


def render(logger: WrappedLogger, name: str, event: EventDict) -> str:
    """The line, redacted. Looking at the line first is several times cheaper than at each value."""
    line = _line(event)
    if _MARKS.search(line) is not None:
        line = _line(redact(logger, name, event))
    return line


def redact(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Blank everything that has the shape of a secret, also inside tracebacks."""
    return {key: _clean(value) for key, value in event.items()}


def _line(event: EventDict) -> str:
    try:
        return orjson.dumps(event, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()
    except orjson.JSONEncodeError:  # a text with half of a surrogate pair, an integer of 80 bits
        return orjson.dumps(_plain(event)).decode()


def _plain(value: object) -> object:
    if isinstance(value, MutableMapping):
        items = cast("MutableMapping[object, object]", value).items()
        return {str(_plain(key)): _plain(inner) for key, inner in items}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in cast("list[object]", value)]
    if value is None or isinstance(value, bool | float):
        return value
    return str(value).encode("utf-8", "replace").decode()


def _clean(value: object) -> object:
    if isinstance(value, str):
        return _SECRETS.sub(lambda m: f"{m[1] or m[2] or m[3]}[redacted]", value)
    if isinstance(value, MutableMapping):
        items = cast("MutableMapping[object, object]", value).items()
        return {key: _clean(inner) for key, inner in items}
    if isinstance(value, list | tuple):
        return [_clean(inner) for inner in cast("list[object]", value)]
    return value
