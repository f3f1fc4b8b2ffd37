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
from terrace_gateway.surfaces.json_body import Json
from terrace_gateway.surfaces.surface import (
    BrokenAnswerError,
    PartFilter,
    answer_list,
    answer_object,
    answer_texts,
    change_json,
    encode_answer,
    with_answer_texts,
)
from terrace_gateway.surfaces.usage import converse_usage

_FIELDS = ("output", "stopReason", "usage", "metrics")
_FRAME_HEADERS: Headers = [(b"content-type", b"application/vnd.amazon.eventstream")]
_PRELUDE_BYTES = 12
_MIN_FRAME_BYTES = 16
_MAX_FRAME_BYTES = 24 * 1024 * 1024
_STRING_HEADER = 7


@dataclass(frozen=True)
class ConverseSurface:
    """``POST /model/{modelId}/converse`` and ``converse-stream``."""

    stream: bool
    name: str = "converse"

    @property
    def stream_headers(self) -> Headers:
        """AWS event frames."""
        return _FRAME_HEADERS

    def usage(self, answer: object) -> Usage | None:
        """Usage of a converse answer."""
        return converse_usage(answer)

    def rebuild(self, answer: object) -> bytes:
        """The converse answer."""
        return encode_answer(rebuild_converse(answer))

    def texts(self, answer: object) -> tuple[str, ...]:
        """Text, reasoning and tool input of each content block."""
        return answer_texts(_walk, answer)

    def replace_texts(self, answer: object, texts: Sequence[str]) -> object:
        """The answer saying ``texts``."""
        return with_answer_texts(_walk, answer, texts)

    def open_stream(self, text_filter: TextFilter | None = None) -> "FrameStream":
        """AWS event frames."""
        return FrameStream(text_filter)

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

    def __init__(self, text_filter: TextFilter | None = None) -> None:
        self._rest = b""
        self._filter = PartFilter(text_filter)
        self.usage: Usage | None = None
        self._held = b""
        self.done = False
        self.failed = False

    def feed(self, data: bytes) -> bytes:
        """Whole frames for the client, except ``metadata``, which waits for ``ending``.

        Raises ``BrokenAnswerError`` for bytes that are not frames.
        """
        self._rest += data
        passed = bytearray()
        while len(self._rest) >= _PRELUDE_BYTES:
            length = int.from_bytes(self._rest[:4], "big")
            if not _MIN_FRAME_BYTES <= length <= _MAX_FRAME_BYTES:
                raise BrokenAnswerError("not an event frame")
            if len(self._rest) < length:
                break
            frame, self._rest = self._rest[:length], self._rest[length:]
            passed += self._frame(frame)
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
            return frame
        if b"metadata" not in headers:
            return self._filtered(frame, headers) if self._filter.active else frame
        self.usage = converse_usage(_payload(frame))
        self._held += frame
        self.done = True
        return self._left()

    def _filtered(self, frame: bytes, headers: bytes) -> bytes:
        if b"contentBlockDelta" not in headers:
            return self._left() + frame
        event = answer_object(_payload(frame))
        index = event.get("contentBlockIndex")
        delta = answer_object(event.get("delta") or {})
        place = next((name for name in _DELTA_TEXTS if name in delta), None)
        if place is None:
            return self._left() + frame
        before = b"" if self._filter.part in (None, (index, place)) else self._left()
        found = delta[place]
        inner = _DELTA_TEXTS[place]
        if inner is not None:
            found = answer_object(found).get(inner)
        if not isinstance(found, str):  # a signature of reasoning, or redacted reasoning
            return before + frame
        text = self._filter.feed((index, place), found)
        return before + _text_frame(index, place, text)

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
    return _frame_of(
        (":message-type", "event"),
        (":event-type", "contentBlockDelta"),
        (":content-type", "application/json"),
        payload={"contentBlockIndex": index, "delta": delta},
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


def _payload(frame: bytes) -> object:
    buffer = EventStreamBuffer()
    buffer.add_data(frame)  # pyright: ignore[reportUnknownMemberType]
    try:
        return json.loads(cast("bytes", next(buffer).payload))  # pyright: ignore[reportUnknownMemberType]
    except (ParserError, StopIteration, ValueError) as error:
        raise BrokenAnswerError("a damaged event frame") from error


def _walk(answer: Json, change: Callable[[str], str]) -> Json:
    output = answer_object(answer.get("output") or {})
    message = answer_object(output.get("message") or {})
    blocks = [
        _walk_block(answer_object(block), change) for block in answer_list(message.get("content"))
    ]
    return {**answer, "output": {**output, "message": {**message, "content": blocks}}}


def _walk_block(block: Json, change: Callable[[str], str]) -> Json:
    if isinstance(text := block.get("text"), str):
        return {**block, "text": change(text)}
    if isinstance(use := block.get("toolUse"), dict):
        tool = cast("Json", use)
        return {"toolUse": {**tool, "input": change_json(tool.get("input"), change)}}
    if isinstance(thought := block.get("reasoningContent"), dict):
        inner = answer_object(cast("Json", thought).get("reasoningText") or {})
        if isinstance(text := inner.get("text"), str):
            return {"reasoningContent": {"reasoningText": {**inner, "text": change(text)}}}
    return block
