"""What AWS says of one region, as plain data."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Access = Literal["available", "denied", "unknown"]
MAX_VALUE = 1e15


@dataclass(frozen=True, slots=True)
class Quota:
    """One service quota. ``source`` says whether the value is the account's or AWS's default."""

    code: str
    name: str
    value: float
    source: Literal["applied", "default"]


@dataclass(frozen=True, slots=True)
class RegionFacts:
    """One reading. Quotas are whole, or the reading would have failed; the rest is what it was
    possible to learn."""

    region: str
    begun_at: float
    """When the reading began, on the clock of the process."""
    quotas: tuple[Quota, ...]
    model_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Model id -> vendor and name in words."""
    profiles: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Inference profile, id and ARN -> ARNs of the models that it leads to."""
    access: Mapping[str, Access] = field(default_factory=dict[str, Access])
    """Model id -> whether the account may call it."""
    problems: tuple[str, ...] = ()
    """Parts that could not be read, and answers that were not understood."""


def quota_of(answer: Mapping[str, Any], source: Literal["applied", "default"]) -> Quota | None:
    """A quota of an answer of Service Quotas; ``None``: it makes no sense, and is left out."""
    code, name, value = answer.get("QuotaCode"), answer.get("QuotaName"), answer.get("Value")
    if not (isinstance(code, str) and isinstance(name, str) and 0 < len(name) <= 512):
        return None
    if not 0 < len(code) <= 128 or isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not math.isfinite(value) or not 0 <= value <= MAX_VALUE:
        return None
    return Quota(code, name, float(value), source)
