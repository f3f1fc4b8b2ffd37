"""Proof 2: kill -9 of a guard at every crash point while calls run, then a start on its volume.

Replicas die side by side on one database and one pair of caps. The provider keeps its own books:
every attempt that it billed has one closing entry, never below the bill; after ``reconcile`` they
are equal; no cap was passed; what the dead held came back.
"""

import asyncio
import contextlib
import random
import re
import shutil
import signal
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_rig.crash_guard import CrashGuard
from gateway_rig.fake_upstream import Behaviour, Call, FakeUpstream
from gateway_rig.guard import guard_settings
from gateway_rig.postgres import Postgres
from gateway_rig.proofs import Books, fill, say, spec, until

import terrace_gateway

PACKAGE = Path(terrace_gateway.__file__).parent
ROOMS = ("anchor", "calls", "journal", "membership", "reaper", "reconcile", "recovery", "shipper",
         "slices", "spool")  # fmt: skip
LANES = 3
CALLERS = 4
LARGEST = 210  # micro-USD: a reservation at the spare provider
TIGHT = 45 * LARGEST
SIGNING_KEY = "5e" * 32
OFTEN = ("calls", "spool.before-open-room", "spool.before-write", "spool.after-write",
         "spool.after-sync", "journal", "shipper.before-ship", "shipper.after-ship")  # fmt: skip
LEAVING = ("slices.before-return", "slices.after-return")
"""Reached for sure when a guard leaves in order."""
IN_ORDER = ("reaper.before-give-up", "reaper.after-give-up", "reconcile.before-apply",
            "reconcile.after-apply")  # fmt: skip
"""One decides what the next would look for: not side by side."""


def crash_points() -> list[str]:
    """All names in the code of rooms that money goes through."""
    found = {
        name
        for path in PACKAGE.rglob("*.py")
        for name in re.findall(r'reach\("([^"]+)"\)', path.read_text())
    }
    return sorted(name for name in found if name.split(".")[0] in ROOMS)


def plan_for(call: Call) -> Behaviour:
    """Both providers answer; the main one also refuses, dies and breaks off; some calls last."""
    if call.model == "sim-small":
        if call.seq % 4 == 0:
            return Behaviour(status=503)
        if call.seq % 9 == 0:
            return Behaviour(input_tokens=60, output_tokens=100, die_before_answer=True)
        if call.seq % 13 == 0:
            return Behaviour(input_tokens=60, output_tokens=100, chunks=4, die_after_chunks=2)
    slow = 0.15 if call.seq % 5 == 0 else 0.005
    return Behaviour(input_tokens=60, output_tokens=100, chunks=3, delay=slow)


@dataclass
class Site:
    """What all replicas share."""

    folder: Path
    settings: dict[str, Any]
    upstream: FakeUpstream
    keys: list[str] = field(default_factory=list[str])
    killed: list[str] = field(default_factory=list[str])

    def start(self, replica: str, crash_at: str | None, **more: Any) -> CrashGuard:
        values = {
            **self.settings, "replica": replica, "spool_directory": self.folder / replica, **more,
        }  # fmt: skip
        return CrashGuard.start(values, self.folder / f"{replica}.log", crash_at)


async def call_until_dead(site: Site, guard: CrashGuard, number: int) -> None:
    turn = number
    while not guard.dead:
        turn += 1
        key = site.keys[turn % len(site.keys)]
        try:
            said = await say(guard, key, stream=turn % 3 != 0)
        except (httpx.TransportError, RuntimeError):  # dead, or its client is closed
            await asyncio.sleep(0.02)
            continue
        if said.status != 200:
            await asyncio.sleep(0.05)


async def reconcile_until_dead(guard: CrashGuard) -> None:
    while not guard.dead:
        with contextlib.suppress(httpx.TransportError, AssertionError):
            await guard.admin("POST", "/reconcile", json={})
        await asyncio.sleep(0.2)


async def kill_at(site: Site, replica: str, point: str, times: int) -> None:
    """One process from its start to its death at this point, under load."""
    more = {"reaper_seconds": 0.2} if point.startswith("reaper.") else {}
    guard = site.start(replica, f"{point}:{times}", **more)
    await guard.ready_or_dead()
    work = [asyncio.create_task(call_until_dead(site, guard, n)) for n in range(CALLERS)]
    if point.startswith("reconcile."):
        work.append(asyncio.create_task(reconcile_until_dead(guard)))
    if point in LEAVING:
        await asyncio.sleep(0.5)
        guard.process.terminate()
    try:
        code = await guard.end()
    except TimeoutError:
        pytest.fail(f"{point} was not reached")
    await asyncio.gather(*work)
    assert code == -signal.SIGKILL, (point, code)
    site.killed.append(point)


async def lose_a_volume(site: Site, books: Books) -> None:
    """A replica that is killed with calls open, and whose spool is gone for good."""
    guard = site.start("lost", None)
    await guard.ready_or_dead()
    held = asyncio.Event()

    def is_ours(call: Call) -> bool:
        return (call.body.get("max_completion_tokens") or call.body["max_tokens"]) == 90

    def hold_them(call: Call) -> Behaviour:
        if not is_ours(call):
            return plan_for(call)
        return Behaviour(chunks=4, hold=held, hold_after_chunks=1)

    site.upstream.plan_for = hold_them
    say_one = partial(say, guard, site.keys[0], stream=True, max_tokens=90)
    calls = [asyncio.create_task(say_one()) for _ in range(3)]

    def are_shipped() -> bool:
        """Also those that a slow machine made fall back: else nobody would know the second one."""
        with books.postgres.superuser(books.database) as connection:
            rows = connection.execute(
                "SELECT attempt_id, o.state FROM open_attempt o"
                " JOIN incarnation USING (incarnation_id) WHERE replica = 'lost'"
            ).fetchall()
        sent = {call.attempt_id for call in books.upstream.calls if is_ours(call)}
        return sent <= dict(rows).keys() and [state for _, state in rows].count("open") == 3

    await until(are_shipped)
    guard.process.kill()
    await guard.end()
    held.set()
    await asyncio.gather(*calls, return_exceptions=True)
    shutil.rmtree(site.folder / "lost")


@pytest.fixture
def site(tmp_path: Path, postgres: Postgres, database: str, upstream: FakeUpstream) -> Site:
    governance = spec(upstream).replace("hard_stream_limit_seconds: 60",
                                        "hard_stream_limit_seconds: 6")  # fmt: skip
    settings = guard_settings(
        tmp_path, upstream, database_url=postgres.url(database), governance=governance
    )
    signing = tmp_path / "signing-key"
    signing.write_text(SIGNING_KEY)
    return Site(
        tmp_path,
        {
            **settings, "heartbeat_seconds": 0.2, "lease_seconds": 5, "reaper_seconds": 600,
            "stream_margin_seconds": 0.2, "reconcile_grace_seconds": 0, "anchor_seconds": 0.3,
            "anchor_location": tmp_path / "anchors", "ledger_signing_key_file": signing,
            "spool_segment_bytes": 16 * 1024,
        },
        upstream,
    )  # fmt: skip


def row_of(books: Books, query: str) -> tuple[Any, ...]:
    with books.postgres.superuser(books.database) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row


def bill_of(books: Books, key_id: str) -> int:
    with books.postgres.superuser(books.database) as connection:
        rows = connection.execute(
            "SELECT DISTINCT attempt_id FROM ledger_all WHERE key_id = %s", (key_id,)
        ).fetchall()
    return sum(books.upstream.billed(row[0]) for row in rows)


async def all_known(site: Site, books: Books) -> None:
    """Wait until each billed attempt is in the ledger; says where traces of the others are."""
    missing: dict[str, Any] = {}
    for _ in range(1800):
        known = books.ledger()
        missing = {a: cost for a, cost in books.billed().items() if a not in known}
        if not missing:
            return
        await asyncio.sleep(0.1)
    with books.postgres.superuser(books.database) as connection:
        opened = connection.execute(
            "SELECT o, i.replica, i.lease_until, i.closed_at, clock_timestamp()"
            " FROM open_attempt o LEFT JOIN incarnation i USING (incarnation_id)"
            " WHERE attempt_id = ANY (%s)",
            (list(missing),),
        ).fetchall()
    calls = [call for call in books.upstream.calls if call.attempt_id in missing]
    files = [
        (attempt, str(path))
        for path in site.folder.rglob("*")
        for attempt in missing
        if path.is_file() and attempt.encode() in path.read_bytes()
    ]
    pytest.fail(f"billed, and in no ledger: {calls} {opened} {files}")


def assert_closed_once(books: Books) -> None:
    """One closing entry that counts per attempt that was billed."""
    with books.postgres.superuser(books.database) as connection:
        closes = dict(
            connection.execute(
                "SELECT attempt_id, count(*) FROM ledger_entry"
                " WHERE kind IN ('attempt', 'unknown') AND NOT late GROUP BY 1"
            ).fetchall()
        )
    assert {closes.get(attempt) for attempt in books.billed()} == {1}


async def test_kills_at_every_point_of_a_whole_guard(
    site: Site, postgres: Postgres, database: str, upstream: FakeUpstream
) -> None:
    books = Books(postgres, database, upstream)
    upstream.plan_for = plan_for
    first = site.start("minting", None)
    await first.ready_or_dead()
    minted = [await first.new_key(), await first.new_key(name="t", budget_micro_usd=TIGHT)]
    site.keys = [key["key"] for key in minted]
    first.process.terminate()
    assert await first.end() == 0

    points = crash_points()
    assert len(points) >= 20
    chance = random.Random(2)
    chance.shuffle(points)

    async def lane(number: int, names: list[str]) -> None:
        for name in names:
            # A recovery needs something that a dead process left open.
            if name.startswith("recovery."):
                await kill_at(site, f"replica-{number}", "calls.before-close", 3)
            times = chance.choice([1, 2, 5]) if name.startswith(OFTEN) else 1
            await kill_at(site, f"replica-{number}", name, times)

    free = [name for name in points if name not in IN_ORDER]
    lanes = [free[number::LANES] for number in range(LANES)]
    lanes[-1] += IN_ORDER
    async with asyncio.TaskGroup() as group:
        group.create_task(lose_a_volume(site, books))
        for number, names in enumerate(lanes):
            group.create_task(lane(number, names))
    assert set(points) == set(site.killed)

    guards = [site.start(f"replica-{n}", None, reaper_seconds=0.5) for n in range(LANES)]
    for guard in guards:
        await guard.ready_or_dead()
    await all_known(site, books)
    ledger = await books.balance(guards[0])
    assert {"ok", "unknown"} <= {outcome for _, outcome in ledger.values()}
    assert_closed_once(books)
    # The dead are closed and hold nothing; one that had not begun to act never held anything.
    unclosed = row_of(
        books,
        "SELECT count(*) FROM incarnation i WHERE closed_at IS NULL AND replica <> 'lost'"
        " AND EXISTS (SELECT FROM slice s WHERE s.incarnation_id = i.incarnation_id)"
        " AND incarnation_id NOT IN (SELECT max(incarnation_id) FROM incarnation GROUP BY replica)",
    )
    assert unclosed == (0,)
    # What they held can be used: the tight cap fills up, and is not passed.
    upstream.plan_for = None
    upstream.behaviour = Behaviour(input_tokens=60, output_tokens=100)
    await fill(guards, minted[1]["key"])
    await books.balance(guards[0])
    assert 0.95 * TIGHT < bill_of(books, minted[1]["key_id"]) <= TIGHT
    assert books.counted("key", minted[1]["key_id"]) <= TIGHT
    await guards[0].admin("POST", "/audit/anchor")
    verified = await guards[0].admin("POST", "/audit/verify", json={})
    assert (verified["findings"], verified["whole"]) == ([], True)
    assert (verified["chains"] > len(points), verified["unsigned_anchors"]) == (True, 0)
    for guard in guards:
        guard.process.terminate()
        assert await guard.end() == 0
    assert bill_of(books, minted[1]["key_id"]) == books.counted("key", minted[1]["key_id"])
    assert not list(site.folder.glob("replica-*/**/*.spool"))
    assert not list(site.folder.rglob("dead-letters.jsonl"))


async def test_a_guard_that_leaves_begins_nothing_new(site: Site, postgres: Postgres) -> None:
    """However quick its beats are while it goes."""
    guard = site.start("leaving", None, heartbeat_seconds=0.01)
    await guard.ready_or_dead()
    key = await guard.key()
    assert (await say(guard, key)).status == 200
    guard.process.terminate()
    assert await guard.end() == 0
    name = str(site.settings["database_url_file"].read_text().rpartition("/")[2])
    unclosed = row_of(
        Books(postgres, name, site.upstream),
        "SELECT count(*) FROM incarnation WHERE closed_at IS NULL",
    )
    assert unclosed == (0,)
    assert not list((site.folder / "leaving").rglob("*.spool"))
