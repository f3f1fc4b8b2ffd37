"""Anthropic's messages: from a client's body to ours, field by field from an allow-list."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

from terrace_common.governance import Governance, Model, OpenAIProvider
from terrace_common.prices import CacheWrites, Price
from terrace_gateway.calls.ports import Needs
from terrace_gateway.surfaces.json_body import (
    Json,
    as_flag,
    as_list,
    as_number,
    as_object,
    as_positive,
    as_text,
    encode_json,
    invalid,
    unsupported,
)
from terrace_gateway.surfaces.messages_answer import CountSurface, MessagesSurface
from terrace_gateway.surfaces.messages_blocks import (
    change_blocks,
    read_blocks,
    read_messages,
    read_tool_choice,
    read_tools,
    without_cache_control,
)
from terrace_gateway.surfaces.prompt_texts import (
    Change,
    change_stop,
    change_value,
    put_texts,
    read_texts,
    session_of,
)
from terrace_gateway.surfaces.schema_size import expanded_bytes
from terrace_gateway.surfaces.surface import Identity, Surface
from terrace_gateway.surfaces.upstream_request import (
    Attempt,
    UpstreamRequest,
    default_tier,
    input_bound_bytes,
    input_growth,
    least_output,
    needs_of,
)

PATH = "/v1/messages"
COUNT_PATH = "/v1/messages/count_tokens"
MIN_THINKING_TOKENS = 1024

REFUSED = {
    "container": "containers cannot be bounded",
    "context_management": "edits of the context cannot be bounded",
    "inference_geo": "it has no price here",
    "mcp_servers": "hosted tools cannot be bounded",
    "output_config": "it cannot be bounded on every provider; use a tool for structured output",
    "output_format": "use a tool for structured output",
    "speed": "it has no price here",
}


@dataclass(frozen=True)
class MessagesRequest:
    """A checked body. With ``count`` it asks how many tokens it has, and not for an answer."""

    asked_model: str
    stream: bool
    requested_max_tokens: int | None
    thinking_tokens: int | None
    fields: Json
    user: str | None = None
    count: bool = False
    include_usage: bool = True

    @property
    def surface(self) -> str:
        """``messages`` or ``count_tokens``."""
        return "count_tokens" if self.count else "messages"

    @property
    def needs(self) -> Needs:
        """What the request needs from a model."""
        return self._needs

    @cached_property
    def _needs(self) -> Needs:
        return needs_of(
            self.surface,
            self._bound(encode_json(self.fields)),
            0 if self.count else self.requested_max_tokens,
            streaming=self.stream,
            tools=bool(self.fields.get("tools")),
            images=bool(self._images),
            reasoning=self.thinking_tokens is not None,
        )

    def texts(self) -> tuple[str, ...]:
        """Every text of the prompt, in order."""
        return read_texts(_walk, self.fields)

    def with_texts(self, texts: Sequence[str]) -> "MessagesRequest":
        """The same request saying ``texts``."""
        return replace(self, fields=put_texts(_walk, self.fields, texts))

    def session(self) -> str | None:
        """What the conversation is known by."""
        messages = cast("list[Json]", self.fields["messages"])
        first = next((n for n, item in enumerate(messages) if item["role"] == "user"), 0)
        begin = without_cache_control([self.fields.get("system"), *messages[: first + 1]])
        return session_of(self.user, cast("list[object]", begin))

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
        """The request for the translator. A thinking budget must be below the output limit.

        Raises ``ApiError`` if this model cannot bound it.
        """
        if relay:
            raise unsupported(f"{self.asked_model} has no messages surface", "model")
        attempt = Attempt(attempt_id, traceparent)
        fields, cache_writes = self._cached_as_priced(model.price)
        schemas = [
            (tool["input_schema"], f"tools[{index}]")
            for index, tool in enumerate(cast("list[Json]", fields.get("tools", [])))
        ]
        if self.count:
            # Its own headers would be taken for fields of the prompt.
            encoded = encode_json({"model": model.name, **_countable(fields)})
            return UpstreamRequest(COUNT_PATH, encoded, 0, 0, attempt.headers(), free=True)
        body: Json = {
            "model": model.name,
            **fields,
            "max_tokens": max_output_tokens,
            "extra_headers": attempt.headers(),
        }
        if self.thinking_tokens is not None:
            if self.thinking_tokens >= max_output_tokens:
                raise invalid(
                    "thinking.budget_tokens must be below max_tokens, which is"
                    f" {max_output_tokens} here",
                    "thinking",
                )
            body["thinking"] = {"type": "enabled", "budget_tokens": self.thinking_tokens}
        if self.stream:
            body["stream"] = True
        provider = governance.provider_of(model)
        if isinstance(provider, OpenAIProvider):  # LiteLLM asks it for a response
            body["store"] = False  # which OpenAI keeps by default
            body |= default_tier(provider)
        encoded = encode_json(body)
        return UpstreamRequest(
            PATH,
            encoded,
            self._bound(encoded, expanded=expanded_bytes(schemas)),
            max_output_tokens,
            attempt.headers(),
            image_count=len(self._images),
            cache_writes=cache_writes,
            least_output_tokens=least_output(provider),
        )

    def answers(self, identity: Identity) -> Surface:
        """How answers to this request are read."""
        return (
            CountSurface()
            if self.count
            else MessagesSurface(identity, self.stream, "1h" in self._lifetimes)
        )

    def _cached_as_priced(self, price: Price) -> tuple[Json, CacheWrites]:
        """The fields and the dearest write they ask for; marks without a price are taken off, which
        makes the call cost no more."""
        lifetimes = self._lifetimes
        if not lifetimes:
            return self.fields, "none"
        short = price.cache_write_micro_usd_per_mtok is not None
        long = price.cache_write_1h_micro_usd_per_mtok is not None
        if (lifetimes == {"5m"} and short) or (short and long):
            return self.fields, "1h" if "1h" in lifetimes else "5m"
        bare = {
            key: without_cache_control(value) if key in ("system", "messages", "tools") else value
            for key, value in self.fields.items()
        }
        return bare, "none"

    @cached_property
    def _lifetimes(self) -> set[str]:
        """Of the cache writes that are asked for."""
        return {str(mark.get("ttl", "5m")) for mark in _cache_marks(self.fields)}

    @cached_property
    def _images(self) -> list[str]:
        found: list[str] = []
        for block in _blocks(self.fields):
            if block["type"] == "image":
                found.append(cast("dict[str, str]", block["source"])["data"])
        return found

    @cached_property
    def _growth(self) -> int:
        uses = (block for block in _blocks(self.fields) if block["type"] == "tool_use")
        return input_growth(self.fields, (use["input"] for use in uses))

    def _bound(self, encoded: bytes, *, expanded: int = 0) -> int:
        tools = self.fields.get("tools")
        return input_bound_bytes(
            encoded, tools, self._images, growth=self._growth, expanded=expanded
        )


def read_messages_body(body: Json, *, count: bool = False) -> MessagesRequest:
    """Check a client's body. Raises ``ApiError`` naming the field."""
    for field, reason in REFUSED.items():
        if body.get(field):
            raise unsupported(f"{field} is not supported: {reason}", field)
    if body.get("service_tier") not in (None, "auto", "standard_only"):
        raise unsupported("service_tier must be standard_only", "service_tier")
    fields: Json = {"messages": read_messages(body.get("messages"))}
    for field, check in _TAKEN.items():
        if body.get(field) is not None:
            fields[field] = check(body[field], field)
    requested = body.get("max_tokens")
    metadata = body.get("metadata")
    user = as_object(metadata, "metadata").get("user_id") if metadata is not None else None
    return MessagesRequest(
        asked_model=as_text(body.get("model"), "model"),
        stream=False if count else as_flag(body.get("stream") or False, "stream"),
        requested_max_tokens=None if requested is None else as_positive(requested, "max_tokens"),
        thinking_tokens=_thinking(body.get("thinking")),
        fields=fields,
        user=user if isinstance(user, str) else None,
        count=count,
    )


def _thinking(value: object) -> int | None:
    if value is None:
        return None
    source = as_object(value, "thinking")
    if source.get("type") == "disabled":
        return None
    if source.get("type") != "enabled":
        raise unsupported("thinking.type must be enabled or disabled", "thinking")
    budget = as_positive(source.get("budget_tokens"), "thinking.budget_tokens")
    if budget < MIN_THINKING_TOKENS:
        raise invalid(f"thinking.budget_tokens must be at least {MIN_THINKING_TOKENS}", "thinking")
    return budget


def _stop_sequences(value: object, where: str) -> list[str]:
    return [as_text(item, where) for item in as_list(value, where)]


def _system(value: object, where: str) -> object:
    return read_blocks(value, where, ("text",))


def _countable(fields: Json) -> Json:
    return {k: fields[k] for k in ("messages", "system", "tools", "tool_choice") if k in fields}


def _walk(fields: Json, change: Change) -> Json:
    result = dict(fields)
    if "system" in fields:
        result["system"] = change_blocks(fields["system"], change)
    result["messages"] = [
        {**message, "content": change_blocks(message["content"], change)}
        for message in cast("list[Json]", fields["messages"])
    ]
    if "tools" in fields:
        result["tools"] = change_value(fields["tools"], change, "tools")
    if "stop_sequences" in fields:
        result["stop_sequences"] = change_stop(fields["stop_sequences"], change)
    return result


def _blocks(fields: Json) -> Iterator[Json]:
    for message in cast("list[Json]", fields["messages"]):
        yield from _blocks_of(message["content"])


def _blocks_of(content: object) -> Iterator[Json]:
    """Blocks of a content, and of the results of tools among them."""
    if isinstance(content, list):
        for block in cast("list[Json]", content):
            yield block
            if "content" in block:
                yield from _blocks_of(block["content"])


def _cache_marks(fields: Json) -> list[Json]:
    marked = [*_blocks(fields), *cast("list[Json]", fields.get("tools", []))]
    system = fields.get("system")
    if isinstance(system, list):
        marked += cast("list[Json]", system)
    return [cast("Json", item["cache_control"]) for item in marked if "cache_control" in item]


_TAKEN: dict[str, Callable[[object, str], object]] = {
    "system": _system,
    "temperature": as_number,
    "top_p": as_number,
    "top_k": as_number,
    "stop_sequences": _stop_sequences,
    "tools": read_tools,
    "tool_choice": read_tool_choice,
}
FIELD_NAMES = frozenset(_TAKEN) | {
    "model",
    "messages",
    "max_tokens",
    "metadata",
    "stream",
    "thinking",
}
"""Every field of a client's body that has an effect."""
