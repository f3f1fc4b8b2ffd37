"""The end of tasks, also of one that misses being cancelled."""

import asyncio
from collections.abc import Iterable
from typing import Any


async def end_tasks(tasks: Iterable[asyncio.Task[Any]], *, every_seconds: float) -> None:
    """Cancel until all have ended.

    Once is not enough: the ``wait_for`` of Python 3.11, with which psycopg's pool waits, drops a
    cancellation that meets the end of its wait, and a loop around it would go on for ever.
    """
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=every_seconds)
