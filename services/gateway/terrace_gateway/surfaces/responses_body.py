"""OpenAI's responses: from a client's body to ours, field by field from an allow-list.

Nothing is kept at the provider: ``store`` is always false, and what refers to something kept there
(earlier responses, conversations, files, saved prompts) is refused, because its size is not known.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

from terrace_common.governance import Governance, Model, OpenAIProvider
from terrace_gateway.calls.ports import Needs
from terrace_gateway.surfaces.json_body import (
    Json,
    as_flag,
    as_level,
    as_list,
    as_number,
    as_object,
    as_positive,
    as_text,
    encode_json,
    unsupported,
)
from terrace_gateway.surfaces.prompt_texts import (
    Change,
    change_value,
    put_texts,
    read_texts,
    session_of,
)
from terrace_gateway.surfaces.responses_answer import ResponsesSurface
from terrace_gateway.surfaces.responses_items import (
    change_item,
    images_of,
    read_input,
    read_text,
    read_tool_choice,
    read_tools,
)
from terrace_gateway.surfaces.schema_size import expanded_bytes
from terrace_gateway.surfaces.surface import Identity
from terrace_gateway.surfaces.upstream_request import (
    Attempt,
    UpstreamRequest,
    default_tier,
    input_bound_bytes,
    input_growth,
    least_output,
    needs_of,
)

PATH = "/v1/responses"

REFUSED = {
    "background": "an answer that nobody waits for cannot be settled",
    "context_management": "edits of the context cannot be bounded",
    "conversation": "what the provider keeps cannot be bounded",
    "previous_response_id": "what the provider keeps cannot be bounded; send the items",
    "prompt": "saved prompts cannot be bounded",
    "store": "nothing is kept at the provider",
}
_INCLUDE = ("reasoning.encrypted_content",)
_ECHOED = ("instructions", "temperature", "top_p", "tools", "tool_choice", "parallel_tool_calls")


@dataclass(frozen=True)
class ResponsesRequest:
    """A checked body."""

    asked_model: str
    stream: bool
    requested_max_tokens: int | None
    reasoning: Json
    fields: Json
    user: str | None = None
    surface: str = "responses"
    include_usage: bool = True

    @property
    def needs(self) -> Needs:
        """What the request needs from a model."""
        return self._needs

    @cached_property
    def _needs(self) -> Needs:
        return needs_of(
            self.surface,
            self._bound(encode_json(self.fields)),
            self.requested_max_tokens,
            streaming=self.stream,
            tools=bool(self.fields.get("tools")),
            images=bool(self._images),
            reasoning=bool(self.reasoning),
            json_schema=self._format.get("type") == "json_schema",
        )

    def texts(self) -> tuple[str, ...]:
        """Every text of the prompt, in order."""
        return read_texts(_walk, self.fields)

    def with_texts(self, texts: Sequence[str]) -> "ResponsesRequest":
        """The same request saying ``texts``."""
        return replace(self, fields=put_texts(_walk, self.fields, texts))

    def session(self) -> str | None:
        """What the conversation is known by."""
        source = self.fields["input"]
        items = cast("list[Json]", source) if isinstance(source, list) else []
        first = next((n for n, item in enumerate(items) if item.get("role") == "user"), 0)
        begin: list[object] = [self.fields.get("instructions")]
        begin += items[: first + 1] if items else [self.fields["input"]]
        return session_of(self.user, begin)

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

        Raises ``ApiError`` if this model cannot bound it; another may.
        """
        attempt = Attempt(attempt_id, traceparent)
        provider = governance.provider_of(model)
        translated = not isinstance(provider, OpenAIProvider)
        body: Json = {
            "model": model.upstream_model if relay else model.name,
            **self.fields,
            "max_output_tokens": max_output_tokens,
            "store": False,
            **default_tier(provider),
        }
        if not relay:
            body["extra_headers"] = attempt.headers()
        if self.reasoning:
            if translated and "effort" in self.reasoning:
                # LiteLLM turns it into a thinking budget of its own choice.
                raise unsupported(f"reasoning cannot be bounded on {self.asked_model}", "reasoning")
            body["reasoning"] = self.reasoning
        if self.stream:
            body["stream"] = True
        encoded = encode_json(body)
        expanded = expanded_bytes(self._schemas()) if translated else 0
        return UpstreamRequest(
            PATH,
            encoded,
            self._bound(encoded, expanded=expanded),
            max_output_tokens,
            attempt.headers(),
            image_count=len(self._images),
            least_output_tokens=least_output(provider, relay=relay),
        )

    def answers(self, identity: Identity) -> ResponsesSurface:
        """How answers to this request are read. What a response repeats of its request is taken
        from the request, not from the provider."""
        echo = {field: self.fields[field] for field in _ECHOED if field in self.fields}
        echo["text"] = self.fields.get("text") or {"format": {"type": "text"}}
        return ResponsesSurface(identity, self.stream, echo)

    @property
    def _format(self) -> Json:
        return cast("dict[str, Json]", self.fields.get("text", {})).get("format", {})

    @cached_property
    def _images(self) -> list[str]:
        return images_of(self.fields["input"])

    @cached_property
    def _growth(self) -> int:
        source = self.fields["input"]
        items = cast("list[Json]", source) if isinstance(source, list) else []
        calls = (item for item in items if item["type"] == "function_call")
        return input_growth(self.fields, (call["arguments"] for call in calls))

    def _bound(self, encoded: bytes, *, expanded: int = 0) -> int:
        schemas = {k: v for k, v in self.fields.items() if k in {"tools", "text"}}
        return input_bound_bytes(
            encoded, schemas, self._images, growth=self._growth, expanded=expanded
        )

    def _schemas(self) -> list[tuple[object, str]]:
        tools = cast("list[Json]", self.fields.get("tools", []))
        found = [(tool["parameters"], f"tools[{index}]") for index, tool in enumerate(tools)]
        return [*found, (self._format.get("schema"), "text.format")]


def read_responses_body(body: Json) -> ResponsesRequest:
    """Check a client's body. Raises ``ApiError`` naming the field."""
    for field, reason in REFUSED.items():
        if body.get(field):
            raise unsupported(f"{field} is not supported: {reason}", field)
    if body.get("service_tier") not in (None, "auto", "default"):
        raise unsupported("service_tier must be default: other tiers have no price", "service_tier")
    fields: Json = {"input": read_input(body.get("input"))}
    for field, check in _TAKEN.items():
        if body.get(field) is not None:
            fields[field] = check(body[field], field)
    requested = body.get("max_output_tokens")
    user = body.get("prompt_cache_key") or body.get("user")
    return ResponsesRequest(
        asked_model=as_text(body.get("model"), "model"),
        stream=as_flag(body.get("stream") or False, "stream"),
        requested_max_tokens=(
            None if requested is None else as_positive(requested, "max_output_tokens")
        ),
        reasoning=_reasoning(body.get("reasoning")),
        fields=fields,
        user=user if isinstance(user, str) else None,
    )


def _reasoning(value: object) -> Json:
    if value is None:
        return {}
    source = as_object(value, "reasoning")
    return {
        field: as_level(source[field], f"reasoning.{field}")
        for field in ("effort", "summary")
        if source.get(field) is not None
    }


def _include(value: object, where: str) -> list[str]:
    wanted = [as_text(item, where) for item in as_list(value, where)]
    for item in wanted:
        if item not in _INCLUDE:
            raise unsupported(f"{where} may only be {', '.join(_INCLUDE)}", where)
    return wanted


def _truncation(value: object, where: str) -> str:
    if value not in ("auto", "disabled"):
        raise unsupported(f"{where} must be auto or disabled", where)
    return str(value)


def _walk(fields: Json, change: Change) -> Json:
    result = dict(fields)
    if "instructions" in fields:
        result["instructions"] = change(cast("str", fields["instructions"]))
    source = fields["input"]
    result["input"] = (
        change(source)
        if isinstance(source, str)
        else [change_item(item, change) for item in cast("list[Json]", source)]
    )
    for field in ("tools", "text"):
        if field in fields:
            result[field] = change_value(fields[field], change, field)
    return result


_TAKEN: dict[str, Callable[[object, str], object]] = {
    "instructions": as_text,
    "temperature": as_number,
    "top_p": as_number,
    "tools": read_tools,
    "tool_choice": read_tool_choice,
    "parallel_tool_calls": as_flag,
    "text": read_text,
    "truncation": _truncation,
    "include": _include,
}
FIELD_NAMES = frozenset(_TAKEN) | {
    "model",
    "input",
    "max_output_tokens",
    "reasoning",
    "stream",
    "user",
    "prompt_cache_key",
}
"""Every field of a client's body that has an effect."""
