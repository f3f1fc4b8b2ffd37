"""A holder's slices in memory: reservations out of them, settlements into them. No I/O, no time.

Every method is synchronous, so on one event loop each is one step.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import inf

from terrace_gateway.calls.ports import Amounts, Cap, Charge, Hold
from terrace_gateway.money.grants import Ask, SliceState
from terrace_gateway.money.held_slice import WINDOW_MARGIN_SECONDS, HeldSlice

GAUGE = "concurrency"
FORGET_SECONDS = 3600.0
"""A slice whose window ended so long ago is forgotten; longer than any margin of its end."""


class SliceTable:
    """Slices of one incarnation at a time. ``now`` is always seconds on the holder's clock."""

    def __init__(self) -> None:
        self.incarnation = 0
        self.lease_ends_at = -inf
        """No reservation from then on."""
        self._current: dict[int, HeldSlice] = {}  # by cap
        self._slices: dict[int, HeldSlice] = {}  # by counter, also of windows that ended
        self._running: dict[int, set[str]] = {}  # attempts by incarnation

    def begin(self, incarnation: int) -> None:
        """Hold nothing under a new identity. What the old one held is forfeited until closed."""
        self.incarnation = incarnation
        self._current = {}
        self._slices = {}
        self._running[incarnation] = set()
        for old in [i for i, running in self._running.items() if not running and i != incarnation]:
            del self._running[old]

    def running(self, incarnation: int) -> int:
        """Attempts of an incarnation that hold something still."""
        return len(self._running.get(incarnation, ()))

    def is_live(self, now: float) -> bool:
        """The lease runs."""
        return now < self.lease_ends_at

    def reserve(
        self, attempt_id: str, caps: Sequence[Cap], amounts: Amounts, now: float
    ) -> Hold | None:
        """All caps or none, of what is idle."""
        if now >= self.lease_ends_at:
            return None
        found: list[tuple[HeldSlice, int]] = []
        for cap in caps:
            held = self._current.get(cap.cap_id)
            if held is None or now >= held.ends_at:
                return None
            need = amounts.of(cap.dimension)
            if held.granted - held.returned - held.used - held.outstanding - held.aside < need:
                return None
            found.append((held, need))
        return self._hold(attempt_id, found, now)

    def reserve_granted(
        self, attempt_id: str, caps: Sequence[Cap], amounts: Amounts, now: float
    ) -> Hold | None:
        """What the authority has just granted for these caps: it judged window and room.

        ``None``: the lease or a window has ended meanwhile.
        """
        if now >= self.lease_ends_at:
            return None
        found = [(self._current[cap.cap_id], amounts.of(cap.dimension)) for cap in caps]
        # It has just said how long the window lasts: no margin is needed.
        if any(now >= held.ends_at + WINDOW_MARGIN_SECONDS for held, _ in found):
            return None
        return self._hold(attempt_id, found, now)

    def _hold(self, attempt_id: str, found: list[tuple[HeldSlice, int]], now: float) -> Hold:
        charges: list[Charge] = []
        for held, need in found:
            held.outstanding += need
            held.touched_at = now
            charges.append(Charge(held.counter_id, held.dimension, need))
        self._running[self.incarnation].add(attempt_id)
        return Hold(attempt_id, self.incarnation, tuple(charges))

    def release(self, hold: Hold, used: Sequence[int]) -> bool:
        """End a hold; ``used`` per charge counts as settled. False: it had ended before."""
        running = self._running.get(hold.incarnation)
        if running is None or hold.attempt_id not in running:
            return False
        running.discard(hold.attempt_id)
        if hold.incarnation == self.incarnation:
            for charge, amount in zip(hold.charges, used, strict=True):
                held = self._slices.get(charge.counter_id)
                if held is None:  # forgotten: nothing of it was held
                    continue
                held.outstanding -= charge.amount
                if charge.dimension != GAUGE:
                    held.used += amount
        return True

    def set_aside(self, caps: Sequence[Cap], amounts: Amounts, now: float) -> list[Ask]:
        """Take what there is for a request that needs more, and say what is missing.

        Also of a slice whose window has ended by our clock: the authority knows the window, and
        asks for the whole if there is a new one.
        """
        asks: list[Ask] = []
        for cap in caps:
            need = amounts.of(cap.dimension)
            held = self._current.get(cap.cap_id)
            if held is None:
                asks.append(Ask(cap.cap_id, 0, 0, 0, need, need * 4))
                continue
            idle = held.idle
            take = min(need, max(0, idle))
            short = max(0, need - idle)
            held.aside += take
            wish = held.wish(need, now) if short else 0
            asks.append(Ask(cap.cap_id, held.counter_id, held.granted, take, short, wish))
        return asks

    def put_back(self, asks: Iterable[Ask]) -> None:
        """Undo ``set_aside``."""
        for ask in asks:
            held = self._slices.get(ask.counter_id)
            if held is not None:
                held.aside -= ask.take

    def hear(self, cap: Cap, state: SliceState, *, sent_at: float) -> None:
        """What the authority says of the present slice of a cap."""
        held = self._slices.get(state.counter_id)
        if held is None:
            held = HeldSlice(cap.cap_id, state.counter_id, cap.dimension, touched_at=sent_at)
            self._slices[state.counter_id] = held
        before = self._current.get(cap.cap_id)
        if before is not None and before is not held:
            held.inherit(before)
        self._current[cap.cap_id] = held
        held.hear(state, sent_at=sent_at)

    def is_over(self, cap: Cap) -> bool:
        """An audited cap was passed when it was last asked for."""
        held = self._current.get(cap.cap_id)
        return held is not None and held.over

    def mark_over(self, cap: Cap, over: bool) -> None:
        """Remember whether an audited cap is passed."""
        held = self._current.get(cap.cap_id)
        if held is not None:
            held.over = over

    def idle_since(self, moment: float) -> list[int]:
        """Counters with idle amounts that nobody has used since."""
        return [i for i, s in self._slices.items() if s.touched_at < moment and s.idle > 0]

    def give_back(self, counters: Iterable[int]) -> int:
        """Count idle amounts as returned; the authority is to be told. How many slices gave."""
        return sum(
            self._slices[counter].give_back_idle()
            for counter in counters
            if counter in self._slices
        )

    def totals(self, counters: Iterable[int] | None = None) -> Iterator[tuple[int, int, int]]:
        """Counter, granted, returned of some slices or all."""
        for counter in list(self._slices) if counters is None else counters:
            held = self._slices.get(counter)
            if held is not None:
                yield counter, held.granted, held.returned

    def counters(self) -> list[int]:
        """Of all slices."""
        return list(self._slices)

    def forget_ended(self, now: float) -> None:
        """Drop slices of windows that ended long ago and of which no attempt holds anything. Who
        has reserved 0 of one may still come."""
        for counter, held in list(self._slices.items()):
            if held.ends_at + FORGET_SECONDS < now and held.outstanding == 0 == held.aside:
                del self._slices[counter]
                if self._current.get(held.cap_id) is held:
                    del self._current[held.cap_id]
