"""The state machine of the slice protocol on the real SQL: the one that the model passes."""

import asyncio
import time
import uuid
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import pytest
from gateway_rig.postgres import Postgres
from gateway_rig.slice_machine import LEASE_SECONDS, slice_machine
from gateway_rig.slices import SliceRig, slice_rig
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from pydantic import SecretStr

from terrace_gateway.calls.ports import Cap, Charge
from terrace_gateway.clock import boottime
from terrace_gateway.database import Connection, Database
from terrace_gateway.money.grants import PostgresSlices, SliceAuthority
from terrace_gateway.money.heartbeat import LEASE_MARGIN_SECONDS, Beat

T = TypeVar("T")


class Server:
    """One database and one loop for all examples; each example has caps of its own."""

    def __init__(self, postgres: Postgres) -> None:
        self.loop = asyncio.new_event_loop()
        self._scope = slice_rig(postgres)
        self.rig: SliceRig = self.loop.run_until_complete(self._scope.__aenter__())
        self.database = Database(SecretStr(self.rig.url), size=2, wait_seconds=2)
        self.database.prepared = True
        self.loop.run_until_complete(self._open())

    async def _open(self) -> None:
        await self.database.open()
        while not await self.database.probe():
            await asyncio.sleep(0.01)

    def close(self) -> None:
        self.loop.run_until_complete(self.database.close())
        self.loop.run_until_complete(self._scope.__aexit__(None, None, None))
        self.loop.close()


@pytest.fixture
def server(postgres: Postgres) -> Iterator[Server]:
    server = Server(postgres)
    yield server
    server.close()


class SqlWorld:
    """The real authority. Time passes by making leases and wants older."""

    def __init__(self, server: Server, amounts: Sequence[int]) -> None:
        self._server = server
        self._shift = 0.0
        self._mine: list[int] = []
        name = uuid.uuid4().hex
        self.authority: SliceAuthority = PostgresSlices(server.database)
        self.caps = [
            server.rig.cap(amount, scope_id=f"{name}-{n}") for n, amount in enumerate(amounts)
        ]
        self._ids = [cap.cap_id for cap in self.caps]

    def sql(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        async def execute() -> list[tuple[Any, ...]]:
            async with self._server.database.connection() as connection:
                return await fetch(connection, query, parameters)

        if self._server.loop.is_running():  # inside of a book's call: beside the loop
            return self._server.rig.sql(query, *parameters)
        return self.run(execute())

    def now(self) -> float:
        return boottime() + self._shift

    def pass_time(self, seconds: float) -> None:
        time.sleep(0.001)
        self._shift += seconds
        age = "make_interval(secs => %s)"
        self.sql(
            f"UPDATE incarnation SET lease_until = lease_until - {age} WHERE"
            " incarnation_id = ANY (%s)", seconds, self._mine,
        )  # fmt: skip
        self.sql(f"UPDATE counter SET wanted_until = wanted_until - {age}", seconds)

    def begin(self) -> int:
        ((incarnation,),) = self.sql("SELECT begin_incarnation('r', %s, 60)", LEASE_SECONDS)
        self._mine.append(incarnation)
        return incarnation

    def heartbeat(self, incarnation: int, sent_at: float) -> Beat | None:
        ((state, *beat),) = self.sql(
            "SELECT state, database_time, timeline, suspended, declared, policy_epoch, wanted"
            " FROM heartbeat(%s, %s)", incarnation, LEASE_SECONDS,
        )  # fmt: skip
        if state != "live":
            return None
        ends_at = sent_at + LEASE_SECONDS - LEASE_MARGIN_SECONDS
        return Beat(incarnation, sent_at, ends_at, *beat[:-1], tuple(beat[-1]))

    def end_lease(self, incarnation: int) -> None:
        self.sql(
            "UPDATE incarnation SET lease_until = clock_timestamp() WHERE incarnation_id = %s",
            incarnation,
        )

    def settle(self, incarnation: int, charges: Sequence[Charge]) -> None:
        counters, amounts = [c.counter_id for c in charges], [c.amount for c in charges]
        self.sql("SELECT settle_slices(%s, %s, %s)", incarnation, counters, amounts)

    def close(self, incarnation: int) -> None:
        self.sql("SELECT close_incarnation(%s)", incarnation)

    def set_amount(self, cap: Cap, amount: int) -> None:
        self.sql("UPDATE cap SET amount = %s WHERE cap_id = %s", amount, cap.cap_id)

    def counted(self) -> dict[int, int]:
        return dict(
            self.sql(
                "SELECT counter_id, t.settled + t.outstanding + t.sliced FROM counter t"
                " JOIN cap k USING (scope, scope_id, dimension) WHERE k.cap_id = ANY (%s)",
                self._ids,
            )
        )

    def unaccounted(self, incarnation: int) -> dict[int, int]:
        query = (
            "SELECT counter_id, granted - returned - settled FROM slice WHERE incarnation_id = %s"
        )
        return dict(self.sql(query, incarnation))

    def cap_of(self, counter_id: int) -> int:
        ((cap_id,),) = self.sql(
            "SELECT k.cap_id FROM counter t JOIN cap k USING (scope, scope_id, dimension)"
            " WHERE counter_id = %s", counter_id,
        )  # fmt: skip
        return cap_id

    def is_current(self, counter_id: int) -> bool:
        return counter_id > 0  # lifetimes have one counter

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._server.loop.run_until_complete(coroutine)

    def audit(self) -> None:
        wrong = self.sql(
            "SELECT c.counter_id FROM counter c LEFT JOIN slice s USING (counter_id)"
            " GROUP BY c.counter_id"
            " HAVING c.sliced <> coalesce(sum(s.granted - s.returned - s.released), 0)"
        )
        assert wrong == []


async def fetch(
    connection: Connection, query: str, parameters: Sequence[object]
) -> list[tuple[Any, ...]]:
    cursor = await connection.execute(query.encode(), parameters or None)
    return await cursor.fetchall() if cursor.description else []


@pytest.mark.parametrize("amounts", [[100], [100, 60, 80]], ids=["one cap", "three caps"])
def test_no_order_of_events_breaks_the_protocol(server: Server, amounts: list[int]) -> None:
    run_state_machine_as_test(
        slice_machine(lambda: SqlWorld(server, amounts)),
        settings=settings(
            max_examples=10,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
