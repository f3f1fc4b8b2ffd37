"""Usage out of a relayed answer, whose bytes go to the client as they came.

A read that ends with an event and holds nothing of interest costs one search of an automaton and
is passed as the same object. Only events that may be an end, an error or a count are parsed.
"""

import re
from typing import cast

from terrace_gateway.calls.ports import Usage
from terrace_gateway.linear_search import Found, compile_bytes_pattern
from terrace_gateway.surfaces.sse import UnfinishedEvent
from terrace_gateway.surfaces.surface import BrokenAnswerError, read_answer, read_event
from terrace_gateway.surfaces.usage import chat_usage, embeddings_usage

# In a JSON string these quotes would be escaped; a false hit costs a parse, no more. The last one
# is data that is neither an object nor empty.
_OF_INTEREST = compile_bytes_pattern(
    rb'\[DONE\]|"usage"\s*:\s*\{|"finish_reason"\s*:\s*"|"error"\s*:|\\u00'
    rb"|data:(?:[^ {\r\n]| [^{\r\n]| ?$)"
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
        found = _OF_INTEREST.search(data)
        return data if found is None else self._look_closely(data, found)

    def ending(self) -> bytes:
        """The provider's own end mark; of a stream without one, what is left of it."""
        return self._end if self.done else bytes(self._rest)

    def _hold_back(self, data: bytes) -> bytes:
        """Keep the event that is not complete yet."""
        cut = _after_last_end(data, 0, len(data))
        self._rest.extend(data[cut:])
        self._rest.check()
        return data[:cut]

    def _look_closely(self, data: bytes, found: Found | None) -> bytes:
        """``found``: the first place of interest. Events without one are passed as they stand."""
        passed: list[bytes] = []
        begin = 0
        while found is not None:
            place = found.span()[0]
            start = _after_last_end(data, begin, place)
            ended = _EVENT_END.search(data, place)
            stop = len(data) if ended is None else ended.end()
            passed.append(data[begin:start])
            event = data[start:stop]
            begin = stop
            if _OF_INTEREST.search(event) is None or self._passes(event):
                passed.append(event)
            elif self.done:
                self._end += data[stop:]
                return b"".join(passed)
            elif self.failed:
                return b"".join(passed)
            found = _OF_INTEREST.search(data, begin)
        passed.append(data[begin:])
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


def _after_last_end(data: bytes, begin: int, stop: int) -> int:
    """Where the last event that ends between the two has ended; ``begin`` if none does."""
    found = ((data.rfind(end, begin, stop), end) for end in (b"\n\n", b"\r\n\r\n", b"\r\r"))
    return max((place + len(end) for place, end in found if place >= 0), default=begin)


def relay_usage(body: bytes, surface: str = "chat") -> Usage | None:
    """Usage of a plain relayed answer. Raises ``BrokenAnswerError`` if it is none of the surface:
    a completion, or embeddings."""
    vectors = surface == "embeddings"
    content, usage = ("data", embeddings_usage) if vectors else ("choices", chat_usage)
    answer = read_answer(body, surface)
    if not isinstance(answer, dict) or not cast("dict[str, object]", answer).get(content):
        raise BrokenAnswerError(f"no {content}")
    return usage(cast("object", answer))
