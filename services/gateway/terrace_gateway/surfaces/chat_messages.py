"""The parts of a chat completions body, each from an allow-list: messages, tools, formats."""

from collections.abc import Callable

from terrace_gateway.surfaces.images import check_data_url
from terrace_gateway.surfaces.json_body import (
    MAX_TOOLS,
    Json,
    as_flag,
    as_list,
    as_name,
    as_object,
    as_text,
    invalid,
    unsupported,
)

ROLES = ("system", "developer", "user", "assistant", "tool")
_DETAILS = ("auto", "low", "high")


def read_messages(value: object) -> list[Json]:
    """The conversation."""
    messages = as_list(value, "messages")
    if not messages:
        raise invalid("messages must not be empty", "messages")
    return [_message(item, f"messages[{index}]") for index, item in enumerate(messages)]


def read_tools(value: object, where: str) -> list[Json]:
    """Function tools."""
    tools: list[Json] = []
    for index, item in enumerate(as_list(value, where, most=MAX_TOOLS)):
        here = f"{where}[{index}]"
        tool = as_object(item, here)
        if tool.get("type") != "function":
            raise unsupported(f"{here}: only function tools; hosted tools cannot be bounded", here)
        function = read_function(as_object(tool.get("function"), f"{here}.function"), here)
        tools.append({"type": "function", "function": function})
    return tools


def read_function(source: Json, where: str) -> Json:
    """A function's name, description, parameters and strictness."""
    function: Json = {"name": as_text(source.get("name"), f"{where}.function.name")}
    if source.get("description") is not None:
        function["description"] = as_text(source["description"], f"{where}.description")
    if source.get("parameters") is not None:
        function["parameters"] = as_object(source["parameters"], f"{where}.parameters")
    if source.get("strict") is not None:
        function["strict"] = as_flag(source["strict"], f"{where}.strict")
    return function


def read_tool_choice(value: object, where: str) -> object:
    """``none``, ``auto``, ``required`` or a function."""
    if value in ("none", "auto", "required"):
        return value
    function = as_object(as_object(value, where).get("function"), f"{where}.function")
    return {"type": "function", "function": {"name": as_name(function.get("name"), where)}}


def read_response_format(value: object, where: str) -> Json:
    """Text, a JSON object, or JSON of a schema."""
    source = as_object(value, where)
    kind = source.get("type")
    if kind in ("text", "json_object"):
        return {"type": kind}
    if kind != "json_schema":
        raise invalid(f"{where}.type must be text, json_object or json_schema", where)
    schema = as_object(source.get("json_schema"), f"{where}.json_schema")
    return {"type": kind, "json_schema": read_json_schema(schema, f"{where}.json_schema")}


def read_json_schema(schema: Json, where: str) -> Json:
    """A named schema for the answer."""
    result: Json = {}
    for field, check in _JSON_SCHEMA.items():
        if schema.get(field) is not None:
            result[field] = check(schema[field], f"{where}.{field}")
    return result


def _message(value: object, where: str) -> Json:
    message = as_object(value, where)
    role = message.get("role")
    if role not in ROLES:
        raise invalid(f"{where}.role must be one of {', '.join(ROLES)}", f"{where}.role")
    result: Json = {"role": role}
    content = message.get("content")
    if isinstance(content, list):
        result["content"] = [
            _part(part, f"{where}.content[{index}]", images=role == "user")
            for index, part in enumerate(as_list(message["content"], f"{where}.content"))
        ]
    elif content is not None:
        result["content"] = as_text(content, f"{where}.content")
    elif role == "assistant":
        result["content"] = None
    else:
        raise invalid(f"{where}.content is required", f"{where}.content")
    for field, check in _MESSAGE.items():
        if message.get(field) is not None:
            result[field] = check(message[field], f"{where}.{field}")
    if message.get("tool_calls") is not None:
        calls = as_list(message["tool_calls"], f"{where}.tool_calls")
        result["tool_calls"] = [_tool_call(call, f"{where}.tool_calls") for call in calls]
    return result


def _part(value: object, where: str, *, images: bool) -> Json:
    part = as_object(value, where)
    kind = part.get("type")
    if kind in ("text", "refusal"):
        return {"type": kind, kind: as_text(part.get(str(kind)), f"{where}.{kind}")}
    if kind == "image_url" and images:
        source = as_object(part.get("image_url"), f"{where}.image_url")
        image: Json = {"url": check_data_url(source.get("url"), f"{where}.image_url.url")}
        if source.get("detail") is not None:
            if source["detail"] not in _DETAILS:
                raise invalid(f"{where}.image_url.detail must be auto, low or high", where)
            image["detail"] = source["detail"]
        return {"type": kind, "image_url": image}
    raise unsupported(
        f"{where}: only text and base64 images of the user; audio and files cannot be bounded",
        where,
    )


def _tool_call(value: object, where: str) -> Json:
    call = as_object(value, where)
    function = as_object(call.get("function"), f"{where}.function")
    return {
        "id": as_name(call.get("id"), f"{where}.id"),
        "type": "function",
        "function": {
            "name": as_name(function.get("name"), f"{where}.function.name"),
            "arguments": as_text(function.get("arguments"), f"{where}.function.arguments"),
        },
    }


_MESSAGE: dict[str, Callable[[object, str], object]] = {
    "name": as_text,
    "tool_call_id": as_name,
    "refusal": as_text,
}
_JSON_SCHEMA: dict[str, Callable[[object, str], object]] = {
    "name": as_text,
    "description": as_text,
    "schema": as_object,
    "strict": as_flag,
}
