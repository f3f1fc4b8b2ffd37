"""A checked request of any surface, and its reading."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from terrace_common.governance import Governance, Model
from terrace_gateway.calls.ports import Needs
from terrace_gateway.edge.routes import Match
from terrace_gateway.surfaces import (
    chat_body,
    completions_body,
    converse_body,
    embeddings,
    messages_body,
    responses_body,
)
from terrace_gateway.surfaces.chat_body import read_chat_body
from terrace_gateway.surfaces.completions_body import read_completions_body
from terrace_gateway.surfaces.converse_body import read_converse_body
from terrace_gateway.surfaces.embeddings import read_embeddings_body
from terrace_gateway.surfaces.json_body import Json
from terrace_gateway.surfaces.messages_body import read_messages_body
from terrace_gateway.surfaces.responses_body import read_responses_body
from terrace_gateway.surfaces.surface import Identity, Surface
from terrace_gateway.surfaces.upstream_request import UpstreamRequest


class SurfaceRequest(Protocol):
    """What the pipeline of a call sees of a request. Immutable."""

    @property
    def surface(self) -> str:
        """``chat``, ``completions``, ``responses``, ``embeddings``, ``messages``,
        ``count_tokens`` or ``converse``."""
        ...

    @property
    def asked_model(self) -> str:
        """As the client named it."""
        ...

    @property
    def stream(self) -> bool:
        """Whether the client asked for a stream."""
        ...

    @property
    def include_usage(self) -> bool:
        """Whether a streamed answer shows usage. Chat and completions show it when asked."""
        ...

    @property
    def needs(self) -> Needs:
        """What it needs from a model. Its bound is without images and without what a translated
        candidate adds: the bound that is reserved is the upstream request's own."""
        ...

    def texts(self) -> tuple[str, ...]:
        """Every text of the prompt, in order; structured values as compact JSON."""
        ...

    def with_texts(self, texts: Sequence[str]) -> "SurfaceRequest":
        """The same request saying ``texts``, as many as there were (else ``ValueError``).

        Raises ``ApiError`` if a masked structured value is no JSON any more.
        """
        ...

    def session(self) -> str | None:
        """A hash that is the same for all requests of a conversation. Not for logs."""
        ...

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
        """The request for one candidate. Raises ``ApiError`` if it cannot bound this request or
        does not serve this surface; another candidate may."""
        ...

    def answers(self, identity: Identity) -> Surface:
        """How answers to this request are read, rebuilt, filtered and ended."""
        ...


FIELDS_OF: Mapping[str, frozenset[str]] = {
    "chat": chat_body.FIELD_NAMES,
    "completions": completions_body.FIELD_NAMES,
    "responses": responses_body.FIELD_NAMES,
    "embeddings": embeddings.FIELD_NAMES,
    "messages": messages_body.FIELD_NAMES,
    "count_tokens": messages_body.FIELD_NAMES,
    "converse": converse_body.FIELD_NAMES,
}
"""Surface -> every field of a client's body that has an effect."""


def read_request(match: Match, body: Json) -> SurfaceRequest:
    """The checked request of a matched route. Raises ``ApiError`` naming the field."""
    return _READERS[match.route.endpoint](match, body)


_READERS: dict[str, Callable[[Match, Json], SurfaceRequest]] = {
    "chat": lambda _match, body: read_chat_body(body),
    "completions": lambda _match, body: read_completions_body(body),
    "responses": lambda _match, body: read_responses_body(body),
    "embeddings": lambda _match, body: read_embeddings_body(body),
    "messages": lambda _match, body: read_messages_body(body),
    "count_tokens": lambda _match, body: read_messages_body(body, count=True),
    "converse": lambda match, body: read_converse_body(body, match.model_id or "", stream=False),
    "converse_stream": lambda match, body: read_converse_body(
        body, match.model_id or "", stream=True
    ),
}
