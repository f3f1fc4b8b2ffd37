"""JSON as a text: what its strings say, in a form that can be put back.

A guardrail that looks at the source sees ``\\n`` as two characters, and the second hides where a
word begins. So every escape is replaced by what it stands for, but for quotes and backslashes,
which keep theirs: where a string ends can still be told.
"""

import json
from collections.abc import Callable

import orjson

_BACKSLASH = "\0"
"""Stands in for an escaped one: no JSON has it as it is."""
MAX_VALUES = 100_000
"""Of a source that is read as JSON, about: more would hold the event loop, and is a text."""
_SIGNS = (("b", "\b"), ("f", "\f"), ("n", "\n"), ("r", "\r"), ("t", "\t"), ("/", "/"))


def spoken(source: str) -> str:
    """The text of a valid JSON source. In time linear to it, whatever it holds, in C."""
    if "\\" not in source:
        return source
    text = source.replace("\\\\", _BACKSLASH)
    for number in ("005c", "005C"):
        text = text.replace(f"\\u{number}", _BACKSLASH)
    text = text.replace("\\u0022", '\\"')
    for letter, sign in _SIGNS:
        text = text.replace(f"\\{letter}", sign)
    text = text.replace(_BACKSLASH, "\\\\")
    if "\\u" not in text:
        return text
    halves = text.encode("raw_unicode_escape").decode("raw_unicode_escape")
    return halves.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def read_source(source: str) -> str:
    """What a JSON source says; what is no JSON stays as it stands."""
    return spoken(source) if "\\" in source and _is_json(source) else source


def change_value(value: object, source: str, change: Callable[[str], str]) -> object:
    """A value, whose JSON is ``source``, with the text of it changed.

    Raises ``ValueError`` if that is no JSON any more.
    """
    before = spoken(source)
    after = change(before)
    return value if after == before else _read(after)


def change_source(source: str, change: Callable[[str], str]) -> str:
    """A JSON source with its text changed; what is no JSON is a text as it stands.

    Raises ``ValueError`` if it was JSON and would be none any more.
    """
    before = read_source(source)
    after = change(before)
    if after == before:
        return source
    if not _is_json(source):
        return after
    return json.dumps(_read(after), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _read(text: str) -> object:
    try:
        return json.loads(text, strict=False)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _is_json(source: str) -> bool:
    if sum(map(source.count, ",[{")) > MAX_VALUES:
        return False
    try:
        orjson.loads(source)
    except orjson.JSONDecodeError:
        return False
    return True
