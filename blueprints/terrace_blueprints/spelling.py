"""Settings are spelled in camelCase, as Pulumi's are; component arguments in snake_case.

The settings of a component are its public ``TypedDict`` in that other spelling: what the component
takes can be set, and nothing else. Values are checked by the component itself.
"""

import difflib
import re
from collections.abc import Awaitable, Iterable, Mapping
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

import pulumi


class SpellingError(ValueError):
    """A key that the component does not take; ``path`` is the key in camelCase."""

    def __init__(self, path: str, message: str) -> None:
        self.path = path
        super().__init__(message)


def camel_case(name: str) -> str:
    """``idle_timeout_seconds`` -> ``idleTimeoutSeconds``; a path keeps its dots."""
    return re.sub(r"_([a-z0-9])", lambda found: found.group(1).upper(), name)


def arguments(document: Any, shape: type, path: str = "") -> dict[str, Any]:
    """``document`` (a mapping with camelCase keys) as arguments of the ``TypedDict`` ``shape``.

    Raises ``SpellingError`` for the first key that ``shape`` does not have, with the nearest one.
    """
    if not isinstance(document, Mapping):
        raise SpellingError(path, f"must be a mapping with keys among: {_valid(shape)}")
    names = {camel_case(name): name for name in shape.__annotations__}
    hints = _hints(shape)
    made: dict[str, Any] = {}
    for key, value in document.items():
        here = f"{path}.{key}" if path else str(key)
        if key not in names:
            near = nearest(str(key), names)
            hint = f"; did you mean {near}?" if near else ""
            raise SpellingError(here, f"unknown key{hint} Valid here: {_valid(shape)}")
        made[names[key]] = _value(value, hints[names[key]], here)
    return made


def argument_names(shape: type) -> set[str]:
    """Names of all arguments of a ``TypedDict``, nested ones too."""
    found: set[str] = set()
    for name, hint in _hints(shape).items():
        found.add(name)
        for arm in (hint, *get_args(hint)):
            if is_typeddict(arm):
                found |= argument_names(arm)
    return found


def argument_paths(shape: type) -> list[str]:
    """All arguments of a ``TypedDict`` with where they are: ``network.existing.vpc_id``."""
    found: list[str] = []
    for name, hint in _hints(shape).items():
        found.append(name)
        for arm in (hint, *get_args(hint)):
            if is_typeddict(arm):
                found += [f"{name}.{inner}" for inner in argument_paths(arm)]
    return found


def nearest(word: str, valid: Iterable[Any]) -> str | None:
    """The valid word that was probably meant, or ``None``. Case, ``_`` and ``-`` do not count."""
    by_lower = {str(v).lower(): str(v) for v in valid}
    found = difflib.get_close_matches(
        word.lower().replace("_", "").replace("-", ""), by_lower, n=1, cutoff=0.7
    )
    return by_lower[found[0]] if found else None


def _value(value: Any, hint: Any, path: str) -> Any:
    """A value of the type ``hint``: nested arguments are spelled too, anything else is kept."""
    if is_typeddict(hint):
        return arguments(value, hint, path)
    if get_origin(hint) in {Union, UnionType}:
        shapes = [arm for arm in get_args(hint) if is_typeddict(arm)]
        return arguments(value, shapes[0], path) if shapes and isinstance(value, Mapping) else value
    if get_origin(hint) is list and isinstance(value, list):
        [item] = get_args(hint)
        return [_value(v, item, f"{path}.{index}") for index, v in enumerate(value)]
    return value


def _hints(shape: type) -> dict[str, Any]:
    # pulumi.Input names its arms by strings, which only Pulumi's own module could resolve.
    return get_type_hints(
        shape, localns={"Output": pulumi.Output, "Awaitable": Awaitable, "T": Any}
    )


def _valid(shape: type) -> str:
    return ", ".join(sorted(camel_case(name) for name in shape.__annotations__))
