"""Events of a stream: any split of the bytes, what cannot be read, and how work grows."""

import re
import struct
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terrace_gateway.surfaces import sse
from terrace_gateway.surfaces.converse_answer import FrameStream
from terrace_gateway.surfaces.sse import MAX_EVENT_BYTES, EventSplitter
from terrace_gateway.surfaces.surface import BrokenAnswerError
from terrace_gateway.upstream import relay_stream
from terrace_gateway.upstream.relay_stream import RelayChatStream

from .surface_calls import IDENTITY, read

SIZE = 1024 * 1024
READ = 256


@given(
    lines=st.lists(
        st.sampled_from([b"data: a", b"data:b", b"event: x", b": note", b"", b"\xc3", b"data: \r"]),
        max_size=12,
    ),
    end=st.sampled_from([b"\n", b"\r\n"]),
    size=st.integers(1, 9),
)
def test_any_split_is_the_same_events(lines: list[bytes], end: bytes, size: int) -> None:
    data = end.join(lines) + 2 * end
    whole = EventSplitter().feed(data)
    splitter = EventSplitter()
    assert [e for part in parts(data, size) for e in splitter.feed(part)] == whole


def test_an_end_is_seen_wherever_it_is_cut() -> None:
    for end in (b"\n\n", b"\r\n\r\n", b"\n\r\n"):
        data = b"data: a" + end + b"data: b" + end
        for cut in range(len(data)):
            splitter = EventSplitter()
            assert splitter.feed(data[:cut]) + splitter.feed(data[cut:]) == [b"a", b"b"], (end, cut)


def test_an_endless_event_is_broken() -> None:
    splitter = EventSplitter()
    for _ in range(MAX_EVENT_BYTES // SIZE):
        assert splitter.feed(b"x" * SIZE) == []
    with pytest.raises(BrokenAnswerError):
        splitter.feed(b"x")


@pytest.mark.parametrize("payload", [b"[" * 100_000, b"9" * 5000, b"[]", b"nonsense"])
@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi"}),
    ],
)
def test_an_event_that_cannot_be_read_is_broken(
    path: str, more: dict[str, Any], payload: bytes
) -> None:
    """Nested deeper than Python reads, it was a defect of ours."""
    answers = read(path, {"model": "m", "stream": True, **more}).answers(IDENTITY)
    with pytest.raises(BrokenAnswerError):
        answers.open_stream().feed(b"data: " + payload + b"\n\n")


def test_a_frame_that_cannot_be_read_is_broken() -> None:
    kind = b":event-type"
    headers = bytes([len(kind)]) + kind + b"\x07" + struct.pack("!H", 8) + b"metadata"
    for body in (b"[" * 100_000, b"9" * 5000, b"{"):
        prelude = struct.pack("!II", 16 + len(headers) + len(body), len(headers))
        start = prelude + struct.pack("!I", zlib.crc32(prelude)) + headers + body
        with pytest.raises(BrokenAnswerError):
            FrameStream().feed(start + struct.pack("!I", zlib.crc32(start)))


class Copied(bytes):
    """A read that counts what is copied to stand before it."""

    copied = 0

    def __radd__(self, before: bytes) -> bytes:
        Copied.copied += len(before)
        return before + bytes(self)


class Searched:
    """A pattern that counts how many bytes it is to look at."""

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self._pattern = pattern
        self.looked_at = 0

    def search(self, data: bytes, begin: int = 0) -> re.Match[bytes] | None:
        self.looked_at += len(data) - begin
        return self._pattern.search(data, begin)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pattern, name)


def frame() -> bytes:
    """One event frame's length, and as many bytes."""
    return SIZE.to_bytes(4, "big") + b"\0" * (SIZE - 4)


@pytest.mark.parametrize(
    ("reader", "data"),
    [
        (lambda: EventSplitter().feed, b"data: " + b"x" * SIZE + b"\n\n"),
        (
            lambda: RelayChatStream(include_usage=True).feed,
            b'data: {"x":"' + b"x" * SIZE + b'"}\n\n',
        ),
        (lambda: FrameStream().feed, frame()),
    ],
    ids=["events", "relayed", "frames"],
)
def test_a_large_event_in_small_reads_costs_its_bytes(
    reader: Callable[[], Callable[[bytes], Any]], data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 MiB in reads of a network packet were ten seconds of a whole guard."""
    ends = [Searched(module._EVENT_END) for module in (sse, relay_stream)]
    for module, end in zip((sse, relay_stream), ends, strict=True):
        monkeypatch.setattr(module, "_EVENT_END", end)
    Copied.copied = 0
    feed = reader()
    found = [feed(Copied(part)) for part in parts(data, READ)]
    assert found[-1]
    assert Copied.copied == 0
    assert sum(end.looked_at for end in ends) < 3 * len(data)


def parts(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]
