"""Server-sent events: split out of bytes, and written."""

import json

from terrace_gateway.surfaces.json_body import Json
from terrace_gateway.surfaces.surface import BrokenAnswerError

MAX_EVENT_BYTES = 8 * 1024 * 1024


class EventSplitter:
    """Splits a stream into the data of its events, whatever pieces it comes in."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The data of each event that is complete now; events without data are left out.

        Raises ``BrokenAnswerError`` for an event above ``MAX_EVENT_BYTES``.
        """
        *events, self._rest = (self._rest + data).replace(b"\r\n", b"\n").split(b"\n\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise BrokenAnswerError("an event is too large")
        payloads = (
            b"\n".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))
            for event in events
        )
        return [payload for payload in payloads if payload]


def sse_event(value: Json, name: str | None = None) -> bytes:
    """One server-sent event, with the name that Anthropic's and the responses' have."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"
