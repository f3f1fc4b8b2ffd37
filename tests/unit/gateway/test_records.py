"""Entries as they are hashed: what a new field may not change of those that came before it."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terrace_gateway.calls.ports import (
    Amounts,
    Caller,
    Charge,
    CloseRecord,
    Hold,
    OpenRecord,
    Usage,
)
from terrace_gateway.spool import records
from terrace_gateway.spool.records import (
    abandoned_fields,
    canonical_bytes,
    close_fields,
    moment_text,
    open_fields,
)

AT = datetime(2026, 11, 30, 12, tzinfo=UTC)
CHARGES = (Charge(3, "micro_usd", 900),)
CLOSE = CloseRecord("att_1", "attempt", "ok", Usage(1, 2), "response", 5, CHARGES, 3)
WITHOUT_IMAGES = (
    b'{"amount_micro_usd":5,"attempt_id":"att_1","cache_read_tokens":0,"cache_write_tokens":0,'
    b'"charges":[[3,"micro_usd",900]],"closed_at":"2026-11-30T12:00:00.000000+00:00",'
    b'"deployment":"d","incarnation_id":1,"input_tokens":1,"key_id":"key_1","kind":"attempt",'
    b'"latency_ms":3,"model":"m","opened_at":"2026-11-30T12:00:00.000000+00:00","outcome":"ok",'
    b'"output_tokens":2,"policy_version":1,"price_version":"v","provider":"p","purpose":"call",'
    b'"request_id":"req","reserved_input_tokens":10,"reserved_micro_usd":900,'
    b'"reserved_output_tokens":20,"surface":"chat","team":"search","trace_id":"t",'
    b'"usage_source":"response"}'
)
"""As they were before there was a field of images."""


def opened(**changes: Any) -> OpenRecord:
    return OpenRecord(
        "att_1", "req", "t", AT, Caller("key_1", "search"), "chat", "m", "d", "p", "v", 1,
        Amounts(10, 20, 900), Hold("att_1", 1, CHARGES), 600, **changes,
    )  # fmt: skip


def test_an_entry_without_images_has_the_bytes_that_it_always_had() -> None:
    fields = open_fields(opened())
    assert canonical_bytes(close_fields(fields, CLOSE, AT)) == WITHOUT_IMAGES


def test_images_of_a_request_are_in_its_open_record_and_in_every_way_to_close_it() -> None:
    fields = open_fields(opened(images=2))
    assert fields["images"] == 2
    assert close_fields(fields, CLOSE, AT)["images"] == 2
    assert abandoned_fields(fields, AT)["images"] == 2


TEXTS = st.text() | st.text(
    st.sampled_from('\0\x01\x1f\x7f"\\/\b\f\n\r\t\u2028\ud800\udfffué\U0001f600'), max_size=9
)
VALUES = (
    TEXTS
    | st.integers(-(1 << 70), 1 << 70)
    | st.none()
    | st.booleans()
    | st.floats()
    | st.lists(st.lists(TEXTS | st.integers() | st.floats() | st.booleans()))
    | st.dictionaries(TEXTS, st.integers() | st.floats())
)


@given(st.dictionaries(st.text("abcdefghij_AZ09", min_size=1), VALUES, max_size=12))
def test_the_quick_way_writes_what_the_slow_one_writes(fields: dict[str, Any]) -> None:
    """The hashes of every entry so far are over the slow one's bytes."""
    found = canonical_bytes(fields)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "_quick_bytes", lambda _: None)
        assert found == canonical_bytes(fields)


def test_an_entry_goes_the_quick_way(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = close_fields(open_fields(opened()), CLOSE, AT)
    monkeypatch.setattr(records, "_dump", lambda _: pytest.fail("the slow way"))
    assert canonical_bytes(fields).startswith(b'{"amount_micro_usd":5,')


@given(st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=5))])))
def test_a_moment_is_the_same_text_in_every_zone(moment: datetime) -> None:
    try:
        text = moment_text(moment)
    except OverflowError:
        return  # before the year 1 in UTC
    assert datetime.fromisoformat(text) == moment
    assert text.endswith("+00:00")
    assert len(text) == len("2026-11-30T12:00:00.000000+00:00")
