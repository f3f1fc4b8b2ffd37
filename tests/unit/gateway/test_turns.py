"""Background work that the database fails is told and tried again; what ends the process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from terrace_gateway import runtime
from terrace_gateway.calls.ports import AuthorityUnavailableError
from terrace_gateway.clock import Clock
from terrace_gateway.database import DatabaseConfigError
from terrace_gateway.ledger.reaper import LedgerReaper
from terrace_gateway.membership import Membership
from terrace_gateway.money.alert_webhooks import AlertWebhooks
from terrace_gateway.money.budget_alerts import BudgetWatch
from terrace_gateway.money.budget_store import BudgetStore
from terrace_gateway.money.heartbeat import Heartbeat
from terrace_gateway.money.slice_reaper import SliceReaper
from terrace_gateway.policy import feed as policy_feed
from terrace_gateway.policy.feed import PolicyFeed
from terrace_gateway.policy.key_use import KeyUse
from terrace_gateway.policy.quota_watch import UpstreamQuotaWatch
from terrace_gateway.policy.store import PolicyStore
from terrace_gateway.policy.upstream_quotas import UpstreamQuotaStore
from terrace_gateway.turns import Turns, TurnsCollector

ERRORS = [
    psycopg.errors.InternalError_,
    psycopg.errors.DataCorrupted,
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.InvalidSqlStatementName,
    psycopg.errors.FeatureNotSupported,
    psycopg.errors.InFailedSqlTransaction,
    psycopg.errors.UndefinedFunction,
    psycopg.errors.NumericValueOutOfRange,
    psycopg.errors.UniqueViolation,
    AuthorityUnavailableError,
]
OFTEN = 0.001
TURNS = 3


class FailingDatabase:
    """Every statement fails the same way; ``enough`` is set after a few."""

    def __init__(self, error: type[Exception]) -> None:
        self._error = error
        self.asked = 0
        self.enough = asyncio.Event()

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        self.asked += 1
        if self.asked >= TURNS:
            self.enough.set()
        raise self._error("x")
        yield


def heartbeat(database: Any) -> Heartbeat:
    return Heartbeat(
        database, Clock(), replica="r", heartbeat_seconds=OFTEN, stream_limit_seconds=60
    )


def key_use(database: Any) -> KeyUse:
    used = KeyUse(database, Clock(), every_seconds=OFTEN)
    used.note("k1")
    return used


def ledger_reaper(database: Any) -> LedgerReaper:
    return LedgerReaper(database, replica="r", every_seconds=OFTEN, margin_seconds=1)


def budget_watch(database: Any) -> BudgetWatch:
    part: Any = SimpleNamespace()
    return BudgetWatch(
        BudgetStore(database), part, part, lambda: None, replica="r", every_seconds=OFTEN
    )


def alert_webhooks(database: Any) -> AlertWebhooks:
    part: Any = SimpleNamespace()
    return AlertWebhooks(BudgetStore(database), part, lambda: (), str, every_seconds=OFTEN)


def quota_watch(database: Any) -> UpstreamQuotaWatch:
    journal: Any = SimpleNamespace()
    return UpstreamQuotaWatch(UpstreamQuotaStore(database), journal, every_seconds=OFTEN)


def policy(database: Any) -> PolicyFeed:
    deployed: Any = SimpleNamespace()
    return PolicyFeed(PolicyStore(database), Clock(), deployed, poll_seconds=OFTEN)


WORKS: list[Callable[[Any], Any]] = [
    heartbeat,
    lambda database: SliceReaper(database, every_seconds=OFTEN),
    key_use,
    quota_watch,
    ledger_reaper,
    budget_watch,
    alert_webhooks,
    policy,
]
NAMES = [
    "heartbeat", "slice_reaper", "key_use", "quota_watch", "ledger_reaper", "budget_watch",
    "alert_webhooks", "policy",
]  # fmt: skip


@contextlib.asynccontextmanager
async def running(run: Any) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(run)
    yield task
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
@pytest.mark.parametrize(("make", "name"), list(zip(WORKS, NAMES, strict=True)), ids=NAMES)
async def test_work_goes_on_whatever_postgres_answers(
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Any], Any],
    name: str,
    error: type[Exception],
) -> None:
    monkeypatch.setattr(policy_feed, "RETRY_SECONDS", OFTEN)
    database = FailingDatabase(error)
    work = make(database)
    async with running(work.run()) as task:
        enough = asyncio.create_task(database.enough.wait())
        await asyncio.wait([task, enough], timeout=30, return_when=asyncio.FIRST_COMPLETED)
        enough.cancel()
        assert not task.done()
    assert work.turns.failed >= TURNS - 1
    assert work.turns.work == name


async def test_uses_of_keys_that_postgres_refused_are_kept() -> None:
    database: Any = FailingDatabase(psycopg.errors.InternalError_)
    used = key_use(database)
    for turn in (1, 2):
        with pytest.raises(psycopg.errors.InternalError_):
            await used.flush()
        assert database.asked == turn


async def test_the_goodbye_goes_on_whatever_postgres_answers() -> None:
    database: Any = FailingDatabase(psycopg.errors.InternalError_)
    part: Any = SimpleNamespace()
    member = Membership(heartbeat(database), part, part, part)
    member._acting = 7
    await member.leave(whole=True)
    assert database.asked == 1


async def test_who_asks_for_the_policy_hears_that_nobody_can_say() -> None:
    database: Any = FailingDatabase(psycopg.errors.InsufficientPrivilege)
    with pytest.raises(AuthorityUnavailableError):
        await policy(database).refresh()


def test_an_error_stands_in_the_log_once_until_a_turn_succeeds() -> None:
    turns = Turns("reaper")

    def turn(error: Exception | None) -> None:
        with turns.turn():
            if error is not None:
                raise error

    with capture_logs() as logs:
        for error in (
            psycopg.errors.InternalError_("secret"), psycopg.errors.InternalError_("secret"),
            psycopg.errors.DataCorrupted("secret"), None, psycopg.errors.DataCorrupted("secret"),
        ):  # fmt: skip
            turn(error)
    told = [entry["error"] for entry in logs if entry["log_level"] == "error"]
    assert told == ["InternalError_ XX000", "DataCorrupted XX001", "DataCorrupted XX001"]
    assert turns.failed == 4
    with pytest.raises(ZeroDivisionError):
        turn(ZeroDivisionError())
    registry = CollectorRegistry()
    registry.register(TurnsCollector([turns]))
    name = "terrace_background_turns_failed_total"
    assert registry.get_sample_value(name, {"work": "reaper"}) == 4


class Preparing:
    """The database of a guard that starts."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.tried = 0
        self.prepared = self.up = False

    async def prepare(self) -> None:
        self.tried += 1
        if self.tried < TURNS:
            raise self._error
        self.prepared = True

    async def probe(self) -> bool:
        raise self._error


def keeps_database(database: Preparing) -> Any:
    part: Any = SimpleNamespace(
        database=database,
        database_turns=Turns("database"),
        metrics=SimpleNamespace(database_up=SimpleNamespace(set=lambda _: None)),
        _has_just_beaten=lambda: False,
    )
    return part


@pytest.mark.parametrize(
    "error",
    [
        psycopg.errors.InternalError_(), psycopg.errors.FeatureNotSupported(),
        psycopg.errors.ReadOnlySqlTransaction(), psycopg.OperationalError(), OSError(),
    ],
    ids=repr,
)  # fmt: skip
async def test_a_start_waits_for_a_database_that_fails(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(runtime, "PROBE_SECONDS", OFTEN)
    database = Preparing(error)
    kept = keeps_database(database)
    if isinstance(error, psycopg.OperationalError | OSError):
        database.probe = lambda: asyncio.sleep(0, result=False)  # as ``Database`` answers these
    async with running(runtime.Runtime._keep_database(kept)) as task:
        while not (database.prepared or task.done()):
            await asyncio.sleep(0)
        for _ in range(TURNS):
            await asyncio.sleep(2 * OFTEN)
        assert not task.done()
    assert database.tried == TURNS


@pytest.mark.parametrize(
    "error",
    [DatabaseConfigError("fsync=off"), psycopg.errors.UndefinedColumn(), psycopg.DataError()],
    ids=repr,
)
async def test_a_database_that_must_not_be_used_ends_the_process(error: Exception) -> None:
    kept = keeps_database(Preparing(error))
    with pytest.raises(type(error)):
        async with asyncio.timeout(30):
            await runtime.Runtime._keep_database(kept)
