"""What a slice book tells its owner about, beside its results."""

from typing import Protocol

import structlog

from terrace_gateway.calls.ports import Cap, Charge, Hold

log = structlog.get_logger()


class SliceEvents(Protocol):
    """Called synchronously; must not block or raise."""

    def overrun(self, hold: Hold, charge: Charge, bill: int) -> None:
        """A bill is above what its attempt held: ``bill`` > ``charge.amount``."""
        ...

    def would_refuse(self, attempt_id: str, cap: Cap, needed: int) -> None:
        """A cap in mode ``audit`` is passed by this attempt."""
        ...

    def idle_returned(self, slices: int) -> None:
        """Idle parts of so many slices went back."""
        ...


class LogEvents(SliceEvents):
    """Into the log. Owners add their counters."""

    def overrun(self, hold: Hold, charge: Charge, bill: int) -> None:
        """An alert: the price book failed to bound this call."""
        log.error(
            "overrun",
            attempt_id=hold.attempt_id,
            dimension=charge.dimension,
            reserved=charge.amount,
            bill=bill,
        )

    def would_refuse(self, attempt_id: str, cap: Cap, needed: int) -> None:
        """Information."""
        log.info("cap_would_refuse", attempt_id=attempt_id, cap_id=cap.cap_id, needed=needed)

    def idle_returned(self, slices: int) -> None:
        """Nothing: it is ordinary."""
