"""Inputs against the SDK's own types: unknown, missing and mistyped properties, each with the
nearest valid name."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from .sdk import Kind, Property, ResourceSchema
from .values import UNKNOWN, Properties, Value


class Problem(NamedTuple):
    """Something wrong with one property (`""`: with the whole resource) and what would be right."""

    property: str
    reason: str


_PYTHON: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}


def check_schema(inputs: Properties, schema: ResourceSchema) -> Iterator[Problem]:
    """Every way in which `inputs` do not fit `schema`. Unknown values fit everything."""
    yield from _object(inputs, schema.inputs, schema.objects, "")


def nearest(word: str, valid: Iterator[str] | list[str]) -> str:
    """ "did you mean X? Valid: ..." for an error text."""
    names = sorted(valid)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    shown = ", ".join(names[:40]) + (", ..." if len(names) > 40 else "")
    return (f"did you mean {close[0]!r}? " if close else "") + f"Valid: {shown}"


def _object(
    value: Mapping[str, Value],
    properties: dict[str, Property],
    objects: dict[str, dict[str, Property]],
    where: str,
) -> Iterator[Problem]:
    for name, item in value.items():
        path = f"{where}.{name}" if where else name
        if name.startswith("__"):
            continue
        if name not in properties:
            yield Problem(path, f"there is no property {name!r}; {nearest(name, list(properties))}")
        elif item is not None:
            yield from _value(item, properties[name].kind, objects, path)
    for name, expected in properties.items():
        if expected.required and value.get(name) is None:
            yield Problem(f"{where}.{name}" if where else name, "is required and missing")


def _value(  # noqa: PLR0912 one branch per kind
    value: Value, kind: Kind, objects: dict[str, dict[str, Property]], where: str
) -> Iterator[Problem]:
    if value is None or value is UNKNOWN or kind in ("any", "asset"):
        return
    if isinstance(kind, str):
        right = isinstance(value, _PYTHON[kind]) and (
            kind == "boolean" or not isinstance(value, bool)
        )
        if not right and not _converts(value, kind):
            yield Problem(where, f"must be {_article(kind)}, not {_describe(value)}")
        return
    name, *rest = kind
    if name == "enum":
        if value not in rest:
            yield Problem(where, f"{value!r} is not one of {', '.join(map(str, rest))}")
    elif name == "union":
        if not any(not list(_value(value, member, objects, where)) for member in rest):
            yield from _value(value, rest[0], objects, where)
    elif name == "list":
        if not isinstance(value, list):
            yield Problem(where, f"must be a list, not {_describe(value)}")
            return
        for index, item in enumerate(value):
            yield from _value(item, rest[0], objects, f"{where}[{index}]")
    elif not isinstance(value, dict):
        yield Problem(
            where, f"must be {'an object' if name == 'object' else 'a map'}, not {_describe(value)}"
        )
    elif name == "map":
        for key, item in value.items():
            yield from _value(item, rest[0], objects, f"{where}[{key!r}]")
    else:
        yield from _object(value, objects[rest[0]], objects, where)


def _converts(value: Value, kind: str) -> bool:
    """The bridge takes "5" for 5, 5 for "5" and "true" for true; so do we."""
    if kind == "string":
        return isinstance(value, int | float)
    if kind == "boolean":
        return value in ("true", "false")
    if kind in ("integer", "number") and isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return False
        return kind == "number" or number.is_integer()
    return False


def _article(kind: str) -> str:
    return {"integer": "an integer"}.get(kind, f"a {kind}")


def _describe(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return f"the {type(value).__name__} {value!r}"
