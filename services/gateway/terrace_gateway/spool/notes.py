"""Decisions on their way to the chain, counted together per second, in bounded memory.

The same by the same key is one entry with a count. What differs in its detail is told apart, up to
``MAX_DETAILS``; the rest of that second is one entry more, with its count and ``shortened``.
"""

import json
from dataclasses import dataclass, replace
from datetime import datetime

from terrace_gateway.calls.ports import Decision
from terrace_gateway.spool.records import Fields, decision_fields

MAX_DISTINCT = 10_000
MAX_DETAILS = 32

_Key = tuple[str | None, str, str]
_REST = "rest"  # no text of a detail: that is empty or JSON of an object


@dataclass(slots=True)
class _Counted:
    first: Decision
    count: int = 1


class Notes:
    """Collects what one second decides."""

    def __init__(self) -> None:
        self._counted: dict[_Key, dict[str, _Counted]] = {}
        self._distinct = 0

    def add(self, decision: Decision) -> bool:
        """Count it. False: too many different ones; it is not recorded."""
        caller = decision.caller
        key = (None if caller is None else caller.key_id, decision.decision, decision.reason)
        alike = self._counted.get(key, {})
        told = json.dumps(decision.detail, default=str) if decision.detail else ""
        if told not in alike and len(alike) >= MAX_DETAILS:
            told, decision = _REST, replace(decision, detail={"shortened": True})
        known = alike.get(told)
        if known is not None:
            known.count += 1
            return True
        if self._distinct >= MAX_DISTINCT:
            return False
        self._distinct += 1
        alike[told] = _Counted(decision)
        self._counted[key] = alike
        return True

    def take(self, at: datetime) -> list[tuple[int, Fields]]:
        """What was decided since the last time, as entries, each with its count."""
        counted, self._counted, self._distinct = self._counted, {}, 0
        return [
            (item.count, decision_fields(item.first, count=item.count, at=at))
            for alike in counted.values()
            for item in alike.values()
        ]
