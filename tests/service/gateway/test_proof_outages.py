"""Proof 6: Postgres away, slow or failed over, a replica that was stopped, a full disk, clocks that
jump: each ends as the policy says, and the books balance afterwards."""

import asyncio
import contextlib
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from gateway_rig.fake_upstream import Behaviour, FakeUpstream
from gateway_rig.guard import Api, GuardProcess, InProcessGuard
from gateway_rig.postgres import PASSWORD, Postgres
from gateway_rig.proofs import QUICK, Books, fill, say, spec, until
from gateway_rig.proxy import Proxy
from gateway_rig.standby import Pair

from terrace_gateway.settings import Settings

TEAMS = """
teams: [{name: team-closed, policies: [closed]}, {name: team-limited, policies: [limited]}]
policies:
  - {name: closed, outage: closed, stream_grace_seconds: 1}
  - {name: limited, outage: limited, outage_grace_seconds: 600, stream_grace_seconds: 600}
"""
USED: dict[str, Any] = {"input_tokens": 60, "output_tokens": 90}
ORDINARY = Behaviour(**USED, chunks=4)
CAP = 40 * 105


@pytest.fixture
def books(postgres: Postgres, database: str, upstream: FakeUpstream) -> Books:
    return Books(postgres, database, upstream)


@pytest.fixture
async def proxy(postgres: Postgres) -> AsyncIterator[Proxy]:
    made = Proxy(postgres.port)
    await made.start()
    yield made
    await made.stop()


def url_file(folder: Path, port: int, database: str) -> Path:
    path = folder / f"url-{port}"
    path.write_text(f"postgresql://gateway:{PASSWORD}@127.0.0.1:{port}/{database}")
    return path


@pytest.fixture
async def behind(
    proxy: Proxy, make_guard: Any, upstream: FakeUpstream, database: str, tmp_path: Path
) -> InProcessGuard:
    """A guard that reaches Postgres through the proxy. Its replica lease outlives every outage."""
    settings = {**QUICK, "lease_seconds": 600, "governance": spec(upstream, more=TEAMS)}
    return await make_guard(**settings, database_url_file=url_file(tmp_path, proxy.port, database))


@contextlib.asynccontextmanager
async def outage(how: str, books: Books, proxy: Proxy) -> AsyncIterator[None]:
    """Postgres crashes, or says nothing more, or every statement waits for a lock."""
    if how == "crashed":
        await asyncio.to_thread(books.postgres.stop, signal.SIGQUIT)
        yield
        await asyncio.to_thread(books.postgres.start)
    elif how == "silent":
        proxy.stall()
        yield
        proxy.resume()
    else:
        with books.postgres.superuser(books.database) as lock, lock.transaction():
            lock.execute("LOCK TABLE policy_head, incarnation, counter IN ACCESS EXCLUSIVE MODE")
            yield


@pytest.mark.parametrize("how", ["crashed", "silent", "locked"])
async def test_an_outage_ends_as_the_policy_says(
    behind: InProcessGuard, upstream: FakeUpstream, books: Books, proxy: Proxy, how: str
) -> None:
    guard = behind
    closed = await guard.key(team="team-closed", budget_micro_usd=CAP)
    limited = await guard.key(team="team-limited", budget_micro_usd=CAP)
    upstream.behaviour = ORDINARY

    async def works(key: str) -> bool:
        """Under a policy that is fresh: a busy machine may be late with a beat."""
        said = await say(guard, key)
        return said.status == 200 and "x-terrace-policy" not in said.headers

    for key in (closed, limited):
        await until(lambda key=key: works(key))
    release = asyncio.Event()
    upstream.behaviour = Behaviour(**USED, chunks=6, hold=release, hold_after_chunks=2)
    streams = [asyncio.create_task(say(guard, k, stream=True)) for k in (closed, limited)]
    await until(lambda: sum(call.status == "in_flight" for call in upstream.calls) == 2)
    upstream.behaviour = ORDINARY

    async with outage(how, books, proxy):
        await until(lambda: not guard.runtime.policy.current().fresh)

        async def told() -> bool:
            header = (await say(guard, limited)).headers.get("x-terrace-policy", "")
            return header.startswith("limited; seconds=")

        await until(told)
        asked = len(upstream.calls)
        said = await say(guard, closed)
        assert (said.status, said.code) == (503, "authority_unavailable")
        assert len(upstream.calls) == asked
        # What is granted is used up; then nothing more is sent.
        answers = [await say(guard, limited) for _ in range(2)]
        assert {answer.status for answer in answers} <= {200, 503}
        cut = await asyncio.wait_for(streams[0], 60)
        assert cut.text.rstrip().endswith("}")
        assert cut.code == "killed"
        assert not streams[1].done()
        release.set()
        assert (await streams[1]).text.endswith("data: [DONE]\n\n")

    await until(lambda: works(closed))
    ledger = await books.balance(guard)
    assert [outcome for _, outcome in ledger.values()].count("cut") == 1
    for key in (closed, limited):
        await fill([guard], key)
    await books.balance(guard)
    rows = (await guard.admin("GET", "/spend?by=key"))["rows"]
    assert all(row["settled_micro_usd"] <= CAP for row in rows)


async def test_at_boot_without_postgres_it_is_503_and_never_401(
    make_guard: Any, upstream: FakeUpstream, books: Books
) -> None:
    first: InProcessGuard = await make_guard(**QUICK, governance=spec(upstream))
    good = await first.key()
    await asyncio.to_thread(books.postgres.stop, signal.SIGQUIT)
    guard: InProcessGuard = await make_guard(**QUICK, governance=spec(upstream), wait=False)
    strangers = [good, "tk-" + "a" * 43, good[:-1] + ("a" if good[-1] != "a" else "b")]
    for key in strangers:
        for path in ("/v1/chat/completions", "/v1/messages"):
            assert (await say(guard, key, path)).status == 503
    assert (await guard.http.get(f"{guard.public_url}/readyz")).status_code == 503
    await asyncio.to_thread(books.postgres.start)

    async def works() -> bool:
        return (await say(guard, good)).status == 200

    await until(works)
    assert [(await say(guard, key)).status for key in strangers] == [200, 401, 401]
    await books.balance(guard)


async def test_a_slow_postgres_only_slows(
    behind: InProcessGuard, upstream: FakeUpstream, books: Books, proxy: Proxy
) -> None:
    guard = behind
    key = await guard.key(team="team-limited", budget_micro_usd=CAP)
    upstream.behaviour = ORDINARY
    proxy.delay = 0.05
    answers = await asyncio.gather(*(say(guard, key, stream=n % 2 == 0) for n in range(60)))
    assert {answer.status for answer in answers} <= {200, 429, 503}
    assert sum(answer.status == 200 for answer in answers) >= 20
    proxy.delay = 0.0
    await fill([guard], key)
    await books.balance(guard)
    assert 0.95 * CAP < upstream.bill_total <= CAP


async def test_a_stopped_replica_wakes_after_its_lease_and_no_cap_is_passed(
    make_process: Any, upstream: FakeUpstream, books: Books
) -> None:
    quick = {**QUICK, "lease_seconds": 3, "governance": spec(upstream)}
    frozen: GuardProcess = await make_process(**quick, replica="frozen")
    other: GuardProcess = await make_process(**quick, replica="other")
    cap = CAP // 2
    minted = await other.new_key(budget_micro_usd=cap)
    key = minted["key"]
    upstream.behaviour = ORDINARY
    for api in (frozen, other):
        assert (await say(api, key)).status == 200
    release = asyncio.Event()
    upstream.behaviour = Behaviour(**USED, chunks=6, hold=release, hold_after_chunks=2)
    running = [asyncio.create_task(say(frozen, key, stream=n == 0)) for n in range(2)]
    await until(lambda: sum(call.status == "in_flight" for call in upstream.calls) == 2)
    frozen.process.send_signal(signal.SIGSTOP)
    try:
        upstream.behaviour = ORDINARY
        await until(lambda: forfeited(books))
        late = asyncio.create_task(say(frozen, key))  # waits in the socket of the stopped one
        await fill([other], key)
        assert upstream.bill_total <= cap
        revoked = await other.new_key()
        path = f"/keys/{minted['key_id']}/revoke"
        await other.admin("POST", path, json={"reason": "left"})
    finally:
        frozen.process.send_signal(signal.SIGCONT)
    release.set()
    # Its first word after waking is judged by today's policy, not by the one it fell asleep with.
    said = await late
    async with asyncio.timeout(60):
        while said.code == "authority_unavailable":  # it could not ask in time, and served nothing
            said = await say(frozen, key)
    assert (said.status, said.code) == (401, "invalid_api_key")
    assert [answer.status for answer in await asyncio.gather(*running)] == [200, 200]

    async def works() -> bool:
        return (await say(frozen, revoked["key"])).status == 200

    await until(works)
    await books.balance(other)
    spent = (await other.admin("GET", "/spend?by=key"))["rows"]
    assert next(r for r in spent if r["key"] == minted["key_id"])["settled_micro_usd"] <= cap
    assert books.counted("key", minted["key_id"]) <= cap


def forfeited(books: Books) -> bool:
    """The database has ended a lease by its own clock."""
    with books.postgres.superuser(books.database) as connection:
        row = connection.execute(
            "SELECT count(*) FROM incarnation WHERE lease_until < clock_timestamp()"
        ).fetchone()
    return row is not None and row[0] > 0


@pytest.fixture
def small_volume() -> Iterator[Path]:
    """A file system of three megabytes, of which 300 KB are free: ``filler`` has the rest."""
    with tempfile.TemporaryDirectory(prefix="terrace-volume-") as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", folder], check=True)
        try:
            (Path(folder) / "filler").write_bytes(b"\0" * (3 * 1024 - 300) * 1024)
            yield Path(folder)
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


async def test_a_full_disk_refuses_and_loses_nothing(
    make_process: Any, upstream: FakeUpstream, books: Books, small_volume: Path
) -> None:
    guard: Api = await make_process(
        **QUICK, governance=spec(upstream), spool_directory=small_volume / "spool"
    )
    key = await guard.key(budget_micro_usd=10**7)
    release = asyncio.Event()
    upstream.behaviour = Behaviour(**USED, chunks=6, hold=release, hold_after_chunks=2)
    running = [asyncio.create_task(say(guard, key, stream=n % 2 == 0)) for n in range(6)]
    await until(lambda: sum(call.status == "in_flight" for call in upstream.calls) == 6)
    upstream.behaviour = ORDINARY

    async def full() -> bool:
        said = await asyncio.gather(*(say(guard, key) for _ in range(20)))
        refused = [answer for answer in said if answer.status != 200]
        assert all(answer.code == "authority_unavailable" for answer in refused)
        return len(refused) == len(said)

    await until(full, 120)
    asked = len(upstream.calls)
    assert (await say(guard, key)).status == 503
    assert len(upstream.calls) == asked
    release.set()  # what runs has room for its close
    assert {answer.status for answer in await asyncio.gather(*running)} == {200}
    (small_volume / "filler").unlink()

    async def works() -> bool:
        return (await say(guard, key)).status == 200

    await until(works)
    ledger = await books.balance(guard)
    assert {outcome for _, outcome in ledger.values()} <= {"ok", "not_sent"}


async def test_clocks_that_jump_move_no_window_and_no_lease(
    make_guard: Any, upstream: FakeUpstream, books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard: InProcessGuard = await make_guard(**QUICK, governance=spec(upstream))
    soon = datetime.now(UTC) + timedelta(hours=5)
    key = await guard.key(budget_micro_usd=CAP, expires_at=soon.isoformat())
    upstream.behaviour = ORDINARY
    assert (await say(guard, key)).status == 200
    real = time.time
    for years in (1, -1):  # the wall clock of this machine
        monkeypatch.setattr(time, "time", lambda years=years: real() + years * 31_536_000)
        assert (await say(guard, key)).status == 200
    monkeypatch.undo()
    # The machine was suspended for an hour: every lease has ended, a new incarnation goes on.
    clock = guard.runtime.clock
    since = clock.monotonic
    monkeypatch.setattr(clock, "monotonic", lambda: since() + 3600)

    async def works() -> bool:
        return (await say(guard, key)).status == 200

    await until(works)
    assert guard.runtime.slices.is_live()
    await fill([guard], key)
    await books.balance(guard)
    assert upstream.bill_total <= CAP
    with books.postgres.superuser(books.database) as connection:
        row = connection.execute(
            "SELECT count(*) FROM ledger_all WHERE opened_at NOT BETWEEN"
            " clock_timestamp() - interval '30 minutes' AND clock_timestamp() + interval '1 minute'"
        ).fetchone()
    assert row == (0,)


async def test_a_failover_to_a_standby_loses_nothing(
    settings_of: Any, upstream: FakeUpstream, tmp_path: Path
) -> None:
    with tempfile.TemporaryDirectory(prefix="terrace-pair-") as folder:
        pair = await asyncio.to_thread(Pair, Path(folder))
        proxy = Proxy(pair.primary.port)
        await proxy.start()
        try:
            settings = settings_of(
                **QUICK, governance=spec(upstream),
                database_url_file=url_file(tmp_path, proxy.port, "guarded"),
            )  # fmt: skip
            guard = await InProcessGuard.start(Settings(**settings))
            key = await guard.key(budget_micro_usd=CAP)
            upstream.behaviour = ORDINARY
            assert (await say(guard, key)).status == 200
            release = asyncio.Event()
            upstream.behaviour = Behaviour(**USED, hold=release, hold_after_chunks=2)
            running = asyncio.create_task(say(guard, key, stream=True))
            await until(lambda: any(call.status == "in_flight" for call in upstream.calls))
            await asyncio.to_thread(pair.catch_up)
            old = guard.runtime.membership.last_beat
            await asyncio.to_thread(pair.fail_over)
            proxy.target = pair.standby.port
            proxy.cut()
            release.set()
            assert (await running).text.endswith("data: [DONE]\n\n")
            upstream.behaviour = ORDINARY

            async def works() -> bool:
                said = await say(guard, key)
                return said.status == 200 and "x-terrace-policy" not in said.headers

            assert old is not None

            def failed_over() -> bool:
                new = guard.runtime.membership.last_beat
                return new is not None and new.timeline != old.timeline

            await until(failed_over)
            await until(works)
            await fill([guard], key)
            await Books(pair.standby, "guarded", upstream).balance(guard)
            assert 0.95 * CAP < upstream.bill_total <= CAP
            await guard.stop()
        finally:
            await proxy.stop()
            await asyncio.to_thread(pair.stop)
