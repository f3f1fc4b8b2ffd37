"""Sessions of the pool that nothing can be asked any more are replaced."""

from collections.abc import AsyncIterator

import psycopg
import pytest
from gateway_rig.postgres import Postgres
from pydantic import SecretStr

from terrace_gateway.database import Connection, Database

# As a pooler does between two transactions; psycopg goes on believing in its statements.
FORGET = "DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$"
OTHER_PLAN = "DO $$ BEGIN ALTER TABLE shown ADD COLUMN more integer; END $$"
FAIL = "BEGIN; SAVEPOINT a"


@pytest.fixture
async def pool(postgres: Postgres, database: str) -> AsyncIterator[Database]:
    made = Database(SecretStr(postgres.url(database)), size=2, wait_seconds=5)
    await made.open()
    await made.prepare()
    await made.probe()
    yield made
    await made.close()


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (FORGET, psycopg.errors.InvalidSqlStatementName),
        (OTHER_PLAN, psycopg.errors.FeatureNotSupported),
        (FAIL, psycopg.errors.InFailedSqlTransaction),
    ],
    ids=["statements forgotten", "plan changed", "transaction failed"],
)
async def test_a_spoiled_session_goes(pool: Database, spoil: str, error: type[Exception]) -> None:
    statement = b"SELECT * FROM shown"
    async with pool.connection() as connection:
        await connection.execute(b"CREATE TABLE shown (one integer)")
    sessions: list[Connection] = []

    async def spoiled() -> None:
        async with pool.connection() as session:
            sessions.append(session)
            await session.execute(statement, prepare=True)
            await session.execute(spoil.encode())
            if spoil == FAIL:
                with pytest.raises(psycopg.errors.UndefinedTable):
                    await session.execute(b"SELECT * FROM not_there")
            await session.execute(statement, prepare=True)

    with pytest.raises(error):
        await spoiled()
    assert sessions[0].closed
    assert pool.up
    async with pool.connection() as another:
        await another.execute(statement, prepare=True)


async def test_an_error_of_a_statement_keeps_its_session(pool: Database) -> None:
    sessions: list[Connection] = []

    async def failed() -> None:
        async with pool.connection() as session:
            sessions.append(session)
            await session.execute(b"SELECT 1 / 0")

    with pytest.raises(psycopg.errors.DivisionByZero):
        await failed()
    assert not sessions[0].closed
