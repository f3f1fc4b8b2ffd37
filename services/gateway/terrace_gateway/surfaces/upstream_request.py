"""What a surface makes of a client's body: the request that the guard will send, and its bound."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from terrace_common.governance import BedrockProvider, OpenAIProvider
from terrace_common.names import ATTEMPT_ID_HEADER, ATTEMPT_ID_METADATA
from terrace_common.prices import CacheWrites
from terrace_gateway.calls.ports import Needs
from terrace_gateway.surfaces.json_body import Json, encode_json
from terrace_gateway.surfaces.text_size import normalised_growth, rendered_growth

# What providers add for tools and response schemas: a system text of their own (Anthropic's is
# some 500 tokens) and a rendering of the schema that may be longer than the compact JSON sent.
SCHEMA_OVERHEAD_TOKENS = 1024
SCHEMA_RENDERING_FACTOR = 2
LEAST_RESPONSE_TOKENS = 16
"""LiteLLM (1.108) raises a lower limit to this where it asks OpenAI for a response: on messages and
responses, and on chat for some names of models."""
_INVOKE_METADATA = "x-amzn-bedrock-request-metadata"


@dataclass(frozen=True)
class UpstreamRequest:
    """Bytes for the translator or a relay."""

    path: str
    body: bytes
    bound_bytes: int
    """Upper bound of the input tokens, without images."""
    max_output_tokens: int
    """The limit that is sent."""
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
    counted_apart: bool = False
    """What the answer says that it used LiteLLM made up; the provider's own count comes beside
    it."""
    least_output_tokens: int = 0
    """An answer may have so many whatever the limit."""


@dataclass(frozen=True)
class Attempt:
    """What names one attempt upstream."""

    attempt_id: str
    traceparent: str

    def headers(self, *, invoke: bool = False) -> dict[str, str]:
        """For an upstream that takes headers. ``invoke``: with what Bedrock logs of InvokeModel,
        where LiteLLM does not tell it by itself."""
        headers = {ATTEMPT_ID_HEADER: self.attempt_id, "traceparent": self.traceparent}
        if invoke:
            headers[_INVOKE_METADATA] = f'{{"{ATTEMPT_ID_METADATA}":"{self.attempt_id}"}}'
        return headers


def needs_of(surface: str, bound: int, output_tokens: int | None, **wanted: bool) -> Needs:
    """What a request needs from a model: room for its input, and the features that are wanted."""
    features = frozenset(name for name, present in wanted.items() if present)
    return Needs(surface, bound, output_tokens, features)


def default_tier(provider: OpenAIProvider | BedrockProvider) -> Json:
    """What makes OpenAI itself serve a call in the tier that has a price here. Without it, the tier
    is the one that the project is set to, which may be ``priority``, at twice the price."""
    openai = isinstance(provider, OpenAIProvider) and provider.is_openai
    return {"service_tier": "default"} if openai else {}


def least_output(provider: OpenAIProvider | BedrockProvider, *, relay: bool = False) -> int:
    """Tokens that an answer may have at any limit."""
    translated = isinstance(provider, OpenAIProvider) and not relay
    return LEAST_RESPONSE_TOKENS if translated else 0


def input_growth(fields: object, arguments: Iterable[object] = ()) -> int:
    """How many bytes more than its own a model may read of a client's ``fields``: by normalising
    them, and by rendering anew the ``arguments`` and results of tools among them, which are JSON as
    a text or as a value. To be counted once for a request."""
    growth = normalised_growth(encode_json(fields))
    for value in arguments:
        text = value if isinstance(value, str) else encode_json(value).decode()
        growth += rendered_growth(text)
    return growth


def input_bound_bytes(
    body: bytes, schemas: object, images: Iterable[str], *, growth: int, expanded: int = 0
) -> int:
    """Upper bound of the tokens that the model reads: the bytes sent without ``images``, which have
    prices of their own, by how much they may grow (``input_growth``), and ``schemas`` (tools,
    formats of the answer; empty: none) as rendered.

    ``expanded`` is the size of schemas whose references the translator writes out.
    """
    bound = len(body) - sum(map(len, images)) + growth
    if not schemas:
        return bound
    rendered = SCHEMA_RENDERING_FACTOR * (len(encode_json(schemas)) + expanded)
    return bound + SCHEMA_OVERHEAD_TOKENS + rendered
