"""Calls that are running: found again when a kill switch or the end of a lease must cut them."""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from terrace_gateway.calls.ports import Principal


@dataclass(slots=True, eq=False)
class RunningCall:
    """One upstream attempt that is being served."""

    principal: Principal
    model: str
    provider: str
    deadline: asyncio.Timeout
    cut_reason: str | None = None

    def cut(self, reason: str) -> None:
        """End it now; nothing for a call whose own time is over in this moment. Its attempt is
        closed as ``cut``."""
        if self.cut_reason is None and not self.deadline.expired():
            self.cut_reason = reason
            self.deadline.reschedule(asyncio.get_running_loop().time())


class RunningCalls:
    """Every running attempt of this process."""

    def __init__(self) -> None:
        self._calls: set[RunningCall] = set()

    def __len__(self) -> int:
        return len(self._calls)

    @contextmanager
    def entered(
        self, principal: Principal, model: str, provider: str, deadline: asyncio.Timeout
    ) -> Generator[RunningCall]:
        """An attempt while it runs inside ``deadline``."""
        call = RunningCall(principal, model, provider, deadline)
        self._calls.add(call)
        try:
            yield call
        finally:
            self._calls.discard(call)

    def cut(self, reason_of: Callable[[RunningCall], str | None]) -> int:
        """Cut every call that ``reason_of`` gives a reason for. Returns how many."""
        count = 0
        for call in list(self._calls):
            reason = reason_of(call)
            if reason is not None and call.cut_reason is None:
                call.cut(reason)
                count += call.cut_reason is not None
        return count
