"""What a surface makes of a client's body: the request that the guard will send, and its bound."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from terrace_common.names import ATTEMPT_ID_HEADER
from terrace_common.prices import CacheWrites
from terrace_gateway.calls.ports import Needs
from terrace_gateway.surfaces.json_body import encode_json

# What providers add for tools and response schemas: a system text of their own (Anthropic's is
# some 500 tokens) and a rendering of the schema that may be longer than the compact JSON sent.
SCHEMA_OVERHEAD_TOKENS = 1024
SCHEMA_RENDERING_FACTOR = 2


@dataclass(frozen=True)
class UpstreamRequest:
    """Bytes for the translator or a relay."""

    path: str
    body: bytes
    bound_bytes: int
    """Upper bound of the input tokens, without images."""
    max_output_tokens: int
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Ours alone: attempt id and trace. To a relay they are the only way; the translator has them
    in the body where its provider takes them, and in a header where LiteLLM passes headers on."""
    image_count: int = 0
    cache_writes: CacheWrites = "none"
    """The dearest write into a prompt cache that it asks for."""
    free: bool = False
    """No provider bills it."""
    relayed: bool = False
    """Made for the relay: with the provider's own name of the model, and nothing for LiteLLM."""


@dataclass(frozen=True)
class Attempt:
    """What names one attempt upstream."""

    attempt_id: str
    traceparent: str

    def headers(self) -> dict[str, str]:
        """For an upstream that takes headers."""
        return {ATTEMPT_ID_HEADER: self.attempt_id, "traceparent": self.traceparent}


def needs_of(surface: str, bound: int, output_tokens: int | None, **wanted: bool) -> Needs:
    """What a request needs from a model: room for its input, and the features that are wanted."""
    features = frozenset(name for name, present in wanted.items() if present)
    return Needs(surface, bound, output_tokens, features)


def input_bound_bytes(
    body: bytes, schemas: object, images: Iterable[str], *, expanded: int = 0
) -> int:
    """Upper bound of what the model reads: the bytes sent without ``images``, which have prices of
    their own, and ``schemas`` (tools, formats of the answer; empty: none) as rendered.

    ``expanded`` is the size of schemas whose references the translator writes out.
    """
    bound = len(body) - sum(map(len, images))
    if not schemas:
        return bound
    rendered = SCHEMA_RENDERING_FACTOR * (len(encode_json(schemas)) + expanded)
    return bound + SCHEMA_OVERHEAD_TOKENS + rendered
