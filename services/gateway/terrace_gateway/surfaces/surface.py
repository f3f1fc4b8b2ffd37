"""How a public surface's answers are read, rebuilt, filtered and ended."""

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import orjson

from terrace_gateway.calls.ports import TextFilter, Usage
from terrace_gateway.edge.client import Headers
from terrace_gateway.edge.errors import ApiError
from terrace_gateway.surfaces.json_body import Json

JSON_HEADERS: Headers = [(b"content-type", b"application/json")]
SSE_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
]


class BrokenAnswerError(Exception):
    """The answer is not what the surface promises."""


@dataclass(frozen=True)
class Identity:
    """What replaces the upstream's own identity in an answer."""

    request_id: str
    model: str


class AnswerStream(Protocol):
    """A streamed answer on its way through."""

    @property
    def usage(self) -> Usage | None:
        """What the provider has reported for good; ``None`` before, or for ever."""
        ...

    @property
    def done(self) -> bool:
        """The answer is complete; only ``ending`` is missing."""
        ...

    @property
    def failed(self) -> bool:
        """The upstream said that the answer broke off."""
        ...

    def feed(self, data: bytes) -> bytes:
        """What the client gets for these upstream bytes. Raises ``BrokenAnswerError``, and
        ``ApiError`` if the text filter ends the answer."""
        ...

    def ending(self) -> bytes:
        """What the client gets last, after the settlement."""
        ...


class Surface(Protocol):
    """One public surface's answers to one request."""

    @property
    def name(self) -> str:
        """``chat``, ``messages``, ..."""
        ...

    @property
    def stream(self) -> bool:
        """Whether the client asked for a stream."""
        ...

    @property
    def stream_headers(self) -> Headers:
        """Headers of a streamed answer."""
        ...

    def usage(self, answer: object) -> Usage | None:
        """Usage of a plain answer; ``None`` if there is none that can be believed."""
        ...

    def rebuild(self, answer: object) -> bytes:
        """A plain answer for the client. Raises ``BrokenAnswerError``."""
        ...

    def texts(self, answer: object) -> tuple[str, ...]:
        """All text of a plain answer that its client would see, in order (``answer_fields``).

        Raises ``BrokenAnswerError``.
        """
        ...

    def replace_texts(self, answer: object, texts: Sequence[str]) -> object:
        """The answer saying ``texts``, as many as there were, and nothing that is not among
        them."""
        ...

    def open_stream(self, text_filter: TextFilter | None = None) -> AnswerStream:
        """A reader for one streamed answer.

        Every text that the client would see goes through ``text_filter``, or the answer is broken.
        It is told which part of the answer each piece continues, and flushed before another.
        """
        ...

    def broken(self, error: ApiError) -> bytes:
        """How a streamed answer says that it ended by an error."""
        ...


class PartFilter:
    """A text filter over an answer of several parts, told apart by a key.

    What it holds back belongs to the part that it came from, and is given out before another part
    begins, or goes on.
    """

    def __init__(self, text_filter: TextFilter | None) -> None:
        self._filter = text_filter
        self._part: object = None

    @property
    def active(self) -> bool:
        """Whether there is a filter at all."""
        return self._filter is not None

    @property
    def part(self) -> object:
        """The part that text may be held back of; ``None``: nothing is."""
        return self._part

    def feed(self, part: object, text: str) -> str:
        """Text of the current part that may be shown. ``left`` must have ended another part."""
        if self._filter is None:
            return text
        self._part = part
        return self._filter.feed(text, part)

    def left(self) -> str:
        """What was held back of the part that ends here."""
        if self._filter is None or self._part is None:
            return ""
        self._part = None
        return self._filter.flush()

    def whole(self, text: str) -> str:
        """A text that stands by itself, as it may be shown.

        Raises ``BrokenAnswerError`` inside of another, of which something may be held back.
        """
        if self._filter is None:
            return text
        if self._part is not None:
            raise BrokenAnswerError("a text where there is none")
        return self._filter.feed(text) + self._filter.flush()


def encode_answer(answer: Json) -> bytes:
    """Compact JSON in ASCII: a model that was cut off may end in half of a surrogate pair, and it
    is paid for."""
    return json.dumps(answer, separators=(",", ":")).encode()


def read_answer(body: bytes, surface: str) -> object:
    """The JSON of a plain answer. Raises ``BrokenAnswerError``.

    Embeddings are read the fast way, a fifth of the time for millions of numbers; it is strict
    about halves of surrogate pairs and NaN, and keeps no integers of 65 bits, which answers of
    other surfaces may have.
    """
    try:
        if surface == "embeddings":
            with contextlib.suppress(orjson.JSONDecodeError):
                return orjson.loads(body)
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BrokenAnswerError("the answer is not JSON") from error


def read_event(payload: bytes) -> Json:
    """The object of a streamed event. Raises ``BrokenAnswerError``."""
    try:
        return answer_object(json.loads(payload))
    except (ValueError, RecursionError) as error:
        raise BrokenAnswerError("an event is not JSON") from error


def answer_object(value: object) -> Json:
    """``value`` as an object. Raises ``BrokenAnswerError``."""
    if not isinstance(value, dict):
        raise BrokenAnswerError("an object was expected")
    return cast("Json", value)


def answer_list(value: object) -> list[object]:
    """``value`` as a list; empty for anything else."""
    return cast("list[object]", value) if isinstance(value, list) else []


def kept(source: Json, fields: Sequence[str]) -> Json:
    """The named fields that have a value."""
    return {field: source[field] for field in fields if source.get(field) is not None}


def answer_texts(walk: "AnswerWalk", answer: object) -> tuple[str, ...]:
    """Every text of an answer, in order."""
    found: list[str] = []

    def note(text: str) -> str:
        found.append(text)
        return text

    walk(answer_object(answer), note)
    return tuple(found)


def with_answer_texts(walk: "AnswerWalk", answer: object, texts: Sequence[str]) -> Json:
    """The answer with its texts replaced."""
    left = iter(texts)
    return walk(answer_object(answer), lambda _text: next(left, ""))


AnswerWalk = Callable[[Json, Callable[[str], str]], Json]
