"""The comparison of the two books must see every way in which they can differ."""

from typing import Any

import httpx
import pytest

from terrace_cli.errors import NotRunningError
from terrace_cli.smoke.books import SimulatorBill, compare


def entry(attempt: str, amount: int, kind: str = "attempt") -> dict[str, Any]:
    return {"attempt_id": attempt, "amount_micro_usd": amount, "kind": kind}


def line(attempt: str | None, cost: int, status: str = "final", seq: int = 1) -> dict[str, Any]:
    return {"attempt_id": attempt, "cost_micro_usd": cost, "status": status, "seq": seq}


def test_equal_books_are_equal() -> None:
    found = compare([entry("a", 5), entry("b", 7)], [line("b", 7), line("a", 5)])
    assert found.is_equal
    assert (found.attempts, found.ledger_micro_usd, found.bill_micro_usd) == (2, 12, 12)


def test_corrections_count_and_are_not_a_second_entry() -> None:
    assert compare(
        [entry("a", 50, "unknown"), entry("a", -45, "correction")], [line("a", 5)]
    ).is_equal


def test_an_attempt_that_cost_nothing_needs_no_bill() -> None:
    assert compare([entry("a", 0)], []).is_equal


@pytest.mark.parametrize(
    ("ledger", "bill", "said"),
    [
        ([entry("a", 5)], [line("a", 6)], "ledger 5, bill 6"),
        ([entry("a", 5)], [], "ledger 5, bill 0"),
        ([], [line("a", 6)], "not in the ledger"),
        ([], [line(None, 6)], "not in the ledger"),
        ([entry("a", 3), entry("a", 3)], [line("a", 6)], "2 entries for one attempt"),
        ([entry("a", 6)], [line("a", 3), line("a", 3)], "billed 2 times"),
        ([entry("a", 6)], [line("a", 6, "in_flight")], "still in flight"),
        # Sums that happen to agree are no comfort.
        ([entry("a", 5), entry("b", 6)], [line("a", 6), line("b", 5)], "ledger 5, bill 6"),
    ],
)
def test_a_difference_is_seen(
    ledger: list[dict[str, Any]], bill: list[dict[str, Any]], said: str
) -> None:
    found = compare(ledger, bill)
    assert not found.is_equal
    assert said in " ".join(found.differences)


def test_the_bill_is_read_to_its_end() -> None:
    book = [line(f"a{n}", n, seq=n) for n in range(1, 8)]

    def answer(request: httpx.Request) -> httpx.Response:
        after = int(request.url.params.get("after", 0))
        return httpx.Response(200, json={"entries": [e for e in book if e["seq"] > after][:3]})

    bill = SimulatorBill("http://simulator", transport=httpx.MockTransport(answer))
    assert [e["seq"] for e in bill.entries()] == list(range(1, 8))
    assert [e["seq"] for e in bill.entries(after=5)] == [6, 7]
    assert bill.last_seq() == 7


def test_a_bill_that_cannot_be_read_is_said() -> None:
    bill = SimulatorBill(
        "http://simulator", transport=httpx.MockTransport(lambda _: httpx.Response(500))
    )
    with pytest.raises(NotRunningError, match="http://simulator"):
        bill.last_seq()
