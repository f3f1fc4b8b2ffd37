"""Property values: between protobuf Structs and plain Python, with unknowns.

A value is `None`, `bool`, `int`, `float`, `str`, `list`, `dict`, or `UNKNOWN` (not known before the
update). Numbers travel as doubles; whole ones become `int`. Secrets arrive unwrapped, because the
providers do not claim to accept them: the engine takes the mark off and puts it back.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from google.protobuf import struct_pb2

_UNKNOWN_WIRE: Final = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
_SIGNATURE: Final = "4dabf18193072939515e22adb298388d"
_SECRET: Final = "1b47061264138c4ac30d75fd1eb44270"
_OUTPUT_VALUE: Final = "d0e6a833031e9bbcd3f4e8bde6ca49a4"

Value = Any
Properties = dict[str, Any]


class Unknown:
    """The type of `UNKNOWN`. It is falsy-proof on purpose: asking for its truth is a mistake."""

    def __repr__(self) -> str:
        return "UNKNOWN"

    def __bool__(self) -> bool:
        raise TypeError("an unknown value has no truth; test `is UNKNOWN` first")

    def __deepcopy__(self, memo: object) -> "Unknown":
        return self


UNKNOWN: Final = Unknown()


def from_struct(struct: struct_pb2.Struct) -> Properties:
    """The properties of a protobuf Struct."""
    return {key: _from_value(value) for key, value in struct.fields.items()}


def _from_value(value: struct_pb2.Value) -> Value:  # noqa: PLR0911 one per kind
    kind = value.WhichOneof("kind")
    if kind == "string_value":
        return UNKNOWN if value.string_value == _UNKNOWN_WIRE else value.string_value
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() else number
    if kind == "bool_value":
        return value.bool_value
    if kind == "list_value":
        return [_from_value(item) for item in value.list_value.values]
    if kind == "struct_value":
        found = from_struct(value.struct_value)
        mark = found.get(_SIGNATURE)
        if mark == _SECRET:
            return found.get("value")
        if mark == _OUTPUT_VALUE:
            return found.get("value", UNKNOWN)
        return found
    return None


def to_struct(properties: Mapping[str, Value]) -> struct_pb2.Struct:
    """A protobuf Struct of `properties`."""
    struct = struct_pb2.Struct()
    for key, value in properties.items():
        _set_value(struct.fields[key], value)
    return struct


def _set_value(target: struct_pb2.Value, value: Value) -> None:
    if value is None:
        target.null_value = struct_pb2.NULL_VALUE
    elif value is UNKNOWN:
        target.string_value = _UNKNOWN_WIRE
    elif isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, int | float):
        target.number_value = value
    elif isinstance(value, str):
        target.string_value = value
    elif isinstance(value, Mapping):
        target.struct_value.SetInParent()
        for key, item in value.items():
            _set_value(target.struct_value.fields[key], item)
    elif isinstance(value, list | tuple):
        target.list_value.SetInParent()
        for item in value:
            _set_value(target.list_value.values.add(), item)
    else:
        raise TypeError(f"cannot send a {type(value).__name__} to the engine")


def has_unknown(value: Value) -> bool:
    """Whether `value` is unknown or has an unknown in it."""
    if value is UNKNOWN:
        return True
    if isinstance(value, dict):
        return any(has_unknown(item) for item in value.values())
    return isinstance(value, list) and any(has_unknown(item) for item in value)


def at(properties: Value, path: str) -> Iterator[tuple[str, Value]]:
    """Each `(exact path, value)` under `path`, such as `vpcConfig.subnetIds[]`; missing and null
    ones are left out.

    `[]` stands for every element of a list, `{}` for every value of a map. Unknown values are
    yielded as UNKNOWN; below an unknown there is nothing.
    """
    yield from _walk(properties, path.replace("[]", ".[]").replace("{}", ".{}").split("."), "")


def _walk(value: Value, steps: list[str], so_far: str) -> Iterator[tuple[str, Value]]:
    if value is None:
        return
    if not steps:
        yield so_far, value
        return
    step, rest = steps[0], steps[1:]
    if step == "[]" and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _walk(item, rest, f"{so_far}[{index}]")
    elif step == "{}" and isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(item, rest, f"{so_far}[{key!r}]")
    elif isinstance(value, dict) and step in value:
        yield from _walk(value[step], rest, f"{so_far}.{step}" if so_far else step)


def known(properties: Value, path: str) -> Iterator[tuple[str, Value]]:
    """Like `at`, without the unknown ones."""
    return ((where, value) for where, value in at(properties, path) if value is not UNKNOWN)


def first(properties: Value, path: str, default: Value = None) -> Value:
    """The first known value under `path`, or `default`."""
    return next((value for _, value in known(properties, path)), default)
