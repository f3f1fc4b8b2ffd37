"""Failures on command: ordered by a test or a person, met by the next calls that match.

* `throttle`: the API answers "Rate exceeded"; the provider tries again, as the AWS SDK does.
* `capacity`: `InsufficientInstanceCapacity`, nothing is made.
* `error`: `message` (or an internal error), nothing is made.
* `dependency-violation`: `DependencyViolation`, meant for deletes.
* `timeout`: the thing is made, the wait for it ends after `seconds`; it is in the state, half-made.
* `lost-answer`: the thing is made, the answer is lost; it is in the cloud and not in the state.
* `latency`: the thing is made, the answer takes `seconds`; for killing an update in the middle.
"""

import sqlite3
import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from .inventory import Inventory, Item
from .models import CloudError, PartialError

BEFORE: Final = ("throttle", "capacity", "error", "dependency-violation")
AFTER: Final = ("timeout", "lost-answer", "latency")
KINDS: Final = BEFORE + AFTER
RETRIES: Final = 10
"""How often a throttled call is tried again before the provider gives up."""
OPERATIONS: Final = ("create", "update", "delete", "read", "invoke", "*")


@dataclass(frozen=True)
class Fault:
    """One order. `type` and `name` are patterns (`aws:eks/*`, `*-core`); `remaining` calls will
    meet it."""

    kind: str
    operation: str = "create"
    type: str = "*"
    name: str = "*"
    remaining: int = 1
    seconds: float = 0.0
    message: str = ""


def order(inventory: Inventory, fault: Fault) -> None:
    """Adds `fault`. Raises `ValueError` when its kind or operation does not exist."""
    if fault.kind not in KINDS:
        raise ValueError(f"kind: {fault.kind!r} does not exist; use one of {', '.join(KINDS)}")
    if fault.operation not in OPERATIONS:
        raise ValueError(
            f"operation: {fault.operation!r} does not exist; use one of {', '.join(OPERATIONS)}"
        )
    if fault.remaining < 1:
        raise ValueError(f"remaining: {fault.remaining} must be at least 1")
    inventory.connection.execute(
        "INSERT INTO faults (kind, operation, type, name, remaining, seconds, message) VALUES"
        " (?,?,?,?,?,?,?)",
        (
            fault.kind,
            fault.operation,
            fault.type,
            fault.name,
            fault.remaining,
            fault.seconds,
            fault.message,
        ),
    )


def ordered(inventory: Inventory) -> list[Fault]:
    """The faults that are still to come."""
    return [_fault(row) for row in _rows(inventory)]


def clear(inventory: Inventory) -> None:
    inventory.connection.execute("DELETE FROM faults")


def take(
    inventory: Inventory, operation: str, type: str, name: str, kinds: tuple[str, ...]
) -> Fault | None:
    """The first ordered fault that fits this call, counted down by one; None when there is none."""
    if not _rows(inventory):
        return None
    with inventory.transaction():
        for row in _rows(inventory):
            fault = _fault(row)
            if (
                fault.kind in kinds
                and fault.operation in (operation, "*")
                and fnmatchcase(type, fault.type)
                and fnmatchcase(name, fault.name)
            ):
                inventory.connection.execute(
                    "UPDATE faults SET remaining = remaining - 1 WHERE number = ?", (row["number"],)
                )
                return fault
    return None


def before(inventory: Inventory, operation: str, type: str, name: str, scope: str) -> None:
    """Meets the faults that come before anything is made. Raises `CloudError`."""
    for _ in range(RETRIES):
        fault = take(inventory, operation, type, name, BEFORE)
        if fault is None:
            return
        if fault.kind != "throttle":
            code, text = _REFUSALS[fault.kind]
            raise CloudError(code, fault.message or text)
        inventory.record(operation, type, scope, "", name, "ThrottlingException")
        time.sleep(fault.seconds or 0.05)
    raise CloudError("ThrottlingException", f"Rate exceeded (given up after {RETRIES} attempts)")


def after(inventory: Inventory, operation: str, type: str, name: str, result: Any) -> None:
    """Meets the faults that come once `result` is made. Raises `CloudError` or `PartialError`."""
    fault = take(inventory, operation, type, name, AFTER)
    if fault is None:
        return
    time.sleep(fault.seconds)
    if fault.kind == "lost-answer":
        lost = "the connection was lost before the answer came"
        raise CloudError("RequestTimeout", fault.message or lost)
    if fault.kind == "timeout" and isinstance(result, Item):
        late = "timeout while waiting for the resource to become ready"
        raise PartialError(result, fault.message or late)


_REFUSALS: Final = {
    "capacity": ("InsufficientInstanceCapacity", "no capacity in this zone now"),
    "dependency-violation": ("DependencyViolation", "has a dependent object"),
    "error": ("InternalFailure", "an internal error has occurred"),
}


def _rows(inventory: Inventory) -> list[sqlite3.Row]:
    return list(
        inventory.connection.execute("SELECT * FROM faults WHERE remaining > 0 ORDER BY number")
    )


def _fault(row: sqlite3.Row) -> Fault:
    values: dict[str, Any] = dict(row)
    values.pop("number")
    return Fault(**values)
