"""Quotas: how much of what, over which time. The same section on every subject that can have one.

Amounts are whole: tokens, calls, or micro-USD. Money may be written in US dollars (``usd``), as a
plain decimal that is read exactly.
"""

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import cache
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from terrace_common.governance.compiled import (
    CapMode,
    DeclaredCap,
    Dimension,
    Scope,
    Window,
    WindowUnit,
)
from terrace_common.governance.sections import Problem, Section
from terrace_common.yaml_lines import DecimalText, DocumentPath

Per = Literal["minute", "hour", "day", "week", "month", "lifetime"]

MAX_AMOUNT = 10**15
MICRO_USD_PER_USD = 1_000_000
DAYS_OF_A_ROLLING_MONTH = 30
SECONDS: dict[WindowUnit, int] = {
    "minute": 60,
    "hour": 3_600,
    "day": 86_400,
    "week": 604_800,
    "month": DAYS_OF_A_ROLLING_MONTH * 86_400,
}
_PLAIN_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?")


def _exact_usd(value: object) -> Decimal:
    text = value.text if isinstance(value, DecimalText) else value
    if isinstance(text, int) and not isinstance(text, bool):
        text = str(text)
    if isinstance(text, Decimal):
        text = format(text, "f")
    if not (isinstance(text, str) and _PLAIN_DECIMAL.fullmatch(text)):
        raise PydanticCustomError(
            "governance",
            "must be an amount in US dollars: digits with at most six decimals, such as 12.50",
        )
    return Decimal(text)


def known_zone(zone: str) -> str:
    """``zone``, if it is an IANA name; else a validation error that says what would be right."""
    if not zone_exists(zone):
        raise PydanticCustomError(
            "governance",
            "{zone} is no time zone; right would be an IANA name such as Europe/Berlin or UTC",
            {"zone": repr(zone)},
        )
    return zone


@cache
def zone_exists(zone: str) -> bool:
    """Whether ``zone`` is an IANA name that this machine has the rules of."""
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


class Quota(Section):
    """A cap of the subject that it stands in."""

    dimension: Dimension
    per: Per | None = None
    """Required, except for ``concurrency``, which has no window."""
    window: Literal["fixed", "calendar", "rolling"] | None = None
    """Unset: ``fixed`` for minutes and hours, ``calendar`` for days, weeks and months."""
    zone: str | None = None
    """IANA name; only a calendar window has one. Unset: UTC."""
    amount: int | None = Field(default=None, ge=0, le=MAX_AMOUNT)
    """Calls, tokens or micro-USD. 0 allows nothing."""
    usd: Annotated[Decimal, BeforeValidator(_exact_usd)] | None = None
    """Instead of ``amount``, for ``micro_usd``."""
    mode: CapMode = "block"
    """``audit`` records what would have been refused."""
    alert_at: tuple[Annotated[int, Field(ge=1, le=100)], ...] = Field(default=(), strict=False)
    """Percent of the amount."""

    @field_validator("zone")
    @classmethod
    def _zone_exists(cls, zone: str | None) -> str | None:
        return None if zone is None else known_zone(zone)

    @model_validator(mode="after")
    def _possible(self) -> "Quota":
        for wrong in self._impossible():
            raise PydanticCustomError("governance", "{message}", {"message": wrong})
        return self

    def _impossible(self) -> Iterator[str]:
        if (self.amount is None) == (self.usd is None):
            yield "give either amount or usd"
        if self.usd is not None and self.dimension != "micro_usd":
            yield f"usd is an amount of money; dimension {self.dimension} has an amount"
        if len(set(self.alert_at)) != len(self.alert_at):
            yield "alert_at has a percentage twice"
        if self.dimension == "concurrency":
            if self.per or self.window or self.zone:
                yield "concurrency counts running calls: it has no per, window or zone"
            return
        if self.per is None:
            yield "per is required: minute, hour, day, week, month or lifetime"
        if self.per == "lifetime" and self.window is not None:
            yield "a lifetime has no window; leave window out"
        if self.per == "month" and self.window == "fixed":
            yield "months differ in length; right would be window: calendar, or rolling (30 days)"
        if self.zone is not None and self.window_in_time().kind != "calendar":
            yield "zone counts only for calendar windows; right would be window: calendar"

    def window_in_time(self) -> Window:
        """The window, with what is unset by default."""
        if self.per is None or self.per == "lifetime":
            return Window("lifetime")
        kind = self.window or ("fixed" if self.per in {"minute", "hour"} else "calendar")
        if kind == "calendar":
            return Window("calendar", unit=self.per, zone=self.zone or "UTC")
        return Window(kind, seconds=SECONDS[self.per])

    def whole_amount(self) -> int:
        """``amount``, or ``usd`` in micro-USD."""
        if self.usd is not None:
            return int(self.usd * MICRO_USD_PER_USD)
        return self.amount or 0

    def declared(self, scope: Scope, scope_id: str) -> DeclaredCap:
        """The cap that this quota is for a subject."""
        return DeclaredCap(
            scope=scope,
            scope_id=scope_id,
            dimension=self.dimension,
            window=self.window_in_time(),
            amount=self.whole_amount(),
            mode=self.mode,
            thresholds=tuple(sorted(self.alert_at)),
        )


Quotas = Annotated[tuple[Quota, ...], Field(default=(), strict=False)]


def quota_problems(path: DocumentPath, quotas: Sequence[Quota]) -> Iterator[Problem]:
    """Two quotas of one subject must differ in dimension or window."""
    seen: dict[tuple[Dimension, Window], int] = {}
    for index, quota in enumerate(quotas):
        first = seen.setdefault((quota.dimension, quota.window_in_time()), index)
        if first != index:
            yield (
                (*path, "quotas", index),
                f"a quota on {quota.dimension} over the same window is given twice (the first is"
                f" number {first + 1} of this list); keep one",
            )
