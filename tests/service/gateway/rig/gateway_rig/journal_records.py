"""Open records, closes and decisions for tests of the journal and the ledger."""

import itertools
import uuid
from datetime import UTC, datetime
from typing import Any

from terrace_gateway.calls.ports import (
    Amounts,
    Caller,
    Charge,
    CloseRecord,
    Decision,
    Hold,
    OpenRecord,
    Usage,
)

CALLER = Caller(
    key_id="key_1", team="search", key_name="bot", org="acme", user="jo", app="assistant"
)
_numbers = itertools.count(1)


def open_record(attempt_id: str | None = None, **changes: Any) -> OpenRecord:
    """An open record; ``charges`` and ``incarnation`` make its hold."""
    attempt_id = attempt_id or f"at_{uuid.uuid4().hex}"
    charges = changes.pop("charges", (Charge(1, "micro_usd", 900), Charge(2, "requests", 1)))
    incarnation = changes.pop("incarnation", 1)
    values: dict[str, Any] = {
        "attempt_id": attempt_id,
        "request_id": f"req_{next(_numbers)}",
        "trace_id": uuid.uuid4().hex,
        "opened_at": datetime.now(UTC),
        "caller": CALLER,
        "surface": "chat",
        "model": "sim-small",
        "deployment": "sim-small-1",
        "provider": "simulator",
        "price_version": "2026-11",
        "policy_version": 7,
        "reserved": Amounts(input_tokens=100, output_tokens=200, micro_usd=900),
        "hold": Hold(attempt_id, incarnation, charges),
        "hard_limit_seconds": 600,
    }
    return OpenRecord(**(values | changes))


def close_record(opened: OpenRecord, **changes: Any) -> CloseRecord:
    """Its close: 300 micro-USD by the provider's own word, unless changed."""
    amount = changes.get("amount_micro_usd", 300)
    charges = tuple(
        Charge(charge.counter_id, charge.dimension, amount)
        if charge.dimension == "micro_usd"
        else charge
        for charge in opened.hold.charges
    )
    values: dict[str, Any] = {
        "attempt_id": opened.attempt_id,
        "kind": "attempt",
        "outcome": "ok",
        "usage": Usage(10, 20, 3, 4),
        "usage_source": "response",
        "amount_micro_usd": amount,
        "charges": charges,
        "latency_ms": 12,
        "first_byte_ms": 5,
        "upstream_request_id": "up-1",
    }
    return CloseRecord(**(values | changes))


def unknown_close(opened: OpenRecord) -> CloseRecord:
    """Its close as unknown: the reservation counts."""
    return close_record(
        opened, kind="unknown", outcome="unknown", usage=Usage(0, 0),
        usage_source="reservation", amount_micro_usd=0, charges=opened.hold.charges,
        upstream_request_id=None,
    )  # fmt: skip


def decision(reason: str = "model_not_allowed", **changes: Any) -> Decision:
    """A refusal."""
    values: dict[str, Any] = {
        "decision": "deny", "reason": reason, "detail": {"model": "sim-large"},
        "request_id": f"req_{next(_numbers)}", "trace_id": uuid.uuid4().hex, "caller": CALLER,
        "surface": "chat", "model": "sim-large",
    }  # fmt: skip
    return Decision(**(values | changes))
