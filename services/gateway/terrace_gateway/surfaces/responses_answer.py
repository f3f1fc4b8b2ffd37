"""OpenAI's responses on the way back: rebuilt from an allow-list, under the name that was asked.

LiteLLM's ids name provider and deployment, so ours replace them. What a response repeats of its
request comes from the request.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from terrace_gateway.calls.ports import TextFilter, Usage
from terrace_gateway.edge.client import Headers
from terrace_gateway.edge.errors import ApiError
from terrace_gateway.surfaces.answer_fields import NUMBER, WORD, Fields, walk
from terrace_gateway.surfaces.json_body import Json
from terrace_gateway.surfaces.responses_output import (
    USAGE_PLACES,
    rebuild_item,
    rebuild_usage,
    walk_output,
)
from terrace_gateway.surfaces.responses_stream import ResponseStream
from terrace_gateway.surfaces.surface import (
    SSE_HEADERS,
    BrokenAnswerError,
    Identity,
    answer_list,
    answer_object,
    answer_texts,
    encode_answer,
    kept,
    with_answer_texts,
)
from terrace_gateway.surfaces.usage import responses_usage

_HEAD_PLACES: Fields = {
    "created_at": NUMBER,
    "status": WORD,
    "incomplete_details": {"reason": WORD},
    "max_output_tokens": NUMBER,
    "usage": USAGE_PLACES,
}
"""What a response says of itself; the rest is ours or its request's, but for the output."""


@dataclass(frozen=True)
class ResponsesSurface:
    """``POST /v1/responses``."""

    identity: Identity
    stream: bool
    echo: Json
    name: str = "responses"

    @property
    def stream_headers(self) -> Headers:
        """Server-sent events."""
        return SSE_HEADERS

    def usage(self, answer: object) -> Usage | None:
        """Usage of a response."""
        return responses_usage(answer)

    def rebuild(self, answer: object) -> bytes:
        """The response under the client's model name."""
        return encode_answer(self.rebuilt(answer))

    def rebuilt(self, answer: object) -> Json:
        """A response, complete or as it begins. Raises ``BrokenAnswerError`` if it is none."""
        source = answer_object(answer)
        if not isinstance(source.get("output"), list):
            raise BrokenAnswerError("no output")
        items = [
            rebuild_item(answer_object(item), index, self.identity)
            for index, item in enumerate(answer_list(source["output"]))
        ]
        incomplete = source.get("incomplete_details")
        usage = None if responses_usage(source) is None else answer_object(source["usage"])
        return {
            "id": f"resp_{self.identity.request_id}",
            "object": "response",
            "created_at": source.get("created_at", 0),
            "status": source.get("status"),
            "error": None,
            "incomplete_details": (
                kept(answer_object(incomplete), ("reason",)) if incomplete else None
            ),
            "instructions": None,
            "max_output_tokens": source.get("max_output_tokens"),
            "model": self.identity.model,
            "output": [item for item in items if item is not None],
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "temperature": None,
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "metadata": {},
            **self.echo,
            "store": False,
            "usage": None if usage is None else rebuild_usage(usage),
        }

    def texts(self, answer: object) -> tuple[str, ...]:
        """Texts, refusals, names, arguments and reasoning of each item."""
        return answer_texts(self._walk, answer)

    def replace_texts(self, answer: object, texts: Sequence[str]) -> object:
        """The response saying ``texts``."""
        return with_answer_texts(self._walk, answer, texts)

    def open_stream(self, text_filter: TextFilter | None = None) -> ResponseStream:
        """Server-sent events."""
        return ResponseStream(self.identity, self.rebuilt, self.walk_head, text_filter)

    def broken(self, error: ApiError) -> bytes:
        """An error event."""
        event = {
            "type": "error",
            "code": error.code,
            "message": error.message,
            "param": error.param,
            "sequence_number": 0,
        }
        return b"event: error\ndata: " + json.dumps(event).encode() + b"\n\n"

    def walk_head(self, response: Json, change: Callable[[str], str]) -> Json:
        """A rebuilt response with every text changed that is neither in its output nor the
        request's."""
        head = {field: response[field] for field in _HEAD_PLACES if field not in self.echo}
        return {**response, **walk(head, _HEAD_PLACES, change)}

    def _walk(self, answer: Json, change: Callable[[str], str]) -> Json:
        head = self.walk_head(self.rebuilt(answer), change)
        output = walk_output(answer_list(answer["output"]), change, self.identity)
        return {**head, "output": output}
