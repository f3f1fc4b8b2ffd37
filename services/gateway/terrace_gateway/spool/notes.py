"""Decisions on their way to the chain, counted together per second, in bounded memory."""

from dataclasses import dataclass
from datetime import datetime

from terrace_gateway.calls.ports import Decision
from terrace_gateway.spool.records import Fields, decision_fields

MAX_DISTINCT = 10_000

_Key = tuple[str | None, str, str]


@dataclass(slots=True)
class _Counted:
    first: Decision
    count: int = 1


class Notes:
    """Collects what one second decides."""

    def __init__(self) -> None:
        self._counted: dict[_Key, _Counted] = {}

    def add(self, decision: Decision) -> bool:
        """Count it. False: too many different ones; it is not recorded."""
        caller = decision.caller
        key = (None if caller is None else caller.key_id, decision.decision, decision.reason)
        known = self._counted.get(key)
        if known is not None:
            known.count += 1
            return True
        if len(self._counted) >= MAX_DISTINCT:
            return False
        self._counted[key] = _Counted(decision)
        return True

    def take(self, at: datetime) -> list[Fields]:
        """What was decided since the last time, as entries."""
        counted, self._counted = self._counted, {}
        return [decision_fields(item.first, count=item.count, at=at) for item in counted.values()]
