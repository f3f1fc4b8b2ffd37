"""Calls that are running: found again when a kill switch or the end of a lease must cut them."""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from terrace_common.governance.compile import CompiledGovernance
from terrace_gateway.calls.ports import Caller, Principal

SLICE_SECONDS = 0.005


@dataclass(slots=True, eq=False)
class RunningCall:
    """One upstream attempt that is being served."""

    principal: Principal
    model: str
    provider: str
    deadline: asyncio.Timeout
    cut_reason: str | None = None
    found: tuple[CompiledGovernance, Caller | None] | None = None
    """Whom a policy that came later has for the token of this call."""

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
        return sum(_cut_one(call, reason_of) for call in list(self._calls))

    async def cut_in_slices(self, reason_of: Callable[[RunningCall], str | None]) -> int:
        """As ``cut`` for the calls that run now, where ``reason_of`` is not cheap: other work has
        its turn every ``SLICE_SECONDS``."""
        loop, count = asyncio.get_running_loop(), 0
        until = loop.time() + SLICE_SECONDS
        for call in list(self._calls):
            if call in self._calls:
                count += _cut_one(call, reason_of)
            if loop.time() >= until:
                await asyncio.sleep(0)
                until = loop.time() + SLICE_SECONDS
        return count


def _cut_one(call: RunningCall, reason_of: Callable[[RunningCall], str | None]) -> bool:
    if call.cut_reason is not None:
        return False
    reason = reason_of(call)
    if reason is not None:
        call.cut(reason)
    return call.cut_reason is not None
