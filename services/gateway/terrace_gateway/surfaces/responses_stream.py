"""A streamed response: events rebuilt under our ids and numbers.

It is complete with ``response.completed`` or ``response.incomplete``, which repeats the whole
answer, has the usage, and waits for the settlement. Events that repeat a text (``...done``) say
what was shown of it, so that a filter is not undone by them.
"""

from collections.abc import Callable
from typing import cast

from terrace_gateway.calls.ports import TextFilter, Usage
from terrace_gateway.surfaces.answer_fields import NUMBER, SHOWN, Change, Fields, walk
from terrace_gateway.surfaces.json_body import Json
from terrace_gateway.surfaces.responses_output import (
    item_id,
    item_places,
    part_places,
    rebuild_item,
    rebuild_part,
)
from terrace_gateway.surfaces.sse import EventSplitter, sse_event
from terrace_gateway.surfaces.surface import (
    BrokenAnswerError,
    Identity,
    PartFilter,
    answer_object,
    read_event,
)
from terrace_gateway.surfaces.usage import responses_usage

_DELTAS = {
    # the kind of a delta -> what its ".done" calls the text, and which index tells parts apart
    "response.output_text": ("text", "content_index"),
    "response.refusal": ("refusal", "content_index"),
    "response.function_call_arguments": ("arguments", None),
    "response.reasoning_summary_text": ("text", "summary_index"),
    "response.reasoning_text": ("text", "content_index"),
}
_PARTS = {
    "response.content_part": "content_index",
    "response.reasoning_summary_part": "summary_index",
}
_BEGINS = ("response.created", "response.in_progress", "response.queued")
_ENDS = ("response.completed", "response.incomplete")

_VERBS = ("added", "done")
_INDEXES = ("output_index", "content_index", "summary_index")
_ITEM_PLACES = item_places(SHOWN)
_EVENT_PLACES: Fields = {
    **dict.fromkeys(("type", "sequence_number", "item_id", "response"), SHOWN),
    **dict.fromkeys(_INDEXES, NUMBER),
    **dict.fromkeys(("delta", "text", "refusal", "arguments"), SHOWN),
    "item": _ITEM_PLACES,
    "part": part_places(SHOWN),
    "logprobs": NUMBER,
}

Part = tuple[str, object, object]


class ResponseStream:
    """Rebuilds a stream of events. Feed bytes; take events; ask for usage when it has ended."""

    def __init__(
        self,
        identity: Identity,
        rebuilt: Callable[[object], Json],
        walk_head: Callable[[Json, Change], Json],
        text_filter: TextFilter | None = None,
    ) -> None:
        self._identity = identity
        self._rebuilt = rebuilt
        self._walk_head = walk_head
        self._events = EventSplitter()
        self._filter = PartFilter(text_filter)
        self._shown: dict[Part, list[str]] = {}
        self._items: dict[object, str] = {}
        self._whole: dict[str, str] = {}  # texts that stand by themselves, as they were shown
        self._number = 0
        self._held = b""
        self.usage: Usage | None = None
        self.done = False
        self.failed = False

    def feed(self, data: bytes) -> bytes:
        """What the client gets for these bytes; without the last event, which follows settlement.

        Raises ``BrokenAnswerError`` for something that is not a stream of a response's events.
        """
        return b"".join(self._event(payload) for payload in self._events.feed(data))

    def ending(self) -> bytes:
        """The last event."""
        return self._held

    def _event(self, payload: bytes) -> bytes:
        if self.done or self.failed or payload == b"[DONE]":
            return b""
        event = read_event(payload)
        kind = str(event.get("type"))
        if kind in ("error", "response.failed") or "error" in event:
            self.usage = responses_usage(event.get("response"))
            self.failed = True
            return b""
        if kind in _ENDS:
            return self._end(kind, answer_object(event.get("response")))
        if kind in _BEGINS:
            begin = dict(answer_object(event.get("response")))
            begin["output"], begin["usage"] = [], None
            return self._send(kind, response=self._head(self._rebuilt(begin)))
        return self._inner(kind, event)

    def _inner(self, kind: str, event: Json) -> bytes:
        if any(isinstance(event.get(field), dict | list) for field in _INDEXES):
            raise BrokenAnswerError("a part without a number")
        subject, _, verb = kind.rpartition(".")
        if subject == "response.output_item":
            return self._item(kind, verb, event)
        if subject in _PARTS:
            return self._part(kind, subject, verb, event)
        if subject in _DELTAS and event.get("output_index") in self._items:
            return self._text(kind, subject, verb, event)
        return b""

    def _end(self, kind: str, response: Json) -> bytes:
        before = self._left()
        self.usage = responses_usage(response)
        whole = self._head(self._rebuilt(response))
        if self._filter.active:
            places = {identity: index for index, identity in self._items.items()}
            whole["output"] = [
                walk(
                    self._as_shown(places.get(cast("str", item["id"])), item),
                    _ITEM_PLACES,
                    self._as_whole,
                )
                for item in cast("list[Json]", whole["output"])
            ]
        self._held = self._send(kind, response=whole)
        self.done = True
        return before

    def _head(self, response: Json) -> Json:
        return self._walk_head(response, self._as_whole) if self._filter.active else response

    def _item(self, kind: str, verb: str, event: Json) -> bytes:
        if verb not in _VERBS:
            return b""
        index = event.get("output_index")
        source = answer_object(event.get("item") or {})
        number = index if isinstance(index, int) else 0
        item = rebuild_item(source, number, self._identity)
        if item is None:
            return b""
        before = self._left()
        self._items[index] = item_id(source, number, self._identity)
        if self._filter.active:
            item = self._as_shown(index, item) if verb == "done" else _without_texts(item)
        return before + self._send(kind, output_index=index, item=item)

    def _part(self, kind: str, subject: str, verb: str, event: Json) -> bytes:
        if verb not in _VERBS:
            return b""
        output, field = event.get("output_index"), _PARTS[subject]
        part = rebuild_part(answer_object(event.get("part") or {}))
        if part is None or output not in self._items:
            return b""
        before = self._left()
        if self._filter.active:
            done = verb == "done"
            place = event.get(field)
            part = self._part_as_shown(output, place, part) if done else _without_texts(part)
        return before + self._send(
            kind,
            item_id=self._items[output],
            output_index=output,
            **{field: event.get(field)},
            part=part,
        )

    def _text(self, kind: str, subject: str, verb: str, event: Json) -> bytes:
        name, field = _DELTAS[subject]
        part: Part = (subject, event.get("output_index"), event.get(field) if field else None)
        if verb == "delta":
            text = event.get("delta")
            if not isinstance(text, str):
                raise BrokenAnswerError("a delta without text")
            if not text:  # begins no other part
                return self._delta(part, text)
            before = b"" if self._filter.part in (None, part) else self._left()
            return before + self._delta(part, self._filter.feed(part, text))
        if verb != "done":
            return b""
        before = self._left()
        text = self._shown_of(part, event.get(name)) if self._filter.active else event.get(name)
        return before + self._send(kind, **self._place(part), **{name: text})

    def _delta(self, part: Part, text: str) -> bytes:
        if self._filter.active:
            self._shown.setdefault(part, []).append(text)
        return self._send(f"{part[0]}.delta", **self._place(part), delta=text)

    def _place(self, part: Part) -> Json:
        subject, output, index = part
        field = _DELTAS[subject][1]
        place: Json = {"item_id": self._items[output], "output_index": output}
        if field is not None:
            place[field] = index
        if subject == "response.output_text":
            place["logprobs"] = []
        return place

    def _left(self) -> bytes:
        part = self._filter.part
        text = self._filter.left()
        return self._delta(cast("Part", part), text) if text else b""

    def _as_shown(self, output: object, item: Json) -> Json:
        """An item that says what was shown of it."""
        result = dict(item)
        if "arguments" in item:
            place: Part = ("response.function_call_arguments", output, None)
            result["arguments"] = self._shown_of(place, item["arguments"])
        for field in ("content", "summary"):
            if field in item:
                parts = cast("list[Json]", item[field])
                result[field] = [
                    self._part_as_shown(output, index, part) for index, part in enumerate(parts)
                ]
        return result

    def _part_as_shown(self, output: object, index: object, part: Json) -> Json:
        subject = {
            "output_text": "response.output_text",
            "refusal": "response.refusal",
            "summary_text": "response.reasoning_summary_text",
        }.get(str(part["type"]), "response.reasoning_text")
        name = _DELTAS[subject][0]
        return {**part, name: self._shown_of((subject, output, index), part[name])}

    def _shown_of(self, part: Part, text: object) -> str:
        """What was shown of a text that is repeated; one that never came as a delta is filtered
        now."""
        if part not in self._shown:
            whole = self._filter.feed(part, str(text or ""))
            self._shown[part] = [whole, self._filter.left()]
        return "".join(self._shown[part])

    def _send(self, kind: str, **fields: object) -> bytes:
        event: Json = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        if self._filter.active and "response" not in event:
            event = walk(event, _EVENT_PLACES, self._as_whole)
        return sse_event(event, kind)

    def _as_whole(self, text: str) -> str:
        """What is shown of a text that may be repeated."""
        if text not in self._whole:
            self._whole[text] = self._filter.whole(text)
        return self._whole[text]


def _without_texts(value: Json) -> Json:
    """An item or part as it begins, before any of its text."""
    empty: Json = {"content": [], "summary": [], "arguments": "", "text": "", "refusal": ""}
    return {key: empty.get(key, item) for key, item in value.items()}
