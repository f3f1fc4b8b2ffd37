"""Converse's cache points: passed on where the price book bounds the write, taken off elsewhere."""

import json
from typing import Any

import pytest

from terrace_gateway.edge.errors import ApiError

from .surface_calls import read, upstream

PATH = "/model/m/converse"
SHORT = {"cache_write_micro_usd_per_mtok": 3_750_000}
LONG = {"cache_write_1h_micro_usd_per_mtok": 6_000_000}


def body(*points: dict[str, Any]) -> dict[str, Any]:
    """A body with a mark in each of its places; the last holds for those left over."""
    marks = [{"cachePoint": point} for point in points]
    system, tool, message = (marks * 3)[:3]
    spec = {"toolSpec": {"name": "f", "inputSchema": {"json": {}}}}
    return {
        "system": [{"text": "s"}, system],
        "toolConfig": {"tools": [spec, tool]},
        "messages": [{"role": "user", "content": [{"text": "hi"}, message]}],
    }


DEFAULT = {"type": "default"}
HOUR = {"type": "default", "ttl": "1h"}


@pytest.mark.parametrize(
    ("points", "price", "writes"),
    [
        ([DEFAULT], {}, "none"),
        ([DEFAULT], SHORT, "5m"),
        ([{"type": "default", "ttl": "5m"}], SHORT, "5m"),
        ([HOUR], SHORT, "none"),
        ([HOUR], SHORT | LONG, "1h"),
        ([DEFAULT, HOUR], SHORT | LONG, "1h"),
        ([DEFAULT, HOUR], SHORT, "none"),
    ],
)
def test_marks_pass_if_every_write_has_a_price(
    points: list[dict[str, Any]], price: dict[str, int], writes: str
) -> None:
    made = upstream(read(PATH, body(*points)), "bedrock-claude", **price)
    assert made.cache_writes == writes
    sent = json.loads(made.body)
    if writes == "none":
        assert b"cachePoint" not in made.body
    else:
        expected = body(*points)
        assert (sent["system"], sent["messages"]) == (expected["system"], expected["messages"])
        assert sent["toolConfig"]["tools"] == expected["toolConfig"]["tools"]
    assert len(sent["toolConfig"]["tools"]) == (1 if writes == "none" else 2)


def test_without_marks_nothing_is_written() -> None:
    plain = {"messages": [{"role": "user", "content": [{"text": "hi"}]}]}
    made = upstream(read(PATH, plain), "bedrock-claude", **SHORT, **LONG)
    assert made.cache_writes == "none"


def test_only_what_the_api_has_is_passed_on() -> None:
    made = upstream(read(PATH, body({**DEFAULT, "internal": 1})), "bedrock-claude", **SHORT)
    assert b"internal" not in made.body
    inner = {"toolUseId": "t", "content": [{"text": "r"}, {"cachePoint": DEFAULT}]}
    result = {"messages": [{"role": "user", "content": [{"toolResult": inner}]}]}
    made = upstream(read(PATH, result), "bedrock-claude", **SHORT)
    assert (b"cachePoint" in made.body, made.cache_writes) == (False, "none")


@pytest.mark.parametrize(
    "point",
    [{}, {"type": "other"}, {"type": "default", "ttl": "2h"}, {"type": "default", "ttl": 5}],
)
def test_a_wrong_mark_is_refused(point: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="cachePoint"):
        read(PATH, body(point))


def test_a_mark_beside_something_else_is_refused() -> None:
    block = {"text": "hi", "cachePoint": DEFAULT}
    with pytest.raises(ApiError, match="alone"):
        read(PATH, {"messages": [{"role": "user", "content": [block]}]})


def test_a_mark_that_wanders_is_the_same_conversation() -> None:
    plain = {"messages": [{"role": "user", "content": [{"text": "hi"}]}]}
    marked = {"messages": [{"role": "user", "content": [{"text": "hi"}, {"cachePoint": DEFAULT}]}]}
    assert read(PATH, plain).session() == read(PATH, marked).session() is not None
