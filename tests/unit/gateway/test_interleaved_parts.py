"""A text that a stream brings in turns with others is looked at as its client joins it."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from terrace_gateway.calls.muzzle import Muzzle
from terrace_gateway.edge.errors import CONTENT_BLOCKED, GUARDRAIL_UNAVAILABLE, ApiError
from terrace_gateway.guardrails import chain
from terrace_gateway.guardrails.chain import GuardrailRun, Guardrails

from .guardrail_samples import PEM, SECRETS
from .guardrail_world import guardrails_of, start
from .test_answer_filters import answers, encoded
from .test_guardrail_chain import Scripted, told

pytestmark = pytest.mark.unit

KEY = SECRETS["aws-access-key-id"][1]
FIRST, SECOND = KEY[:9], KEY[9:]
OTHER = "quiet words "
Event = dict[str, Any]
Piece = Callable[[str], Event]


def chat(**delta: Any) -> Event:
    return {"created": 5, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def called(index: int) -> Piece:
    return lambda text: chat(tool_calls=[{"index": index, "function": {"arguments": text}}])


def block(index: int, kind: str, field: str) -> Piece:
    return lambda text: {
        "type": "content_block_delta", "index": index, "delta": {"type": kind, field: text},
    }  # fmt: skip


def response(kind: str, output: int, **at: int) -> Piece:
    place = {"type": f"response.{kind}.delta", "output_index": output, "item_id": "i", **at}
    return lambda text: {**place, "delta": text}


def converse(index: int, place: str, field: str | None) -> Piece:
    return lambda text: {"contentBlockDelta": {
        "contentBlockIndex": index, "delta": {place: text if field is None else {field: text}},
    }}  # fmt: skip


CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
CONVERSE = "/model/m/converse-stream"
PIECES: dict[str, list[Piece]] = {
    CHAT: [lambda t: chat(content=t), lambda t: chat(reasoning_content=t),
           lambda t: chat(refusal=t), called(0), called(1)],
    MESSAGES: [block(0, "text_delta", "text"), block(1, "thinking_delta", "thinking"),
               block(2, "input_json_delta", "partial_json"), block(3, "text_delta", "text")],
    RESPONSES: [response("output_text", 0, content_index=0),
                response("output_text", 0, content_index=1),
                response("refusal", 0, content_index=2),
                response("function_call_arguments", 1),
                response("reasoning_summary_text", 2, summary_index=0),
                response("reasoning_text", 2, content_index=0)],
    CONVERSE: [converse(0, "text", None), converse(1, "toolUse", "input"),
               converse(2, "reasoningContent", "text"), converse(3, "text", None)],
}  # fmt: skip
ITEMS: list[Event] = [
    {"id": "i", "type": "message", "role": "assistant", "status": "in_progress", "content": []},
    {"id": "i", "type": "function_call", "call_id": "c", "name": "f", "arguments": ""},
    {"id": "rs_1", "type": "reasoning", "summary": []},
]
BEGINS: dict[str, list[Event]] = {
    RESPONSES: [
        {"type": "response.output_item.added", "output_index": index, "item": item}
        for index, item in enumerate(ITEMS)
    ]
}
PAIRS = [
    pytest.param(path, one, other, id=f"{path}-{a}-{b}")
    for path, pieces in PIECES.items()
    for a, one in enumerate(pieces)
    for b, other in enumerate(pieces)
    if a != b
]


def guarded(action: str) -> GuardrailRun:
    return start(guardrails_of(f"  - {{name: s, kind: secrets, action: {action}}}\n"), "s")


def through(run: GuardrailRun, path: str, events: list[Event]) -> tuple[bytes, ApiError | None]:
    """What a client has seen when these have come; why it was ended."""
    text_filter = run.stream()
    assert text_filter is not None
    muzzle = Muzzle(text_filter)
    stream = answers(path).open_stream(muzzle)
    shown = b""
    for event in [*BEGINS.get(path, []), *events]:
        passed = stream.feed(encoded(path, event))
        if muzzle.blocked is None:
            shown += passed
    return shown, muzzle.blocked


@pytest.mark.parametrize("action", ["block", "mask"])
@pytest.mark.parametrize(("path", "one", "other"), PAIRS)
def test_a_secret_in_two_pieces_with_another_part_between_them_does_not_pass(
    path: str, one: Piece, other: Piece, action: str
) -> None:
    events = [one("a "), one(FIRST), other(OTHER), one(SECOND), one(" end "), other(OTHER)]
    shown, blocked = through(guarded(action), path, events)
    assert blocked is not None
    assert blocked.code == CONTENT_BLOCKED
    assert SECOND.encode() not in shown
    assert OTHER.strip().encode() in shown


@pytest.mark.parametrize(("path", "one", "other"), PAIRS)
def test_what_is_to_be_flagged_is_told_and_passes(path: str, one: Piece, other: Piece) -> None:
    run = guarded("flag")
    shown, blocked = through(run, path, [one(FIRST), other(OTHER), one(SECOND), one(" end ")])
    assert blocked is None
    assert told(run) == [("flag", "guardrail:s", ["aws-access-key-id"])]
    assert SECOND.encode() in shown


@pytest.mark.parametrize(("path", "one", "other"), PAIRS)
def test_what_is_whole_in_its_turn_is_masked_and_the_stream_goes_on(
    path: str, one: Piece, other: Piece
) -> None:
    events = [one("a "), other(OTHER), one(f"b {KEY} c "), other(OTHER), one("d "), other("e ")]
    shown, blocked = through(guarded("mask"), path, events)
    assert blocked is None
    assert b"[masked:aws-access-key-id]" in shown
    assert KEY.encode() not in shown


@pytest.mark.parametrize(("path", "one", "other"), PAIRS)
def test_an_empty_piece_of_another_part_does_not_break_into_one(
    path: str, one: Piece, other: Piece
) -> None:
    """Some providers send an empty content with each piece of reasoning, or of a tool's call."""
    events = [one(f"a {FIRST}"), other(""), one(f"{SECOND} c "), other(""), one(OTHER)]
    shown, blocked = through(guarded("mask"), path, events)
    assert blocked is None
    assert b"[masked:aws-access-key-id]" in shown
    assert FIRST.encode() not in shown


@pytest.mark.parametrize("escape", ["\\n", "\\u00e9"])
def test_an_empty_content_beside_a_tools_arguments_is_nothing(escape: str) -> None:
    source = '{"a": "%s"}' % (escape * 3)
    calls = [{"index": 0, "function": {"arguments": sign}} for sign in source]
    events = [chat(role="assistant", content="", tool_calls=[call]) for call in calls]
    shown, blocked = through(guarded("mask"), CHAT, [*events, chat(content="end")])
    assert blocked is None
    found = [json.loads(line[6:]) for line in shown.split(b"\n\n") if line]
    deltas = [event["choices"][0]["delta"] for event in found]
    pieces = [call["function"]["arguments"] for one in deltas for call in one.get("tool_calls", [])]
    assert "".join(pieces) == source


@pytest.mark.parametrize(("path", "one", "other"), PAIRS)
def test_pieces_of_different_parts_are_no_secret(path: str, one: Piece, other: Piece) -> None:
    shown, blocked = through(guarded("mask"), path, [one(FIRST), other(SECOND), one(" x ")])
    assert blocked is None
    assert FIRST.encode() in shown
    assert b"masked" not in shown


@pytest.mark.parametrize(("path", "one", "other"), PAIRS)
def test_the_body_of_a_private_key_is_masked_on_after_another_part(
    path: str, one: Piece, other: Piece
) -> None:
    cut = len(PEM) // 2
    shown, blocked = through(
        guarded("mask"), path, [one(PEM[:cut]), other(OTHER), one(PEM[cut:]), other(OTHER)]
    )
    assert blocked is None
    body = max(PEM.splitlines(), key=len)
    for place in range(0, len(body) - 12, 4):
        assert body[place : place + 12].encode() not in shown


async def test_a_guardrail_that_sees_the_answer_whole_sees_each_part_whole() -> None:
    remote = Scripted()
    run = start(Guardrails([remote]), "remote")
    text_filter = run.stream()
    assert text_filter is not None
    stream = answers(CHAT).open_stream(text_filter)
    text, thought = PIECES[CHAT][:2]
    for event in (thought("x "), text(FIRST), thought("y"), text(SECOND), called(0)("{}")):
        stream.feed(encoded(CHAT, event))
    stream.feed(b"data: [DONE]\n\n")
    await text_filter.check()
    assert remote.asked == [("x y", KEY, "{}")]


@pytest.mark.parametrize("opens", [False, True])
def test_parts_without_end_are_given_up(opens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "MAX_PARTS", 3)
    fails = "open" if opens else "closed"
    spec = f"  - {{name: s, kind: secrets, action: mask, on_failure: {fails}}}\n"
    run = start(guardrails_of(spec), "s")
    events = [called(index)(f"{index} ") for index in range(5)]
    shown, blocked = through(run, CHAT, events)
    assert (blocked is None) is opens
    if blocked is not None:
        assert blocked.code == GUARDRAIL_UNAVAILABLE
    found = [json.loads(line[6:]) for line in shown.split(b"\n") if line.startswith(b"data: {")]
    said = {
        call["function"]["arguments"]
        for event in found
        for choice in event["choices"]
        for call in choice["delta"].get("tool_calls", [])
    }
    assert ("4 " in said) is opens
