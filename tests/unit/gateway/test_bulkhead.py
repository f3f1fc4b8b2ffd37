"""Bulkheads: places, queue, deadline, and that one provider takes nothing from another."""

import asyncio

import pytest

from terrace_gateway.upstream.bulkhead import Bulkhead, BulkheadLimits, Bulkheads
from terrace_gateway.upstream.port import BulkheadFullError, NotSentError


async def hold(bulkhead: Bulkhead, until: asyncio.Event, order: list[int], number: int) -> None:
    async with bulkhead.place():
        order.append(number)
        await until.wait()


async def test_first_come_first_served_within_the_limit() -> None:
    bulkhead = Bulkhead("p", BulkheadLimits(2, 10, 5))
    until = asyncio.Event()
    order: list[int] = []
    tasks = [asyncio.create_task(hold(bulkhead, until, order, n)) for n in range(5)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (order, bulkhead.running, bulkhead.waiting) == ([0, 1], 2, 3)
    until.set()
    await asyncio.gather(*tasks)
    assert (order, bulkhead.running, bulkhead.waiting) == ([0, 1, 2, 3, 4], 0, 0)


async def test_full_queue_refuses_at_once_and_a_full_provider_after_its_deadline() -> None:
    bulkhead = Bulkhead("p", BulkheadLimits(1, 1, 0.01))
    async with bulkhead.place():
        waiter = asyncio.create_task(hold(bulkhead, asyncio.Event(), [], 1))
        await asyncio.sleep(0)
        with pytest.raises(BulkheadFullError) as refused:
            async with bulkhead.place():
                pass
        assert isinstance(refused.value, NotSentError)
        with pytest.raises(BulkheadFullError):
            await waiter
        assert bulkhead.waiting == 0
    assert bulkhead.running == 0


async def test_cancelled_waiters_leak_no_place() -> None:
    bulkhead = Bulkhead("p", BulkheadLimits(1, 50, 5))
    until = asyncio.Event()
    until.set()
    for round_ in range(50):
        gate = asyncio.Event()
        first = asyncio.create_task(hold(bulkhead, gate, [], 0))
        await asyncio.sleep(0)
        waiters = [asyncio.create_task(hold(bulkhead, until, [], n)) for n in range(6)]
        await asyncio.sleep(0)
        gate.set()
        for count in range(round_ % 4):  # some are cancelled in the moment of their turn
            await asyncio.sleep(0)
            waiters[count].cancel()
        await asyncio.gather(first, *waiters, return_exceptions=True)
        assert (bulkhead.running, bulkhead.waiting) == (0, 0)


async def test_hanging_provider_takes_no_place_of_another() -> None:
    bulkheads = Bulkheads(BulkheadLimits(3, 2, 0.01))
    never = asyncio.Event()
    hanging = [asyncio.create_task(hold(bulkheads.of("hangs"), never, [], n)) for n in range(20)]
    await asyncio.sleep(0)
    steps: list[bool] = []
    for _ in range(50):
        assert bulkheads.of("works").has_room
        async with bulkheads.of("works").place():  # enters without waiting for anything
            steps.append(bulkheads.of("hangs").has_room)
    assert steps == [False] * 50
    never.set()
    await asyncio.gather(*hanging, return_exceptions=True)
    assert bulkheads.of("hangs").running == 0


async def test_more_places_let_in_who_waits() -> None:
    bulkheads = Bulkheads(BulkheadLimits(1, 5, 5))
    until = asyncio.Event()
    order: list[int] = []
    tasks = [asyncio.create_task(hold(bulkheads.of("p"), until, order, n)) for n in range(3)]
    await asyncio.sleep(0)
    assert order == [0]
    bulkheads.set_places({"p": 3})
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert order == [0, 1, 2]
    until.set()
    await asyncio.gather(*tasks)
