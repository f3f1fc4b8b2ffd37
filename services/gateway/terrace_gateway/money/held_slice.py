"""One slice as its holder has it in memory: running totals, and what follows from them."""

from dataclasses import dataclass
from math import inf

from terrace_gateway.calls.ports import Dimension
from terrace_gateway.money.grants import SliceState

WINDOW_MARGIN_SECONDS = 0.02
CLOCK_DRIFT = 200e-6  # two clocks of machines without time service run apart by less
QUICK_SECONDS = 2.0
FIRST_WISH = 4
LARGEST_WISH = 256


@dataclass(slots=True)
class HeldSlice:
    """``ends_at``, ``touched_at`` are on the holder's clock (seconds, runs during suspend)."""

    cap_id: int
    counter_id: int
    dimension: Dimension
    ends_at: float = inf
    granted: int = 0
    returned: int = 0
    used: int = 0
    """Settled in memory; 0 for gauges."""
    outstanding: int = 0
    """Held by attempts that run."""
    aside: int = 0
    """Of messages to the authority that are not answered."""
    over: bool = False
    """A cap in mode ``audit`` that is passed."""
    touched_at: float = 0.0
    _asked_at: float = -inf
    _wish: int = FIRST_WISH

    @property
    def idle(self) -> int:
        """What can be reserved now; negative after an overrun that nothing covers yet."""
        return self.granted - self.returned - self.used - self.outstanding - self.aside

    def hear(self, state: SliceState, *, sent_at: float) -> None:
        """What the authority says of it; totals only grow.

        Its window ends so many seconds after the database looked, which was after ``sent_at``.
        """
        self.granted = max(self.granted, state.granted)
        self.returned = max(self.returned, state.returned)
        if state.seconds_left is not None:
            margin = WINDOW_MARGIN_SECONDS + max(0.0, state.seconds_left) * CLOCK_DRIFT
            self.ends_at = sent_at + state.seconds_left - margin

    def inherit(self, before: "HeldSlice") -> None:
        """The demand that was seen in the window before."""
        self._asked_at, self._wish = before._asked_at, before._wish

    def give_back_idle(self) -> bool:
        """Count what is idle as returned. Whether anything was."""
        idle = self.idle
        if idle <= 0:
            return False
        self.returned += idle
        return True

    def wish(self, need: int, now: float) -> int:
        """How much more than ``need`` to ask for: it doubles while grants are asked for quickly."""
        quick = now - self._asked_at < QUICK_SECONDS
        self._wish = (
            min(self._wish * 2, LARGEST_WISH) if quick else max(self._wish // 2, FIRST_WISH)
        )
        self._asked_at = now
        return need * self._wish
