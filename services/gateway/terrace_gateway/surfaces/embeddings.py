"""Embeddings: texts in, vectors out. Vectors come as numbers and leave as the client asked."""

import struct
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import orjson

from terrace_common.governance import BedrockProvider, Governance, Model
from terrace_gateway.calls.ports import Needs, TextFilter, Usage
from terrace_gateway.edge.client import Headers
from terrace_gateway.edge.errors import ApiError
from terrace_gateway.surfaces.answer_fields import NUMBER, SEALED, Change, walk
from terrace_gateway.surfaces.embeddings_media import media_refused
from terrace_gateway.surfaces.json_body import (
    Json,
    as_positive,
    as_text,
    encode_json,
    invalid,
    unsupported,
)
from terrace_gateway.surfaces.surface import (
    JSON_HEADERS,
    AnswerStream,
    BrokenAnswerError,
    Identity,
    answer_list,
    answer_object,
    answer_texts,
    encode_answer,
    kept,
    with_answer_texts,
)
from terrace_gateway.surfaces.upstream_request import Attempt, UpstreamRequest, input_growth
from terrace_gateway.surfaces.usage import embeddings_usage

PATH = "/v1/embeddings"
MAX_INPUTS = 2048
MAX_NUMBERS, MAX_NUMBERS_BASE64 = 2**21, 2**23
"""Numbers of all vectors of an answer, no more than the largest answer that is taken: written out
at 32 bytes each (they have up to 25, and blanks), as base64 at 8 (four thirds of four)."""
_COUNTS_IN_ANSWER = "amazon.titan-"
"""Bedrock's only family whose answers have a count of tokens. Of others LiteLLM (1.108) makes one
up: a quarter of the vector's numbers, or what another tokenizer would count."""
_BATCHING = "cohere."  # Bedrock's only family that takes several texts in one call

FIELD_NAMES = frozenset({"model", "input", "dimensions", "encoding_format"})
REFUSED = {"input": "tokens instead of text cannot be read by guardrails"}


@dataclass(frozen=True)
class EmbeddingsRequest:
    """A checked body."""

    asked_model: str
    inputs: tuple[str, ...]
    dimensions: int | None
    base64: bool
    surface: str = "embeddings"
    stream: bool = False
    include_usage: bool = False

    @property
    def needs(self) -> Needs:
        """What the request needs from a model."""
        return Needs(
            surface=self.surface,
            input_bound_tokens=len(encode_json(self.inputs)) + self._growth,
            output_tokens=0,
            features=frozenset({"embeddings"}),
        )

    def texts(self) -> tuple[str, ...]:
        """The inputs."""
        return self.inputs

    def with_texts(self, texts: Sequence[str]) -> "EmbeddingsRequest":
        """The same request for ``texts``."""
        if len(texts) != len(self.inputs):
            raise ValueError(f"{len(texts)} texts for {len(self.inputs)} places")
        return replace(self, inputs=tuple(texts))

    def session(self) -> str | None:
        """There is no conversation."""
        return None

    def upstream(
        self,
        *,
        governance: Governance,
        model: Model,
        attempt_id: str,
        traceparent: str,
        max_output_tokens: int,
        relay: bool = False,
    ) -> UpstreamRequest:
        """The request for the translator or a relay.

        Raises ``ApiError`` for several inputs where LiteLLM (1.108) would make several calls, for
        what it would not send as a text, and for more numbers than an answer can hold: it would be
        billed and could not be read.
        """
        del max_output_tokens
        bedrock = isinstance(governance.provider_of(model), BedrockProvider)
        if bedrock and len(self.inputs) > 1 and _BATCHING not in model.upstream_model:
            raise unsupported(
                f"input must be one text on {self.asked_model}: it takes one a call", "input"
            )
        if bedrock and (refusal := media_refused(self.inputs, model.upstream_model)) is not None:
            raise refusal
        numbers = self.dimensions or model.dimensions
        most = MAX_NUMBERS_BASE64 if relay and self.base64 else MAX_NUMBERS
        if len(self.inputs) * numbers > most:
            raise invalid(
                f"input: {len(self.inputs)} vectors of {numbers} numbers are more than an answer"
                f" can hold, {most} numbers: send at most {most // numbers} texts",
                "input",
            )
        attempt = Attempt(attempt_id, traceparent)
        body: Json = {
            "model": model.upstream_model if relay else model.name,
            "input": list(self.inputs),
        }
        if self.dimensions is not None:
            body["dimensions"] = self.dimensions
        if relay:
            if self.base64:
                body["encoding_format"] = "base64"
        else:
            body["extra_headers"] = attempt.headers(invoke=bedrock)
        encoded = encode_json(body)
        bound = len(encoded) + self._growth
        return UpstreamRequest(
            PATH,
            encoded,
            bound,
            0,
            attempt.headers(),
            relayed=relay,
            counted_apart=bedrock and _COUNTS_IN_ANSWER not in model.upstream_model,
        )

    def answers(self, identity: Identity) -> "EmbeddingsSurface":
        """How answers to this request are read."""
        return EmbeddingsSurface(identity, self.base64)

    @cached_property
    def _growth(self) -> int:
        return input_growth(self.inputs)


@dataclass(frozen=True)
class EmbeddingsSurface:
    """``POST /v1/embeddings``."""

    identity: Identity
    base64: bool
    name: str = "embeddings"
    stream: bool = False

    @property
    def stream_headers(self) -> Headers:
        """It never streams."""
        return JSON_HEADERS

    def usage(self, answer: object) -> Usage | None:
        """Input tokens."""
        return embeddings_usage(answer)

    def rebuild(self, answer: object) -> bytes:
        """The vectors, in the order of the inputs. Raises ``BrokenAnswerError``."""
        source = answer_object(answer)
        items = [answer_object(item) for item in answer_list(source.get("data"))]
        if not items:
            raise BrokenAnswerError("no embeddings")
        data = [
            {
                "object": "embedding",
                "index": item.get("index", number),
                "embedding": self._vector(item.get("embedding")),
            }
            for number, item in enumerate(items)
        ]
        result: Json = {
            "object": "list",
            "data": data,
            "model": self.identity.model,
            "usage": _told_usage(source) or None,  # an object without its counts is none
        }
        try:
            return orjson.dumps(result)  # a tenth of the time for millions of numbers
        except orjson.JSONEncodeError:
            return encode_answer(result)

    def texts(self, answer: object) -> tuple[str, ...]:
        """No model speaks: what should be a number and is none."""
        return answer_texts(_walk, answer)

    def replace_texts(self, answer: object, texts: Sequence[str]) -> object:
        """The answer with such texts replaced."""
        return with_answer_texts(_walk, answer, texts)

    def open_stream(self, text_filter: TextFilter | None = None) -> AnswerStream:
        """Not for this surface."""
        raise NotImplementedError

    def broken(self, error: ApiError) -> bytes:
        """An error."""
        return error.body()

    def _vector(self, value: object) -> object:
        numbers = answer_list(value)
        if not self.base64 or not numbers:
            return value
        try:
            packed = struct.pack(f"<{len(numbers)}f", *cast("list[float]", numbers))
        except (struct.error, OverflowError) as error:
            raise BrokenAnswerError("an embedding is no vector") from error
        return b64encode(packed).decode()


_COUNTS = ("prompt_tokens", "total_tokens")


def _told_usage(answer: Json) -> Json:
    """What was counted; nothing, if nobody has."""
    if embeddings_usage(answer) is None:
        return {}
    return kept(answer_object(answer["usage"]), _COUNTS)


def _walk(answer: Json, change: Change) -> Json:
    data: list[Json] = []
    for number, value in enumerate(answer_list(answer.get("data"))):
        item = answer_object(value)
        index = _placed({"index": item.get("index", number)}, change)
        vector = item.get("embedding")
        numbers = answer_list(cast("object", vector))
        if not numbers or not set(map(type, numbers)) <= _NUMBERS:
            vector = _placed({"embedding": vector}, change)["embedding"]
        data.append({**index, "embedding": vector})
    usage = walk(_told_usage(answer), dict.fromkeys(_COUNTS, NUMBER), change)
    return {"data": data, "usage": usage}


def _placed(value: Json, change: Change) -> Json:
    return walk(value, {"index": NUMBER, "embedding": SEALED}, change)


_NUMBERS = {int, float}


def read_embeddings_body(body: Json) -> EmbeddingsRequest:
    """Check a client's body. Raises ``ApiError`` naming the field."""
    source = body.get("input")
    inputs = cast("list[object]", source) if isinstance(source, list) else [source]
    if not 1 <= len(inputs) <= MAX_INPUTS:
        raise invalid(f"input must have 1 to {MAX_INPUTS} texts", "input")
    if any(isinstance(item, int | list) for item in inputs):
        raise unsupported("input must be text: tokens cannot be read", "input")
    encoding = body.get("encoding_format")
    if encoding not in (None, "float", "base64"):
        raise invalid("encoding_format must be float or base64", "encoding_format")
    dimensions = body.get("dimensions")
    return EmbeddingsRequest(
        asked_model=as_text(body.get("model"), "model"),
        inputs=tuple(as_text(item, "input") for item in inputs),
        dimensions=None if dimensions is None else as_positive(dimensions, "dimensions"),
        base64=encoding == "base64",
    )
