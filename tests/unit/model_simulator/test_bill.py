"""The book against a plain list of what was done to it, across crashes."""

import errno
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from terrace_model_simulator.append_log import LogCorruptError
from terrace_model_simulator.bill import BillUnavailableError, Book, Entry
from terrace_model_simulator.prices import ModelEntry

PRICE = ModelEntry(
    api="openai",
    context_tokens=1000,
    max_output_tokens=100,
    input_micro_usd_per_mtok=150_000,
    output_micro_usd_per_mtok=600_000,
)


async def started(path: Path) -> Book:
    book = Book(path, reserve_bytes=0)
    await book.start()
    return book


async def opened(book: Book, attempt_id: str | None = "a", input_tokens: int = 10) -> Entry:
    return await book.open(
        attempt_id=attempt_id,
        model="sim-small",
        price=PRICE,
        surface="chat_completions",
        input_tokens=input_tokens,
        request_metadata={"team": "x"},
    )


async def test_an_entry_lives_through_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "bill.jsonl"
    book = await started(path)
    entry = await opened(book)
    await book.close(entry, output_tokens=50, outcome="ok")
    before = book.entries(after=0, limit=10)
    book.stop()
    again = await started(path)
    assert again.entries(after=0, limit=10) == before
    assert before[0].cost_micro_usd == 32  # 10 * 0.15 + 50 * 0.6 = 31.5
    assert again.totals() == book.totals()
    again.stop()


async def test_an_open_entry_is_closed_at_the_next_start_with_what_was_noted(
    tmp_path: Path,
) -> None:
    path = tmp_path / "bill.jsonl"
    book = await started(path)
    noted, silent = await opened(book, "noted"), await opened(book, "silent")
    book.checkpoint(noted, 7)
    book.checkpoint(noted, 14)
    book.stop()

    again = Book(path, reserve_bytes=0)
    assert again.totals().in_flight == 2
    assert await again.start() == 2
    found = {e.attempt_id: e for e in again.entries(after=0, limit=10)}
    assert (found["noted"].output_tokens, found["noted"].outcome) == (14, "failed_after_start")
    assert (found["silent"].output_tokens, found["silent"].outcome) == (0, "failed_after_start")
    assert found["silent"].cost_micro_usd == 2
    assert again.totals().in_flight == 0
    again.stop()

    third = Book(path, reserve_bytes=0)
    assert await third.start() == 0
    assert third.totals() == again.totals()
    third.stop()
    assert silent.seq != noted.seq


async def test_pages_and_attempts(tmp_path: Path) -> None:
    book = await started(tmp_path / "bill.jsonl")
    for number in range(7):
        entry = await opened(book, f"attempt-{number % 2}")
        if number != 6:
            await book.close(entry, output_tokens=number, outcome="ok")
    first = book.entries(after=0, limit=3)
    second = book.entries(after=first[-1].seq, limit=3)
    assert [e.seq for e in first + second] == [1, 2, 3, 4, 5, 6]
    even = book.entries(after=1, limit=10, attempt_id="attempt-0")
    assert [e.seq for e in even] == [3, 5, 7]
    assert book.entries(after=0, limit=10, attempt_id="nobody") == []
    totals = book.totals("attempt-0")
    assert (totals.calls, totals.in_flight) == (4, 1)
    assert totals.micro_usd == sum(e.cost_micro_usd for e in [first[0], *even[:2]])
    book.stop()


async def test_a_close_that_does_not_fit_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bill.jsonl"
    book = await started(path)
    entry = await opened(book)

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(BillUnavailableError):
            await book.close(entry, output_tokens=5, outcome="ok")
        with pytest.raises(BillUnavailableError):
            await opened(book, "refused")
        await book.write_overdue()
        assert book.totals().in_flight == 1
    await book.write_overdue()
    totals = book.totals()
    assert (totals.calls, totals.in_flight, totals.output_tokens) == (1, 0, 5)
    book.stop()
    again = await started(path)
    assert [e.attempt_id for e in again.entries(after=0, limit=9)] == ["a"]
    assert again.totals() == totals
    again.stop()


@pytest.mark.parametrize(
    "line",
    [
        b'{"record":"close","seq":99,"output_tokens":1,"outcome":"ok","ended_at":"x"}\n',
        b'{"record":"progress","seq":"x"}\n',
        b'{"record":"open","seq":2}\n',
    ],
)
async def test_a_record_that_makes_no_sense_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "bill.jsonl"
    book = await started(path)
    await opened(book)
    book.stop()
    path.write_bytes(path.read_bytes() + line)
    with pytest.raises(LogCorruptError, match=r"bill\.jsonl, line 2"):
        Book(path, reserve_bytes=0)
    path.write_bytes(path.read_bytes()[: -len(line)])
    Book(path, reserve_bytes=0).stop()  # the failed one holds no lock


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["open", "note", "close", "crash"]), st.integers(0, 9), st.integers(0, 500)
    ),
    max_size=25,
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS)
async def test_any_history_with_crashes_bills_every_call_once(
    tmp_path: Path, steps: list[tuple[str, int, int]]
) -> None:
    directory = tmp_path / "run"
    shutil.rmtree(directory, ignore_errors=True)
    path = directory / "bill.jsonl"
    expected: dict[int, tuple[int, str]] = {}
    running: list[tuple[Entry, int]] = []
    book = await started(path)
    for step, which, amount in [*steps, ("crash", 0, 0)]:
        if step == "open":
            running.append((await opened(book), 0))
        elif step == "crash":
            book.stop()  # a crash as the file sees it: what was queued is written, nothing closed
            expected.update({e.seq: (noted, "failed_after_start") for e, noted in running})
            running.clear()
            book = await started(path)
        elif running:
            entry, _ = running.pop(which % len(running))
            if step == "note":
                book.checkpoint(entry, amount)
                running.append((entry, amount))
            else:
                await book.close(entry, output_tokens=amount, outcome="ok")
                expected[entry.seq] = (amount, "ok")
    found = book.entries(after=0, limit=1000)
    assert {e.seq: (e.output_tokens, e.outcome) for e in found} == expected
    assert [e.seq for e in found] == sorted(expected)
    assert book.totals().micro_usd == sum(e.cost_micro_usd for e in found)
    assert (book.totals().calls, book.totals().in_flight) == (len(expected), 0)
    book.stop()
