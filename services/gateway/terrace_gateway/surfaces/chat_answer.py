"""Chat completions on the way back: rebuilt from an allow-list, under the name that was asked.

What LiteLLM adds (``usage.cost``, ids that name provider and deployment, provider-specific fields)
does not pass, because nothing passes that is not named here.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from terrace_gateway.calls.ports import TextFilter, Usage
from terrace_gateway.edge.client import Headers
from terrace_gateway.edge.errors import ApiError
from terrace_gateway.surfaces.answer_fields import (
    ARGUMENTS,
    ID,
    NUMBER,
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
    SSE_HEADERS,
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
from terrace_gateway.surfaces.usage import chat_usage

DONE = b"data: [DONE]\n\n"

_MESSAGE_FIELDS = ("role", "content", "refusal", "reasoning_content")
_TEXT_FIELDS = ("reasoning_content", "content", "refusal")
_USAGE_FIELDS = ("prompt_tokens", "completion_tokens", "total_tokens")
_USAGE_DETAILS = {
    "prompt_tokens_details": ("cached_tokens",),
    "completion_tokens_details": ("reasoning_tokens",),
}
USAGE_PLACES: Fields = {
    **dict.fromkeys(_USAGE_FIELDS, NUMBER),
    **{field: dict.fromkeys(names, NUMBER) for field, names in _USAGE_DETAILS.items()},
}


def _message_places(text: Place, ids: Place) -> Fields:
    function = {"name": text, "arguments": ARGUMENTS if text is TEXT else text}
    call = {"index": NUMBER, "id": ids, "type": WORD, "function": function}
    return {"role": WORD, **dict.fromkeys(_TEXT_FIELDS, text), "tool_calls": call}


def _answer_places(**message: Mapping[str, Place]) -> Fields:
    choice = {"index": NUMBER, **message, "finish_reason": WORD}
    ours = dict.fromkeys(("id", "object", "model"), SHOWN)
    return {**ours, "created": NUMBER, "choices": choice, "usage": USAGE_PLACES}


_PLACES = _answer_places(message=_message_places(TEXT, ID))
_CHUNK_PLACES = _answer_places(delta=_message_places(SHOWN, SHOWN))


@dataclass(frozen=True)
class ChatSurface:
    """``POST /v1/chat/completions``."""

    identity: Identity
    stream: bool
    include_usage: bool
    name: str = "chat"

    @property
    def stream_headers(self) -> Headers:
        """Server-sent events."""
        return SSE_HEADERS

    def usage(self, answer: object) -> Usage | None:
        """Usage of a chat completion."""
        return chat_usage(answer)

    def rebuild(self, answer: object) -> bytes:
        """The completion under the client's model name."""
        return encode_answer(rebuild_completion(answer, self.identity))

    def texts(self, answer: object) -> tuple[str, ...]:
        """Reasoning, content, refusal, names and arguments of tools, of each choice."""
        return answer_texts(_walk, answer)

    def replace_texts(self, answer: object, texts: Sequence[str]) -> object:
        """The answer saying ``texts``; log probabilities go, because they spell the old ones."""
        return with_answer_texts(_walk, answer, texts)

    def open_stream(self, text_filter: TextFilter | None = None) -> "ChunkStream":
        """Server-sent chunks."""
        return ChunkStream(self.identity, include_usage=self.include_usage, text_filter=text_filter)

    def broken(self, error: ApiError) -> bytes:
        """An error event and no end mark, as OpenAI's SDKs expect."""
        return b"data: " + error.body() + b"\n\n"


def rebuild_completion(answer: object, identity: Identity) -> Json:
    """A plain answer. Raises ``BrokenAnswerError`` if it has no choices."""
    source = answer_object(answer)
    choices = [_choice(item, "message") for item in answer_list(source.get("choices"))]
    if not choices:
        raise BrokenAnswerError("no choices")
    result = _envelope(source, identity, "chat.completion")
    result["choices"] = choices
    return result | told_usage(source)


class ChunkStream:
    """Rebuilds a stream of chunks. Feed bytes; take events; ask for usage when it has ended."""

    def __init__(
        self, identity: Identity, *, include_usage: bool, text_filter: TextFilter | None = None
    ) -> None:
        self._identity = identity
        self._include_usage = include_usage
        self._events = EventSplitter()
        self._filter = PartFilter(text_filter)
        self._places = _CHUNK_PLACES
        self._called: dict[object, Json] = {}  # names and ids of calls, as they came
        self._so_far: Usage | None = None  # some providers count in every chunk
        self._finished = False
        self.usage: Usage | None = None
        self.done = False
        self.failed = False

    def feed(self, data: bytes) -> bytes:
        """What the client gets for these bytes; without the end mark, which follows settlement.

        Raises ``BrokenAnswerError`` for something that is not a stream of JSON events.
        """
        return b"".join(self._event(payload) for payload in self._events.feed(data))

    def ending(self) -> bytes:
        """The end mark."""
        return DONE

    def _event(self, payload: bytes) -> bytes:
        if self.done or self.failed:
            return b""
        if payload == b"[DONE]":
            self.done = True
            self.usage = self._so_far
            left = self._left()
            return self._chunks({}, left) if left else b""
        source = read_event(payload)
        if "error" in source:
            self.failed = True
            return b""
        return self._chunk(source)

    def _chunk(self, source: Json) -> bytes:
        usage = chat_usage(source)
        if usage is not None:
            self._so_far = usage
        choices = [self._choice(item) for item in answer_list(source.get("choices"))]
        self._finished = self._finished or any(choice["finish_reason"] for choice in choices)
        if self._finished:  # before that it is a count so far, and less than the bill
            self.usage = usage or self.usage
        if isinstance(source.get("usage"), dict):
            # OpenAI's usage chunk has no choices; LiteLLM's has an empty one.
            choices = [choice for choice in choices if choice["delta"] or choice["finish_reason"]]
            if not choices and not (self._include_usage and usage is not None):
                return b""
        before = b""
        if self._filter.active and choices:
            *earlier, choices = [[choice] for choice in self._filtered(choices)]
            before = b"".join(self._chunks(source, some) for some in earlier)
        return before + self._chunks(source, choices, with_usage=usage is not None)

    def _chunks(self, source: Json, choices: list[Json], *, with_usage: bool = False) -> bytes:
        shown = with_usage and self._include_usage
        told: Json = {"usage": _shown_usage(answer_object(source["usage"]))} if shown else {}
        return self._written(source, choices, told)

    def _choice(self, value: object) -> Json:
        return _choice(value, "delta")

    def _written(self, source: Json, choices: list[Json], told: Json) -> bytes:
        result = _envelope(source, self._identity, "chat.completion.chunk")
        result["choices"] = choices
        return self._sent(result | told)

    def _sent(self, chunk: Json) -> bytes:
        if self._filter.active:
            chunk = walk(chunk, self._places, self._filter.whole)
        return sse_event(chunk)

    def _filtered(self, choices: list[Json]) -> list[Json]:
        """The choices through the text filter: what it held back of a part comes before the next
        part and before the end."""
        passed: list[Json] = []
        for choice in choices:
            if choice["index"] not in (0, None):
                raise BrokenAnswerError("a second choice")
            choice.pop("logprobs", None)  # they would spell what is masked
            delta = cast("Json", choice["delta"])
            for field in _TEXT_FIELDS:
                if field in delta:
                    text = delta[field] = _one_text(delta[field])
                    if text:  # some send an empty content with each piece of another part
                        passed += self._left(unless=field)
                        delta[field] = self._filter.feed(field, text)
            for call in cast("list[Json]", delta.get("tool_calls", [])):
                passed += self._call(call)
            if choice["finish_reason"] and (left := self._left()):
                passed += [{**choice, "finish_reason": None}, *left]
                choice["delta"] = {}
            passed.append(choice)
        return passed

    def _call(self, call: Json) -> list[Json]:
        """A piece of a tool's call through the text filter; what comes before it."""
        index = call.get("index", 0)
        if not isinstance(index, int):
            raise BrokenAnswerError("a call of a tool without a number")
        function = cast("Json", call["function"])
        before = [] if function.get("arguments") in (None, "") else self._left(unless=index)
        for field, holder in (("id", call), ("name", function)):
            if not holder.get(field) or self._repeats(index, field, holder):
                holder.pop(field, None)
                continue
            text = holder[field]
            if not isinstance(text, str):
                raise BrokenAnswerError(f"the {field} of a tool's call is no text")
            if field == "name" or not ID.fullmatch(text):
                before += self._left()
                holder[field] = self._filter.whole(text)
        if (arguments := function.get("arguments")) is not None:
            if not isinstance(arguments, str):
                arguments = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
            function["arguments"] = self._filter.feed(index, arguments) if arguments else ""
        return before

    def _repeats(self, index: int, field: str, holder: Json) -> bool:
        """Whether it was told before. Raises ``BrokenAnswerError`` if it was another then: clients
        join what comes in pieces."""
        known = self._called.setdefault(index, {})
        if field not in known:
            known[field] = holder[field]
            return False
        if known[field] != holder[field]:
            raise BrokenAnswerError(f"a tool's call with a second {field}")
        return True

    def _left(self, *, unless: object = None) -> list[Json]:
        part = self._filter.part
        if part is None or (unless is not None and part == unless):
            return []
        text = self._filter.left()
        if not text:
            return []
        delta: Json = (
            {part: text}
            if isinstance(part, str)
            else {"tool_calls": [{"index": part, "function": {"arguments": text}}]}
        )
        return [{"index": 0, "delta": delta, "finish_reason": None}]


def _envelope(source: Json, identity: Identity, kind: str) -> Json:
    return {
        "id": f"chatcmpl-{identity.request_id}",
        "object": kind,
        "created": source.get("created", 0),
        "model": identity.model,
    }


def _choice(value: object, part: str) -> Json:
    source = answer_object(value)
    message = answer_object(source.get(part) or {})
    body = kept(message, _MESSAGE_FIELDS)
    if part == "message":
        body.setdefault("role", "assistant")
        body.setdefault("content", None)
    if message.get("tool_calls"):
        body["tool_calls"] = [_tool_call(call) for call in answer_list(message["tool_calls"])]
    result: Json = {
        "index": source.get("index", 0),
        part: body,
        "finish_reason": source.get("finish_reason"),
    }
    if source.get("logprobs") is not None:
        result["logprobs"] = source["logprobs"]
    return result


def _tool_call(value: object) -> Json:
    source = answer_object(value)
    function = answer_object(source.get("function") or {})
    result = kept(source, ("index", "id", "type"))
    result["function"] = kept(function, ("name", "arguments"))
    return result


def told_usage(answer: Json) -> Json:
    """The field ``usage`` as the client sees it; nothing, if what the answer says was made up."""
    if chat_usage(answer) is None:
        return {}
    return {"usage": _shown_usage(answer_object(answer["usage"]))}


def _shown_usage(source: Json) -> Json:
    result: Json = {field: source[field] for field in _USAGE_FIELDS if field in source}
    for field, names in _USAGE_DETAILS.items():
        details = source.get(field)
        if isinstance(details, dict):
            inner = kept(cast("Json", details), names)
            if inner:
                result[field] = inner
    return result


def _one_text(content: object) -> str:
    """A streamed text, which may come as a list of parts. Raises ``BrokenAnswerError``."""
    if isinstance(content, str):
        return content
    found: list[str] = []
    for item in cast("list[object]", content) if isinstance(content, list) else [None]:
        part = answer_object(item)
        text = part.get("text")
        if part.get("type") != "text" or not isinstance(text, str):
            raise BrokenAnswerError("a part of an answer that is no text")
        found.append(text)
    return "".join(found)


def _walk(answer: Json, change: Callable[[str], str]) -> Json:
    choices = [_choice(item, "message") for item in answer_list(answer.get("choices"))]
    for choice in choices:
        choice.pop("logprobs", None)  # they would spell what is masked
    shown: Json = {"created": answer.get("created", 0), "choices": choices}
    return walk(shown | told_usage(answer), _PLACES, change)
