"""Server-sent events: split out of bytes, and written."""

import json
import re

from terrace_gateway.surfaces.json_body import Json
from terrace_gateway.surfaces.surface import BrokenAnswerError

MAX_EVENT_BYTES = 8 * 1024 * 1024
_EVENT_END = re.compile(rb"\n\r?\n")
_SEAM = 2  # bytes of an end that may have come before this read


class UnfinishedEvent(bytearray):
    """What has come of an event, whatever pieces it comes in."""

    def joined(self, data: bytes, end: re.Pattern[bytes], seam: int) -> bytes | None:
        """It and ``data``, if the ``end`` of an event has come; else all of it is kept. ``seam``:
        bytes of an end that may have come before."""
        if not self:
            return data
        begin = max(0, len(self) - seam)
        self.extend(data)
        if end.search(self, begin) is None:
            self.check()
            return None
        whole = bytes(self)
        self.clear()
        return whole

    def check(self) -> None:
        """Raises ``BrokenAnswerError`` above ``MAX_EVENT_BYTES``."""
        if len(self) > MAX_EVENT_BYTES:
            raise BrokenAnswerError("an event is too large")


class EventSplitter:
    """Splits a stream into the data of its events, whatever pieces it comes in."""

    def __init__(self) -> None:
        self._rest = UnfinishedEvent()

    def feed(self, data: bytes) -> list[bytes]:
        """The data of each event that is complete now; events without data are left out.

        Raises ``BrokenAnswerError`` for an event above ``MAX_EVENT_BYTES``.
        """
        joined = self._rest.joined(data, _EVENT_END, _SEAM)
        if joined is None:
            return []
        *events, last = joined.replace(b"\r\n", b"\n").split(b"\n\n")
        self._rest.extend(last)
        self._rest.check()
        payloads = (
            b"\n".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))
            for event in events
        )
        return [payload for payload in payloads if payload]


def sse_event(value: Json, name: str | None = None) -> bytes:
    """One server-sent event, with the name that Anthropic's and the responses' have."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"
