"""Converse's marks for the prompt cache: ``{"cachePoint": {"type": "default", "ttl": ...}}``."""

from collections.abc import Iterator
from typing import cast

from terrace_gateway.surfaces.json_body import Json, as_object, invalid

LIFETIMES = ("5m", "1h")


def read_cache_point(block: Json, where: str) -> Json:
    """One mark, alone in its block. Raises ``ApiError``."""
    point = as_object(block["cachePoint"], f"{where}.cachePoint")
    if len(block) != 1 or point.get("type") != "default":
        raise invalid(f"{where}.cachePoint must be alone and of type default", where)
    if point.get("ttl") is None:
        return {"cachePoint": {"type": "default"}}
    if point["ttl"] not in LIFETIMES:
        raise invalid(f"{where}.cachePoint.ttl must be 5m or 1h", where)
    return {"cachePoint": {"type": "default", "ttl": point["ttl"]}}


def cache_lifetimes(fields: Json) -> Iterator[str]:
    """Of every mark in a checked converse body; without a ``ttl`` it is five minutes."""
    for blocks in _lists(fields):
        for block in blocks:
            if "cachePoint" in block:
                yield str(cast("Json", block["cachePoint"]).get("ttl", "5m"))


def without_cache_points(fields: Json) -> Json:
    """The same body without any mark."""
    result = dict(fields)
    if "system" in fields:
        result["system"] = _bare(fields["system"])
    result["messages"] = [
        {**message, "content": _bare(message["content"])}
        for message in cast("list[Json]", fields["messages"])
    ]
    if "toolConfig" in fields:
        config = cast("Json", fields["toolConfig"])
        result["toolConfig"] = {**config, "tools": _bare(config["tools"])}
    return result


def _lists(fields: Json) -> Iterator[list[Json]]:
    yield cast("list[Json]", fields.get("system", []))
    for message in cast("list[Json]", fields["messages"]):
        yield cast("list[Json]", message["content"])
    config = cast("Json", fields.get("toolConfig", {}))
    yield cast("list[Json]", config.get("tools", []))


def _bare(blocks: object) -> list[Json]:
    return [block for block in cast("list[Json]", blocks) if "cachePoint" not in block]
