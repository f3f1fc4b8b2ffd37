"""A cancellation that is lost must not keep a guard from ending."""

import asyncio

from terrace_gateway.ending import end_tasks


async def test_a_task_that_misses_being_cancelled_ends_all_the_same() -> None:
    done = asyncio.Event()

    async def wait_for_ever() -> None:
        while True:
            # As psycopg waits: what it waits for is there when the cancellation arrives.
            await asyncio.wait_for(done.wait(), 5)
            done.clear()

    task = asyncio.create_task(wait_for_ever())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    done.set()
    await asyncio.sleep(0)
    async with asyncio.timeout(3):
        await end_tasks([task], every_seconds=0.1)
    assert task.done()


async def test_a_stubborn_task_is_cancelled_again() -> None:
    missed = 0

    async def stubborn() -> None:
        nonlocal missed
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                missed += 1
                if missed == 3:
                    raise

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    async with asyncio.timeout(3):
        await end_tasks([task], every_seconds=0.05)
    assert (task.cancelled(), missed) == (True, 3)
