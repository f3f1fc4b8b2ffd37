"""The texts of a prompt, for guardrails: read in order, and put back changed.

A surface names its texts once, as a walk: a function that rebuilds its fields with every text
replaced by ``change(text)``. Structured values (arguments of tools, schemas) are one text each,
their JSON as ``json_text`` has it, so that nothing hides in a key, an enumeration or an escape.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import cast

from terrace_gateway.edge.errors import ApiError
from terrace_gateway.surfaces import json_text
from terrace_gateway.surfaces.json_body import Json, encode_json, invalid

Change = Callable[[str], str]
Walk = Callable[[Json, Change], Json]


def read_texts(walk: Walk, fields: Json) -> tuple[str, ...]:
    """Every text, in the walk's order."""
    found: list[str] = []

    def note(text: str) -> str:
        found.append(text)
        return text

    walk(fields, note)
    return tuple(found)


def put_texts(walk: Walk, fields: Json, texts: Sequence[str]) -> Json:
    """The fields with their texts replaced. Raises ``ValueError`` for another number of texts and
    ``ApiError`` if a changed structured value is no JSON of its kind any more."""
    left = iter(texts)
    count = 0

    def take(_text: str) -> str:
        nonlocal count
        count += 1
        return next(left, "")

    result = walk(fields, take)
    if count != len(texts):
        raise ValueError(f"{len(texts)} texts for {count} places")
    return result


def change_value(value: object, change: Change, where: str) -> object:
    """A structured value as one text. Raises ``ApiError`` where it cannot be changed so."""
    try:
        changed = json_text.change_value(value, encode_json(value).decode(), change)
    except ValueError:
        changed = None
    if type(changed) is not type(value):
        raise _unmaskable(where)
    return changed


def change_arguments(source: str, change: Change, where: str) -> str:
    """Arguments of a tool, which are JSON in a string. Raises as ``change_value``."""
    try:
        return json_text.change_source(source, change)
    except ValueError:
        raise _unmaskable(where) from None


def change_content(content: object, change: Change, fields: tuple[str, ...] = ("text",)) -> object:
    """A content that is a string, or a list of parts with a text in one of ``fields``."""
    if isinstance(content, str):
        return change(content)
    if not isinstance(content, list):
        return content
    return [change_fields(part, change, fields) for part in cast("list[Json]", content)]


def change_stop(stop: object, change: Change) -> object:
    """A stop sequence, or a list of them."""
    if isinstance(stop, str):
        return change(stop)
    return [change(text) for text in cast("list[str]", stop)]


def change_fields(value: Json, change: Change, fields: tuple[str, ...]) -> Json:
    """An object with the texts in ``fields`` changed, where it has them."""
    return {
        key: change(item) if key in fields and isinstance(item, str) else item
        for key, item in value.items()
    }


def session_of(user: str | None, first: Sequence[object]) -> str | None:
    """What a conversation is known by: the client's own name for its user, else the beginning.

    A hash, so that no text is kept; not for logs (a short text can be guessed from it).
    """
    if user is None and not first:
        return None
    digest = hashlib.sha256(b"user\0" if user is not None else b"begin\0")
    digest.update(encode_json(user if user is not None else list(first)))
    return digest.hexdigest()[:32]


def _unmaskable(where: str) -> ApiError:
    return invalid(f"{where} holds text that a guardrail masks and that cannot be masked", where)
