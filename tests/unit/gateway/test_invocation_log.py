"""Lines of Bedrock's invocation log, which hold what clients and models wrote."""

import json

import pytest

from terrace_gateway.ledger.invocation_log import parse_line

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
