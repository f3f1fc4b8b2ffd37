"""Slices whose window ends while a grant is on its way, or long before the attempt that holds them.

The guard's own code over a model of the authority, on a clock that the test moves.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "service" / "gateway" / "rig"))

from gateway_rig.slice_machine import WorldClock
from gateway_rig.slice_model import ModelWorld

from terrace_gateway.calls.ports import Amounts, AuthorityUnavailableError, Cap, Hold, Window
from terrace_gateway.money.grants import Answer, Need, SliceState
from terrace_gateway.money.slice_book import SliceBook
from terrace_gateway.money.slice_table import FORGET_SECONDS, SliceTable

WINDOW_SECONDS = 10
LIFETIME, MINUTE = (100, 0), (100, WINDOW_SECONDS)


class SlowWorld(ModelWorld):
    """Its answers take as long as ``slow`` says, one after the other."""

    def __init__(self) -> None:
        super().__init__([LIFETIME, MINUTE])
        self.slow: list[float] = []
        self.pass_time(-self.now() % WINDOW_SECONDS)  # to the beginning of a window
        self.incarnation = self.begin()
        self.book = SliceBook(self, WorldClock(self))
        self.beat()

    async def grant(
        self, incarnation: int, sequence: int, caps: Sequence[int], needs: Sequence[Need]
    ) -> Answer:
        answer = await super().grant(incarnation, sequence, caps, needs)
        if self.slow:
            self.pass_time(self.slow.pop(0))
        return answer

    def beat(self) -> None:
        beat = self.heartbeat(self.incarnation, self.now())
        assert beat is not None
        self.book.hear(beat)

    def reserve(self, money: int, caps: Sequence[Cap]) -> Hold:
        hold = self.run(self.book.reserve("att", caps, Amounts(0, 0, money)))
        assert isinstance(hold, Hold)
        return hold


@pytest.fixture
def world() -> Iterator[SlowWorld]:
    made = SlowWorld()
    yield made
    made.run(made.book.close())
    made.end()


def test_a_grant_that_comes_after_its_window_is_asked_for_again(world: SlowWorld) -> None:
    """Else twice the cap would go out at once: the new window is empty."""
    world.pass_time(WINDOW_SECONDS - 1)
    world.slow = [1.5]
    hold = world.reserve(80, world.caps)
    lifetime, minute = hold.charges
    assert world.is_current(minute.counter_id)
    assert world.book.grants == 2
    assert world.counted()[lifetime.counter_id] < 100  # what came too late was used for it
    assert world.counted()[minute.counter_id] >= 80
    world.book.keep(hold)
    world.run(world.book.give_back_all())
    assert sorted(world.counted().values()) == [0, 80, 80]  # of the window that ended nothing


def test_who_always_hears_too_late_is_told_and_holds_nothing(world: SlowWorld) -> None:
    world.slow = [WINDOW_SECONDS + 1.0] * 9
    with pytest.raises(AuthorityUnavailableError, match="after the end of its window"):
        world.reserve(80, world.caps)
    assert world.book.running(world.incarnation) == 0
    world.slow = []
    world.reserve(100, world.caps)


def test_a_grant_of_a_window_s_last_moment_is_not_asked_for_twice(world: SlowWorld) -> None:
    """It needs no margin: the authority has just said how long the window lasts."""
    world.pass_time(WINDOW_SECONDS - 0.01)
    world.slow = [0.005]
    hold = world.reserve(80, world.caps)
    assert world.is_current(hold.charges[1].counter_id)
    assert world.book.grants == 1


def test_a_hold_on_nothing_of_a_forgotten_slice_gives_the_rest_back() -> None:
    """A model at price 0 on a cap of money: its stream may outlast the memory of the window."""
    money = Cap(1, "key", "k", "micro_usd", Window("fixed", WINDOW_SECONDS), 10**6)
    slots = Cap(2, "key", "k", "concurrency", Window("lifetime"), 5)
    table = SliceTable()
    table.begin(1)
    table.lease_ends_at = float("inf")
    table.hear(money, SliceState(1, 11, 1000, 0, 30.0), sent_at=0.0)
    table.hear(slots, SliceState(2, 12, 5, 0, None), sent_at=0.0)
    hold = table.reserve("att", [money, slots], Amounts(100, 200, 0), 0.0)
    assert hold is not None
    table.forget_ended(30 + FORGET_SECONDS + 1)
    assert table.counters() == [12]
    assert table.release(hold, [7, 1])
    assert table.running(1) == 0
    for number in range(5):
        assert table.reserve(f"att{number}", [slots], Amounts(0, 0, 0), 5000.0) is not None
