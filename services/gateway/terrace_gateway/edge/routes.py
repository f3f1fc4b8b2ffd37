"""The public surface as one table. What is not in it does not exist."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from terrace_gateway.edge.errors import ErrorShape

Endpoint = Literal[
    "chat",
    "completions",
    "responses",
    "embeddings",
    "messages",
    "count_tokens",
    "converse",
    "converse_stream",
    "models",
    "model",
    "healthz",
    "readyz",
]


@dataclass(frozen=True)
class Route:
    """A (method, path template). ``template`` is what logs, metrics and spans name."""

    method: str
    template: str
    endpoint: Endpoint
    pattern: re.Pattern[str]


@dataclass(frozen=True)
class Match:
    """A route and, where the path has one, its model id (decoded)."""

    route: Route
    model_id: str | None


def _route(method: str, template: str, endpoint: Endpoint) -> Route:
    # A model id may hold "/" and ":" (profile ARNs). It is only looked up, never forwarded.
    model_id = r"(?P<model_id>[^\x00-\x20]{1,512})"
    pattern = re.escape(template).replace(re.escape("{modelId}"), model_id)
    return Route(method, template, endpoint, re.compile(pattern))


ROUTES = (
    _route("POST", "/v1/chat/completions", "chat"),
    _route("POST", "/v1/completions", "completions"),
    _route("POST", "/v1/responses", "responses"),
    _route("POST", "/v1/embeddings", "embeddings"),
    _route("POST", "/v1/messages", "messages"),
    _route("POST", "/v1/messages/count_tokens", "count_tokens"),
    _route("GET", "/v1/models", "models"),
    _route("GET", "/v1/models/{modelId}", "model"),
    _route("POST", "/model/{modelId}/converse", "converse"),
    _route("POST", "/model/{modelId}/converse-stream", "converse_stream"),
    _route("GET", "/healthz", "healthz"),
    _route("GET", "/readyz", "readyz"),
)


def is_bedrock(path: str) -> bool:
    """Whether ``path`` is on the Bedrock surface, which serves Bedrock models only."""
    return path.startswith("/model/")


def error_shape(path: str, headers: Mapping[str, str]) -> ErrorShape:
    """How the clients of ``path`` read errors. The models' list is OpenAI's and Anthropic's: what
    tells them apart is Anthropic's version header. ``headers`` has lower-case names."""
    if is_bedrock(path):
        return "bedrock"
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return "anthropic"
    models = path == "/v1/models" or path.startswith("/v1/models/")
    return "anthropic" if models and "anthropic-version" in headers else "openai"


def match_route(method: str, path: str) -> Match | None:
    """The route of an exact method and decoded ``scope["path"]``, or ``None``."""
    for route in ROUTES:
        if route.method == method and (found := route.pattern.fullmatch(path)):
            return Match(route, found.groupdict().get("model_id"))
    return None


def meant_route(method: str, path: str) -> str:
    """A question for whoever left ``/v1`` out of the base URL or gave it twice, else nothing.

    Names the route that the path would have had; nothing of the path itself is repeated.
    """
    meant = path.removeprefix("/v1") if path.startswith("/v1/v1/") else f"/v1{path}"
    found = match_route(method, meant)
    return "" if found is None else f"; did you mean {found.route.template}?"
