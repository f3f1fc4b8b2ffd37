"""Any mutation of a chain is found: changed, dropped, inserted, reordered, cut off (proof 8)."""

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from terrace_gateway.ledger.chains.anchors import Anchor
from terrace_gateway.ledger.chains.chain_check import ChainCheck, EntryRow, Finding, check_late
from terrace_gateway.spool.records import canonical_bytes, entry_hash, genesis_hash

WRITER = "w-0123456789abcdef"
amounts = st.lists(st.integers(0, 10**9), min_size=1, max_size=15)


def chain(values: list[int]) -> list[EntryRow]:
    rows: list[EntryRow] = []
    previous = genesis_hash(WRITER)
    for seq, amount in enumerate(values, start=1):
        fields = {
            "writer": WRITER, "seq": seq, "kind": "attempt", "attempt_id": f"a{seq}",
            "amount_micro_usd": amount,
        }  # fmt: skip
        body = canonical_bytes(fields)
        digest = entry_hash(previous, body)
        defaults: dict[str, object] = {"revision": 0, "input_tokens": 0, "charges": []}
        rows.append(EntryRow(seq, previous, digest, body.decode(), {**defaults, **fields}))
        previous = digest
    return rows


def check(rows: list[EntryRow], head: EntryRow | None, anchor: EntryRow | None) -> list[Finding]:
    """``head``: what table chain says; ``anchor``: what was seen from outside."""
    anchors = () if anchor is None else (Anchor(WRITER, anchor.seq, anchor.hash, False, "then"),)
    checked = ChainCheck(WRITER, anchors=anchors)
    found = [finding for row in rows for finding in checked.feed(row)]
    return found + checked.finish(
        head_seq=None if head is None else head.seq, head_hash=None if head is None else head.hash
    )


@given(amounts)
def test_a_whole_chain_has_no_finding(values: list[int]) -> None:
    rows = chain(values)
    assert check(rows, rows[-1], rows[-1]) == []


@given(amounts, st.data())
def test_a_changed_row_is_found(values: list[int], data: st.DataObject) -> None:
    rows = chain(values)
    place = data.draw(st.integers(0, len(rows) - 1))
    row = rows[place]
    fields = json.loads(row.canonical) | {"amount_micro_usd": values[place] + 1}
    text = canonical_bytes(fields).decode()
    how = data.draw(st.sampled_from(["column", "bytes", "both", "rehashed"]))
    if how in ("column", "both", "rehashed"):
        row = replace(row, columns={**row.columns, "amount_micro_usd": values[place] + 1})
    if how in ("bytes", "both", "rehashed"):
        row = replace(row, canonical=text)
    if how == "rehashed":
        row = replace(row, hash=entry_hash(row.previous, text.encode()))
    mutated = [*rows[:place], row, *rows[place + 1 :]]
    assert check(mutated, rows[-1], rows[-1])


@given(amounts, st.data())
def test_a_dropped_row_is_found(values: list[int], data: st.DataObject) -> None:
    rows = chain(values)
    place = data.draw(st.integers(0, len(rows) - 1))
    assert check(rows[:place] + rows[place + 1 :], rows[-1], None)


@given(amounts, st.integers(0, 10**9), st.data())
def test_an_inserted_row_is_found(values: list[int], amount: int, data: st.DataObject) -> None:
    rows = chain(values)
    place = data.draw(st.integers(0, len(rows)))
    seq = data.draw(st.integers(0, len(rows) + 1))
    previous = rows[place - 1].hash if place else genesis_hash(WRITER)
    body = canonical_bytes({"writer": WRITER, "seq": seq, "amount_micro_usd": amount})
    forged = EntryRow(seq, previous, entry_hash(previous, body), body.decode(), json.loads(body))
    assert check([*rows[:place], forged, *rows[place:]], rows[-1], None)


@given(st.lists(st.integers(0, 10**9), min_size=2, max_size=15), st.data())
def test_reordered_rows_are_found(values: list[int], data: st.DataObject) -> None:
    rows = chain(values)
    a, b = sorted(data.draw(st.permutations(range(len(rows))))[:2])
    contents = list(rows)
    contents[a], contents[b] = rows[b], rows[a]
    assert check(contents, rows[-1], None)
    # Also when the numbers are put right.
    for place in (a, b):
        seq = place + 1
        columns = {**contents[place].columns, "seq": seq}
        contents[place] = replace(contents[place], seq=seq, columns=columns)
    assert check(contents, rows[-1], None)


@given(st.lists(st.integers(0, 10**9), min_size=2, max_size=15), st.data())
def test_a_tail_that_was_cut_off_is_found_by_the_anchor(
    values: list[int], data: st.DataObject
) -> None:
    rows = chain(values)
    left = data.draw(st.integers(0, len(rows) - 1))
    cut = rows[:left]
    found = check(cut, cut[-1] if cut else None, rows[-1])
    assert {finding.kind for finding in found} & {"truncated", "missing"}


@given(amounts, st.data())
def test_a_forged_tail_is_found_by_the_anchor(values: list[int], data: st.DataObject) -> None:
    rows = chain(values)
    place = data.draw(st.integers(0, len(rows) - 1))
    forged = chain([*values[:place], values[place] + 1, *values[place + 1 :]])
    assert check(forged, forged[-1], None) == []  # nothing inside shows it
    assert {finding.kind for finding in check(forged, forged[-1], rows[-1])} == {"anchor"}


def test_late_marks_need_their_corrections() -> None:
    assert check_late(["w-1:3"], ["w-1:3"]) == []
    assert [f.seq for f in check_late(["w-1:3", "w-1:4"], ["w-1:3"])] == [4]
    assert [f.seq for f in check_late([], ["w-1:3"])] == [3]
