"""Bedrock converse on the way back. Plain answers are rebuilt; stream frames pass as they are, and
only their ``metadata`` frame is read (usage) and held until the attempt is settled. Under a text
filter the frames that carry text are written anew.
"""

import json
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from botocore.eventstream import (  # pyright: ignore[reportMissingTypeStubs]
    EventStreamBuffer,
    ParserError,
)

from terrace_gateway.calls.ports import TextFilter, Usage
from terrace_gateway.edge.client import Headers
from terrace_gateway.edge.errors import ApiError
from terrace_gateway.surfaces.answer_fields import (
    ID,
    LABEL,
    NUMBER,
    SEALED,
    TEXT,
    WORD,
    Fields,
    change_json,
    walk,
)
from terrace_gateway.surfaces.json_body import Json
from terrace_gateway.surfaces.surface import (
    BrokenAnswerError,
    PartFilter,
    answer_object,
    answer_texts,
    encode_answer,
    with_answer_texts,
)
from terrace_gateway.surfaces.usage import converse_usage

_FIELDS = ("output", "stopReason", "usage", "metrics")
_BLOCK_PLACES: Fields = {
    "text": TEXT,
    "toolUse": {"toolUseId": ID, "name": TEXT, "input": TEXT, "type": WORD},
    "reasoningContent": {
        "reasoningText": {"text": TEXT, "signature": SEALED},
        "redactedContent": SEALED,
    },
}
_COUNTS = (
    "inputTokens",
    "outputTokens",
    "totalTokens",
    "cacheReadInputTokens",
    "cacheWriteInputTokens",
    "cacheReadInputTokenCount",
    "cacheWriteInputTokenCount",
)
_LAST_PLACES: Fields = {
    "usage": {
        **dict.fromkeys(_COUNTS, NUMBER),
        "cacheDetails": {"ttl": LABEL, "inputTokens": NUMBER},
    },
    "metrics": {"latencyMs": NUMBER},
}
_PLACES: Fields = {
    "output": {"message": {"role": WORD, "content": _BLOCK_PLACES}},
    "stopReason": WORD,
    **_LAST_PLACES,
}
_START_PLACES: Fields = {"toolUse": {"toolUseId": ID, "name": TEXT, "type": WORD}}
_EVENT_PLACES: dict[str, Fields] = {
    "messageStart": {"role": WORD},
    "contentBlockStart": {"contentBlockIndex": NUMBER, "start": _START_PLACES},
    "contentBlockStop": {"contentBlockIndex": NUMBER},
    "messageStop": {"stopReason": WORD, "additionalModelResponseFields": TEXT},
    "metadata": _LAST_PLACES,
}
"""Of the events that carry no piece of a text; under a filter nothing else of them passes."""
_SIGNED_PLACES: Fields = {"signature": SEALED, "redactedContent": SEALED}
_FRAME_HEADERS: Headers = [(b"content-type", b"application/vnd.amazon.eventstream")]
_PRELUDE_BYTES = 12
_MIN_FRAME_BYTES = 16
_MAX_FRAME_BYTES = 24 * 1024 * 1024
_STRING_HEADER = 7


@dataclass(frozen=True)
class ConverseSurface:
    """``POST /model/{modelId}/converse`` and ``converse-stream``."""

    stream: bool
    hour_asked: bool = False
    """Whether the request asks for cache writes that live for an hour."""
    name: str = "converse"

    @property
    def stream_headers(self) -> Headers:
        """AWS event frames."""
        return _FRAME_HEADERS

    def usage(self, answer: object) -> Usage | None:
        """Usage of a converse answer."""
        return converse_usage(answer, hour_asked=self.hour_asked)

    def rebuild(self, answer: object) -> bytes:
        """The converse answer."""
        return encode_answer(rebuild_converse(answer))

    def texts(self, answer: object) -> tuple[str, ...]:
        """All text of each content block, and of whatever else there is."""
        return answer_texts(_walk, answer)

    def replace_texts(self, answer: object, texts: Sequence[str]) -> object:
        """The answer saying ``texts``."""
        return with_answer_texts(_walk, answer, texts)

    def open_stream(self, text_filter: TextFilter | None = None) -> "FrameStream":
        """AWS event frames."""
        return FrameStream(text_filter, hour_asked=self.hour_asked)

    def broken(self, error: ApiError) -> bytes:
        """An exception frame."""
        code = "validationException" if error.status < 500 else "internalServerException"
        return exception_frame(code, error.message)


def rebuild_converse(answer: object) -> Json:
    """A plain answer. Raises ``BrokenAnswerError`` if it has no output."""
    if not isinstance(answer, dict) or "output" not in answer:
        raise BrokenAnswerError("no output")
    source = cast("Json", answer)
    return {field: source[field] for field in _FIELDS if field in source}


class FrameStream:
    """Splits a stream into AWS event frames. Feed bytes; take frames; ask for usage at the end."""

    def __init__(self, text_filter: TextFilter | None = None, *, hour_asked: bool = False) -> None:
        self._hour_asked = hour_asked
        self._rest = bytearray()
        self._filter = PartFilter(text_filter)
        self.usage: Usage | None = None
        self._held = b""
        self.done = False
        self.failed = False

    def feed(self, data: bytes) -> bytes:
        """Whole frames for the client, except ``metadata``, which waits for ``ending``.

        Raises ``BrokenAnswerError`` for bytes that are not frames.
        """
        rest = self._rest
        rest.extend(data)
        passed = bytearray()
        begin = 0
        while len(rest) - begin >= _PRELUDE_BYTES:
            length = int.from_bytes(rest[begin : begin + 4], "big")
            if not _MIN_FRAME_BYTES <= length <= _MAX_FRAME_BYTES:
                raise BrokenAnswerError("not an event frame")
            end = begin + length
            if len(rest) < end:
                break
            passed += self._frame(bytes(rest[begin:end]))
            begin = end
        del rest[:begin]
        return bytes(passed)

    def ending(self) -> bytes:
        """The frames that were held."""
        return self._held

    def _frame(self, frame: bytes) -> bytes:
        headers_length = int.from_bytes(frame[4:8], "big")
        headers = frame[_PRELUDE_BYTES : _PRELUDE_BYTES + headers_length]
        if self.failed or b"exception" in headers or b":error-code" in headers:
            self.failed = True
            return b""  # its text is the provider's; ours follows
        if self.done:
            return b"" if self._filter.active else frame
        if b"metadata" not in headers:
            return self._filtered(frame) if self._filter.active else frame
        self.usage = converse_usage(_payload(frame), hour_asked=self._hour_asked)
        self.done = True
        left = self._left()
        self._held += self._event("metadata", frame) if self._filter.active else frame
        return left

    def _filtered(self, frame: bytes) -> bytes:
        kind = _event_type(frame)
        if kind == "contentBlockDelta":
            return self._delta(answer_object(_payload(frame)))
        if kind not in _EVENT_PLACES:
            return b""
        return self._left() + self._event(kind, frame)

    def _event(self, kind: str, frame: bytes) -> bytes:
        source, places = answer_object(_payload(frame)), _EVENT_PLACES[kind]
        shown = {field: source[field] for field in places if field in source}
        return _event_frame(kind, walk(shown, places, self._filter.whole))

    def _delta(self, event: Json) -> bytes:
        index = event.get("contentBlockIndex")
        if index is not None and not isinstance(index, int):
            raise BrokenAnswerError("a block without a number")
        delta = answer_object(event.get("delta") or {})
        if len(delta) != 1:
            raise BrokenAnswerError("a delta of no kind, or of several")
        [(place, found)] = delta.items()
        inner = _DELTA_TEXTS.get(place)
        fields = answer_object(found) if inner is not None else {}
        if inner in fields or (inner is None and place in _DELTA_TEXTS):
            text = fields[inner] if inner is not None else found
            if not isinstance(text, str) or len(fields) > 1:
                raise BrokenAnswerError("a delta without text")
            if not text:  # begins no other part
                return _text_frame(index, place, text)
            before = b"" if self._filter.part in (None, (index, place)) else self._left()
            return before + _text_frame(index, place, self._filter.feed((index, place), text))
        left = self._left()
        if place == "reasoningContent":  # its signature, or what is redacted
            shown: Json = {place: walk(fields, _SIGNED_PLACES, self._filter.whole)}
        else:
            shown = answer_object(change_json({place: found}, self._filter.whole))
        return left + _event_frame(
            "contentBlockDelta", {"contentBlockIndex": index, "delta": shown}
        )

    def _left(self) -> bytes:
        part = self._filter.part
        text = self._filter.left()
        if not text:
            return b""
        index, place = cast("tuple[object, str]", part)
        return _text_frame(index, place, text)


_DELTA_TEXTS = {"text": None, "toolUse": "input", "reasoningContent": "text"}


def _text_frame(index: object, place: str, text: str) -> bytes:
    inner = _DELTA_TEXTS[place]
    delta = {place: text if inner is None else {inner: text}}
    return _event_frame("contentBlockDelta", {"contentBlockIndex": index, "delta": delta})


def _event_frame(kind: str, payload: Json) -> bytes:
    return _frame_of(
        (":message-type", "event"),
        (":event-type", kind),
        (":content-type", "application/json"),
        payload=payload,
    )


def exception_frame(code: str, message: str) -> bytes:
    """An exception frame as Bedrock sends one; SDKs raise it as an error of the stream."""
    return _frame_of(
        (":message-type", "exception"),
        (":exception-type", code),
        (":content-type", "application/json"),
        payload={"message": message},
    )


def _frame_of(*names: tuple[str, str], payload: Json) -> bytes:
    headers = b"".join(_string_header(name, value) for name, value in names)
    body = json.dumps(payload).encode()
    length = _MIN_FRAME_BYTES + len(headers) + len(body)
    prelude = struct.pack("!II", length, len(headers))
    start = prelude + struct.pack("!I", zlib.crc32(prelude)) + headers + body
    return start + struct.pack("!I", zlib.crc32(start))


def _string_header(name: str, value: str) -> bytes:
    return (
        struct.pack("!B", len(name))
        + name.encode()
        + struct.pack("!BH", _STRING_HEADER, len(value))
        + value.encode()
    )


def _read(frame: bytes) -> tuple[Json, bytes]:
    """Headers and payload. Raises ``BrokenAnswerError``."""
    buffer = EventStreamBuffer()
    buffer.add_data(frame)  # pyright: ignore[reportUnknownMemberType]
    try:
        message = next(buffer)
    except (ParserError, StopIteration, ValueError) as error:
        raise BrokenAnswerError("a damaged event frame") from error
    return cast("Json", message.headers), cast("bytes", message.payload)  # pyright: ignore[reportUnknownMemberType]


def _event_type(frame: bytes) -> str:
    return str(_read(frame)[0].get(":event-type"))


def _payload(frame: bytes) -> object:
    try:
        return json.loads(_read(frame)[1])
    except (ValueError, RecursionError) as error:
        raise BrokenAnswerError("a damaged event frame") from error


def _walk(answer: Json, change: Callable[[str], str]) -> Json:
    return walk(rebuild_converse(answer), _PLACES, change)
