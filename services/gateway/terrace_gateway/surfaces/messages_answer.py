"""Anthropic's messages on the way back: rebuilt from an allow-list, under the name that was asked.

Of a stream only the last ``message_delta`` has usage on every provider (LiteLLM 1.108), and the
stream is complete with ``message_stop``, which waits for the settlement.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from terrace_gateway.calls.ports import TextFilter, Usage
from terrace_gateway.edge.client import Headers
from terrace_gateway.edge.errors import ApiError
from terrace_gateway.surfaces.answer_fields import (
    ID,
    NUMBER,
    SEALED,
    SHOWN,
    TEXT,
    WORD,
    Fields,
    Place,
    walk,
)
from terrace_gateway.surfaces.json_body import Json
from terrace_gateway.surfaces.sse import EventSplitter, sse_event
from terrace_gateway.surfaces.surface import (
    JSON_HEADERS,
    SSE_HEADERS,
    AnswerStream,
    BrokenAnswerError,
    Identity,
    PartFilter,
    answer_list,
    answer_object,
    answer_texts,
    encode_answer,
    kept,
    read_event,
    with_answer_texts,
)
from terrace_gateway.surfaces.usage import messages_usage

_BLOCKS = {
    "text": ("type", "text"),
    "tool_use": ("type", "id", "name", "input"),
    "thinking": ("type", "thinking", "signature"),
    "redacted_thinking": ("type", "data"),
}
_DELTAS = {
    "text_delta": "text",
    "input_json_delta": "partial_json",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
}
_USAGE = (
    "input_tokens",
    "output_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
)
_LIFETIMES = ("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")
_USAGE_PLACES: Fields = {
    **dict.fromkeys(_USAGE, NUMBER),
    "cache_creation": dict.fromkeys(_LIFETIMES, NUMBER),
}
_END_PLACES: Fields = {"stop_reason": WORD, "stop_sequence": TEXT}


def _block_places(text: Place) -> Fields:
    return {
        "type": WORD, "text": text, "thinking": text, "signature": SEALED, "data": SEALED,
        "id": ID, "name": TEXT, "input": TEXT,
    }  # fmt: skip


_PLACES: Fields = {"content": _block_places(TEXT), **_END_PLACES, "usage": _USAGE_PLACES}
_EVENT_PLACES: Fields = {
    "type": WORD,
    "index": NUMBER,
    "message": {
        **dict.fromkeys(("id", "type", "role", "model"), SHOWN),
        "content": NUMBER,
        **_END_PLACES,
        "usage": _USAGE_PLACES,
    },
    "content_block": _block_places(SHOWN),
    "delta": {
        "type": WORD,
        **dict.fromkeys(("text", "partial_json", "thinking"), SHOWN),
        "signature": SEALED,
        **_END_PLACES,
    },
    "usage": _USAGE_PLACES,
}


@dataclass(frozen=True)
class MessagesSurface:
    """``POST /v1/messages``."""

    identity: Identity
    stream: bool
    hour_asked: bool = False
    """Whether the request asks for cache writes that live for an hour."""
    name: str = "messages"

    @property
    def stream_headers(self) -> Headers:
        """Server-sent events."""
        return SSE_HEADERS

    def usage(self, answer: object) -> Usage | None:
        """Usage of a message."""
        return messages_usage(answer, hour_asked=self.hour_asked)

    def rebuild(self, answer: object) -> bytes:
        """The message under the client's model name."""
        return encode_answer(rebuild_message(answer, self.identity))

    def texts(self, answer: object) -> tuple[str, ...]:
        """Text, thinking, names and input of tools of each block; the stop sequence."""
        return answer_texts(_walk, answer)

    def replace_texts(self, answer: object, texts: Sequence[str]) -> object:
        """The message saying ``texts``."""
        return with_answer_texts(_walk, answer, texts)

    def open_stream(self, text_filter: TextFilter | None = None) -> "MessageStream":
        """Server-sent events."""
        return MessageStream(self.identity, text_filter, hour_asked=self.hour_asked)

    def broken(self, error: ApiError) -> bytes:
        """An error event, as Anthropic's SDKs raise it."""
        return b"event: error\ndata: " + error.body("anthropic") + b"\n\n"


@dataclass(frozen=True)
class CountSurface:
    """``POST /v1/messages/count_tokens``: a number, which costs nothing."""

    stream: bool = False
    name: str = "count_tokens"

    @property
    def stream_headers(self) -> Headers:
        """It never streams."""
        return JSON_HEADERS

    def usage(self, answer: object) -> Usage | None:
        """None was used."""
        del answer
        return Usage(0, 0)

    def rebuild(self, answer: object) -> bytes:
        """The number. Raises ``BrokenAnswerError``."""
        count = answer_object(answer).get("input_tokens")
        if isinstance(count, bool) or not isinstance(count, int):
            raise BrokenAnswerError("no number of tokens")
        return encode_answer({"input_tokens": count})

    def texts(self, answer: object) -> tuple[str, ...]:
        """No model speaks."""
        del answer
        return ()

    def replace_texts(self, answer: object, texts: Sequence[str]) -> object:
        """The same."""
        del texts
        return answer

    def open_stream(self, text_filter: TextFilter | None = None) -> AnswerStream:
        """Not for this surface."""
        raise NotImplementedError

    def broken(self, error: ApiError) -> bytes:
        """An error."""
        return error.body("anthropic")


def rebuild_message(answer: object, identity: Identity) -> Json:
    """A plain message. Raises ``BrokenAnswerError`` if it is none."""
    source = answer_object(answer)
    if not isinstance(source.get("content"), list):
        raise BrokenAnswerError("no content")
    return {
        **_envelope(identity),
        "content": _blocks(source),
        "stop_reason": source.get("stop_reason"),
        "stop_sequence": source.get("stop_sequence"),
        "usage": _usage(source),
    }


class MessageStream:
    """Rebuilds a stream of events. Feed bytes; take events; ask for usage when it has ended."""

    def __init__(
        self,
        identity: Identity,
        text_filter: TextFilter | None = None,
        *,
        hour_asked: bool = False,
    ) -> None:
        self._identity = identity
        self._hour_asked = hour_asked
        self._events = EventSplitter()
        self._filter = PartFilter(text_filter)
        self._dropped: set[object] = set()  # indexes of blocks that are not shown
        self._begin: Json = {}
        self._so_far: Usage | None = None
        self.usage: Usage | None = None
        self.done = False
        self.failed = False

    def feed(self, data: bytes) -> bytes:
        """What the client gets for these bytes; without the last event, which follows settlement.

        Raises ``BrokenAnswerError`` for something that is not a stream of messages' events.
        """
        return b"".join(self._event(payload) for payload in self._events.feed(data))

    def ending(self) -> bytes:
        """The last event."""
        return sse_event({"type": "message_stop"}, "message_stop")

    def _event(self, payload: bytes) -> bytes:
        if self.done or self.failed or payload == b"[DONE]":
            return b""
        event = read_event(payload)
        kind = event.get("type")
        if kind == "error" or "error" in event:
            self.failed = True
            return b""
        if kind == "message_stop":
            self.done = True
            self.usage = self.usage or self._so_far
            return self._left()
        if isinstance(event.get("index"), dict | list):
            raise BrokenAnswerError("a block without a number")
        build = self._builders().get(str(kind))
        return b"" if build is None else build(event)

    def _builders(self) -> dict[str, Callable[[Json], bytes]]:
        return {
            "message_start": self._message_start,
            "content_block_start": self._block_start,
            "content_block_delta": self._block_delta,
            "content_block_stop": self._block_stop,
            "message_delta": self._message_delta,
            "ping": lambda _event: sse_event({"type": "ping"}, "ping"),
        }

    def _message_start(self, event: Json) -> bytes:
        self._begin = answer_object(event.get("message") or {})
        message: Json = {
            **_envelope(self._identity),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(self._begin),
        }
        return self._sent({"type": "message_start", "message": message}, "message_start")

    def _sent(self, event: Json, name: str) -> bytes:
        if self._filter.active:
            event = walk(event, _EVENT_PLACES, self._filter.whole)
        return sse_event(event, name)

    def _block_start(self, event: Json) -> bytes:
        index = event.get("index")
        block = _block(answer_object(event.get("content_block") or {}))
        if block is None:
            self._dropped.add(index)
            return b""
        left = self._left()
        start: Json = {"type": "content_block_start", "index": index, "content_block": block}
        if self._filter.active:  # what a block starts with is a text as well
            start = walk(start, _EVENT_PLACES, self._filter.whole)
            block = cast("Json", start["content_block"])
            for field in ("text", "thinking"):
                if block.get(field):
                    text = block[field]
                    if not isinstance(text, str):
                        raise BrokenAnswerError("a block that begins with no text")
                    block[field] = self._filter.feed((index, f"{field}_delta"), text)
        return left + sse_event(start, "content_block_start")

    def _block_delta(self, event: Json) -> bytes:
        index = event.get("index")
        source = answer_object(event.get("delta") or {})
        kind = str(source.get("type"))
        field = _DELTAS.get(kind)
        if index in self._dropped or field is None:
            return b""
        text = source.get(field)
        if not isinstance(text, str):
            raise BrokenAnswerError("a delta without text")
        if not text:  # begins no other part
            return self._delta(index, kind, text)
        before = b"" if self._filter.part in (None, (index, kind)) else self._left()
        if kind != "signature_delta":
            text = self._filter.feed((index, kind), text)
        return before + self._delta(index, kind, text)

    def _block_stop(self, event: Json) -> bytes:
        if event.get("index") in self._dropped:
            return b""
        stop: Json = {"type": "content_block_stop", "index": event.get("index")}
        return self._left() + self._sent(stop, "content_block_stop")

    def _message_delta(self, event: Json) -> bytes:
        # Each number counts from the beginning; one that is missing stands in the start.
        start, end = self._begin.get("usage"), event.get("usage")
        merged: Json = {
            **(cast("Json", start) if isinstance(start, dict) else {}),
            **(kept(cast("Json", end), list(cast("Json", end))) if isinstance(end, dict) else {}),
        }
        source: Json = {"usage": merged}
        delta = answer_object(event.get("delta") or {})
        if isinstance(end, dict):
            self._so_far = messages_usage(source, hour_asked=self._hour_asked)
            if delta.get("stop_reason"):  # before that it is a count so far
                self.usage = self._so_far
        shown: Json = {
            "type": "message_delta",
            "delta": {
                "stop_reason": delta.get("stop_reason"),
                "stop_sequence": delta.get("stop_sequence"),
            },
            "usage": _usage(source),
        }
        return self._left() + self._sent(shown, "message_delta")

    def _left(self) -> bytes:
        part = self._filter.part
        text = self._filter.left()
        if not text:
            return b""
        index, kind = cast("tuple[object, str]", part)
        return self._delta(index, kind, text)

    def _delta(self, index: object, kind: str, text: str) -> bytes:
        event: Json = {
            "type": "content_block_delta",
            "index": index,
            "delta": {"type": kind, _DELTAS[kind]: text},
        }
        return self._sent(event, "content_block_delta")


def _envelope(identity: Identity) -> Json:
    return {
        "id": f"msg_{identity.request_id}",
        "type": "message",
        "role": "assistant",
        "model": identity.model,
    }


def _blocks(source: Json) -> list[Json]:
    blocks = (_block(answer_object(item)) for item in answer_list(source["content"]))
    return [block for block in blocks if block is not None]


def _block(source: Json) -> Json | None:
    fields = _BLOCKS.get(str(source.get("type")))
    return None if fields is None else kept(source, fields)


def _usage(source: Json) -> Json:
    usage = answer_object(source.get("usage") or {})
    result: Json = {"input_tokens": 0, "output_tokens": 0, **kept(usage, _USAGE)}
    if isinstance(detail := usage.get("cache_creation"), dict):
        result["cache_creation"] = kept(cast("Json", detail), _LIFETIMES)
    return result


def _walk(answer: Json, change: Callable[[str], str]) -> Json:
    if not isinstance(answer.get("content"), list):
        raise BrokenAnswerError("no content")
    shown: Json = {"content": _blocks(answer), **kept(answer, list(_END_PLACES))}
    return walk({**shown, "usage": _usage(answer)}, _PLACES, change)
