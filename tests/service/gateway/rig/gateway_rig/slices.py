"""Slice books over a real Postgres, with a clock that tests move and books that tests audit."""

import asyncio
import itertools
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from pydantic import SecretStr

from gateway_rig.postgres import Postgres
from terrace_gateway.calls.ports import Amounts, Cap, CapRefusal, Charge, Hold, Window
from terrace_gateway.clock import Clock
from terrace_gateway.database import Database
from terrace_gateway.money.caps import CAP_COLUMNS, UPSERT_CAP, cap_from_row, cap_parameters
from terrace_gateway.money.grants import PostgresSlices
from terrace_gateway.money.heartbeat import Heartbeat
from terrace_gateway.money.slice_book import SliceBook

LIFETIME = Window("lifetime")
_attempts = itertools.count(1)


class JumpClock(Clock):
    """A clock that tests set forward."""

    def __init__(self) -> None:
        self.ahead = 0.0
        super().__init__()

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


class Replica:
    """One guard's slices, its heartbeat and its spool (entries that are not in the ledger yet)."""

    def __init__(self, rig: "SliceRig", name: str, **heartbeat: Any) -> None:
        self.rig = rig
        self.name = name
        self.clock = JumpClock()
        self.database = Database(SecretStr(rig.url), size=4, wait_seconds=2)
        self.heartbeat = Heartbeat(
            self.database, self.clock, replica=name, **{"stream_limit_seconds": 60, **heartbeat}
        )
        self.book = SliceBook(PostgresSlices(self.database), self.clock, idle_seconds=1e9)
        self.heartbeat.listeners.append(self.book.hear)
        self.spool: list[tuple[int, tuple[Charge, ...]]] = []
        self.beating: asyncio.Task[None] | None = None

    async def start(self, *, beat: bool = True) -> "Replica":
        self.database.prepared = True
        await self.database.open()
        while not await self.database.probe():
            await asyncio.sleep(0.01)
        await self.heartbeat.beat()
        if beat:
            self.beating = asyncio.create_task(self.heartbeat.run())
        return self

    async def freeze(self) -> None:
        """No more beats."""
        if self.beating is not None:
            self.beating.cancel()
            await asyncio.wait([self.beating])
            self.beating = None

    async def stop(self) -> None:
        await self.freeze()
        await self.book.close()
        await self.database.close()

    async def reserve(self, caps: Sequence[Cap], **amounts: int) -> Hold | CapRefusal:
        return await self.book.reserve(f"att_{next(_attempts)}", caps, amounts_of(**amounts))

    async def must_reserve(self, caps: Sequence[Cap], **amounts: int) -> Hold:
        hold = await self.reserve(caps, **amounts)
        assert isinstance(hold, Hold), hold
        return hold

    def settle(self, hold: Hold, **amounts: int) -> None:
        self.spool.append((hold.incarnation, self.book.settle(hold, amounts_of(**amounts))))

    def keep(self, hold: Hold) -> None:
        self.spool.append((hold.incarnation, self.book.keep(hold)))

    async def ship(self) -> None:
        """As the ledger does: one call per incarnation with the sums of the batch."""
        batch, self.spool = self.spool, []
        for incarnation in {i for i, _ in batch}:
            charges = [c for i, many in batch if i == incarnation for c in many]
            await self.execute(
                "SELECT settle_slices(%s, %s, %s)",
                incarnation,
                [c.counter_id for c in charges],
                [c.amount for c in charges],
            )

    async def execute(self, query: str, *parameters: object) -> Any:
        async with self.database.connection() as connection:
            cursor = await connection.execute(query.encode(), parameters)
            return await cursor.fetchone()


def amounts_of(
    *, money: int = 0, requests: int = 1, input_tokens: int = 0, output_tokens: int = 0
) -> Amounts:
    return Amounts(input_tokens, output_tokens, money, requests)


class SliceRig:
    """A database of its own with helpers."""

    def __init__(self, postgres: Postgres, name: str) -> None:
        self.postgres = postgres
        self.name = name
        self.url = postgres.url(name)
        self.replicas: list[Replica] = []

    async def replica(self, name: str = "", *, beat: bool = True, **heartbeat: Any) -> Replica:
        replica = Replica(self, name or f"gateway-{len(self.replicas)}", **heartbeat)
        self.replicas.append(replica)
        return await replica.start(beat=beat)

    def sql(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """As the gateway's role would, in autocommit mode, beside the replicas."""
        with self.postgres.superuser(self.name) as connection:
            connection.execute("SET ROLE gateway")
            cursor = connection.execute(query.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def cap(
        self,
        amount: int,
        *,
        scope: Any = "org",
        scope_id: str = "acme",
        dimension: Any = "micro_usd",
        window: Window = LIFETIME,
        mode: Any = "block",
    ) -> Cap:
        parameters = cap_parameters(scope, scope_id, dimension, window, amount, mode=mode)
        ((cap_id,),) = self.sql(UPSERT_CAP, *parameters)
        return self.read_cap(cap_id)

    def read_cap(self, cap_id: int) -> Cap:
        (row,) = self.sql(f"SELECT {CAP_COLUMNS} FROM cap WHERE cap_id = %s", cap_id)
        return cap_from_row(row)

    def end_lease(self, replica: Replica) -> None:
        """By the database's clock."""
        self.sql(
            "UPDATE incarnation SET lease_until = clock_timestamp() - interval '1 second'"
            " WHERE incarnation_id = %s", replica.book.incarnation,
        )  # fmt: skip

    def counted(self, cap: Cap) -> int:
        """What counts against a cap in its present window."""
        ((settled, outstanding),) = self.sql(
            "SELECT settled, outstanding FROM cap_spend() WHERE cap_id = %s", cap.cap_id
        )
        return settled + outstanding

    def check(self) -> None:
        """The books of the slices: counters equal their slices, totals make sense, caps hold."""
        wrong = self.sql(
            """SELECT c.counter_id, c.sliced, coalesce(sum(s.granted - s.returned - s.released), 0)
               FROM counter c LEFT JOIN slice s USING (counter_id) GROUP BY c.counter_id
               HAVING c.sliced <> coalesce(sum(s.granted - s.returned - s.released), 0)"""
        )
        assert wrong == []
        wrong = self.sql("SELECT * FROM slice WHERE settled > granted - returned OR returned < 0")
        assert wrong == []

    async def close(self) -> None:
        for replica in self.replicas:
            await replica.stop()


@asynccontextmanager
async def slice_rig(postgres: Postgres) -> AsyncGenerator[SliceRig]:
    """A fresh database with all migrations; at the end its books are checked."""
    name = f"s_{uuid.uuid4().hex[:12]}"
    postgres.new_database(name)
    rig = SliceRig(postgres, name)
    try:
        yield rig
    finally:
        await rig.close()
    if not postgres.running:
        postgres.start()
    rig.check()
    postgres.drop_database(name)
