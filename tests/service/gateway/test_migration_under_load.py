"""Migrations while guards of the release before work: they wait for moments, and lose no call."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from gateway_rig.postgres import Postgres
from gateway_rig.release_before.authority import Grant, Reservation, Settlement
from gateway_rig.release_before.incarnation import Incarnation
from gateway_rig.release_before.postgres_authority import PostgresAuthority
from psycopg import AsyncConnection
from pydantic import SecretStr

from terrace_gateway.database import Database, migration_files

RELEASE_BEFORE = 5  # its last migration
CALLERS = 8


@dataclass
class OldGuard:
    """A guard of the release before on its own database, one key per caller."""

    authority: PostgresAuthority
    server: Postgres
    name: str
    calls: int = 0

    async def call(self, caller: int) -> str:
        """Reserve and settle. Returns the id of the attempt."""
        self.calls += 1
        attempt = f"att_{self.calls}"
        granted = await self.authority.reserve(
            Reservation(
                attempt, "req", "0" * 32, key_hash(caller), "m", "d", "p", "chat", 10, "v", 60
            )
        )
        assert isinstance(granted, Grant)
        settlement = Settlement(attempt, "attempt", "ok", "response", 1, 1, 7)
        assert await self.authority.settle(settlement) == "settled"
        return attempt

    async def migrate(self) -> None:
        """As a guard of this release does when it starts, without its retry."""
        new = Database(SecretStr(self.server.url(self.name)), size=2, wait_seconds=2)
        await new.prepare()
        await new.close()

    def rows(self, query: str) -> list[tuple[object, ...]]:
        with self.server.superuser(self.name) as connection:
            return connection.execute(query.encode()).fetchall()

    def versions(self) -> int:
        ((newest,),) = self.rows("SELECT max(version) FROM schema_migration")
        return int(str(newest))

    def deadlocks(self) -> int:
        return self.server.log_text().count("deadlock detected")


def key_hash(caller: int) -> bytes:
    return hashlib.sha256(str(caller).encode()).digest()


@pytest.fixture
async def old(postgres: Postgres, empty_database: str) -> AsyncIterator[OldGuard]:
    url = postgres.url(empty_database)
    async with await AsyncConnection.connect(url) as connection:
        await connection.execute(
            "CREATE TABLE schema_migration (version integer PRIMARY KEY, name text NOT NULL,"
            " checksum text NOT NULL, applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"
        )
        for name, text in migration_files()[:RELEASE_BEFORE]:
            await connection.execute(text.encode())
            await connection.execute(
                "INSERT INTO schema_migration (version, name, checksum) VALUES (%s, %s, %s)",
                (int(name[:4]), name, hashlib.sha256(text.encode()).hexdigest()),
            )
        for caller in range(CALLERS):
            await connection.execute(
                "INSERT INTO virtual_key (key_id, key_hash, team) VALUES (%s, %s, 'search')",
                (f"key_{caller}", key_hash(caller)),
            )
            await connection.execute(
                "INSERT INTO cap (scope, scope_id, dimension, window_seconds, amount)"
                " SELECT 'key', %s, d, 0, 1000000000 FROM unnest(ARRAY['micro_usd','requests']) d",
                (f"key_{caller}",),
            )
    database = Database(SecretStr(url), size=CALLERS + 2, wait_seconds=2)
    database.prepared = True  # by itself, long ago
    await database.open()
    while not await database.probe():
        await asyncio.sleep(0.01)
    incarnation = Incarnation(database, replica="old", heartbeat_seconds=0.05, silent_seconds=15)
    beats = asyncio.create_task(incarnation.run())
    yield OldGuard(PostgresAuthority(database, incarnation, replica="old"), postgres,
                   empty_database)  # fmt: skip
    beats.cancel()
    await asyncio.wait([beats])
    await database.close()


@asynccontextmanager
async def callers(old: OldGuard) -> AsyncIterator[list[str]]:
    """All of them at work. At the end every call must have succeeded."""
    done: list[str] = []
    stop = asyncio.Event()

    async def calls(caller: int) -> None:
        while not stop.is_set():
            done.append(await old.call(caller))

    tasks = [asyncio.create_task(calls(caller)) for caller in range(CALLERS)]
    try:
        yield done
    finally:
        stop.set()
        failed = await asyncio.gather(*tasks, return_exceptions=True)
    assert failed == [None] * CALLERS


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


async def test_callers_of_the_release_before_go_on(old: OldGuard) -> None:
    before = old.deadlocks()
    async with callers(old) as done:
        await until(lambda: len(done) > 5 * CALLERS)
        await old.migrate()
        known = len(done)
        await until(lambda: len(done) > known + 5 * CALLERS)
    assert old.versions() == len(migration_files())
    assert old.deadlocks() == before
    assert old.rows("SELECT count(*), count(DISTINCT attempt_id) FROM ledger") == [
        (len(done), len(done))
    ]
    assert old.rows("SELECT sum(settled), sum(outstanding) FROM counter") == [
        (8 * len(done), 0)  # seven of money and one request each
    ]


@pytest.mark.parametrize("step", ["reservation", "settlement"])
async def test_a_transaction_that_is_half_done_is_finished_first(old: OldGuard, step: str) -> None:
    """A call waits in the middle, for a counter, when the migration comes."""
    before = old.deadlocks()
    await old.call(0)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE"
    with old.server.superuser(old.name) as blocker:
        if step == "settlement":
            await old.authority.reserve(
                Reservation("att_s", "req", "0" * 32, key_hash(0), "m", "d", "p", "chat", 10,
                            "v", 60)
            )  # fmt: skip
        with blocker.transaction():
            blocker.execute("SELECT FROM counter FOR UPDATE")
            call: asyncio.Task[object]
            if step == "settlement":
                ended = Settlement("att_s", "attempt", "ok", "response", 1, 1, 7)
                call = asyncio.create_task(old.authority.settle(ended))
            else:
                call = asyncio.create_task(old.call(0))
            await until(lambda: old.rows(f"{waiting} '%_attempt%'") != [(0,)])
            migration = asyncio.create_task(old.migrate())
            await asyncio.sleep(0.5)  # it has come as far as it can
            assert not migration.done()
    await asyncio.gather(call, migration)
    assert old.versions() == len(migration_files())
    assert old.deadlocks() == before


async def test_a_table_that_somebody_keeps_stalls_nobody(old: OldGuard) -> None:
    """A dump holds a table: the migration waits for it without a queue behind it."""
    with old.server.superuser(old.name) as dump, dump.transaction():
        dump.execute("LOCK TABLE counter IN ACCESS SHARE MODE")
        async with callers(old) as done:
            migration = asyncio.create_task(old.migrate())
            await asyncio.sleep(0.5)
            known = len(done)
            await until(lambda: len(done) > known + 5 * CALLERS)
            assert not migration.done()
            dump.execute("COMMIT")
            dump.execute("BEGIN")
            await migration
    assert old.versions() == len(migration_files())


async def test_nothing_to_apply_locks_nothing(postgres: Postgres, database: str) -> None:
    new = Database(SecretStr(postgres.url(database)), size=2, wait_seconds=2)
    with postgres.superuser(database) as reader, reader.transaction():
        reader.execute("LOCK TABLE virtual_key, cap, counter IN ACCESS EXCLUSIVE MODE")
        async with asyncio.timeout(60):
            await new.prepare()
    await new.close()
    assert new.prepared
