"""Chat completions on the way back: rebuilt from an allow-list, under the name that was asked.

What LiteLLM adds (``usage.cost``, ids that name provider and deployment, provider-specific fields)
does not pass, because nothing passes that is not named here.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from terrace_gateway.calls.ports import TextFilter, Usage
from terrace_gateway.edge.client import Headers
from terrace_gateway.edge.errors import ApiError
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
        """Reasoning, content, refusal and the arguments of tools, of each choice."""
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
    if isinstance(source.get("usage"), dict):
        result["usage"] = shown_usage(answer_object(source["usage"]))
    return result


class ChunkStream:
    """Rebuilds a stream of chunks. Feed bytes; take events; ask for usage when it has ended."""

    def __init__(
        self, identity: Identity, *, include_usage: bool, text_filter: TextFilter | None = None
    ) -> None:
        self._identity = identity
        self._include_usage = include_usage
        self._events = EventSplitter()
        self._filter = PartFilter(text_filter)
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
        try:
            chunk = json.loads(payload)
        except ValueError as error:
            raise BrokenAnswerError("an event is not JSON") from error
        source = answer_object(chunk)
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
            if not choices and not self._include_usage:
                return b""
        before = b""
        if self._filter.active and choices:
            *earlier, choices = [[choice] for choice in self._filtered(choices)]
            before = b"".join(self._chunks(source, some) for some in earlier)
        return before + self._chunks(source, choices, with_usage=True)

    def _chunks(self, source: Json, choices: list[Json], *, with_usage: bool = False) -> bytes:
        shown = with_usage and self._include_usage and isinstance(source.get("usage"), dict)
        usage = shown_usage(answer_object(source["usage"])) if shown else None
        return self._written(source, choices, usage)

    def _choice(self, value: object) -> Json:
        return _choice(value, "delta")

    def _written(self, source: Json, choices: list[Json], usage: Json | None) -> bytes:
        result = _envelope(source, self._identity, "chat.completion.chunk")
        result["choices"] = choices
        if usage is not None:
            result["usage"] = usage
        return sse_event(result)

    def _filtered(self, choices: list[Json]) -> list[Json]:
        """The choices through the text filter: what it held back of a part comes before the next
        part and before the end."""
        passed: list[Json] = []
        for choice in choices:
            choice.pop("logprobs", None)  # they would spell what is masked
            delta = cast("Json", choice["delta"])
            for field in _TEXT_FIELDS:
                if isinstance(text := delta.get(field), str):
                    passed += self._left(unless=field)
                    delta[field] = self._filter.feed(field, text)
            for call in cast("list[Json]", delta.get("tool_calls", [])):
                passed += self._left(unless=call.get("index"))
                function = cast("Json", call["function"])
                if isinstance(text := function.get("arguments"), str):
                    function["arguments"] = self._filter.feed(call.get("index", 0), text)
            if choice["finish_reason"] and (left := self._left()):
                passed += [{**choice, "finish_reason": None}, *left]
                choice["delta"] = {}
            passed.append(choice)
        return passed

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


def shown_usage(source: Json) -> Json:
    """Usage as the client sees it: OpenAI's fields."""
    result: Json = {field: source[field] for field in _USAGE_FIELDS if field in source}
    for field, names in _USAGE_DETAILS.items():
        details = source.get(field)
        if isinstance(details, dict):
            inner = kept(cast("Json", details), names)
            if inner:
                result[field] = inner
    return result


def _walk(answer: Json, change: Callable[[str], str]) -> Json:
    choices: list[Json] = []
    for item in answer_list(answer.get("choices")):
        choice = {k: v for k, v in answer_object(item).items() if k != "logprobs"}
        message = dict(answer_object(choice.get("message") or {}))
        for field in _TEXT_FIELDS:
            if isinstance(text := message.get(field), str):
                message[field] = change(text)
        if message.get("tool_calls"):
            message["tool_calls"] = [
                _walk_call(answer_object(call), change)
                for call in answer_list(message["tool_calls"])
            ]
        choices.append({**choice, "message": message})
    return {**answer, "choices": choices}


def _walk_call(call: Json, change: Callable[[str], str]) -> Json:
    function = dict(answer_object(call.get("function") or {}))
    if isinstance(text := function.get("arguments"), str):
        function["arguments"] = change(text)
    return {**call, "function": function}
