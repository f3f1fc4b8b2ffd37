"""The connection to Postgres: bounded waits, one flag for "away", migrations under a lock."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.resources import files

import psycopg
import structlog
from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolTimeout, TooManyRequests
from pydantic import SecretStr

from terrace_gateway.calls.ports import AuthorityUnavailableError
from terrace_gateway.ledger.months import make_months

log = structlog.get_logger()

Connection = AsyncConnection[TupleRow]
CONNECT_TIMEOUT_SECONDS = 2
TCP_USER_TIMEOUT_MS = 3000  # a vanished server is noticed, not waited for
STATEMENT_SECONDS = 5
# A process that is stopped in a transaction gives up its locks: sooner than the statement ends that
# waits for one elsewhere, a kill switch's among them.
IDLE_SECONDS = 4
LONG_IDLE_SECONDS = 10  # of work beside the pool, which sorts and digests in between
_MIGRATION_LOCK = 0x7E44ACE1
# What migrations change of the release before, in the order in which its transactions come to it:
# reservations take all four, settlements the counters alone, beats the incarnations alone.
_TABLES = "virtual_key, cap, counter, incarnation"
# Everybody queues behind a lock that waits. The short wait is, for all tables together, below the
# server's deadlock_timeout (1 s): nobody else is told of a deadlock. The long one is above it,
# because an autovacuum gives way only then.
_SHORT_WAIT_MS, _LONG_WAIT_MS = 100, 1500
_SHORT_TRIES, _TRIES = 20, 25
# What a session keeps until it ends: its mode, its plans, statements that a pooler has lost, a
# transaction that failed. Another session may do.
_SPOILED = (
    psycopg.errors.ReadOnlySqlTransaction,
    psycopg.errors.FeatureNotSupported,
    psycopg.errors.InvalidSqlStatementName,
    psycopg.errors.DuplicatePreparedStatement,
    psycopg.errors.InFailedSqlTransaction,
)


_LOST = (psycopg.OperationalError, psycopg.InterfaceError)
# After each of these nothing of its transaction was done.
_NOT_DONE = (
    psycopg.errors.QueryCanceled,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.IdleInTransactionSessionTimeout,
)


class NotDoneError(AuthorityUnavailableError):
    """The database is there, and did nothing of the transaction. The message is for people."""


class DatabaseConfigError(RuntimeError):
    """The database is there but must not be used; the message says what to change."""


class Database:
    """A pool that fails fast. While Postgres is away, callers are refused at once and one probe
    (``watch``) looks for its return.
    """

    def __init__(self, url: SecretStr, *, size: int, wait_seconds: float) -> None:
        self._url = url
        self._wait_seconds = wait_seconds
        self._pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            url.get_secret_value(),
            min_size=2,
            max_size=size,
            max_waiting=500,
            timeout=wait_seconds,
            reconnect_timeout=1,
            open=False,
            kwargs={
                "autocommit": True,
                "connect_timeout": CONNECT_TIMEOUT_SECONDS,
                "tcp_user_timeout": TCP_USER_TIMEOUT_MS,
                "application_name": "terrace-gateway",
                "options": _options(STATEMENT_SECONDS, IDLE_SECONDS),
            },
        )
        self._reads = asyncio.Semaphore(max(1, size // 2))
        self.up = False
        self.prepared = False

    async def open(self) -> None:
        """Start the pool without waiting for Postgres."""
        await self._pool.open(wait=False)

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.close(timeout=2)

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Connection]:
        """A connection in autocommit mode. Raises ``AuthorityUnavailableError``, within seconds."""
        if not self.up:
            raise AuthorityUnavailableError("the database is away")
        async with self._checked_out() as connection:
            yield connection

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[None]:
        """A place of those who look something up, half as many as the pool has connections: slow
        reads leave some to kill switches, the policy and the heartbeat. Raises ``NotDoneError``."""
        try:
            async with asyncio.timeout(self._wait_seconds):
                await self._reads.acquire()
        except TimeoutError:
            raise NotDoneError("too many reads of this replica wait for the database") from None
        try:
            yield
        finally:
            self._reads.release()

    @asynccontextmanager
    async def long_connection(self, statement_seconds: int) -> AsyncGenerator[Connection]:
        """A connection beside the pool, in autocommit mode, whose statements may take so long, and
        pauses in a transaction ``LONG_IDLE_SECONDS``.

        Raises ``AuthorityUnavailableError``.
        """
        if not self.up:
            raise AuthorityUnavailableError("the database is away")
        try:
            connection = await AsyncConnection.connect(
                self._url.get_secret_value(),
                autocommit=True,
                connect_timeout=CONNECT_TIMEOUT_SECONDS,
                tcp_user_timeout=TCP_USER_TIMEOUT_MS,
                application_name="terrace-gateway",
                options=_options(statement_seconds, LONG_IDLE_SECONDS),
            )
            async with connection:
                yield connection
        except (*_LOST, psycopg.errors.IdleInTransactionSessionTimeout) as error:
            raise AuthorityUnavailableError(
                f"the database did not do it ({type(error).__name__})", ambiguous=True
            ) from error

    @asynccontextmanager
    async def _checked_out(self) -> AsyncGenerator[Connection]:
        connection: Connection | None = None
        try:
            async with asyncio.timeout(self._wait_seconds + STATEMENT_SECONDS):
                async with self._pool.connection() as connection:
                    try:
                        yield connection
                    except _SPOILED:
                        await connection.close()
                        raise
        except (PoolTimeout, TooManyRequests) as error:
            raise NotDoneError("no database connection of this replica is free") from error
        except _NOT_DONE as error:
            raise _not_done(error) from error
        except psycopg.errors.ReadOnlySqlTransaction as error:
            self.up = False
            raise AuthorityUnavailableError("the database takes no writes") from error
        except (*_LOST, TimeoutError) as error:
            if connection is not None and connection.closed:
                self.up = False
            raise AuthorityUnavailableError(
                f"the database did not answer ({type(error).__name__})",
                ambiguous=connection is not None,
            ) from error

    async def probe(self) -> bool:
        """Whether Postgres answers and takes writes. Replaces broken connections on its return."""
        try:
            if not self.up:
                await self._pool.check()
            async with self._checked_out() as connection:
                cursor = await connection.execute("SELECT current_setting('transaction_read_only')")
                row = await cursor.fetchone()
                writable = row is not None and row[0] == "off"
                if not writable:
                    await connection.close()
        except AuthorityUnavailableError:
            return False
        if writable and self.prepared and not self.up:
            log.info("database_back")
        self.up = writable and self.prepared
        return writable

    async def prepare(self) -> None:
        """Check the server's settings, apply the migrations and make the ledger's months, in a
        connection of its own: nothing is shipped before the month that it belongs to is there.

        Raises ``DatabaseConfigError`` if commits would not be durable or a migration was changed,
        and ``psycopg.OperationalError`` if there is no server.
        """
        connection = await AsyncConnection.connect(
            self._url.get_secret_value(),
            connect_timeout=CONNECT_TIMEOUT_SECONDS,
            options=f"-c idle_in_transaction_session_timeout={LONG_IDLE_SECONDS * 1000}",
        )
        async with connection:
            for setting in ("synchronous_commit", "fsync", "full_page_writes"):
                cursor = await connection.execute("SELECT current_setting(%s)", (setting,))
                row = await cursor.fetchone()
                if row is None or row[0] == "off":
                    raise DatabaseConfigError(
                        f"Postgres has {setting}=off; a cap needs durable commits: set it to on"
                    )
            await _migrate(connection)
            await connection.commit()
            await connection.set_autocommit(True)
            await _make_months(connection)
        self.prepared = True


def _options(statement_seconds: int, idle_seconds: int) -> str:
    return (
        f"-c statement_timeout={statement_seconds * 1000} -c timezone=UTC"
        f" -c idle_in_transaction_session_timeout={idle_seconds * 1000}"
    )


def _not_done(error: psycopg.Error) -> NotDoneError:
    if isinstance(error, psycopg.errors.IdleInTransactionSessionTimeout):
        why = "this replica stood still in it, and the database took it back"
    else:
        why = "it waited for other work of the database, or took too long"
    return NotDoneError(f"{why} ({type(error).__name__})")


async def _migrate(connection: Connection) -> None:
    """Apply numbered files once each, in order, in the caller's one transaction."""
    await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
    await connection.execute(
        "CREATE TABLE IF NOT EXISTS schema_migration (version integer PRIMARY KEY,"
        " name text NOT NULL, checksum text NOT NULL,"
        " applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"
    )
    cursor = await connection.execute("SELECT version, checksum FROM schema_migration")
    applied = {version: checksum for version, checksum in await cursor.fetchall()}
    pending: list[tuple[int, str, str, str]] = []
    for name, text in migration_files():
        version = int(name.split("_", 1)[0])
        checksum = hashlib.sha256(text.encode()).hexdigest()
        if version not in applied:
            pending.append((version, name, checksum, text))
        elif applied[version] != checksum:
            raise DatabaseConfigError(
                f"migration {name} differs from the one this database has;"
                " add a new migration instead of changing an old one"
            )
    if applied and pending:
        await _lock_tables(connection)
    for version, name, checksum, text in pending:
        await connection.execute(text.encode())
        await connection.execute(
            "INSERT INTO schema_migration (version, name, checksum) VALUES (%s, %s, %s)",
            (version, name, checksum),
        )
        log.info("migration_applied", migration=name)


async def _make_months(connection: Connection) -> None:
    """What cannot be made keeps nobody from starting: the keeper tries again, and tells."""
    try:
        months = await make_months(connection)
    except psycopg.Error as error:
        log.warning("ledger_months_not_made", error=type(error).__name__)
        return
    if months.made or months.missing:
        log.info("ledger_months", made=months.made, missing=[name for name, _ in months.missing])


async def _lock_tables(connection: Connection) -> None:
    """Take every table that the migrations change, before they change the first.

    Guards of the release before go on meanwhile, in short waits. Raises
    ``psycopg.errors.LockNotAvailable`` after about half a minute in which somebody else always
    held one.
    """
    for number in range(1, _TRIES + 1):
        wait = _SHORT_WAIT_MS if number <= _SHORT_TRIES else _LONG_WAIT_MS
        try:
            async with connection.transaction():  # a savepoint: what it took goes when it fails
                await connection.execute(f"SET LOCAL lock_timeout = {wait}".encode())
                await connection.execute(f"LOCK TABLE {_TABLES}".encode())
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            if number == _TRIES:
                raise
            log.info("migration_waits", tries=number)
            await asyncio.sleep(min(0.1 * number, 1))
        else:
            return


def migration_files() -> list[tuple[str, str]]:
    """Name and text of every migration, in order."""
    folder = files("terrace_gateway") / "migrations"
    found = [item for item in folder.iterdir() if item.name.endswith(".sql")]
    return [(item.name, item.read_text("utf-8")) for item in sorted(found, key=lambda f: f.name)]
