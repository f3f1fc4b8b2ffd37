"""RE2: searches whose time is linear in the text, whatever the pattern. Texts are UTF-8 bytes, but
where a pattern of bytes is said."""

from collections.abc import Generator, Sequence
from typing import Any, Protocol, cast

import re2  # pyright: ignore[reportMissingTypeStubs]

_MAX_MEMORY = 64 * 1024 * 1024  # of one automaton; it starts anew when it is full


class Found(Protocol):
    """Where something was found."""

    def span(self, group: int = 0) -> tuple[int, int]:
        """Beginning and end in bytes; (-1, -1) for a group that took no part."""
        ...


class Pattern(Protocol):
    """A compiled pattern."""

    @property
    def groups(self) -> int:
        """How many capturing groups it has."""
        ...

    def search(self, text: bytes, pos: int = 0) -> Found | None:
        """The leftmost match that begins at ``pos`` or later; what is before is context."""
        ...


class PatternSet:
    """Which of many patterns match a text, in one pass over it.

    Raises ``ValueError`` for patterns that RE2 does not take, or not together.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._empty = not patterns
        self._set = re2.Set.SearchSet(_options())  # pyright: ignore
        try:
            for pattern in patterns:
                self._set.Add(pattern.encode())  # pyright: ignore
            if patterns:
                self._set.Compile()  # pyright: ignore
        except re2.error:  # pyright: ignore
            raise ValueError("RE2 refuses these patterns together: too large") from None

    def matching(self, text: bytes) -> list[int]:
        """Indices of the patterns that match somewhere, in order."""
        if self._empty:
            return []
        found = cast("list[int] | None", self._set.Match(text))  # pyright: ignore
        return sorted(found) if found else []


def compile_pattern(pattern: str) -> Pattern:
    """Compile. Raises ``ValueError`` for what RE2 does not take."""
    try:
        return cast("Pattern", re2.compile(pattern.encode(), _options()))  # pyright: ignore
    except re2.error as error:  # pyright: ignore
        raise ValueError(f"RE2 refuses it: {_reason(cast('Exception', error))}") from None


def compile_bytes_pattern(pattern: bytes) -> Pattern:
    """Compile a pattern that takes each byte by itself, whatever its encoding."""
    options = _options()
    options.encoding = re2.Options.Encoding.LATIN1  # pyright: ignore
    return cast("Pattern", re2.compile(pattern, options))  # pyright: ignore


def runs(pattern: Pattern, text: bytes) -> Generator[tuple[int, int]]:
    """Where the pattern matches, from left to right, without overlaps and empty matches."""
    place = 0
    while (found := pattern.search(text, place)) is not None:
        start, stop = found.span()
        if stop > start:
            yield start, stop
        place = max(stop, start + 1)


def encode(text: str) -> bytes:
    """UTF-8; a lone surrogate of a JSON string is kept as it is."""
    return text.encode("utf-8", "surrogatepass")


def decode(data: bytes) -> str:
    """The text again."""
    return data.decode("utf-8", "surrogatepass")


def _reason(error: Exception) -> str:
    said: object = error.args[0] if error.args else "no reason"
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)


def _options() -> Any:
    options = re2.Options()  # pyright: ignore
    options.log_errors = False
    options.max_mem = _MAX_MEMORY
    return options  # pyright: ignore
