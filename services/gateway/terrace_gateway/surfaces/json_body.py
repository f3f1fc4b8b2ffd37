"""A request body as a JSON object, within limits, and typed reads from it."""

import json
import math
import re
from typing import NoReturn, cast

import orjson

from terrace_gateway.edge.errors import INVALID_REQUEST, UNSUPPORTED_PARAMETER, ApiError

Json = dict[str, object]

MAX_ITEMS = 10_000
"""Entries of any list that a surface reads: messages, items, blocks of one message."""
MAX_TOOLS = 1024

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_LEVEL = re.compile(r"[a-z0-9_-]{1,16}")
SEALED_MARK = "(?:litellm_encrypted_reasoning:)?"
"""Before what OpenAI encrypted, where LiteLLM (1.108) answers a message with it."""
_SEALED = re.compile(rf"{SEALED_MARK}[A-Za-z0-9+/_-]*={{0,2}}")
_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def parse_json_object(body: bytes, *, max_depth: int, max_values: int) -> Json:
    """The body as an object. Raises ``ApiError`` for anything else, including NaN and Infinity.

    ``max_values`` bounds values and keys together. They are counted before anything is parsed,
    because a byte of ``[[[],[]...`` costs far more than a byte of text.
    """
    try:
        text = body.decode(json.detect_encoding(body), "surrogatepass")
        _check_count(text, max_values)
        value: object = _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise invalid("the request body is not valid JSON") from error
    if not isinstance(value, dict):
        raise invalid("the request body must be a JSON object")
    if text.count("{") + text.count("[") >= max_depth:  # fewer cannot be nested so deep
        _check_depth(cast("Json", value), max_depth)
    return cast("Json", value)


def encode_json(value: object) -> bytes:
    """Compact UTF-8. Raises ``ApiError`` for text that UTF-8 cannot carry (lone surrogates)."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:  # an integer of 65 bits, or half of a surrogate pair
        pass
    try:
        return _COMPACT.encode(value).encode()
    except UnicodeEncodeError as error:
        raise invalid("a text holds half of a surrogate pair") from error


def invalid(message: str, param: str | None = None) -> ApiError:
    """A 400 for a body that the surface does not take."""
    return ApiError(INVALID_REQUEST, message, param=param)


def unsupported(message: str, param: str) -> ApiError:
    """A 400 for something whose cost this gateway cannot bound."""
    return ApiError(UNSUPPORTED_PARAMETER, message, param=param)


def as_object(value: object, param: str) -> Json:
    """``value`` as a JSON object."""
    if not isinstance(value, dict):
        raise invalid(f"{param} must be an object", param)
    return cast("Json", value)


def as_list(value: object, param: str, *, most: int = MAX_ITEMS) -> list[object]:
    """``value`` as a list of at most ``most`` entries."""
    if not isinstance(value, list):
        raise invalid(f"{param} must be a list", param)
    items = cast("list[object]", value)
    if len(items) > most:
        raise invalid(f"{param} has {len(items)} entries; at most {most} are taken", param)
    return items


def as_text(value: object, param: str) -> str:
    """``value`` as a string."""
    if not isinstance(value, str):
        raise invalid(f"{param} must be a string", param)
    return value


def as_name(value: object, param: str) -> str:
    """``value`` as the name of a tool, or the id of its call: what any provider takes, and no room
    for a text. Guardrails do not read it."""
    name = as_text(value, param)
    if _NAME.fullmatch(name) is None:
        raise invalid(
            f"{param} must be 1 to 128 of the letters A-Z and a-z, digits, and any of _ . : -",
            param,
        )
    return name


def as_level(value: object, param: str) -> str:
    """``value`` as one of the provider's words for a level, such as ``medium``: no room for a text.
    Guardrails do not read it."""
    level = as_text(value, param)
    if _LEVEL.fullmatch(level) is None:
        raise invalid(f"{param} must be 1 to 16 of the letters a-z, digits, and any of _ -", param)
    return level


def as_sealed(value: object, param: str) -> str:
    """``value`` as something that only its provider can read, in base64 as it came. Guardrails do
    not read it."""
    sealed = as_text(value, param)
    if _SEALED.fullmatch(sealed) is None:
        raise invalid(f"{param} must be the base64 that came with the answer", param)
    return sealed


def as_number(value: object, param: str) -> int | float:
    """``value`` as a number; booleans are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid(f"{param} must be a number", param)
    return value


def as_flag(value: object, param: str) -> bool:
    """``value`` as a boolean."""
    if not isinstance(value, bool):
        raise invalid(f"{param} must be true or false", param)
    return value


def as_positive(value: object, param: str) -> int:
    """``value`` as an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise invalid(f"{param} must be an integer of at least 1", param)
    return value


def as_stop(value: object, param: str) -> str | list[str]:
    """``value`` as one stop sequence or a list of them."""
    if isinstance(value, str):
        return value
    return [as_text(item, param) for item in as_list(value, param)]


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):  # 1e999: it could not be written down again
        raise ValueError("a number is too large")
    return value


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)


def _check_count(text: str, limit: int) -> None:
    if len(text) <= limit or _marks(text) <= limit:
        return
    # A text may hold as many marks as it likes: what is between quotes does not count.
    bare = text.replace("\\\\", "").replace('\\"', "")
    if bare.count('"') <= 2 * limit and _marks("".join(bare.split('"')[::2])) <= limit:
        return
    raise invalid(f"the request body has more than {limit} JSON values and keys")


def _marks(text: str) -> int:
    """One for each value and key, and one more for an empty object or list."""
    return 1 + text.count(",") + text.count(":") + text.count("[") + text.count("{")


def _check_depth(value: Json, max_depth: int) -> None:
    level: list[object] = [value]
    for _ in range(max_depth):
        below: list[object] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(cast("Json", item).values())
            elif isinstance(item, list):
                below.extend(cast("list[object]", item))
        if not below:
            return
        level = below
    raise invalid(f"the request body is nested deeper than {max_depth} levels")
