"""Fixtures of the gateway's service tests. Every test ends with the books in balance."""

import re
import shutil
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "rig"))

from gateway_rig.admin import Admin, admin_of
from gateway_rig.fake_aws import FakeAws
from gateway_rig.fake_idp import FakeIdp
from gateway_rig.fake_upstream import FakeUpstream
from gateway_rig.guard import GuardProcess, InProcessGuard, guard_settings, write_files
from gateway_rig.policy import Replica, example_text, replica_of
from gateway_rig.postgres import Postgres
from gateway_rig.real_upstream import RealUpstream

from terrace_gateway.money import slice_book
from terrace_gateway.settings import Settings

MakeGuard = Callable[..., Awaitable[InProcessGuard]]
MakeProcess = Callable[..., Awaitable[GuardProcess]]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    # Not below pytest's own folder: every new pytest run of the same user closes that to others.
    with tempfile.TemporaryDirectory(prefix="terrace-postgres-") as folder:
        server = Postgres(Path(folder))
        server.create()
        yield server
        server.stop()


@pytest.fixture
async def idp() -> AsyncIterator[FakeIdp]:
    """An identity provider with one key."""
    made = FakeIdp()
    made.rotate("k", "ES256")
    async with made.running():
        yield made


@pytest.fixture
def database(postgres: Postgres) -> Iterator[str]:
    """Name of a fresh database with all migrations. Afterwards its books must balance."""
    with a_database(postgres, empty=False) as name:
        yield name


@pytest.fixture
def empty_database(postgres: Postgres) -> Iterator[str]:
    """As ``database``, without a table."""
    with a_database(postgres, empty=True) as name:
        yield name


@contextmanager
def a_database(postgres: Postgres, *, empty: bool) -> Generator[str]:
    name = f"t_{uuid.uuid4().hex[:12]}"
    postgres.new_database(name, empty=empty)
    yield name
    if not postgres.running:
        postgres.start()
    assert_books_balance(postgres, name)
    postgres.drop_database(name)


def assert_books_balance(postgres: Postgres, name: str) -> None:
    """Counters hold what the ledger and their slices say; every closed attempt has one close."""
    with postgres.superuser(name) as connection:
        if connection.execute("SELECT to_regclass('ledger_entry')").fetchone() == (None,):
            return
        unmatched = connection.execute(
            """SELECT attempt_id, state FROM attempt a WHERE (state = 'open') = EXISTS (
               SELECT FROM ledger l WHERE l.attempt_id = a.attempt_id AND kind <> 'correction')"""
        ).fetchall()
        assert unmatched == []
        twice = connection.execute(
            """SELECT attempt_id FROM ledger_entry
               WHERE kind IN ('attempt', 'unknown') AND NOT late
               GROUP BY attempt_id HAVING count(*) > 1"""
        ).fetchall()
        assert twice == []
        # Lifetime money of every key: what the ledger says was charged to it.
        rows = connection.execute(
            """SELECT c.scope_id, c.settled + coalesce((SELECT sum(s.settled - s.released)
                   FROM slice s WHERE s.counter_id = c.counter_id), 0),
               coalesce((SELECT sum(amount_micro_usd) FROM ledger_all WHERE key_id = c.scope_id
                         AND kind <> 'rerating'), 0)
               FROM counter c
               WHERE dimension = 'micro_usd' AND scope = 'key' AND window_seconds = 0"""
        ).fetchall()
        for key_id, counted, ledger in rows:
            assert counted == ledger, key_id


@pytest.fixture
async def upstream(tmp_path: Path) -> AsyncIterator[FakeUpstream]:
    fake = FakeUpstream(tmp_path)
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAws]:
    """S3, CloudWatch Logs and KMS, for botocore's clients."""
    fake = FakeAws()
    for name, value in fake.environment().items():
        monkeypatch.setenv(name, value)
    yield fake
    fake.stop()


@pytest.fixture
def governance_text(upstream: FakeUpstream) -> str:
    example = files("terrace_common") / "examples" / "governance.local.yaml"
    text = example.read_text("utf-8")
    return re.sub(
        r'bill_url: "[^"]*"', f'bill_url: "http://127.0.0.1:{upstream.bill_port}/bill"', text
    )


@pytest.fixture
def settings_of(
    tmp_path: Path, postgres: Postgres, database: str, upstream: FakeUpstream, governance_text: str
) -> Callable[..., dict[str, Any]]:
    def make(**overrides: Any) -> dict[str, Any]:
        governance = overrides.pop("governance", governance_text)
        values = guard_settings(
            tmp_path, upstream, database_url=postgres.url(database), governance=governance
        )
        return {**values, **overrides}

    return make


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller waits for other holders' idle amounts as long as a busy machine needs to ask them;
    it is refused at once all the same when there are none."""
    monkeypatch.setattr(slice_book, "RECALL_WAIT_SECONDS", 10.0)


@pytest.fixture
async def make_guard(
    settings_of: Callable[..., dict[str, Any]], patience: None
) -> AsyncIterator[MakeGuard]:
    del patience
    guards: list[InProcessGuard] = []

    async def make(*, wait: bool = True, **overrides: Any) -> InProcessGuard:
        guard = await InProcessGuard.start(Settings(**settings_of(**overrides)), wait=wait)
        guards.append(guard)
        return guard

    yield make
    for guard in guards:
        await guard.stop()


@pytest.fixture
async def guard(make_guard: MakeGuard) -> InProcessGuard:
    return await make_guard()


@pytest.fixture
async def make_process(
    settings_of: Callable[..., dict[str, Any]], tmp_path: Path
) -> AsyncIterator[MakeProcess]:
    guards: list[GuardProcess] = []

    async def make(**overrides: Any) -> GuardProcess:
        log = tmp_path / f"guard-{len(guards)}.log"
        guard = await GuardProcess.start(settings_of(**overrides), log)
        guards.append(guard)
        return guard

    yield make
    for guard in guards:
        await guard.kill()
        await guard.http.aclose()


@pytest.fixture(scope="module")
def real() -> Iterator[RealUpstream]:
    """The real LiteLLM before the real model simulator."""
    folder = Path(tempfile.mkdtemp(prefix="terrace-real-"))
    upstream = RealUpstream(folder)
    try:
        upstream.start()
        yield upstream
    finally:
        upstream.stop()
        shutil.rmtree(folder)


@pytest.fixture
async def real_guard(
    real: RealUpstream, tmp_path: Path, postgres: Postgres, database: str
) -> AsyncIterator[InProcessGuard]:
    """A guard before the real LiteLLM."""
    files = write_files(
        tmp_path, database_url=postgres.url(database), governance=real.governance_text
    )
    settings = Settings(
        **files, translator_socket=real.socket, translator_key_file=real.key_file,
        spool_directory=tmp_path / "spool", reconcile_grace_seconds=0,
    )  # fmt: skip
    real.no_faults()
    guard = await InProcessGuard.start(settings)
    yield guard
    await guard.stop()


@pytest.fixture
def first_text() -> str:
    """The governance that `replica` begins with; a module may have another one."""
    return example_text()


@pytest.fixture
async def replica(postgres: Postgres, database: str, first_text: str) -> AsyncIterator[Replica]:
    """A replica's policy, with `first_text` in force."""
    async with replica_of(postgres, database) as made:
        await made.apply(first_text)
        await made.feed.refresh()
        yield made


@pytest.fixture
async def admin(replica: Replica) -> AsyncIterator[Admin]:
    """Its admin API."""
    async with admin_of(replica) as made:
        yield made
