"""Server-sent events: split out of bytes, and written."""

import json
import re

from terrace_gateway.surfaces.json_body import Json
from terrace_gateway.surfaces.surface import BrokenAnswerError

MAX_EVENT_BYTES = 8 * 1024 * 1024
_EVENT_END = re.compile(rb"\n\r?\n")
_SEAM = 2  # bytes of an end that may have come before this read


class EventSplitter:
    """Splits a stream into the data of its events, whatever pieces it comes in."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The data of each event that is complete now; events without data are left out.

        Raises ``BrokenAnswerError`` for an event above ``MAX_EVENT_BYTES``.
        """
        rest = self._rest
        if rest:
            begin = max(0, len(rest) - _SEAM)
            rest.extend(data)
            if _EVENT_END.search(rest, begin) is None:
                return self._held()
            data = bytes(rest)
        *events, last = data.replace(b"\r\n", b"\n").split(b"\n\n")
        self._rest = bytearray(last)
        self._held()
        payloads = (
            b"\n".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))
            for event in events
        )
        return [payload for payload in payloads if payload]

    def _held(self) -> list[bytes]:
        if len(self._rest) > MAX_EVENT_BYTES:
            raise BrokenAnswerError("an event is too large")
        return []


def sse_event(value: Json, name: str | None = None) -> bytes:
    """One server-sent event, with the name that Anthropic's and the responses' have."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"
