"""The Bedrock converse surface: from a client's body to ours, field by field from an allow-list."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

from terrace_common.governance import BedrockProvider, Governance, Model
from terrace_common.names import ATTEMPT_ID_METADATA
from terrace_common.prices import CacheWrites, Price
from terrace_gateway.calls.ports import Needs
from terrace_gateway.surfaces.cache_points import (
    cache_lifetimes,
    read_cache_point,
    without_cache_points,
)
from terrace_gateway.surfaces.converse_answer import ConverseSurface
from terrace_gateway.surfaces.images import check_base64, check_media_type
from terrace_gateway.surfaces.json_body import (
    MAX_TOOLS,
    Json,
    as_list,
    as_name,
    as_number,
    as_object,
    as_positive,
    as_sealed,
    as_stop,
    as_text,
    encode_json,
    invalid,
    unsupported,
)
from terrace_gateway.surfaces.prompt_texts import (
    Change,
    change_fields,
    change_value,
    put_texts,
    read_texts,
    session_of,
)
from terrace_gateway.surfaces.surface import Identity
from terrace_gateway.surfaces.upstream_request import (
    Attempt,
    UpstreamRequest,
    input_bound_bytes,
    input_growth,
    needs_of,
)

REFUSED = {
    "additionalModelRequestFields": "its fields cannot be bounded",
    "guardrailConfig": "guardrails have no price here",
    "promptVariables": "managed prompts cannot be bounded",
    "serviceTier": "service tiers have no price here",
    "outputConfig": "structured output has no bound here",
}
FIELD_NAMES = frozenset({"messages", "system", "toolConfig", "inferenceConfig"})
"""Every field of a client's body that has an effect."""


@dataclass(frozen=True)
class ConverseRequest:
    """A checked body."""

    asked_model: str
    stream: bool
    requested_max_tokens: int | None
    inference: Json
    fields: Json
    surface: str = "converse"
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
            tools="toolConfig" in self.fields,
            images=bool(self._images),
        )

    def texts(self) -> tuple[str, ...]:
        """Every text of the prompt, in order."""
        return (*read_texts(_walk, self.fields), *self._stops)

    def with_texts(self, texts: Sequence[str]) -> "ConverseRequest":
        """The same request saying ``texts``."""
        own = len(texts) - len(self._stops)
        fields = put_texts(_walk, self.fields, texts[:own])
        if not self._stops:
            return replace(self, fields=fields)
        inference = {**self.inference, "stopSequences": list(texts[own:])}
        return replace(self, fields=fields, inference=inference)

    @property
    def _stops(self) -> list[str]:
        return cast("list[str]", self.inference.get("stopSequences", []))

    def session(self) -> str | None:
        """What the conversation is known by."""
        fields = without_cache_points(self.fields)  # marks wander from turn to turn
        messages = cast("list[Json]", fields["messages"])
        first = next((n for n, item in enumerate(messages) if item["role"] == "user"), 0)
        return session_of(None, [fields.get("system"), *messages[: first + 1]])

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
        """The request for the translator's Bedrock pass-through, by our model's name.

        Raises ``ApiError`` for a model that is not Bedrock's, or cannot bound the request.
        """
        if relay or not isinstance(governance.provider_of(model), BedrockProvider):
            raise unsupported(f"{self.asked_model} is no Bedrock model", "model")
        fields, cache_writes = self._cached_as_priced(model.price)
        body: Json = {
            **fields,
            "inferenceConfig": {**self.inference, "maxTokens": max_output_tokens},
            "requestMetadata": {ATTEMPT_ID_METADATA: attempt_id},
        }
        encoded = encode_json(body)
        call = "converse-stream" if self.stream else "converse"
        return UpstreamRequest(
            f"/bedrock/model/{model.name}/{call}",
            encoded,
            self._bound(encoded),
            max_output_tokens,
            headers=Attempt(attempt_id, traceparent).headers(),
            image_count=len(self._images),
            cache_writes=cache_writes,
        )

    def answers(self, identity: Identity) -> ConverseSurface:
        """How answers to this request are read."""
        del identity  # a converse answer names no model and has no id
        return ConverseSurface(self.stream, "1h" in self._lifetimes)

    def _cached_as_priced(self, price: Price) -> tuple[Json, CacheWrites]:
        """As on messages: cache points without a price are taken off, which costs no more."""
        lifetimes = self._lifetimes
        if not lifetimes:
            return self.fields, "none"
        short = price.cache_write_micro_usd_per_mtok is not None
        long = price.cache_write_1h_micro_usd_per_mtok is not None
        if (lifetimes == {"5m"} and short) or (short and long):
            return self.fields, "1h" if "1h" in lifetimes else "5m"
        return without_cache_points(self.fields), "none"

    @cached_property
    def _every_block(self) -> list[Json]:
        """Blocks of the messages, and of the results of tools among them."""
        messages = cast("list[dict[str, list[Json]]]", self.fields["messages"])
        blocks = [block for message in messages for block in message["content"]]
        results = [
            inner
            for block in blocks
            if "toolResult" in block
            for inner in cast("dict[str, list[Json]]", block["toolResult"])["content"]
        ]
        return blocks + results

    @cached_property
    def _lifetimes(self) -> set[str]:
        """Of the cache writes that are asked for."""
        return set(cache_lifetimes(self.fields))

    @cached_property
    def _images(self) -> list[str]:
        found = (block.get("image") for block in self._every_block)
        return [
            cast("dict[str, dict[str, str]]", image)["source"]["bytes"]
            for image in found
            if image is not None
        ]

    @cached_property
    def _growth(self) -> int:
        uses = (block["toolUse"] for block in self._every_block if "toolUse" in block)
        inputs = [cast("Json", use)["input"] for use in uses]
        results = [block["json"] for block in self._every_block if "json" in block]
        return input_growth(self.fields, inputs + results)

    def _bound(self, encoded: bytes) -> int:
        tools = self.fields.get("toolConfig")
        return input_bound_bytes(encoded, tools, self._images, growth=self._growth)


def _walk(fields: Json, change: Change) -> Json:
    result = dict(fields)
    if "system" in fields:
        result["system"] = [
            _walk_block(block, change) for block in cast("list[Json]", fields["system"])
        ]
    result["messages"] = [
        {
            **message,
            "content": [
                _walk_block(block, change) for block in cast("list[Json]", message["content"])
            ],
        }
        for message in cast("list[Json]", fields["messages"])
    ]
    if "toolConfig" in fields:
        result["toolConfig"] = change_value(fields["toolConfig"], change, "toolConfig")
    return result


def _walk_block(block: Json, change: Change) -> Json:
    kind, value = next(iter(block.items()))
    if kind == "text":
        return {kind: change(cast("str", value))}
    if kind == "json":
        return {kind: change_value(value, change, "toolResult.json")}
    if kind == "toolUse":
        use = cast("Json", value)
        return {kind: {**use, "input": change_value(use["input"], change, "toolUse.input")}}
    if kind == "toolResult":
        found = cast("Json", value)
        inner = [_walk_block(item, change) for item in cast("list[Json]", found["content"])]
        return {kind: {**found, "content": inner}}
    if kind == "reasoningContent" and "reasoningText" in cast("Json", value):
        thought = cast("dict[str, Json]", value)["reasoningText"]
        return {kind: {"reasoningText": change_fields(thought, change, ("text",))}}
    return block


def read_converse_body(body: Json, model_id: str, *, stream: bool) -> ConverseRequest:
    """Check a client's body. Raises ``ApiError`` naming the field."""
    for field, reason in REFUSED.items():
        if body.get(field):
            raise unsupported(f"{field} is not supported: {reason}", field)
    performance = body.get("performanceConfig")
    if performance not in (None, {}, {"latency": "standard"}):
        raise unsupported("performanceConfig.latency must be standard", "performanceConfig")
    messages = as_list(body.get("messages"), "messages")
    if not messages:
        raise invalid("messages must not be empty", "messages")
    fields: Json = {
        "messages": [_message(item, f"messages[{i}]") for i, item in enumerate(messages)]
    }
    if body.get("system") is not None:
        fields["system"] = _blocks(body["system"], "system", ("text",))
    if body.get("toolConfig") is not None:
        fields["toolConfig"] = _tool_config(as_object(body["toolConfig"], "toolConfig"))
    config = as_object(body.get("inferenceConfig") or {}, "inferenceConfig")
    requested = config.get("maxTokens")
    return ConverseRequest(
        asked_model=model_id,
        stream=stream,
        requested_max_tokens=(
            None if requested is None else as_positive(requested, "inferenceConfig.maxTokens")
        ),
        inference=_inference(config),
        fields=fields,
    )


def _inference(config: Json) -> Json:
    result: Json = {}
    for field in ("temperature", "topP"):
        if config.get(field) is not None:
            result[field] = as_number(config[field], f"inferenceConfig.{field}")
    if config.get("stopSequences") is not None:
        stop = as_stop(config["stopSequences"], "inferenceConfig.stopSequences")
        result["stopSequences"] = [stop] if isinstance(stop, str) else stop
    return result


def _message(value: object, where: str) -> Json:
    message = as_object(value, where)
    role = message.get("role")
    if role not in ("user", "assistant"):
        raise invalid(f"{where}.role must be user or assistant", f"{where}.role")
    own = "image" if role == "user" else "reasoningContent"
    kinds = ("text", "toolUse", "toolResult", own)
    return {"role": role, "content": _blocks(message.get("content"), f"{where}.content", kinds)}


def _blocks(
    value: object, where: str, kinds: tuple[str, ...], *, inner: bool = False
) -> list[Json]:
    blocks: list[Json] = []
    for index, item in enumerate(as_list(value, where)):
        here = f"{where}[{index}]"
        block = as_object(item, here)
        if "cachePoint" in block:
            if inner:  # the API has none there
                continue
            blocks.append(read_cache_point(block, here))
            continue
        kind = next(iter(block), "nothing")
        if len(block) != 1 or kind not in kinds:
            raise unsupported(
                f"{here}: only {', '.join(kinds)} is supported; {_shown(kind)} cannot be bounded",
                here,
            )
        blocks.append({kind: _block(kind, block[kind], f"{here}.{kind}")})
    return blocks


def _shown(kind: str) -> str:
    return kind if kind.isalpha() and len(kind) <= 32 else "this"


def _block(kind: str, value: object, where: str) -> object:
    if kind == "text":
        return as_text(value, where)
    if kind == "json":
        return value
    block = as_object(value, where)
    if kind == "image":
        source = as_object(block.get("source"), f"{where}.source")
        if "bytes" not in source:
            raise unsupported(f"{where}.source: only bytes; others are not fetched", where)
        check_media_type(f"image/{block.get('format')}", f"{where}.format")
        data = check_base64(source["bytes"], f"{where}.source.bytes")
        return {"format": block["format"], "source": {"bytes": data}}
    if kind == "reasoningContent":
        return _reasoning(block, where)
    result: Json = {"toolUseId": as_name(block.get("toolUseId"), f"{where}.toolUseId")}
    if kind == "toolUse":
        result["name"] = as_name(block.get("name"), f"{where}.name")
        result["input"] = block.get("input", {})
        return result
    kinds = ("text", "json", "image")
    result["content"] = _blocks(block.get("content"), f"{where}.content", kinds, inner=True)
    if block.get("status") is not None:
        if block["status"] not in ("success", "error"):
            raise invalid(f"{where}.status must be success or error", f"{where}.status")
        result["status"] = block["status"]
    return result


def _reasoning(block: Json, where: str) -> Json:
    """What the model thought, as its answer had it; to be handed back unchanged."""
    if "redactedContent" in block:
        sealed = as_sealed(block["redactedContent"], f"{where}.redactedContent")
        return {"redactedContent": sealed}
    here = f"{where}.reasoningText"
    source = as_object(block.get("reasoningText"), here)
    text: Json = {"text": as_text(source.get("text"), f"{here}.text")}
    if source.get("signature") not in (None, ""):  # not every model signs
        text["signature"] = as_sealed(source["signature"], f"{here}.signature")
    return {"reasoningText": text}


def _tool_config(config: Json) -> Json:
    tools: list[Json] = []
    listed = as_list(config.get("tools"), "toolConfig.tools", most=MAX_TOOLS)
    for index, item in enumerate(listed):
        here = f"toolConfig.tools[{index}]"
        tool = as_object(item, here)
        if "cachePoint" in tool:
            tools.append(read_cache_point(tool, here))
            continue
        if set(tool) != {"toolSpec"}:
            raise unsupported(f"{here}: only toolSpec; system tools cannot be bounded", here)
        source = as_object(tool["toolSpec"], here)
        spec: Json = {"name": as_text(source.get("name"), f"{here}.name")}
        if source.get("description") is not None:
            spec["description"] = as_text(source["description"], f"{here}.description")
        schema = as_object(source.get("inputSchema"), f"{here}.inputSchema")
        spec["inputSchema"] = {"json": schema.get("json", {})}
        tools.append({"toolSpec": spec})
    result: Json = {"tools": tools}
    if config.get("toolChoice") is not None:
        result["toolChoice"] = _tool_choice(
            as_object(config["toolChoice"], "toolConfig.toolChoice")
        )
    return result


def _tool_choice(choice: Json) -> Json:
    if set(choice) in ({"auto"}, {"any"}):
        return {next(iter(choice)): {}}
    tool = as_object(choice.get("tool"), "toolConfig.toolChoice")
    return {"tool": {"name": as_name(tool.get("name"), "toolConfig.toolChoice.tool.name")}}
