"""Usage out of a relayed answer, whose bytes go to the client as they came.

A read that ends with an event and holds nothing of interest costs one regular expression and is
passed as the same object. Only events that may be an end, an error or a count are parsed.
"""

import re
from typing import cast

from terrace_gateway.calls.ports import Usage
from terrace_gateway.surfaces.sse import UnfinishedEvent
from terrace_gateway.surfaces.surface import BrokenAnswerError, read_answer, read_event
from terrace_gateway.surfaces.usage import chat_usage, embeddings_usage

# In a JSON string these quotes would be escaped; a false hit costs a parse, no more.
_OF_INTEREST = re.compile(
    rb'\[DONE\]|"usage"\s*:\s*\{|"finish_reason"\s*:\s*"|"error"\s*:|\\u00|data:(?! ?[\{\r\n])'
)
_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_SEAM = 3  # bytes of an end that may have come before this read


class RelayChatStream:
    """An ``AnswerStream`` for relayed chat completions.

    What the client gets is what the provider sent, byte for byte, except one thing: an event that
    has usage and no choice is left out for a client that did not ask for it (we did). The end mark
    and what follows it are given by ``ending``, after the settlement.
    """

    def __init__(self, *, include_usage: bool) -> None:
        self._include_usage = include_usage
        self._rest = UnfinishedEvent()
        self._end = b""
        self._finished = False
        self._so_far: Usage | None = None
        self.usage: Usage | None = None
        self.done = False
        self.failed = False

    def feed(self, data: bytes) -> bytes:
        """What the client gets for these bytes. Raises ``BrokenAnswerError``."""
        if self.done or self.failed:
            return b""
        joined = self._rest.joined(data, _EVENT_END, _SEAM)
        if joined is None:
            return b""
        data = joined
        if not data.endswith((b"\n\n", b"\r\n\r\n")):
            data = self._hold_back(data)
        if _OF_INTEREST.search(data) is None:
            return data
        return self._look_closely(data)

    def ending(self) -> bytes:
        """The provider's own end mark; of a stream without one, what is left of it."""
        return self._end if self.done else bytes(self._rest)

    def _hold_back(self, data: bytes) -> bytes:
        """Keep the event that is not complete yet."""
        cut = max(data.rfind(end) + len(end) if end in data else 0 for end in _ENDS)
        self._rest.extend(data[cut:])
        self._rest.check()
        return data[:cut]

    def _look_closely(self, data: bytes) -> bytes:
        passed: list[bytes] = []
        start = 0
        for match in _EVENT_END.finditer(data):
            event = data[start : match.end()]
            start = match.end()
            if self.done or self.failed:
                self._end += event if self.done else b""
            elif _OF_INTEREST.search(event) is None or self._passes(event):
                passed.append(event)
        if not self.done and not self.failed:
            passed.append(data[start:])  # an empty line too many
        return b"".join(passed)

    def _passes(self, event: bytes) -> bool:
        lines = event.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        payload = b"\n".join(line[5:].strip() for line in lines if line.startswith(b"data:"))
        if not payload:
            return True
        if payload == b"[DONE]":
            self.done = True
            self.usage = self._so_far
            self._end = event
            return False
        chunk = read_event(payload)
        if chunk.get("error") is not None:
            self.failed = True
            return False
        return self._chunk(chunk)

    def _chunk(self, chunk: dict[str, object]) -> bool:
        given = chunk.get("choices")
        choices = cast("list[object]", given) if isinstance(given, list) else []
        self._finished = self._finished or any(
            cast("dict[str, object]", choice).get("finish_reason")
            for choice in choices
            if isinstance(choice, dict)
        )
        usage = chat_usage(chunk)
        if usage is not None:
            self._so_far = usage
        if self._finished:  # before that it is a count so far, and less than the bill
            self.usage = usage or self.usage
        hidden = isinstance(chunk.get("usage"), dict) and not choices and not self._include_usage
        return not hidden


_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")


def relay_usage(body: bytes, surface: str = "chat") -> Usage | None:
    """Usage of a plain relayed answer. Raises ``BrokenAnswerError`` if it is none of the surface:
    a completion, or embeddings."""
    vectors = surface == "embeddings"
    content, usage = ("data", embeddings_usage) if vectors else ("choices", chat_usage)
    answer = read_answer(body, surface)
    if not isinstance(answer, dict) or not cast("dict[str, object]", answer).get(content):
        raise BrokenAnswerError(f"no {content}")
    return usage(cast("object", answer))
