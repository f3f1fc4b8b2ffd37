"""What a surface makes of a client's body: the request that the guard will send, and its bound."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from terrace_common.names import ATTEMPT_ID_HEADER
from terrace_common.prices import CacheWrites

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


@dataclass(frozen=True)
class Attempt:
    """What names one attempt upstream."""

    attempt_id: str
    traceparent: str

    def headers(self) -> dict[str, str]:
        """For an upstream that takes headers."""
        return {ATTEMPT_ID_HEADER: self.attempt_id, "traceparent": self.traceparent}


def input_bound_bytes(body: bytes, schemas: bytes, *, expanded: int = 0) -> int:
    """Upper bound of what the model reads: the bytes sent, and schemas as rendered.

    ``expanded`` is the size of schemas whose references the translator writes out.
    """
    if not schemas:
        return len(body)
    rendered = SCHEMA_RENDERING_FACTOR * (len(schemas) + expanded)
    return len(body) + SCHEMA_OVERHEAD_TOKENS + rendered
