"""Checks of inputs, written once and named in the models: `rules = [one_of("scheme", "internal"),
...]`.

Each returns a rule that skips what is missing or unknown, so it can run in a preview.
"""

import ipaddress
import re
from collections.abc import Callable, Iterator
from typing import Any

from .models import Problem, Rule
from .values import UNKNOWN, Properties, first, known


def each(path: str, test: Callable[[Any], str | None]) -> Rule:
    """`test` gives the reason why a value under `path` is wrong, or None."""

    def rule(inputs: Properties) -> Iterator[Problem]:
        for where, value in known(inputs, path):
            reason = test(value)
            if reason:
                yield Problem(where, reason)

    return rule


def one_of(path: str, *valid: Any) -> Rule:
    """The value is one of `valid`."""
    shown = ", ".join(map(str, valid))
    return each(path, lambda value: None if value in valid else f"{value!r} is not one of: {shown}")


def matches(path: str, pattern: str, meaning: str) -> Rule:
    """The whole text matches `pattern`; `meaning` says it in words."""
    compiled = re.compile(pattern)
    return each(
        path,
        lambda value: None if compiled.fullmatch(str(value)) else f"{value!r} must be {meaning}",
    )


def length(path: str, least: int, most: int) -> Rule:
    """The text or list has between `least` and `most` characters or elements."""
    return each(
        path,
        lambda value: (
            None
            if least <= len(value) <= most
            else (
                f"has {len(value)} {'characters' if isinstance(value, str) else 'elements'}, must"
                f" be {least} to {most}"
            )
        ),
    )


def between(path: str, least: float, most: float) -> Rule:
    """The number lies in `least` .. `most`, both included."""
    return each(
        path,
        lambda value: (
            None
            if least <= float(value) <= most
            else f"{value} must lie between {least} and {most}"
        ),
    )


def cidr(path: str, widest: int = 0, narrowest: int = 32) -> Rule:
    """An IPv4 network without host bits, its prefix between `/widest` and `/narrowest`."""

    def test(value: Any) -> str | None:
        try:
            network = ipaddress.IPv4Network(value, strict=False)
        except ValueError:
            return f"{value!r} is not an IPv4 CIDR block such as 10.0.0.0/16"
        if "/" not in str(value):
            return f"{value!r} has no prefix length"
        if str(network) != value:
            return f"{value!r} has host bits set; the network is {network}"
        if not widest <= network.prefixlen <= narrowest:
            return f"{value!r}: the prefix must be between /{widest} and /{narrowest}"
        return None

    return each(path, test)


def only_one(*paths: str) -> Rule:
    """At most one of the properties is set."""

    def rule(inputs: Properties) -> Iterator[Problem]:
        present = [path for path in paths if _is_set(inputs, path)]
        if len(present) > 1:
            yield Problem(
                present[1], f"conflicts with {present[0]}: give only one of {', '.join(paths)}"
            )

    return rule


def one_required(*paths: str) -> Rule:
    """At least one of the properties is set."""

    def rule(inputs: Properties) -> Iterator[Problem]:
        if not any(_is_set(inputs, path) for path in paths):
            yield Problem(paths[0], f"one of {', '.join(paths)} is required")

    return rule


def required_when(path: str, valid: tuple[Any, ...], needed: str) -> Rule:
    """`needed` is set whenever the value at `path` is one of `valid`."""

    def rule(inputs: Properties) -> Iterator[Problem]:
        value = first(inputs, path)
        if value in valid and not _is_set(inputs, needed):
            yield Problem(needed, f"is required when {path} is {value!r}")

    return rule


def _is_set(inputs: Properties, path: str) -> bool:
    value: Any = inputs
    for step in path.split("."):
        if value is UNKNOWN:
            return True
        value = value.get(step) if isinstance(value, dict) else None
    return value is UNKNOWN or (value is not None and value not in ([], {}))
