"""Input items, tools and formats of OpenAI's responses, each from an allow-list."""

import re
from typing import cast

from terrace_gateway.surfaces.chat_messages import read_json_schema
from terrace_gateway.surfaces.images import check_data_url
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
from terrace_gateway.surfaces.prompt_texts import Change, change_arguments, change_content

ROLES = ("system", "developer", "user", "assistant")
_TEXTS = {"input_text": "text", "output_text": "text", "refusal": "refusal"}
_REASONING_ID = re.compile(r"rs_[A-Za-z0-9_-]{1,128}")
_DETAILS = ("auto", "low", "high")


def read_input(value: object) -> str | list[Json]:
    """A text, or items: messages, calls of functions and their outputs, reasoning."""
    if isinstance(value, str):
        return value
    items = as_list(value, "input")
    if not items:
        raise invalid("input must not be empty", "input")
    return [_item(item, f"input[{index}]") for index, item in enumerate(items)]


def read_tools(value: object, where: str) -> list[Json]:
    """Function tools."""
    tools: list[Json] = []
    for index, item in enumerate(as_list(value, where, most=MAX_TOOLS)):
        here = f"{where}[{index}]"
        source = as_object(item, here)
        if source.get("type") != "function":
            raise unsupported(f"{here}: only function tools; hosted tools cannot be bounded", here)
        tool: Json = {
            "type": "function",
            "name": as_text(source.get("name"), f"{here}.name"),
            "parameters": as_object(source.get("parameters") or {}, f"{here}.parameters"),
            "strict": as_flag(source.get("strict") or False, f"{here}.strict"),
        }
        if source.get("description") is not None:
            tool["description"] = as_text(source["description"], f"{here}.description")
        tools.append(tool)
    return tools


def read_tool_choice(value: object, where: str) -> object:
    """``none``, ``auto``, ``required`` or a function."""
    if value in ("none", "auto", "required"):
        return value
    source = as_object(value, where)
    if source.get("type") != "function":
        raise unsupported(f"{where}: only functions; hosted tools cannot be bounded", where)
    return {"type": "function", "name": as_name(source.get("name"), f"{where}.name")}


def read_text(value: object, where: str) -> Json:
    """The format of the answer's text."""
    source = as_object(value, where)
    result: Json = {}
    if source.get("verbosity") is not None:
        result["verbosity"] = as_text(source["verbosity"], f"{where}.verbosity")
    if source.get("format") is None:
        return result
    wanted = as_object(source["format"], f"{where}.format")
    kind = wanted.get("type")
    if kind not in ("text", "json_object", "json_schema"):
        raise invalid(
            f"{where}.format.type must be text, json_object or json_schema", f"{where}.format"
        )
    schema = read_json_schema(wanted, f"{where}.format") if kind == "json_schema" else {}
    return {**result, "format": {"type": kind, **schema}}


def change_item(item: Json, change: Change) -> Json:
    """An item with its texts changed."""
    result = dict(item)
    if "arguments" in item:
        result["arguments"] = change_arguments(cast("str", item["arguments"]), change, "arguments")
    for field in ("content", "output", "summary"):
        if field in item:
            result[field] = change_content(item[field], change, ("text", "refusal"))
    return result


def images_of(items: object) -> list[str]:
    """URLs of the images in a list of items."""
    found: list[str] = []
    for item in cast("list[Json]", items) if isinstance(items, list) else []:
        for field in ("content", "output"):
            parts = item.get(field)
            for part in cast("list[Json]", parts) if isinstance(parts, list) else []:
                if "image_url" in part:
                    found.append(cast("str", part["image_url"]))
    return found


def _item(value: object, where: str) -> Json:
    item = as_object(value, where)
    kind = item.get("type", "message")
    if kind == "message":
        return _message(item, where)
    if kind == "function_call":
        return {
            "type": kind,
            "call_id": as_name(item.get("call_id"), f"{where}.call_id"),
            "name": as_name(item.get("name"), f"{where}.name"),
            "arguments": as_text(item.get("arguments"), f"{where}.arguments"),
        }
    if kind == "function_call_output":
        output = item.get("output")
        if isinstance(output, list):
            parts = as_list(item["output"], f"{where}.output")
            output = [_part(part, f"{where}.output[{n}]", "user") for n, part in enumerate(parts)]
        else:
            output = as_text(output, f"{where}.output")
        call_id = as_name(item.get("call_id"), f"{where}.call_id")
        return {"type": kind, "call_id": call_id, "output": output}
    if kind == "reasoning":
        return _reasoning(item, where)
    raise unsupported(
        f"{where}: only messages, function calls and reasoning; what the provider would look up"
        " cannot be bounded",
        where,
    )


def _message(item: Json, where: str) -> Json:
    role = item.get("role")
    if role not in ROLES:
        raise invalid(f"{where}.role must be one of {', '.join(ROLES)}", f"{where}.role")
    content = item.get("content")
    if isinstance(content, list):
        parts = as_list(item["content"], f"{where}.content")
        content = [_part(part, f"{where}.content[{n}]", str(role)) for n, part in enumerate(parts)]
    else:
        content = as_text(content, f"{where}.content")
    return {"type": "message", "role": role, "content": content}


def _part(value: object, where: str, role: str) -> Json:
    part = as_object(value, where)
    kind = part.get("type")
    field = _TEXTS.get(str(kind))
    if field is not None:
        return {"type": kind, field: as_text(part.get(field), f"{where}.{field}")}
    if kind == "input_image" and role == "user":
        if part.get("file_id") is not None:
            raise unsupported(f"{where}: files of the provider cannot be bounded", where)
        url = check_data_url(part.get("image_url"), f"{where}.image_url")
        detail = part.get("detail") or "auto"
        if detail not in _DETAILS:
            raise invalid(f"{where}.detail must be auto, low or high", where)
        return {"type": kind, "image_url": url, "detail": detail}
    raise unsupported(
        f"{where}: only text and base64 images of the user; audio and files cannot be bounded",
        where,
    )


def _reasoning(item: Json, where: str) -> Json:
    identity = as_text(item.get("id"), f"{where}.id")
    if _REASONING_ID.fullmatch(identity) is None:
        raise invalid(f"{where}.id must be the id that came with the reasoning", f"{where}.id")
    parts = as_list(item.get("summary") or [], f"{where}.summary")
    result: Json = {"type": "reasoning", "id": identity, "summary": []}
    summary: list[Json] = []
    for index, value in enumerate(parts):
        here = f"{where}.summary[{index}]"
        part = as_object(value, here)
        summary.append({"type": "summary_text", "text": as_text(part.get("text"), f"{here}.text")})
    result["summary"] = summary
    if item.get("encrypted_content") is not None:
        sealed = as_sealed(item["encrypted_content"], f"{where}.encrypted_content")
        result["encrypted_content"] = sealed
    return result
