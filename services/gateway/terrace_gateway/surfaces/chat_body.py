"""The chat completions surface: from a client's body to ours, field by field from an allow-list.

Three classes of fields: taken (checked and copied), refused (they change the cost in a way that
cannot be bounded), and everything else, which is dropped: a client controls nothing of the
translator (``metadata``, ``api_base``, ``num_retries``, ``mock_response``, ``no-log``, ...).
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

from terrace_common.governance import BedrockProvider, Governance, Model, OpenAIProvider
from terrace_common.governance.catalogue import OutputLimitField
from terrace_gateway.calls.ports import Needs
from terrace_gateway.surfaces.chat_answer import ChatSurface
from terrace_gateway.surfaces.chat_messages import (
    read_messages,
    read_response_format,
    read_tool_choice,
    read_tools,
)
from terrace_gateway.surfaces.json_body import (
    Json,
    as_flag,
    as_level,
    as_number,
    as_object,
    as_positive,
    as_stop,
    as_text,
    encode_json,
    invalid,
    unsupported,
)
from terrace_gateway.surfaces.prompt_texts import (
    Change,
    change_arguments,
    change_content,
    change_fields,
    change_stop,
    change_value,
    put_texts,
    read_texts,
    session_of,
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

PATH = "/v1/chat/completions"
_TOKEN = re.compile(r"[0-9]{1,7}")
"""The number of a token of a vocabulary."""

_OUTPUT_LIMITS: tuple[OutputLimitField, ...] = ("max_completion_tokens", "max_tokens")

REFUSED = {
    "audio": "audio cannot be bounded",
    "best_of": "more than one choice cannot be bounded",
    "functions": "use tools instead",
    "function_call": "use tool_choice instead",
    "prediction": "predicted outputs cannot be bounded",
    "thinking": "thinking budgets cannot be bounded",
    "web_search_options": "hosted tools cannot be bounded",
}


@dataclass(frozen=True)
class ChatRequest:
    """A checked body. ``asked_model`` is the name that the client asked for."""

    asked_model: str
    stream: bool
    include_usage: bool
    requested_max_tokens: int | None
    reasoning_effort: str | None
    fields: Json
    user: str | None = None
    surface: str = "chat"

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
            reasoning=self.reasoning_effort is not None,
            json_schema="json_schema" in cast("Json", self.fields.get("response_format", {})),
        )

    def texts(self) -> tuple[str, ...]:
        """Every text of the prompt, in order."""
        return read_texts(_walk, self.fields)

    def with_texts(self, texts: Sequence[str]) -> "ChatRequest":
        """The same request saying ``texts``."""
        return replace(self, fields=put_texts(_walk, self.fields, texts))

    def session(self) -> str | None:
        """What the conversation is known by."""
        messages = cast("list[Json]", self.fields["messages"])
        first = next((n for n, item in enumerate(messages) if item["role"] == "user"), 0)
        return session_of(self.user, messages[: first + 1])

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
        body: Json = {
            "model": model.upstream_model if relay else model.name,
            **self.fields,
            _output_limit_field(provider): max_output_tokens,
        }
        if not relay:
            body["extra_headers"] = attempt.headers()
        translated = not isinstance(provider, OpenAIProvider)
        if self.reasoning_effort is not None:
            if translated:
                # LiteLLM turns it into a thinking budget of its own choice.
                raise unsupported(
                    f"reasoning_effort cannot be bounded on {self.asked_model}", "reasoning_effort"
                )
            body["reasoning_effort"] = self.reasoning_effort
        body |= default_tier(provider)
        if self.stream:
            body["stream"] = True
            body["stream_options"] = {"include_usage": True}
        encoded = encode_json(body)
        expanded = expanded_bytes(self._schemas()) if translated else 0
        return UpstreamRequest(
            PATH,
            encoded,
            self._bound(encoded, expanded=expanded),
            max_output_tokens,
            headers=attempt.headers(),
            image_count=len(self._images),
            relayed=relay,
            least_output_tokens=least_output(provider, relay=relay),
        )

    def answers(self, identity: Identity) -> ChatSurface:
        """How answers to this request are read."""
        return ChatSurface(identity, self.stream, self.include_usage)

    @cached_property
    def _images(self) -> list[str]:
        """URLs of the images."""
        messages = cast("list[Json]", self.fields["messages"])
        parts = [
            part
            for message in messages
            if isinstance(message.get("content"), list)
            for part in cast("list[Json]", message["content"])
        ]
        found = (part.get("image_url") for part in parts)
        return [cast("dict[str, str]", image)["url"] for image in found if image is not None]

    @cached_property
    def _growth(self) -> int:
        calls = [
            call
            for message in cast("list[Json]", self.fields["messages"])
            for call in cast("list[dict[str, Json]]", message.get("tool_calls", []))
        ]
        return input_growth(self.fields, (call["function"]["arguments"] for call in calls))

    def _bound(self, encoded: bytes, *, expanded: int = 0) -> int:
        schemas = {k: v for k, v in self.fields.items() if k in {"tools", "response_format"}}
        return input_bound_bytes(
            encoded, schemas, self._images, growth=self._growth, expanded=expanded
        )

    def _schemas(self) -> list[tuple[object, str]]:
        """Every JSON schema of the body and where it stands."""
        tools = cast("list[dict[str, Json]]", self.fields.get("tools", []))
        found = [
            (tool["function"].get("parameters"), f"tools[{index}]")
            for index, tool in enumerate(tools)
        ]
        answer = cast("dict[str, Json]", self.fields.get("response_format", {}))
        found.append((answer.get("json_schema", {}).get("schema"), "response_format"))
        return found


def _walk(fields: Json, change: Change) -> Json:
    result = dict(fields)
    result["messages"] = [
        _walk_message(item, change) for item in cast("list[Json]", fields["messages"])
    ]
    if "tools" in fields:
        result["tools"] = change_value(fields["tools"], change, "tools")
    if "response_format" in fields:
        result["response_format"] = change_value(
            fields["response_format"], change, "response_format"
        )
    if "stop" in fields:
        result["stop"] = change_stop(fields["stop"], change)
    return result


def _walk_message(message: Json, change: Change) -> Json:
    result = change_fields(message, change, ("name", "refusal"))
    if "content" in message:
        result["content"] = change_content(message["content"], change, ("text", "refusal"))
    if "tool_calls" in message:
        result["tool_calls"] = [
            {**call, "function": _walk_function(cast("Json", call["function"]), change)}
            for call in cast("list[Json]", message["tool_calls"])
        ]
    return result


def _walk_function(function: Json, change: Change) -> Json:
    arguments = cast("str", function["arguments"])
    return {**function, "arguments": change_arguments(arguments, change, "tool_calls.arguments")}


def read_chat_body(body: Json) -> ChatRequest:
    """Check a client's body. Raises ``ApiError`` naming the field."""
    for field, reason in REFUSED.items():
        if body.get(field) is not None:
            raise unsupported(f"{field} is not supported: {reason}", field)
    if body.get("n", 1) not in (1, None) or isinstance(body.get("n"), bool):
        raise unsupported("n must be 1: more than one choice cannot be bounded", "n")
    if body.get("modalities") not in (None, ["text"]):
        raise unsupported('modalities must be ["text"]', "modalities")
    if body.get("service_tier") not in (None, "auto", "default"):
        raise unsupported("service_tier must be default: other tiers have no price", "service_tier")
    fields: Json = {"messages": read_messages(body.get("messages"))}
    for field, check in _TAKEN.items():
        if body.get(field) is not None:
            fields[field] = check(body[field], field)
    field = next((name for name in _OUTPUT_LIMITS if body.get(name) is not None), None)
    effort = body.get("reasoning_effort")
    options = body.get("stream_options")
    include_usage = (
        False
        if options is None
        else as_object(options, "stream_options").get("include_usage") is True
    )
    return ChatRequest(
        asked_model=as_text(body.get("model"), "model"),
        stream=as_flag(body.get("stream") or False, "stream"),
        include_usage=include_usage,
        requested_max_tokens=None if field is None else as_positive(body[field], field),
        reasoning_effort=None if effort is None else as_level(effort, "reasoning_effort"),
        fields=fields,
        user=user if isinstance(user := body.get("user"), str) else None,
    )


def _output_limit_field(provider: OpenAIProvider | BedrockProvider) -> OutputLimitField:
    """Where the limit goes: never where the client chose to write it, because an upstream that does
    not know the field would leave the answer without a limit."""
    if not isinstance(provider, OpenAIProvider):
        return "max_tokens"
    if provider.output_limit_field is not None:
        return provider.output_limit_field
    return "max_completion_tokens" if provider.is_openai else "max_tokens"


def _logit_bias(value: object, where: str) -> Json:
    biases = as_object(value, where)
    if not all(map(_TOKEN.fullmatch, biases)):
        raise invalid(f"{where}: each key must be the number of a token", where)
    return {key: as_number(bias, where) for key, bias in biases.items()}


_TAKEN: dict[str, Callable[[object, str], object]] = {
    "temperature": as_number,
    "top_p": as_number,
    "presence_penalty": as_number,
    "frequency_penalty": as_number,
    "seed": as_number,
    "logprobs": as_flag,
    "top_logprobs": as_number,
    "logit_bias": _logit_bias,
    "stop": as_stop,
    "tools": read_tools,
    "tool_choice": read_tool_choice,
    "parallel_tool_calls": as_flag,
    "response_format": read_response_format,
}
FIELD_NAMES = frozenset(_TAKEN) | {
    "model",
    "messages",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "reasoning_effort",
    "user",
}
"""Every field of a client's body that has an effect."""
