"""A journal, its shipper and a prepared database, as a guard has them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from terrace_gateway.clock import Clock
from terrace_gateway.database import Database
from terrace_gateway.ending import end_tasks
from terrace_gateway.ledger.shipper import Shipper
from terrace_gateway.spool.journal import SpoolJournal


@dataclass
class LedgerRig:
    """One process's parts. ``closed`` are the incarnations that were shipped whole."""

    journal: SpoolJournal
    database: Database
    shipper: Shipper
    incarnation: int
    closed: list[int] = field(default_factory=list)

    async def drain(self, seconds: float = 30) -> None:
        """Everything durable is in the ledger."""
        assert await self.shipper.drain(seconds)

    async def rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Rows of a query."""
        async with self.database.connection() as connection:
            return list(await (await connection.execute(query.encode(), parameters)).fetchall())


async def begin_incarnation(database: Database, replica: str) -> int:
    """A new incarnation with a lease."""
    async with database.connection() as connection:
        cursor = await connection.execute("SELECT begin_incarnation(%s, 90, 600)", (replica,))
        row = await cursor.fetchone()
    assert row is not None
    return int(row[0])


@asynccontextmanager
async def open_database(url: str, *, up: bool = True) -> AsyncIterator[Database]:
    """A pool; with ``up`` migrated and probed."""
    database = Database(SecretStr(url), size=4, wait_seconds=2)
    await database.open()
    try:
        if up:
            await database.prepare()
            assert await database.probe()
        yield database
    finally:
        await database.close()


@asynccontextmanager
async def ledger_rig(
    url: str,
    folder: Path,
    *,
    replica: str = "gateway-0",
    running: Callable[[int], int] = lambda _: 0,
    on_closing: Callable[[int], Awaitable[None]] | None = None,
    **options: Any,
) -> AsyncIterator[LedgerRig]:
    """Everything running. The journal is stopped without a seal, as if it had been killed."""
    closed: list[int] = []

    async with open_database(url) as database:

        async def close_incarnation(number: int) -> None:
            if on_closing is not None:
                await on_closing(number)
            async with database.connection() as connection:
                await connection.execute("SELECT close_incarnation(%s)", (number,))
            closed.append(number)

        async def probe() -> None:
            while True:
                await asyncio.sleep(0.2)
                await database.probe()

        journal = SpoolJournal(folder / "spool", replica=replica, clock=Clock(), **options)
        journal.start()
        shipper = Shipper(
            journal, database, replica=replica, dead_letters=folder,
            on_incarnation_shipped=close_incarnation, running=running,
        )  # fmt: skip
        incarnation = await begin_incarnation(database, replica)
        await journal.act_for(incarnation)
        tasks = [asyncio.create_task(shipper.run()), asyncio.create_task(probe())]
        try:
            yield LedgerRig(journal, database, shipper, incarnation, closed)
        finally:
            await end_tasks(tasks, every_seconds=1)
            await journal.stop()
