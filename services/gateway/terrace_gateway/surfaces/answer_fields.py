"""Which places of an answer hold text, and which can only hold what no guardrail looks for.

A surface names every place of its answers. A value that has not the form of its place, and every
place that is not named, is text: it goes through the filter, or the answer is broken.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Final, cast

from terrace_gateway.surfaces import json_text
from terrace_gateway.surfaces.json_body import SEALED_MARK, Json
from terrace_gateway.surfaces.surface import BrokenAnswerError, answer_object

Fields = Mapping[str, "Place"]
Place = re.Pattern[str] | Fields
"""The form of a string that is no text, or the fields of an object or of each object of a list."""

TEXT: Final = re.compile(r"(?!)")
"""No string is harmless here."""
ARGUMENTS: Final = re.compile(r"(?!)(?#arguments)")
"""Likewise, and a string is JSON."""
NUMBER: Final = TEXT
"""A number, a truth or nothing; these need no form, and a string is text."""
SHOWN: Final = re.compile(r"(?s:.*)")
"""Ours, or filtered before."""
ID: Final = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
"""As prompts have them: ids of calls and of items, made by the provider."""
WORD: Final = re.compile(r"[A-Za-z_.-]{1,64}")
"""A kind, a role, a status, why an answer ended."""
LABEL: Final = re.compile(r"[A-Za-z0-9_.:-]{1,16}")
"""Of a count."""
SEALED: Final = re.compile(rf"{SEALED_MARK}[A-Za-z0-9+/=_-]*")
"""Signatures and what is encrypted, in base64: to be handed back unchanged."""

Change = Callable[[str], str]


def walk(value: Json, fields: Fields, change: Change) -> Json:
    """``value`` with all its text changed, each place once and in order.

    Raises ``BrokenAnswerError`` where changed JSON is none any more.
    """
    result: Json = {}
    for key, item in value.items():
        place = fields.get(key)
        if place is None:
            result |= answer_object(change_json({key: item}, change))
        else:
            result[key] = _placed(item, place, change)
    return result


def _placed(value: object, place: Place, change: Change) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return _placed_text(value, place, change)
    if isinstance(place, re.Pattern):
        return change_json(value, change)
    if isinstance(value, dict):
        return walk(cast("Json", value), place, change)
    return [_placed(item, place, change) for item in cast("list[object]", value)]


def _placed_text(text: str, place: Place, change: Change) -> str:
    if place is ARGUMENTS:
        return _change_arguments(text, change)
    if isinstance(place, re.Pattern) and place.fullmatch(text):
        return text
    return change(text)


def change_json(value: object, change: Change) -> object:
    """A structured value of an answer as one text, its compact JSON as ``json_text`` has it. What
    is empty stays.

    Raises ``BrokenAnswerError`` if the changed text is no JSON any more: it cannot be shown.
    """
    if not value and not isinstance(value, str):
        return value
    try:
        source = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return json_text.change_value(value, source, lambda text: change(text) or "{}")
    except (ValueError, RecursionError) as error:
        raise BrokenAnswerError("masked arguments of a tool are no JSON") from error


def _change_arguments(source: str, change: Change) -> str:
    if not source:
        return source
    try:
        return json_text.change_source(source, lambda text: change(text) or "{}")
    except ValueError as error:
        raise BrokenAnswerError("masked arguments of a tool are no JSON") from error
