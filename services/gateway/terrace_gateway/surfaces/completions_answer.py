"""Legacy text completions on the way back. Their stream is read as chat chunks are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from terrace_gateway.calls.ports import TextFilter, Usage
from terrace_gateway.edge.client import Headers
from terrace_gateway.edge.errors import ApiError
from terrace_gateway.surfaces.answer_fields import NUMBER, SHOWN, TEXT, WORD, Fields, Place, walk
from terrace_gateway.surfaces.chat_answer import USAGE_PLACES, ChunkStream, told_usage
from terrace_gateway.surfaces.json_body import Json
from terrace_gateway.surfaces.surface import (
    SSE_HEADERS,
    BrokenAnswerError,
    Identity,
    answer_list,
    answer_object,
    answer_texts,
    encode_answer,
    with_answer_texts,
)
from terrace_gateway.surfaces.usage import chat_usage


def _places(text: Place) -> Fields:
    choice = {"index": NUMBER, "text": text, "logprobs": NUMBER, "finish_reason": WORD}
    ours = dict.fromkeys(("id", "object", "model"), SHOWN)
    return {**ours, "created": NUMBER, "choices": choice, "usage": USAGE_PLACES}


@dataclass(frozen=True)
class CompletionsSurface:
    """``POST /v1/completions``."""

    identity: Identity
    stream: bool
    include_usage: bool
    name: str = "completions"

    @property
    def stream_headers(self) -> Headers:
        """Server-sent events."""
        return SSE_HEADERS

    def usage(self, answer: object) -> Usage | None:
        """Usage of a completion, which is chat's."""
        return chat_usage(answer)

    def rebuild(self, answer: object) -> bytes:
        """The completion under the client's model name."""
        source = answer_object(answer)
        choices = [_choice(answer_object(item)) for item in answer_list(source.get("choices"))]
        if not choices:
            raise BrokenAnswerError("no choices")
        result = _envelope(source, self.identity)
        result["choices"] = choices
        return encode_answer(result | told_usage(source))

    def texts(self, answer: object) -> tuple[str, ...]:
        """The text of each choice."""
        return answer_texts(_walk, answer)

    def replace_texts(self, answer: object, texts: Sequence[str]) -> object:
        """The answer saying ``texts``."""
        return with_answer_texts(_walk, answer, texts)

    def open_stream(self, text_filter: TextFilter | None = None) -> "TextStream":
        """Server-sent chunks."""
        return TextStream(self.identity, include_usage=self.include_usage, text_filter=text_filter)

    def broken(self, error: ApiError) -> bytes:
        """An error event and no end mark."""
        return b"data: " + error.body() + b"\n\n"


class TextStream(ChunkStream):
    """Rebuilds a stream of text chunks."""

    def __init__(
        self, identity: Identity, *, include_usage: bool, text_filter: TextFilter | None = None
    ) -> None:
        super().__init__(identity, include_usage=include_usage, text_filter=text_filter)
        self._places = _places(SHOWN)

    def _choice(self, value: object) -> Json:
        source = answer_object(value)
        text = source.get("text")
        delta: Json = {"content": text} if isinstance(text, str) and text else {}
        return {"index": 0, "delta": delta, "finish_reason": source.get("finish_reason")}

    def _written(self, source: Json, choices: list[Json], told: Json) -> bytes:
        result = _envelope(source, self._identity)
        result["choices"] = [
            {
                "index": choice["index"],
                "text": answer_object(choice["delta"]).get("content", ""),
                "logprobs": None,
                "finish_reason": choice["finish_reason"],
            }
            for choice in choices
        ]
        return self._sent(result | told)


def _envelope(source: Json, identity: Identity) -> Json:
    return {
        "id": f"cmpl-{identity.request_id}",
        "object": "text_completion",
        "created": source.get("created", 0),
        "model": identity.model,
    }


def _choice(source: Json) -> Json:
    return {
        "index": source.get("index", 0),
        "text": source.get("text") or "",
        "logprobs": None,
        "finish_reason": source.get("finish_reason"),
    }


def _walk(answer: Json, change: Callable[[str], str]) -> Json:
    shown: Json = {
        "created": answer.get("created", 0),
        "choices": [_choice(answer_object(item)) for item in answer_list(answer.get("choices"))],
    }
    return walk(shown | told_usage(answer), _places(TEXT), change)
