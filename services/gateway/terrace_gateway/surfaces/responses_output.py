"""Items, parts and usage of a response, each from an allow-list."""

import re
from collections.abc import Callable

from terrace_gateway.surfaces.answer_fields import (
    ARGUMENTS,
    ID,
    NUMBER,
    SEALED,
    SHOWN,
    TEXT,
    WORD,
    Fields,
    Place,
    walk,
)
from terrace_gateway.surfaces.json_body import Json
from terrace_gateway.surfaces.surface import Identity, answer_list, answer_object, kept

_REASONING_ID = re.compile(r"rs_[A-Za-z0-9_-]{1,128}")
_PART_TEXTS = {
    "output_text": "text",
    "refusal": "refusal",
    "summary_text": "text",
    "reasoning_text": "text",
}
_PREFIXES = {"message": "msg", "function_call": "fc", "reasoning": "rs"}
USAGE_PLACES: Fields = {
    **dict.fromkeys(("input_tokens", "output_tokens", "total_tokens"), NUMBER),
    "input_tokens_details": {"cached_tokens": NUMBER},
    "output_tokens_details": {"reasoning_tokens": NUMBER},
}


def part_places(text: Place) -> Fields:
    """Of a part; annotations and log probabilities are always empty."""
    return {"type": WORD, "text": text, "refusal": text, "annotations": TEXT, "logprobs": TEXT}


def item_places(text: Place) -> Fields:
    """Of an item; ``text``: whether its texts were filtered before."""
    parts = part_places(text)
    return {
        **dict.fromkeys(("id", "type", "role"), SHOWN),
        "status": WORD, "content": parts, "summary": parts, "name": TEXT,
        "arguments": ARGUMENTS if text is TEXT else text,
        "call_id": ID, "encrypted_content": SEALED,
    }  # fmt: skip


_ITEM_PLACES = item_places(TEXT)


def rebuild_item(source: Json, index: int, identity: Identity) -> Json | None:
    """An item of the output under an id of ours; ``None`` for a kind that is not asked for.

    Reasoning keeps its id, with which the client sends it back.
    """
    kind = str(source.get("type"))
    if kind not in _PREFIXES:
        return None
    item: Json = {"id": item_id(source, index, identity), "type": kind}
    if source.get("status") is not None:
        item["status"] = source["status"]
    if kind == "message":
        item["role"] = "assistant"
        item["content"] = _parts(source.get("content"))
    elif kind == "function_call":
        item |= kept(source, ("call_id", "name", "arguments"))
    else:
        item["summary"] = _parts(source.get("summary"))
        if source.get("content"):
            item["content"] = _parts(source["content"])
        item |= kept(source, ("encrypted_content",))
    return item


def item_id(source: Json, index: int, identity: Identity) -> str:
    """Our id of an item."""
    found = source.get("id")
    reasoning = source.get("type") == "reasoning"
    if reasoning and isinstance(found, str) and _REASONING_ID.fullmatch(found):
        return found
    prefix = _PREFIXES.get(str(source.get("type")), "item")
    return f"{prefix}_{identity.request_id}_{index}"


def rebuild_part(source: Json) -> Json | None:
    """A part of a message or of reasoning."""
    kind = str(source.get("type"))
    field = _PART_TEXTS.get(kind)
    if field is None:
        return None
    part: Json = {"type": kind, field: source.get(field) or ""}
    if kind == "output_text":
        part["annotations"] = []
        part["logprobs"] = []
    return part


def rebuild_usage(source: Json) -> Json:
    """Usage as the client sees it: OpenAI's fields."""
    read = answer_object(source.get("input_tokens_details") or {})
    made = answer_object(source.get("output_tokens_details") or {})
    return {
        "input_tokens": source.get("input_tokens", 0),
        "input_tokens_details": {"cached_tokens": 0, **kept(read, ("cached_tokens",))},
        "output_tokens": source.get("output_tokens", 0),
        "output_tokens_details": {"reasoning_tokens": 0, **kept(made, ("reasoning_tokens",))},
        "total_tokens": source.get("total_tokens", 0),
    }


def walk_output(
    output: list[object], change: Callable[[str], str], identity: Identity
) -> list[Json]:
    """The items as they are shown, each at its place, with every text changed."""
    items = (rebuild_item(answer_object(item), at, identity) for at, item in enumerate(output))
    return [walk(item or {}, _ITEM_PLACES, change) for item in items]


def _parts(value: object) -> list[Json]:
    parts = (rebuild_part(answer_object(part)) for part in answer_list(value))
    return [part for part in parts if part is not None]
