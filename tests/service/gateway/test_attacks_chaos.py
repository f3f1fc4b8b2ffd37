"""Everything at once: freezes, kills, restarts and cancels while many calls share one cap."""

import asyncio
import contextlib
import random
import signal
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from gateway_rig.fake_upstream import Behaviour, FakeUpstream
from gateway_rig.guard import CHAT, HELLO, Api, GuardProcess, InProcessGuard, plain_http
from gateway_rig.postgres import Postgres

QUICK = {
    "heartbeat_seconds": 0.2, "lease_seconds": 3, "stream_margin_seconds": 0.5,
    "reaper_seconds": 0.3, "reconcile_grace_seconds": 0,
}  # fmt: skip
HARD_LIMIT_SECONDS = 6
BUDGET = 4000
USED = "SELECT settled + outstanding + sliced FROM counter WHERE dimension = %s AND scope = %s"
OPEN = """SELECT (SELECT count(*) FROM attempt WHERE state = 'open')
    + (SELECT count(*) FROM open_attempt WHERE state = 'open')"""


async def one_call(guard: Api, key: str, dice: random.Random) -> int:
    """A call that is broken off at any moment, or not."""
    stream, patience = dice.random() < 0.5, dice.choice([0.01, 0.05, 0.2, 0.5, 20])
    body = {**HELLO, "stream": stream, "max_tokens": dice.randint(1, 300)}
    headers = {"authorization": f"Bearer {key}"}
    with contextlib.suppress(TimeoutError, httpx.TransportError):
        async with asyncio.timeout(patience), plain_http(timeout=30) as http:
            response = await http.post(guard.public_url + CHAT, json=body, headers=headers)
            return response.status_code
    return 0


async def watch(postgres: Postgres, database: str, over: list[int]) -> None:
    """What is used or held of the budget, whenever it is above it."""
    while True:
        with contextlib.suppress(psycopg.Error), postgres.superuser(database) as connection:
            row = connection.execute(USED, ("micro_usd", "key")).fetchone()
            if row is not None and row[0] > BUDGET:
                over.append(row[0])
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(("seed", "heir"), [(1, "nobody"), (2, "successor")])
async def test_a_cap_holds_and_the_ledger_ends_as_the_bill(  # noqa: PLR0917  fixtures by name
    make_process: Any, upstream: FakeUpstream, postgres: Postgres, database: str,
    governance_text: str, tmp_path: Path, seed: int, heir: str,
) -> None:  # fmt: skip
    dice = random.Random(seed)
    limit = f"hard_stream_limit_seconds: {HARD_LIMIT_SECONDS}"
    quick = {
        **QUICK, "governance": governance_text.replace("hard_stream_limit_seconds: 600", limit)
    }  # fmt: skip
    volumes = [tmp_path / f"volume-{n}" for n in range(3)]
    guards: list[GuardProcess] = [
        await make_process(**quick, replica=f"guard-{n}", spool_directory=volumes[n])
        for n in range(3)
    ]
    key = await guards[0].key(budget_micro_usd=BUDGET)
    upstream.behaviour = Behaviour(chunks=8, delay=0.03, output_tokens=300, input_tokens=90)
    over: list[int] = []
    watcher = asyncio.create_task(watch(postgres, database, over))

    async def fill(guard: GuardProcess) -> None:
        for _ in range(40):
            await asyncio.gather(*(one_call(guard, key, dice) for _ in range(3)))
            await asyncio.sleep(0.02)

    calls = [asyncio.create_task(fill(guard)) for guard in guards]
    await asyncio.sleep(1)
    guards[0].process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(0.5)
    await asyncio.to_thread(postgres.stop, signal.SIGQUIT)
    await asyncio.to_thread(postgres.start)
    await asyncio.sleep(2.5)
    guards[0].process.send_signal(signal.SIGCONT)
    await asyncio.sleep(0.5)
    await guards[1].kill()
    await asyncio.sleep(0.3)
    await asyncio.to_thread(postgres.stop, signal.SIGINT)
    await asyncio.to_thread(postgres.start)
    await asyncio.gather(*calls)
    if heir == "successor":
        await make_process(**quick, replica="guard-1", spool_directory=volumes[1])
    watcher.cancel()
    await asyncio.gather(watcher, return_exceptions=True)
    assert over == []
    assert len(upstream.calls) > 20

    async def ended() -> bool:
        with postgres.superuser(database) as connection:
            row = connection.execute(OPEN).fetchone()
        known = await sums(guards[2])
        return row == (0,) and all(call.attempt_id in known for call in upstream.calls)

    async with asyncio.timeout(120):
        while not await ended() or any(call.status != "final" for call in upstream.calls):
            await asyncio.sleep(0.1)
    costs = await sums(guards[2])
    for call in upstream.calls:
        assert costs[call.attempt_id] >= call.cost
    result = await guards[2].admin("POST", "/reconcile", json={})
    assert (result["still_open"], result["unreachable"]) == (0, [])
    costs = await sums(guards[2])
    assert sum(costs.values()) == upstream.bill_total <= BUDGET
    assert {call.attempt_id: call.cost for call in upstream.calls if call.cost} == {
        attempt: cost for attempt, cost in costs.items() if cost
    }


async def sums(api: Api) -> dict[str, int]:
    costs: dict[str, int] = {}
    for entry in await api.entries():
        costs[entry["attempt_id"]] = costs.get(entry["attempt_id"], 0) + entry["amount_micro_usd"]
    return costs


async def test_many_keys_under_one_team_cap_neither_pass_it_nor_lock_each_other_out(
    make_process: Any, upstream: FakeUpstream, postgres: Postgres, database: str
) -> None:
    guards: list[GuardProcess] = [await make_process(replica=f"guard-{n}") for n in range(2)]
    with postgres.superuser(database) as connection:
        for window, amount in ((0, 60), (60, 1000), (1, None)):
            connection.execute(
                "INSERT INTO cap (scope, scope_id, dimension, window_seconds, amount)"
                " VALUES ('team', 'team-a', 'requests', %s, %s)",
                (window, amount),
            )
    # Who has made a key knows every change before it.
    keys = [await guards[n % 2].new_key(requests_per_minute=1000) for n in range(12)]

    async def revoke(key: dict[str, Any]) -> int:
        await asyncio.sleep(0.1)
        await guards[1].admin("POST", f"/keys/{key['key_id']}/revoke", json={})
        return 401

    async def call(number: int) -> int:
        """As a caller does whose refusal said that others hold what it needs, or that the guard is
        late with its beat."""
        while True:
            response = await guards[number % 2].chat(keys[number % 12]["key"])
            if response.status_code not in {429, 503} or len(upstream.calls) >= 60:
                return response.status_code

    codes = await asyncio.gather(*map(call, range(180)), *(revoke(key) for key in keys[9:]))
    assert codes.count(200) == len(upstream.calls) == 60
    assert set(codes) <= {200, 429, 401, 503}
    for guard in guards:
        await guard.entries()  # what it has spooled is in the ledger now
    with postgres.superuser(database) as connection:
        row = connection.execute(
            "SELECT settled FROM cap_spend() WHERE scope = 'team' AND dimension = 'requests'"
            " AND window_kind = 'lifetime'"
        ).fetchone()
        assert row == (60,)
        deadlocks = connection.execute(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = %s", (database,)
        ).fetchone()
        assert deadlocks == (0,)


async def test_slow_streams_hold_no_database_connection_and_stop_no_other_model(
    make_guard: Any, upstream: FakeUpstream
) -> None:
    guard: InProcessGuard = await make_guard(database_pool_size=2)
    key = await guard.key()
    release = asyncio.Event()
    upstream.behaviour = Behaviour(hold=release, hold_after_chunks=1)
    slow = [asyncio.create_task(guard.chat(key, stream=True)) for _ in range(64)]
    async with asyncio.timeout(60):
        while len(upstream.calls) < 64:
            await asyncio.sleep(0.05)
    upstream.behaviour = Behaviour()
    answers = await asyncio.gather(*(guard.chat(key, model="sim-large") for _ in range(20)))
    assert {answer.status_code for answer in answers} == {200}
    assert not any(call.done() for call in slow)
    assert (await guard.admin("GET", "/spend"))["outstanding_micro_usd"] > 0
    release.set()
    assert {(await call).status_code for call in slow} == {200}
