"""Lines of Bedrock's invocation log, which hold what clients and models wrote."""

import gzip
import json
import tracemalloc
import weakref
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from terrace_gateway.ledger.bills import invocation_log
from terrace_gateway.ledger.bills.bill_sources import NAMED_LINES, BedrockBill
from terrace_gateway.ledger.bills.invocation_log import (
    BucketInvocationLog,
    InvocationLine,
    InvocationLogError,
    parse_line,
)
from terrace_gateway.ledger.object_store import ObjectStore

LINE = {
    "schemaType": "ModelInvocationLog", "timestamp": "2026-11-30T12:00:00Z", "requestId": "r-1",
    "modelId": "m", "operation": "Converse", "input": {"inputTokenCount": 7},
    "output": {"outputTokenCount": 11, "outputBodyJson": "@"},
}  # fmt: skip


def line(answer: str, text: str = json.dumps(LINE)) -> bytes:
    return text.replace('"@"', answer).encode()


def test_a_line_is_read() -> None:
    found = parse_line(line('{"a": [[]]}'))
    assert found is not None
    assert (found.request_id, found.input_tokens, found.output_tokens) == ("r-1", 7, 11)


@pytest.mark.parametrize(
    "odd",
    [
        line("[" * 5000 + "]" * 5000),  # of a tool's arguments, say
        line("9" * 5000),
        line("{}").replace(b": 7", b": 1e999"),
        line("{}").replace(b": 7", b": -1"),
        b"nonsense",
        b"[]",
    ],
    ids=["deep", "long", "endless", "negative", "text", "list"],
)
def test_what_cannot_be_read_ends_no_reconciliation(odd: bytes) -> None:
    assert parse_line(odd) is None


class Stored(ObjectStore):
    """One object in each folder that is asked for."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def versions(self, prefix: str) -> Iterator[tuple[str, str]]:
        yield f"{prefix}one.json.gz", "1"

    def get(self, key: str) -> bytes:
        return self._body

    def put(self, key: str, body: bytes, *, retain_until: datetime | None = None) -> bool:
        raise NotImplementedError


NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


def logged(body: bytes) -> Iterator[InvocationLine]:
    log = BucketInvocationLog(Stored(body), folder="f/")
    return log.lines(NOON, NOON + timedelta(minutes=1))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"plain text", "not gzip"),
        (gzip.compress(line("{}") * 9)[:-9], "cut off"),
        (gzip.compress(b"[" * 1000), "larger than 999 bytes"),
    ],
    ids=["text", "short", "bomb"],
)
def test_an_object_that_is_not_whole_makes_the_log_unreadable(
    body: bytes, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(invocation_log, "MAX_OBJECT_BYTES", 999)
    with pytest.raises(InvocationLogError, match=why):
        list(logged(body))


def test_an_object_is_read_line_by_line() -> None:
    body = b"\n".join([line("{}")] * 20_000 + [b'{"not": "a line"'])
    tracemalloc.start()
    try:
        lines = logged(gzip.compress(body))
        assert sum(1 for _ in lines) == 2 * 20_000  # two hours' folders, the same object
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < len(body) / 4


async def test_no_more_lines_are_held_than_are_looked_up_at_a_time() -> None:
    made = weakref.WeakSet[Line]()

    class Log:
        def lines(self, begin: datetime, end: datetime) -> Iterator[InvocationLine]:
            del begin, end
            for number in range(3 * NAMED_LINES + 1):
                one = Line(
                    at=NOON, request_id=str(number), attempt_id=None if number % 2 else "att_n1",
                    model_id="m", operation="", input_tokens=1, output_tokens=1,
                    cache_read_tokens=0, cache_write_tokens=0, error=None,
                )  # fmt: skip
                made.add(one)
                yield one

        def contents(self, begin: datetime, end: datetime) -> bytes | None:
            raise NotImplementedError

    source = BedrockBill(
        Log(), no_rate, grace_seconds=0, longest_call_seconds=1, sent_here=anywhere
    )
    sizes: list[int] = []
    async for lines in source.named(NOON, NOON):
        sizes.append(len(lines))
        assert len(made) <= len(lines) + 2
        del lines
    assert sizes == [NAMED_LINES, NAMED_LINES // 2 + 1]


class Line(InvocationLine):
    """One that can be watched."""

    __slots__ = ("__weakref__",)
    __hash__ = object.__hash__


async def no_rate(*_: object) -> None:
    raise NotImplementedError


async def anywhere(*_: object) -> bool:
    raise NotImplementedError
