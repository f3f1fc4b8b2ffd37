"""Decisions of one second: the same are counted together, what differs in detail is kept apart."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from terrace_gateway.calls.ports import Decision
from terrace_gateway.spool import notes
from terrace_gateway.spool.notes import MAX_DETAILS, Notes

AT = datetime(2026, 1, 1, tzinfo=UTC)
OVERRUN = Decision("alert", "overrun", {}, "req_1", "", None)


def details(found: Notes) -> list[Any]:
    return [entry["detail"] for _, entry in found.take(AT)]


def test_the_same_is_counted_together() -> None:
    found = Notes()
    for request in ("req_1", "req_2"):
        assert found.add(replace(OVERRUN, detail={"attempt_id": "a"}, request_id=request))
    ((_, entry),) = found.take(AT)
    assert (entry["detail"], entry["request_id"]) == ({"attempt_id": "a", "count": 2}, "req_1")
    assert found.take(AT) == []


def test_another_detail_is_another_entry() -> None:
    found = Notes()
    for attempt in ("a", "b", "a"):
        assert found.add(replace(OVERRUN, detail={"attempt_id": attempt}))
    assert details(found) == [{"attempt_id": "a", "count": 2}, {"attempt_id": "b", "count": 1}]


def test_beyond_the_bound_the_rest_is_counted() -> None:
    found = Notes()
    for attempt in range(MAX_DETAILS + 5):
        assert found.add(replace(OVERRUN, detail={"attempt_id": attempt}))
    assert found.add(replace(OVERRUN, detail={"attempt_id": 0}))
    told = details(found)
    assert len(told) == MAX_DETAILS + 1
    assert told[0] == {"attempt_id": 0, "count": 2}
    assert told[-1] == {"shortened": True, "count": 5}
    assert sum(detail["count"] for detail in told) == MAX_DETAILS + 6


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "MAX_DISTINCT", 3)
    found = Notes()
    added = [found.add(replace(OVERRUN, detail={"attempt_id": n % 4})) for n in range(8)]
    assert added == [True, True, True, False] * 2
    reasons = [found.add(replace(OVERRUN, reason=f"r{n}")) for n in range(5)]
    assert not any(reasons)
    assert len(details(found)) == 3
    assert found.add(OVERRUN)
