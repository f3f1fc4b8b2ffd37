"""Caps as rows of the table ``cap``. Writers give windows plainly; a trigger normalises them."""

from collections.abc import Sequence
from typing import cast

from terrace_gateway.calls.ports import (
    Cap,
    CapMode,
    Dimension,
    Scope,
    Window,
    WindowKind,
    WindowUnit,
)

CAP_COLUMNS = (
    "cap_id, scope, scope_id, dimension, window_kind,"
    " CASE window_kind WHEN 'calendar' THEN 0 ELSE abs(window_seconds) END,"
    " window_unit, window_zone, amount, mode, thresholds"
)
UPSERT_CAP = (
    "INSERT INTO cap (scope, scope_id, dimension, window_kind, window_seconds, window_unit,"
    " window_zone, amount, mode, thresholds) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
    " ON CONFLICT (scope, scope_id, dimension, window_seconds, window_key) DO UPDATE"
    " SET amount = EXCLUDED.amount, mode = EXCLUDED.mode, thresholds = EXCLUDED.thresholds,"
    " retired_at = NULL RETURNING cap_id"
)
"""A cap that was retired comes back with its count. Parameters: ``cap_parameters``."""
UNLIMITED = 10**18
"""The amount of a cap that only counts (``amount`` is NULL)."""


def cap_from_row(row: Sequence[object]) -> Cap:
    """A cap from ``SELECT CAP_COLUMNS FROM cap``."""
    cap_id, scope, scope_id, dimension, kind, seconds, unit, zone, amount, mode, thresholds = row
    return Cap(
        cap_id=cast("int", cap_id),
        scope=cast("Scope", scope),
        scope_id=cast("str", scope_id),
        dimension=cast("Dimension", dimension),
        window=Window(
            kind=cast("WindowKind", kind),
            seconds=cast("int", seconds),
            unit=cast("WindowUnit | None", unit),
            zone=cast("str", zone),
        ),
        amount=UNLIMITED if amount is None else cast("int", amount),
        mode=cast("CapMode", mode),
        thresholds=tuple(cast("list[int]", thresholds)),
    )


def cap_parameters(
    scope: Scope,
    scope_id: str,
    dimension: Dimension,
    window: Window,
    amount: int,
    *,
    mode: CapMode = "block",
    thresholds: Sequence[int] = (),
) -> tuple[object, ...]:
    """The parameters of ``UPSERT_CAP``."""
    return (
        scope,
        scope_id,
        dimension,
        window.kind,
        window.seconds,
        window.unit,
        window.zone,
        amount,
        mode,
        list(thresholds),
    )
