"""Frames as botocore reads them."""

import json

import pytest
from botocore.eventstream import ChecksumMismatch, EventStreamBuffer
from hypothesis import given
from hypothesis import strategies as st

from terrace_model_simulator.event_stream import event_frame, exception_frame


@given(st.lists(st.text(), min_size=1, max_size=5), st.integers(min_value=1, max_value=50))
def test_botocore_reads_what_was_written_however_it_is_cut(texts: list[str], step: int) -> None:
    data = b"".join(event_frame("contentBlockDelta", {"text": text}) for text in texts)
    buffer = EventStreamBuffer()
    read = []
    for begin in range(0, len(data), step):
        buffer.add_data(data[begin : begin + step])
        read += list(buffer)
    assert [json.loads(event.payload)["text"] for event in read] == texts
    assert {event.headers[":event-type"] for event in read} == {"contentBlockDelta"}
    assert {event.headers[":message-type"] for event in read} == {"event"}


def test_an_exception_frame_is_one_to_botocore() -> None:
    buffer = EventStreamBuffer()
    buffer.add_data(exception_frame("throttlingException", "slow down"))
    (event,) = list(buffer)
    answer = event.to_response_dict()
    assert answer["status_code"] == 400
    assert answer["headers"][":exception-type"] == "throttlingException"


@given(st.data())
def test_a_changed_byte_is_noticed(data: st.DataObject) -> None:
    frame = bytearray(event_frame("metadata", {"usage": {"inputTokens": 12}}))
    # Past the lengths: a changed length only makes botocore wait for more.
    position = data.draw(st.integers(min_value=8, max_value=len(frame) - 1))
    frame[position] ^= 1 << data.draw(st.integers(min_value=0, max_value=7))
    buffer = EventStreamBuffer()
    buffer.add_data(bytes(frame))
    with pytest.raises(ChecksumMismatch):
        list(buffer)
