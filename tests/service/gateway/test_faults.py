"""Kills and outages: nothing is lost, nothing passes a cap, and it comes back by itself."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_rig.fake_upstream import Behaviour, FakeUpstream
from gateway_rig.guard import CHAT, HELLO, Api, GuardProcess, InProcessGuard, plain_http
from gateway_rig.postgres import Postgres

QUICK = {
    "heartbeat_seconds": 0.2,
    "lease_seconds": 3,
    "stream_margin_seconds": 0.5,
    "reaper_seconds": 0.3,
    "reconcile_grace_seconds": 0,
}


HARD_LIMIT_SECONDS = 8


def with_hard_limit(governance: str, seconds: int = HARD_LIMIT_SECONDS) -> str:
    """Attempts of a lost guard are given up after it."""
    text = f"hard_stream_limit_seconds: {seconds}"
    assert "hard_stream_limit_seconds: 600" in governance
    return governance.replace("hard_stream_limit_seconds: 600", text)


async def until(condition: Any, seconds: float = 60) -> Any:
    async with asyncio.timeout(seconds):
        while True:
            result = condition()
            if asyncio.iscoroutine(result):
                result = await result
            if result:
                return result
            await asyncio.sleep(0.05)


def stream_call(guard: Api, key: str) -> "asyncio.Task[str]":
    async def call() -> str:
        headers = {"authorization": f"Bearer {key}"}
        text = ""
        body = {**HELLO, "stream": True}
        try:
            async with (
                plain_http(timeout=60) as http,
                http.stream(
                    "POST", guard.public_url + CHAT, json=body, headers=headers
                ) as response,
            ):
                async for part in response.aiter_text():
                    text += part
        except httpx.RemoteProtocolError:
            text += "[broken]"
        return text

    return asyncio.create_task(call())


def opened(postgres: Postgres, database: str) -> int:
    """Attempts that the database knows of and that have no end yet."""
    with postgres.superuser(database) as connection:
        row = connection.execute("SELECT count(*) FROM open_attempt WHERE state = 'open'")
        return row.fetchall()[0][0]


def held(postgres: Postgres, database: str) -> int:
    """What counts against the budget of the only key."""
    with postgres.superuser(database) as connection:
        row = connection.execute(
            "SELECT settled + outstanding FROM cap_spend()"
            " WHERE scope = 'key' AND dimension = 'micro_usd'"
        )
        return row.fetchall()[0][0]


@pytest.mark.parametrize("heir", ["nobody", "successor"])
async def test_kill_9_in_a_stream_then_reaper_or_successor_then_reconcile(  # noqa: PLR0917
    make_process: Any, upstream: FakeUpstream, postgres: Postgres, database: str,
    governance_text: str, tmp_path: Path, heir: str,
) -> None:  # fmt: skip
    """With nobody in its place the attempts are given up after their hard limit; the next process
    on the same volume closes them at once."""
    alone = heir == "nobody"
    quick: dict[str, Any] = {**QUICK}
    if alone:
        quick["governance"] = with_hard_limit(governance_text)
    volume = {"replica": "victim", "spool_directory": tmp_path / "volume"}
    victim: GuardProcess = await make_process(**quick, **volume)
    other: GuardProcess = await make_process(**quick, replica="other")
    key = await other.key(budget_micro_usd=10_000)
    release = asyncio.Event()
    upstream.behaviour = Behaviour(chunks=6, hold=release, hold_after_chunks=3, output_tokens=60)
    calls = [stream_call(victim, key) for _ in range(3)]
    await until(lambda: sum(call.output_tokens > 0 for call in upstream.calls) == 3)
    if alone:  # what only the volume knows, only a process on the volume can tell
        await until(lambda: opened(postgres, database) == 3)
    await victim.kill()
    texts = await asyncio.gather(*calls)
    assert all(text.endswith("[broken]") for text in texts)
    # While nobody knows, the reservations count.
    assert held(postgres, database) >= upstream.bill_total
    assert await other.entries() == []
    if alone:
        spend = await other.admin("GET", "/spend?by=key")
        assert spend["outstanding_micro_usd"] >= upstream.bill_total
    else:
        await make_process(**quick, **volume)
    entries = await until(lambda: full(other, 3))
    assert {(e["kind"], e["outcome"], e["replica"]) for e in entries} == {
        ("unknown", "unknown", "other" if alone else "victim")
    }
    assert all(e["amount_micro_usd"] == e["reserved_micro_usd"] for e in entries)
    early = await other.admin("POST", "/reconcile", json={})
    assert early["still_open"] == 3  # the provider is still at it
    release.set()
    await until(lambda: all(call.status == "final" for call in upstream.calls))
    result = await other.admin("POST", "/reconcile", json={})
    assert (result["trued_up"], result["still_open"]) == (3, 0)
    for call in upstream.calls:
        assert await other.cost(call.attempt_id) == upstream.billed(call.attempt_id)
    spend = await other.admin("GET", "/spend?by=key")
    assert spend["total_micro_usd"] == upstream.bill_total
    assert spend["rows"][0]["output_tokens"] == sum(c.output_tokens for c in upstream.calls)

    before = await other.entries()
    again = await other.admin("POST", "/reconcile", json={})
    assert (again["trued_up"], again["not_billed"], again["still_open"]) == (0, 0, 0)
    assert await other.entries() == before


async def full(api: Api, count: int) -> list[dict[str, Any]] | None:
    entries = await api.entries()
    return entries if len(entries) >= count else None


async def test_a_frozen_guard_is_given_up_and_charged_once(
    make_process: Any, upstream: FakeUpstream, postgres: Postgres, database: str,
    governance_text: str,
) -> None:  # fmt: skip
    # It reaps without a pause, so that the freeze catches it in the middle: what it holds in the
    # database then must keep nobody else from reaping.
    quick = {**QUICK, "governance": with_hard_limit(governance_text)}
    frozen: GuardProcess = await make_process(
        **{**quick, "reaper_seconds": 0.001}, replica="frozen"
    )
    other: GuardProcess = await make_process(**quick, replica="other")
    key = await other.key(budget_micro_usd=10_000)
    release = asyncio.Event()
    upstream.behaviour = Behaviour(hold=release)
    call = asyncio.create_task(frozen.chat(key))
    await until(lambda: len(upstream.calls) == 1 == opened(postgres, database))
    frozen.process.send_signal(signal.SIGSTOP)
    [entry] = await until(lambda: full(other, 1))
    assert (entry["kind"], entry["replica"]) == ("unknown", "other")
    release.set()
    frozen.process.send_signal(signal.SIGCONT)
    # Its own limit is over as well. Whether it still hears the answer or not, nothing is charged
    # twice, and the provider's log decides.
    assert (await call).status_code in {200, 504}
    await until(lambda: serves(frozen, key))
    first = [e for e in await other.entries() if e["attempt_id"] == entry["attempt_id"]]
    assert [e["kind"] for e in first] in (["unknown"], ["unknown", "correction"])
    assert sum(e["amount_micro_usd"] for e in first) in {
        entry["reserved_micro_usd"], upstream.billed(entry["attempt_id"])
    }  # fmt: skip
    await frozen.entries()  # what it has spooled is in the ledger now
    assert (await other.admin("POST", "/reconcile", json={}))["still_open"] == 0
    assert sum(e["amount_micro_usd"] for e in await other.entries()) == upstream.bill_total


async def serves(guard: Api, key: str) -> bool:
    return (await guard.chat(key)).status_code == 200


async def answered(guard: Api, key: str) -> httpx.Response:
    """A busy machine may be late with a beat: a replica that says so is asked again."""
    return await until(lambda: no_longer_away(guard, key))


async def no_longer_away(guard: Api, key: str) -> httpx.Response | None:
    response = await guard.chat(key)
    return None if response.status_code == 503 else response


async def test_a_frozen_guard_that_wakes_in_time_settles_the_truth(
    make_process: Any, upstream: FakeUpstream
) -> None:
    """Its lease has ended and its slices are forfeit, but its call is not over."""
    frozen: GuardProcess = await make_process(**QUICK, replica="frozen")
    other: GuardProcess = await make_process(**QUICK, replica="other")
    new = await other.new_key(max_requests=2)
    release = asyncio.Event()
    upstream.behaviour = Behaviour(hold=release)
    call = asyncio.create_task(frozen.chat(new["key"]))
    await until(lambda: len(upstream.calls) == 1)
    frozen.process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(2 * QUICK["lease_seconds"])
    assert await other.entries() == []
    release.set()
    frozen.process.send_signal(signal.SIGCONT)
    assert (await call).status_code == 200
    [entry] = await until(lambda: full(other, 1))
    assert (entry["kind"], entry["replica"]) == ("attempt", "frozen")
    assert entry["amount_micro_usd"] == upstream.bill_total
    # What was forfeit has come back but for what was used: one request is left, at either guard.
    await until(lambda: serves(other, new["key"]))
    for guard in (other, frozen):
        refused = await answered(guard, new["key"])
        assert refused.json()["error"]["code"] == "budget_exhausted"
    assert len(upstream.calls) == 2


async def test_a_close_that_was_not_shipped_corrects_what_was_given_up(  # noqa: PLR0917
    make_process: Any, upstream: FakeUpstream, postgres: Postgres, database: str,
    governance_text: str, tmp_path: Path,
) -> None:  # fmt: skip
    """Killed between the durable close and its way to the ledger; replaced long after."""
    quick = {**QUICK, "governance": with_hard_limit(governance_text)}
    volume = {"replica": "victim", "spool_directory": tmp_path / "volume"}
    victim: GuardProcess = await make_process(**quick, **volume, crash_at="calls.after-close")
    other: GuardProcess = await make_process(**quick, replica="other")
    key = await other.key(budget_micro_usd=10_000)
    release = asyncio.Event()
    upstream.behaviour = Behaviour(hold=release)
    call = asyncio.create_task(victim.chat(key))
    await until(lambda: opened(postgres, database) == 1)
    release.set()
    with pytest.raises(httpx.RemoteProtocolError):
        await call
    assert await victim.process.wait() == -signal.SIGKILL
    [entry] = await until(lambda: full(other, 1))
    assert (entry["kind"], entry["replica"]) == ("unknown", "other")
    await make_process(**quick, **volume)
    entries = await until(lambda: full(other, 2))
    assert [e["kind"] for e in entries] == ["unknown", "correction"]
    assert sum(e["amount_micro_usd"] for e in entries) == upstream.bill_total
    assert sum(e["output_tokens"] for e in entries) == upstream.calls[0].output_tokens


async def test_reconcile_frees_what_was_never_billed(
    make_guard: Any, upstream: FakeUpstream
) -> None:
    guard: InProcessGuard = await make_guard(**QUICK)
    key = await guard.key(budget_micro_usd=10_000)
    upstream.behaviour = Behaviour(status=500)  # unknown to us, refused by the provider
    await guard.chat(key)
    assert (await guard.admin("GET", "/spend?by=team"))["total_micro_usd"] > 0
    upstream.bill_up = False
    blind = await guard.admin("POST", "/reconcile", json={})
    assert (blind["unreachable"], blind["still_open"]) == (["simulator-openai"], 1)
    upstream.bill_up = True
    result = await guard.admin("POST", "/reconcile", json={})
    assert (result["not_billed"], result["still_open"], result["unreachable"]) == (1, 0, [])
    assert (await guard.admin("GET", "/spend?by=team"))["total_micro_usd"] == 0


async def test_reconcile_waits_for_young_attempts(
    guard: InProcessGuard, upstream: FakeUpstream
) -> None:
    upstream.behaviour = Behaviour(status=500)
    await guard.chat(await guard.key())
    result = await guard.admin("POST", "/reconcile", json={})
    assert (result["still_open"], result["not_billed"]) == (1, 0)


async def test_reconcile_leaves_running_calls_alone(
    make_guard: Any, upstream: FakeUpstream
) -> None:
    # A busy machine can be late with a heartbeat; five seconds late would be a defect.
    guard: InProcessGuard = await make_guard(**{**QUICK, "lease_seconds": 6})
    release = asyncio.Event()
    upstream.behaviour = Behaviour(hold=release)
    call = asyncio.create_task(guard.chat(await guard.key()))
    await until(lambda: len(upstream.calls) == 1)
    await asyncio.sleep(6.5)  # longer than the lease, if nobody renewed it
    result = await guard.admin("POST", "/reconcile", json={})
    assert result["checked"] == 0
    assert await guard.entries() == []
    release.set()
    assert (await call).status_code == 200
    assert [e["kind"] for e in await guard.entries()] == ["attempt"]


async def test_a_free_refusal_that_was_billed_is_found(
    make_guard: Any, upstream: FakeUpstream
) -> None:
    guard: InProcessGuard = await make_guard(**QUICK)
    upstream.behaviour = Behaviour(status=429)
    await guard.chat(await guard.key())
    assert (await guard.admin("GET", "/spend"))["total_micro_usd"] == 0
    call = upstream.calls[0]
    call.outcome, call.input_tokens, call.output_tokens = "failed_after_start", 50, 50
    result = await guard.admin("POST", "/reconcile", json={})
    assert result["trued_up"] == 1
    assert (await guard.admin("GET", "/spend"))["total_micro_usd"] == upstream.bill_total > 0


CLOSED = "\npolicies: [{name: closed, outage: closed}]\n"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["fast", "crash"])
async def test_without_postgres_nothing_is_sent_and_it_comes_back(
    make_guard: Any, governance_text: str, upstream: FakeUpstream, postgres: Postgres, how: int
) -> None:
    """Under a policy that closes: once the policy lease has ended."""
    guard: InProcessGuard = await make_guard(governance=governance_text + CLOSED)
    key = await guard.key(policies=["closed"])
    await until(lambda: serves(guard, key))
    await asyncio.to_thread(postgres.stop, how)
    await asyncio.sleep(guard.runtime.settings.policy_lease_seconds)
    served = len(upstream.calls)
    responses = await asyncio.gather(*(guard.chat(key) for _ in range(10)))
    assert {r.status_code for r in responses} == {503}
    assert {r.json()["error"]["code"] for r in responses} == {"authority_unavailable"}
    assert len(upstream.calls) == served
    models = await guard.http.get(
        f"{guard.public_url}/v1/models", headers={"authorization": f"Bearer {key}"}
    )
    assert models.status_code == 503
    # A key that nobody knows may be one that was made since: not 401.
    assert (await guard.chat("tk-" + "a" * 43)).status_code == 503
    # The replica stays in the load balancer: clear answers, not refused connections.
    ready = await guard.http.get(f"{guard.public_url}/readyz")
    assert (ready.status_code, ready.json()["database_up"]) == (200, False)
    assert (await guard.http.get(f"{guard.public_url}/healthz")).status_code == 200
    await asyncio.to_thread(postgres.start)
    await until(lambda: serves(guard, key))


async def test_without_postgres_a_limited_caller_goes_on_with_what_was_granted(
    make_guard: Any, upstream: FakeUpstream, postgres: Postgres
) -> None:
    """The default. No cap is passed meanwhile, and the ledger has every call afterwards."""
    guard: InProcessGuard = await make_guard()
    rich, poor = await guard.key(), await guard.key(max_requests=3)
    await until(lambda: serves(guard, rich))
    assert (await guard.chat(poor)).status_code == 200
    await asyncio.to_thread(postgres.stop, signal.SIGQUIT)
    await asyncio.sleep(guard.runtime.settings.policy_lease_seconds)
    answer = await guard.chat(rich)
    assert answer.status_code == 200
    assert answer.headers["x-terrace-policy"].startswith("limited; seconds=")
    codes = [(await guard.chat(poor)).status_code for _ in range(5)]
    assert codes.count(200) <= 2
    assert set(codes) <= {200, 429, 503}
    sent = len(upstream.calls)
    assert sent == 3 + codes.count(200)
    await asyncio.to_thread(postgres.start)
    entries = await until(lambda: entries_when_back(guard, sent))
    assert sum(entry["amount_micro_usd"] for entry in entries) == upstream.bill_total
    await until(lambda: serves(guard, rich))
    while (await answered(guard, poor)).status_code == 200:
        pass
    assert sum(entry["key_id"] == entries[1]["key_id"] for entry in await guard.entries()) == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_postgres_lost_during_a_call_settles_when_it_is_back(
    make_guard: Any, upstream: FakeUpstream, postgres: Postgres, stream: bool
) -> None:
    guard: InProcessGuard = await make_guard()
    key = await guard.key()
    release = asyncio.Event()
    upstream.behaviour = Behaviour(hold=release, hold_after_chunks=2)
    call = asyncio.create_task(guard.chat(key, stream=stream))
    await until(lambda: len(upstream.calls) == 1)
    await asyncio.to_thread(postgres.stop, signal.SIGQUIT)
    release.set()
    answer = await call
    assert answer.status_code == 200  # paid for, so delivered
    await asyncio.to_thread(postgres.start)
    [entry] = await until(lambda: entries_when_back(guard, 1))
    assert (entry["kind"], entry["outcome"]) == ("attempt", "ok")
    assert entry["amount_micro_usd"] == upstream.bill_total


async def entries_when_back(guard: Api, count: int) -> list[dict[str, Any]] | None:
    try:
        return await full(guard, count)
    except AssertionError:
        return None


async def test_a_guard_that_starts_before_postgres_waits_for_it(
    make_guard: Any, upstream: FakeUpstream, postgres: Postgres
) -> None:
    await asyncio.to_thread(postgres.stop)
    guard: InProcessGuard = await make_guard(wait=False)
    ready = await guard.http.get(f"{guard.public_url}/readyz")
    assert (ready.status_code, ready.json()["database_prepared"]) == (503, False)
    assert (await guard.chat("tk-" + "a" * 43)).status_code == 503
    await asyncio.to_thread(postgres.start)

    async def works() -> bool:
        return (await guard.http.get(f"{guard.public_url}/readyz")).status_code == 200

    await until(works)
    await until(lambda: guard.runtime.database.up)
    assert (await guard.chat(await guard.key())).status_code == 200


async def test_sigterm_lets_running_calls_end(make_process: Any, upstream: FakeUpstream) -> None:
    guard: GuardProcess = await make_process(drain_delay_seconds=3)
    key = await guard.key()
    release = asyncio.Event()
    upstream.behaviour = Behaviour(hold=release, hold_after_chunks=1)
    calls = [stream_call(guard, key), asyncio.create_task(guard.chat(key))]
    await until(lambda: len(upstream.calls) == 2)
    guard.process.send_signal(signal.SIGTERM)

    async def unready() -> bool:
        return (await guard.http.get(f"{guard.public_url}/readyz")).status_code == 503

    await until(unready)
    release.set()
    text, plain = await asyncio.gather(*calls)
    assert str(text).endswith("data: [DONE]\n\n")
    assert isinstance(plain, httpx.Response)
    assert plain.status_code == 200
    assert await guard.process.wait() == 0
    lines = [json.loads(line) for line in guard.log.read_text().splitlines()]
    assert lines[-1]["event"] == "stopped"
    assert (lines[-1]["calls_cut"], lines[-1]["spool_shipped"]) == (0, True)


async def test_a_drain_that_takes_too_long_settles_as_unknown(
    make_process: Any, make_guard: Any, upstream: FakeUpstream
) -> None:
    guard: GuardProcess = await make_process(drain_seconds=1)
    other: InProcessGuard = await make_guard()
    key = await guard.key()
    release = asyncio.Event()
    upstream.behaviour = Behaviour(hold=release, hold_after_chunks=1)
    call = stream_call(guard, key)
    await until(lambda: len(upstream.calls) == 1)
    assert await guard.stop() == 0
    release.set()
    await call
    [entry] = await other.entries()
    assert (entry["kind"], entry["amount_micro_usd"]) == ("unknown", entry["reserved_micro_usd"])
