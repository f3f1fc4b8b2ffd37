"""The replica's own volume fails or falls silent beside calls: caps hold, and nobody is lied to."""

import asyncio
import secrets
import shutil
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from gateway_rig.fake_upstream import Behaviour, FakeUpstream
from gateway_rig.guard import Api, InProcessGuard
from gateway_rig.journal_records import CALLER
from gateway_rig.ledger_rig import open_database
from gateway_rig.postgres import Postgres
from gateway_rig.proofs import until
from gateway_rig.slices import Replica, SliceRig, slice_rig
from opentelemetry.trace import INVALID_SPAN, NoOpTracer
from structlog.testing import capture_logs

from terrace_gateway.calls.attempt import Attempts, Exchange, Target
from terrace_gateway.calls.ports import Amounts, Cap, CapRefusal, SpoolFullError
from terrace_gateway.ledger.shipper import Shipper
from terrace_gateway.metrics import Metrics
from terrace_gateway.prices import FixedQuote
from terrace_gateway.runtime import Runtime
from terrace_gateway.spool import group_commit
from terrace_gateway.spool.group_commit import SpoolBrokenError
from terrace_gateway.spool.journal import SpoolJournal
from terrace_gateway.spool.syncing import Synced, Syncer, best_syncer

INPUT_OUTPUT_ERROR = OSError(5, "Input/output error")


class Disk(Syncer):
    """A real syncer that can be told to fail, or to say nothing."""

    def __init__(self, real: Syncer) -> None:
        self._real = real
        self.error: OSError | None = None
        self.silent = False
        self.unanswered = 0

    def sync(self, fd: int, synced: Synced) -> None:
        error = self.error
        if self.silent:
            self.unanswered += 1
        else:
            self._real.sync(fd, synced if error is None else lambda _: synced(error))

    def close(self) -> None:
        self._real.close()


class Opener:
    """Attempts of a replica of the slices' rig, on a journal with a disk of the test."""

    def __init__(self, replica: Replica, folder: Path, **options: int) -> None:
        self.disk: Disk | None = None

        def made(loop: asyncio.AbstractEventLoop, executor: Executor, probe: int) -> Syncer:
            self.disk = Disk(best_syncer(loop, executor, probe))
            return self.disk

        self.journal = SpoolJournal(
            folder, replica=replica.name, clock=replica.clock, make_syncer=made, **options
        )
        self.journal.start()
        parts = SimpleNamespace(
            slices=replica.book, journal=self.journal, clock=replica.clock,
            metrics=Metrics(replica=replica.name, version="0"),
            telemetry=SimpleNamespace(tracer=NoOpTracer()),
        )  # fmt: skip
        self._attempts = Attempts(cast("Runtime", parts))

    async def open(self, cap: Cap, money: int) -> None:
        principal = cast("Any", SimpleNamespace(caller=CALLER))
        await self._attempts.open(
            f"att_{secrets.token_hex(8)}",
            Exchange("req", "trace", principal, "chat", 1, INVALID_SPAN),
            Target("m", "m", "p", FixedQuote("v")),
            caps=[cap], reserved=Amounts(0, 0, money), hard_limit_seconds=60,
        )  # fmt: skip


async def ship_what_a_start_finds(rig: SliceRig, replica: Replica, folder: Path) -> int:
    """Returns how many attempts it found open."""
    journal = SpoolJournal(folder, replica=replica.name, clock=replica.clock)
    journal.start()
    async with open_database(rig.url) as database:
        shipper = Shipper(journal, database, replica=replica.name, dead_letters=folder)
        shipping = asyncio.create_task(shipper.run())
        assert await shipper.drain(30)
        shipping.cancel()
        await asyncio.wait([shipping])
    await journal.stop()
    return journal.recovery.abandoned


async def test_an_open_that_may_be_on_the_disk_keeps_its_reservation(
    postgres: Postgres, tmp_path: Path
) -> None:
    """Until its guard has ended others ask for what it has, and the next start counts it."""
    async with slice_rig(postgres) as rig:
        cap = rig.cap(1000)
        a, b = await rig.replica(), await rig.replica()
        opener = Opener(a, tmp_path)
        await opener.journal.act_for(a.book.incarnation)
        assert opener.disk is not None
        opener.disk.error = INPUT_OUTPUT_ERROR
        with pytest.raises(SpoolBrokenError):
            await opener.open(cap, 600)
        assert isinstance(await b.reserve([cap], money=900), CapRefusal)
        b.keep(await b.must_reserve([cap], money=400))
        await b.ship()
        await a.freeze()
        await opener.journal.stop()
        assert await ship_what_a_start_finds(rig, a, tmp_path) == 1
        assert rig.counted(cap) == 1000
        assert a.book.running(a.book.incarnation) == 0


async def test_an_open_that_was_refused_for_want_of_room_holds_nothing(
    postgres: Postgres, tmp_path: Path
) -> None:
    async with slice_rig(postgres) as rig:
        cap = rig.cap(1000)
        a = await rig.replica()
        opener = Opener(a, tmp_path, limit_bytes=0)
        with pytest.raises(SpoolFullError):
            await opener.open(cap, 600)
        a.keep(await a.must_reserve([cap], money=1000))
        await opener.journal.stop()


def disk_of(guard: InProcessGuard) -> Disk:
    """From now on the guard's disk does what the test says."""
    commits = guard.runtime.journal._commits
    assert commits is not None
    commits._syncer = disk = Disk(commits._syncer)
    return disk


def counted(guard: InProcessGuard, name: str, **labels: str) -> float:
    value = guard.runtime.metrics.registry.get_sample_value(name, labels)
    return 0.0 if value is None else value


def copied_volume(guard: InProcessGuard) -> Path:
    """For a next start of the replica."""
    folder = guard.runtime.settings.spool_directory
    copy = folder.with_name(f"{folder.name}-copy")
    shutil.copytree(folder, copy)
    return copy


@pytest.mark.parametrize("stream", [False, True])
async def test_who_was_answered_by_the_provider_does_not_hear_that_nothing_was_sent(
    guard: InProcessGuard, make_guard: Callable[..., Any], upstream: FakeUpstream, stream: bool
) -> None:
    """The spool breaks while the call runs. It is told, counted and kept as what it is."""
    key = await guard.key()
    upstream.behaviour = Behaviour(hold=asyncio.Event(), hold_after_chunks=1)
    calling = asyncio.create_task(guard.chat(key, stream=stream))
    await until(lambda: bool(upstream.calls))
    volume = copied_volume(guard)  # at worst a sync that failed leaves what was durable before
    disk_of(guard).error = INPUT_OUTPUT_ERROR
    with capture_logs() as logs:
        assert upstream.behaviour.hold is not None
        upstream.behaviour.hold.set()
        answer = await calling
    assert answer.status_code == (200 if stream else 500)
    assert "the call was sent and may have been billed" in answer.text
    assert "nothing was sent" not in answer.text
    assert "[DONE]" not in answer.text
    (lost,) = [line for line in logs if line["event"] == "attempt_not_recorded"]
    (closed,) = [line for line in logs if line["event"] == "attempt_closed"]
    assert (lost["outcome"], lost["amount_micro_usd"]) == ("ok", upstream.bill_total)
    reserved = lost["reserved_micro_usd"]
    assert (closed["outcome"], closed["amount_micro_usd"]) == ("unknown", reserved)
    of_it = {"surface": "chat", "model": "sim-small"}
    assert counted(guard, "terrace_requests_total", **of_it, outcome="ok") == 0
    assert counted(guard, "terrace_requests_total", **of_it, outcome="unknown") == 1
    assert counted(guard, "terrace_cost_micro_usd_total", model="sim-small") == reserved
    again: Api = await make_guard(spool_directory=volume)
    (entry,) = [one for one in await again.entries() if one["kind"] != "decision"]
    assert (entry["kind"], entry["outcome"]) == ("unknown", "unknown")
    assert entry["amount_micro_usd"] == reserved


async def test_a_call_that_was_not_sent_says_so_on_a_broken_spool_too(
    guard: InProcessGuard, upstream: FakeUpstream
) -> None:
    key = await guard.key()
    disk_of(guard).error = INPUT_OUTPUT_ERROR
    answer = await guard.chat(key)
    assert (answer.status_code, upstream.calls) == (503, [])
    assert "nothing was sent to sim-small" in answer.json()["error"]["message"]


async def test_a_volume_that_falls_silent_lets_nobody_wait_for_ever(
    guard: InProcessGuard, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the process can end: the fixture's close would wait for the volume else."""
    key = await guard.key()
    assert (await guard.chat(key)).status_code == 200
    monkeypatch.setattr(group_commit, "LAST_LOOKS", 10**9)
    monkeypatch.setattr(group_commit, "LOOK_SECONDS", 0.01)
    disk_of(guard).silent = True
    calls = [asyncio.create_task(guard.chat(key)) for _ in range(3)]
    ready = guard.public_url + "/readyz"

    async def says(status: int) -> None:
        async with asyncio.timeout(60):
            while (await guard.http.get(ready)).status_code != status:
                await asyncio.sleep(0.01)

    await says(503)
    assert (await guard.http.get(ready)).json()["spool"] is False
    assert guard.runtime.failed() is None
    assert not any(call.done() for call in calls)
    monkeypatch.setattr(group_commit, "LAST_LOOKS", 1)
    async with asyncio.timeout(60):
        answers = await asyncio.gather(*calls)
        assert [answer.status_code for answer in answers] == [503] * 3
        assert "nothing was sent to sim-small" in answers[0].text
        assert (await guard.chat(key)).status_code == 503
    assert "the volume does not answer" in str(guard.runtime.failed())
    assert len(upstream.calls) == 1


async def test_a_guard_that_ends_on_a_silent_volume_ends(
    make_guard: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its seal waits until the volume is given up, and is no error of its end."""
    monkeypatch.setattr(group_commit, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(group_commit, "LAST_LOOKS", 10**9)
    guard: InProcessGuard = await make_guard()
    key = await guard.key()
    assert (await guard.chat(key)).status_code == 200
    disk = disk_of(guard)
    disk.silent = True
    calling = asyncio.create_task(guard.chat(key))
    await until(lambda: disk.unanswered)
    monkeypatch.setattr(group_commit, "LAST_LOOKS", 1)
    async with asyncio.timeout(60):
        assert await guard.runtime._leave() is False
        assert (await calling).status_code == 503
    assert guard.runtime.journal.broken is not None
