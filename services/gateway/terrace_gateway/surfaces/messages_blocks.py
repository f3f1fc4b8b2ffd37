"""Content blocks and tools of Anthropic's messages, each from an allow-list."""

from collections.abc import Callable
from typing import cast

from terrace_gateway.surfaces.images import check_base64, check_media_type
from terrace_gateway.surfaces.json_body import (
    MAX_TOOLS,
    Json,
    as_flag,
    as_list,
    as_name,
    as_object,
    as_sealed,
    as_text,
    invalid,
    unsupported,
)
from terrace_gateway.surfaces.prompt_texts import Change, change_value

LIFETIMES = ("5m", "1h")
_USER = ("text", "image", "tool_result")
_ASSISTANT = ("text", "thinking", "redacted_thinking", "tool_use")


def read_messages(value: object) -> list[Json]:
    """The conversation."""
    messages = as_list(value, "messages")
    if not messages:
        raise invalid("messages must not be empty", "messages")
    return [_message(item, f"messages[{index}]") for index, item in enumerate(messages)]


def read_blocks(value: object, where: str, kinds: tuple[str, ...]) -> str | list[Json]:
    """A text, or blocks of the named kinds."""
    if isinstance(value, str):
        return value
    return [_block(item, f"{where}[{n}]", kinds) for n, item in enumerate(as_list(value, where))]


def read_tools(value: object, where: str) -> list[Json]:
    """The client's own tools."""
    tools: list[Json] = []
    for index, item in enumerate(as_list(value, where, most=MAX_TOOLS)):
        here = f"{where}[{index}]"
        source = as_object(item, here)
        if source.get("type") not in (None, "custom"):
            raise unsupported(f"{here}: only custom tools; hosted tools cannot be bounded", here)
        tool: Json = {
            "name": as_text(source.get("name"), f"{here}.name"),
            "input_schema": as_object(source.get("input_schema"), f"{here}.input_schema"),
        }
        if source.get("description") is not None:
            tool["description"] = as_text(source["description"], f"{here}.description")
        tools.append({**tool, **_cache_control(source, here)})
    return tools


def read_tool_choice(value: object, where: str) -> Json:
    """How the model chooses a tool."""
    source = as_object(value, where)
    kind = source.get("type")
    if kind not in ("auto", "any", "none", "tool"):
        raise invalid(f"{where}.type must be auto, any, none or tool", f"{where}.type")
    result: Json = {"type": kind}
    if kind == "tool":
        result["name"] = as_name(source.get("name"), f"{where}.name")
    if source.get("disable_parallel_tool_use") is not None:
        field = "disable_parallel_tool_use"
        result[field] = as_flag(source[field], f"{where}.{field}")
    return result


def change_block(block: Json, change: Change) -> Json:
    """A block with its texts changed."""
    result = dict(block)
    for field in ("text", "thinking"):
        if isinstance(text := block.get(field), str):
            result[field] = change(text)
    if block["type"] == "tool_use":
        result["input"] = change_value(block["input"], change, "tool_use.input")
    if block["type"] == "tool_result" and "content" in block:
        result["content"] = change_blocks(block["content"], change)
    return result


def change_blocks(content: object, change: Change) -> object:
    """A text, or blocks, changed."""
    if isinstance(content, str):
        return change(content)
    return [change_block(block, change) for block in cast("list[Json]", content)]


def without_cache_control(value: object) -> object:
    """The same without any mark for the cache."""
    if isinstance(value, list):
        return [without_cache_control(item) for item in cast("list[object]", value)]
    if not isinstance(value, dict):
        return value
    block = cast("Json", value)
    rest = {k: v for k, v in block.items() if k != "cache_control"}
    if "content" in rest:
        rest["content"] = without_cache_control(rest["content"])
    return rest


def _message(value: object, where: str) -> Json:
    message = as_object(value, where)
    role = message.get("role")
    if role not in ("user", "assistant"):
        raise invalid(f"{where}.role must be user or assistant", f"{where}.role")
    kinds = _USER if role == "user" else _ASSISTANT
    return {"role": role, "content": read_blocks(message.get("content"), f"{where}.content", kinds)}


def _block(value: object, where: str, kinds: tuple[str, ...]) -> Json:
    block = as_object(value, where)
    kind = block.get("type")
    if kind not in kinds:
        raise unsupported(f"{where}: only {', '.join(kinds)} here; others cannot be bounded", where)
    result: Json = {"type": kind}
    if kind == "image":
        result["source"] = _image_source(as_object(block.get("source"), f"{where}.source"), where)
    elif kind == "tool_use":
        result["id"] = as_name(block.get("id"), f"{where}.id")
        result["name"] = as_name(block.get("name"), f"{where}.name")
        result["input"] = as_object(block.get("input"), f"{where}.input")
    elif kind == "tool_result":
        result["tool_use_id"] = as_name(block.get("tool_use_id"), f"{where}.tool_use_id")
        if block.get("content") is not None:
            inner = read_blocks(block["content"], f"{where}.content", ("text", "image"))
            result["content"] = inner
        if block.get("is_error") is not None:
            result["is_error"] = as_flag(block["is_error"], f"{where}.is_error")
    else:
        for field, check in _FIELDS[str(kind)].items():
            result[field] = check(block.get(field), f"{where}.{field}")
    return {**result, **_cache_control(block, where)}


def _image_source(source: Json, where: str) -> Json:
    if source.get("type") != "base64":
        raise unsupported(f"{where}.source: only base64; others are not fetched", where)
    return {
        "type": "base64",
        "media_type": check_media_type(source.get("media_type"), f"{where}.source.media_type"),
        "data": check_base64(source.get("data"), f"{where}.source.data"),
    }


def _cache_control(block: Json, where: str) -> Json:
    mark = block.get("cache_control")
    if mark is None:
        return {}
    source = as_object(mark, f"{where}.cache_control")
    if source.get("type") != "ephemeral" or source.get("ttl", "5m") not in LIFETIMES:
        raise invalid(f"{where}.cache_control must be ephemeral, with ttl 5m or 1h", where)
    ttl: Json = {} if source.get("ttl") is None else {"ttl": source["ttl"]}
    return {"cache_control": {"type": "ephemeral", **ttl}}


def _signature(value: object, where: str) -> str:
    return "" if value is None else as_sealed(value, where)  # not every model signs


_FIELDS: dict[str, dict[str, Callable[[object, str], str]]] = {
    "text": {"text": as_text},
    "thinking": {"thinking": as_text, "signature": _signature},
    "redacted_thinking": {"data": as_sealed},
}
