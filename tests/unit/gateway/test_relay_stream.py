"""Usage out of a relayed stream, and its bytes as they came."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terrace_gateway.calls.ports import Usage
from terrace_gateway.surfaces.surface import BrokenAnswerError
from terrace_gateway.upstream.relay_stream import RelayChatStream, relay_usage

USAGE = {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14}


def event(value: Any, *, end: str = "\n", ascii_only: bool = True) -> bytes:
    return f"data: {json.dumps(value, ensure_ascii=ascii_only)}{end}{end}".encode()


def delta(text: str, *, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return {"id": "x", "object": "chat.completion.chunk", "choices": [choice], **more}


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    edges = [0, *places, len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


texts = st.lists(
    st.one_of(st.text(max_size=20), st.sampled_from(['"usage":{', "[DONE]", "data: x\n\n", "é"])),
    max_size=8,
)


@given(
    texts=texts,
    cuts=st.lists(st.integers(0, 5000), max_size=30),
    end=st.sampled_from(["\n", "\r\n"]),
    asked=st.booleans(),
    ascii_only=st.booleans(),
    nulls=st.booleans(),
)
def test_every_byte_but_the_hidden_usage(
    *, texts: list[str], cuts: list[int], end: str, asked: bool, ascii_only: bool, nulls: bool
) -> None:
    more = {"usage": None} if nulls else {}
    body = b": a comment" + 2 * end.encode()
    body += b"".join(event(delta(t, **more), end=end, ascii_only=ascii_only) for t in texts)
    body += event(delta("", finish="stop", **more), end=end)
    usage = event({"choices": [], "usage": USAGE}, end=end)
    done = f"data: [DONE]{end}{end}".encode()
    stream = RelayChatStream(include_usage=asked)
    passed = b"".join(stream.feed(piece) for piece in pieces(body + usage + done, cuts))
    assert stream.done
    assert stream.usage == Usage(10, 4)
    assert stream.ending() == done
    assert passed == body + (usage if asked else b"")


def test_uninteresting_read_is_passed_as_the_same_object() -> None:
    stream = RelayChatStream(include_usage=False)
    data = event(delta("hello", usage=None)) * 3
    assert stream.feed(data) is data


@given(
    kinds=st.lists(st.sampled_from(["word", "quote", "finish", "count", "comment"]), max_size=12),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    cuts=st.lists(st.integers(0, 5000), max_size=6),
)
def test_many_events_in_one_read_are_passed_as_one_by_one(
    kinds: list[str], end: str, cuts: list[int]
) -> None:
    made = {
        "word": event(delta("a"), end=end),
        "quote": event(delta('"usage": {[DONE]'), end=end),
        "finish": event(delta("", finish="stop"), end=end),
        "count": event({"choices": [], "usage": USAGE}, end=end),
        "comment": f": data:nothing{end}{end}".encode(),
    }
    sent = [made[kind] for kind in kinds]
    alone, together = (RelayChatStream(include_usage=False) for _ in range(2))
    expected = b"".join(made[kind] for kind in kinds if kind != "count")
    assert b"".join(alone.feed(one) for one in sent) + alone.ending() == expected
    parts = pieces(b"".join(sent), cuts)
    assert b"".join(together.feed(part) for part in parts) + together.ending() == expected
    assert (together.usage, together.done) == (alone.usage, alone.done)


@pytest.mark.parametrize("payload", ["x", " x", "  {}", "", " ", "\x00", "\xff", '"', "]"])
def test_data_that_is_no_object_is_looked_at(payload: str) -> None:
    stream = RelayChatStream(include_usage=False)
    data = event(delta("a")) + b"data:" + payload.encode("latin-1") + b"\n\n"
    if not payload.strip() or payload.strip() == "{}":  # empty data says nothing
        assert stream.feed(data) == data
        return
    with pytest.raises(BrokenAnswerError):
        stream.feed(data)


def test_count_so_far_is_not_the_bill() -> None:
    stream = RelayChatStream(include_usage=True)
    so_far = {**USAGE, "completion_tokens": 1}
    stream.feed(event(delta("a", usage=so_far)))
    assert stream.usage is None
    stream.feed(event(delta("", finish="stop", usage=USAGE)))
    assert stream.usage == Usage(10, 4)


def test_escaped_spelling_of_a_field_is_read_as_well() -> None:
    stream = RelayChatStream(include_usage=False)
    stream.feed(event(delta("", finish="stop")))
    odd = event({"choices": [], "usage": USAGE}).replace(b'"usage"', b'"\\u0075sage"')
    assert stream.feed(odd) == b""
    assert stream.usage == Usage(10, 4)


def test_error_event_ends_it() -> None:
    stream = RelayChatStream(include_usage=False)
    first = event(delta("a"))
    assert stream.feed(first + event({"error": {"message": "secret inner text"}})) == first
    assert stream.failed
    assert stream.feed(event(delta("b"))) == b""


@pytest.mark.parametrize("data", [b"data: nonsense\n\n", b"data: {]}\n\ndata: [DONE]\n\n"])
def test_what_is_no_stream_of_events(data: bytes) -> None:
    stream = RelayChatStream(include_usage=False)
    if b"{]" in data:  # not looked at: the bytes are the provider's
        assert stream.feed(data) == b"data: {]}\n\n"
        return
    with pytest.raises(BrokenAnswerError):
        stream.feed(data)


@pytest.mark.parametrize("payload", [b"[" * 100_000, b"9" * 5000, b"[]", b"nonsense"])
def test_an_event_that_cannot_be_read_is_broken(payload: bytes) -> None:
    stream = RelayChatStream(include_usage=False)
    with pytest.raises(BrokenAnswerError):
        stream.feed(b'data: {"usage": {"a":' + payload + b"}\n\n")


def test_endless_event_is_refused() -> None:
    stream = RelayChatStream(include_usage=False)
    for _ in range(8):
        assert stream.feed(b"data: {" + b"x" * 1024 * 1000) == b""
    with pytest.raises(BrokenAnswerError):
        stream.feed(b"x" * 1024 * 1024)


def test_stream_without_an_end_mark_keeps_its_last_bytes() -> None:
    stream = RelayChatStream(include_usage=False)
    last = event(delta("", finish="stop", usage=USAGE))
    assert stream.feed(last[:-1]) == b""
    assert not stream.done
    assert stream.ending() == last[:-1]


def test_embeddings_are_no_completion() -> None:
    vector = {"object": "embedding", "index": 0, "embedding": [0.5]}
    answer = {"data": [vector], "usage": {"prompt_tokens": 7, "total_tokens": 7}}
    body = json.dumps(answer).encode()
    assert relay_usage(body, "embeddings") == Usage(7, 0)
    assert relay_usage(b'{"data": [{"embedding": [NaN]}]}', "embeddings") is None
    for wrong, surface in (
        (body, "chat"),
        (b'{"choices": [1]}', "embeddings"),
        (b"", "embeddings"),
    ):
        with pytest.raises(BrokenAnswerError):
            relay_usage(wrong, surface)


def test_plain_answers() -> None:
    answer = {"choices": [{"index": 0}], "usage": USAGE}
    assert relay_usage(json.dumps(answer).encode()) == Usage(10, 4)
    assert relay_usage(b'{"choices": [1]}') is None
    for broken in (b"", b"[]", b"{}", b"nonsense", b'{"choices":' + b"[" * 100_000):
        with pytest.raises(BrokenAnswerError):
            relay_usage(broken)
