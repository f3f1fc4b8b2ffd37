"""A cap is a cap: under concurrency, over several guards, at every moment."""

import asyncio
from collections import Counter
from typing import Any

import psycopg
import pytest
from gateway_rig.fake_upstream import Behaviour, FakeUpstream
from gateway_rig.guard import Api, InProcessGuard
from gateway_rig.postgres import Postgres
from gateway_rig.proofs import fill

CALLERS = 50
CAP = 20


async def codes(calls: list[Any]) -> Counter[str]:
    responses = await asyncio.gather(*calls)
    return Counter(
        "ok" if r.status_code == 200 else f"{r.status_code} {r.json()['error']['code']}"
        for r in responses
    )


async def test_fifty_callers_on_a_cap_for_twenty_calls(
    guard: InProcessGuard, upstream: FakeUpstream
) -> None:
    upstream.behaviour = Behaviour(delay=0.02)
    key = await guard.key(max_requests=CAP)
    seen = await codes([guard.chat(key, stream=n % 2 == 0) for n in range(CALLERS)])
    assert seen == {"ok": CAP, "429 budget_exhausted": CALLERS - CAP}
    assert len(upstream.calls) == CAP
    assert len(await guard.entries()) == CAP


async def test_two_guard_processes_share_one_cap(make_process: Any, upstream: FakeUpstream) -> None:
    guards: list[Api] = [await make_process(replica=f"guard-{n}") for n in range(2)]
    upstream.behaviour = Behaviour(delay=0.02)
    key = await guards[0].key(max_requests=CAP)
    first = [await guard.chat(key) for guard in guards]
    assert [answer.status_code for answer in first] == [200, 200]
    seen = await codes([guards[n % 2].chat(key) for n in range(CALLERS)])
    assert set(seen) <= {"ok", "429 budget_exhausted", "503 authority_unavailable"}
    assert 0 < seen["ok"] <= CAP - 2
    # A replica that is slow to give back what it does not need makes the other one refuse.
    assert 2 + seen["ok"] + await fill(guards, key, max_tokens=10) == CAP
    assert len(upstream.calls) == CAP
    assert {entry["replica"] for entry in await all_entries(guards, CAP)} == {"guard-0", "guard-1"}


async def all_entries(guards: list[Api], count: int) -> list[dict[str, Any]]:
    """Once what each of them has spooled is in the ledger."""
    async with asyncio.timeout(60):
        while len(entries := await guards[0].entries()) < count:
            await asyncio.sleep(0.05)
    return entries


async def test_money_never_passes_the_cap_at_any_moment(
    make_guard: Any, upstream: FakeUpstream, postgres: Postgres, database: str
) -> None:
    guards: list[InProcessGuard] = [await make_guard(), await make_guard()]
    cap = 1500
    key = await guards[0].key(budget_micro_usd=cap)
    upstream.behaviour = Behaviour(input_tokens=40, output_tokens=90, delay=0.01)
    samples: list[int] = []
    done = asyncio.Event()

    async def sample() -> None:
        connection = await psycopg.AsyncConnection.connect(
            host="127.0.0.1", port=postgres.port, user="postgres", dbname=database, autocommit=True
        )
        async with connection:
            while not done.is_set():
                row = await (
                    await connection.execute(
                        "SELECT coalesce(max(settled + outstanding + sliced), 0) FROM counter"
                        " WHERE dimension = 'micro_usd'"
                    )
                ).fetchone()
                assert row is not None
                samples.append(row[0])
                await asyncio.sleep(0.002)

    sampler = asyncio.create_task(sample())
    seen = await codes([guards[n % 2].chat(key, stream=n % 3 == 0) for n in range(80)])
    # Reservations free room for more calls; ask again until not one fits any more.
    while (await codes([guards[n % 2].chat(key) for n in range(10)]))["ok"]:
        pass
    done.set()
    await sampler
    assert seen["ok"] > 0
    assert seen["429 budget_exhausted"] > 0
    assert 0 < max(samples) <= cap
    assert upstream.bill_total <= cap
    spend = await guards[0].admin("GET", "/spend?by=key")
    assert spend["total_micro_usd"] == upstream.bill_total
    assert cap - upstream.bill_total < 200  # nothing leaked: less than one worst case is left


async def test_requests_per_minute_say_when_to_come_back(
    guard: InProcessGuard, upstream: FakeUpstream, postgres: Postgres, database: str
) -> None:
    key = await guard.key(requests_per_minute=3)
    responses = await asyncio.gather(*(guard.chat(key) for _ in range(12)))
    refused = [r for r in responses if r.status_code == 429]
    with postgres.superuser(database) as connection:
        minutes = connection.execute(
            "SELECT DISTINCT window_start FROM counter WHERE window_seconds = 60"
        ).fetchall()
    if len(minutes) == 1:
        assert len(upstream.calls) == 3
    else:  # a minute ended just then
        assert (len(minutes), 3 <= len(upstream.calls) <= 6) == (2, True)
    assert len(responses) - len(refused) == len(upstream.calls)
    assert {r.json()["error"]["code"] for r in refused} == {"rate_limited"}
    assert all(1 <= int(r.headers["retry-after"]) <= 60 for r in refused)
    with postgres.superuser(database) as connection:  # the minute passes
        connection.execute(
            "UPDATE counter SET window_start = window_start - interval '1 hour'"
            " WHERE window_seconds = 60"
        )
    assert (await guard.chat(key)).status_code == 200


async def test_a_refusal_moves_no_counter(
    guard: InProcessGuard, upstream: FakeUpstream, postgres: Postgres, database: str
) -> None:
    key = await guard.key(budget_micro_usd=1, max_requests=5, requests_per_minute=5)
    response = await guard.chat(key)
    assert response.json()["error"]["code"] == "budget_exhausted"
    assert response.headers["x-should-retry"] == "false"
    assert "; 0.000001 USD of the key's budget is left" in response.json()["error"]["message"]
    assert upstream.calls == []
    with postgres.superuser(database) as connection:
        rows = connection.execute("SELECT settled + outstanding + sliced FROM counter").fetchall()
        assert {row[0] for row in rows} <= {0}
        assert connection.execute("SELECT count(*) FROM open_attempt").fetchone() == (0,)


@pytest.mark.parametrize("team_cap", [4])
async def test_a_team_cap_holds_over_its_keys(
    guard: InProcessGuard, upstream: FakeUpstream, postgres: Postgres, database: str, team_cap: int
) -> None:
    keys = [await guard.key(team="team-b") for _ in range(3)]
    with postgres.superuser(database) as connection:
        connection.execute(
            "INSERT INTO cap (scope, scope_id, dimension, window_seconds, amount)"
            " VALUES ('team', 'team-b', 'requests', 0, %s)",
            (team_cap,),
        )
    await guard.runtime.policy.refresh()
    seen = await codes([guard.chat(keys[n % 3]) for n in range(15)])
    assert seen == {"ok": team_cap, "429 budget_exhausted": 15 - team_cap}
    assert len(upstream.calls) == team_cap
