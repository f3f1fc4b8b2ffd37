"""Attacks on the money path: freezes at the worst moment, logs read too early, half-told usage."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from gateway_rig.fake_upstream import Behaviour, FakeUpstream
from gateway_rig.guard import InProcessGuard
from gateway_rig.postgres import Postgres

from terrace_gateway.calls.ports import CloseRecord, OpenRecord
from terrace_gateway.ledger.bills import bill_sources
from terrace_gateway.ledger.bills.provider_bill import Billed
from terrace_gateway.spool.group_commit import SpoolBrokenError

QUICK = {"reconcile_grace_seconds": 0, "reaper_seconds": 0.2, "stream_margin_seconds": 0.2}
CLOSED = "\npolicies: [{name: closed, outage: closed}]\n"


async def until(condition: Any, seconds: float = 60) -> Any:
    async with asyncio.timeout(seconds):
        while True:
            result = condition()
            if asyncio.iscoroutine(result):
                result = await result
            if result:
                return result
            await asyncio.sleep(0.05)


def hold_before_sending(guard: InProcessGuard) -> tuple[asyncio.Event, asyncio.Event]:
    """As if the process were frozen between its last check and the first byte it sends."""
    reached, go_on = asyncio.Event(), asyncio.Event()
    call = guard.runtime.upstream.call

    @asynccontextmanager
    async def late(*arguments: Any) -> Any:
        reached.set()
        await go_on.wait()
        async with call(*arguments) as response:
            yield response

    guard.runtime.upstream.call = late  # type: ignore[method-assign]
    return reached, go_on


def outlive_the_limit(guard: InProcessGuard) -> None:
    """Its attempts are given up after a second, but it does not end them: as if its own clock stood
    still meanwhile."""
    real = guard.runtime.journal.open

    async def open_(record: OpenRecord) -> None:
        await real(replace(record, hard_limit_seconds=1))

    guard.runtime.journal.open = open_  # type: ignore[method-assign]


async def given_up(guard: InProcessGuard) -> bool:
    return [entry["kind"] for entry in await guard.entries()] == ["unknown"]


@pytest.mark.parametrize("learns", ["usage", "nothing"])
async def test_a_call_that_is_sent_after_it_was_found_on_no_bill_is_charged(
    make_guard: Any, upstream: FakeUpstream, learns: str
) -> None:
    guard: InProcessGuard = await make_guard(**QUICK)
    key = await guard.key(budget_micro_usd=10_000)
    outlive_the_limit(guard)
    reached, go_on = hold_before_sending(guard)
    call = asyncio.create_task(guard.chat(key))
    await reached.wait()
    await until(lambda: given_up(guard))
    result = await guard.admin("POST", "/reconcile", json={})
    assert result["not_billed"] == 1
    upstream.behaviour = Behaviour(report_usage=learns == "usage")
    go_on.set()
    assert (await call).status_code == 200
    spend = await guard.admin("GET", "/spend?by=key")
    assert spend["total_micro_usd"] >= upstream.bill_total > 0
    await guard.admin("POST", "/reconcile", json={})
    spend = await guard.admin("GET", "/spend?by=key")
    assert spend["total_micro_usd"] == upstream.bill_total


@pytest.mark.parametrize("outcome", ["ok", "failed_after_start"])
async def test_a_call_that_is_billed_after_reconciliation_is_found_by_the_next(
    make_guard: Any, upstream: FakeUpstream, outcome: str
) -> None:
    guard: InProcessGuard = await make_guard(**QUICK)
    upstream.behaviour = Behaviour(status=500)
    await guard.chat(await guard.key())
    assert (await guard.admin("POST", "/reconcile", json={}))["not_billed"] == 1
    call = upstream.calls[0]  # a frozen translator woke up and sent it
    call.outcome, call.input_tokens, call.output_tokens = outcome, 50, 50
    assert (await guard.admin("POST", "/reconcile", json={}))["trued_up"] == 1
    assert (await guard.admin("GET", "/spend"))["total_micro_usd"] == upstream.bill_total > 0
    again = await guard.admin("POST", "/reconcile", json={})
    assert (again["trued_up"], again["not_billed"], again["still_open"]) == (0, 0, 0)


async def test_a_bill_that_was_read_too_early_does_not_undo_a_settlement(
    make_guard: Any, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard: InProcessGuard = await make_guard(**QUICK)
    key = await guard.key()
    outlive_the_limit(guard)
    release, read, apply = asyncio.Event(), asyncio.Event(), asyncio.Event()
    upstream.behaviour = Behaviour(hold=release)
    call = asyncio.create_task(guard.chat(key))
    await until(lambda: len(upstream.calls) == 1)
    await until(lambda: given_up(guard))

    async def early(*_: Any) -> Billed:
        read.set()
        await apply.wait()
        return Billed(0, False, 0, 0, 0, "upstream_error")

    monkeypatch.setattr(bill_sources, "read_bill", early)
    run = asyncio.create_task(guard.admin("POST", "/reconcile", json={}))
    await read.wait()
    release.set()
    assert (await call).status_code == 200
    assert len(await guard.entries()) == 2  # its settlement is in the ledger
    apply.set()
    await run
    assert (await guard.admin("GET", "/spend"))["total_micro_usd"] == upstream.bill_total > 0


async def test_a_stream_that_breaks_costs_more_than_its_usage_so_far(
    guard: InProcessGuard, upstream: FakeUpstream
) -> None:
    upstream.behaviour = Behaviour(
        usage_so_far=True, chunks=10, output_tokens=90, die_after_chunks=8
    )
    await guard.chat(await guard.key(), stream=True)
    [entry] = await guard.entries()
    assert entry["amount_micro_usd"] >= upstream.bill_total
    upstream.behaviour = Behaviour(usage_so_far=True, chunks=10, output_tokens=90)
    await guard.chat(await guard.key(), stream=True)
    last = (await guard.entries())[-1]
    assert (last["outcome"], last["amount_micro_usd"]) == ("ok", upstream.calls[-1].cost)


async def test_postgres_lost_during_reconciliation_is_a_503_or_leaves_attempts_open(
    make_guard: Any, upstream: FakeUpstream, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard: InProcessGuard = await make_guard(**QUICK)
    key = await guard.key()
    upstream.behaviour = Behaviour(status=500)
    for _ in range(3):
        await guard.chat(key)
    real, lost = bill_sources.read_bill, asyncio.Lock()

    async def late(*arguments: Any) -> Billed:
        billed = await real(*arguments)
        async with lost:
            if postgres.running:
                await asyncio.to_thread(postgres.stop)
        return billed

    monkeypatch.setattr(bill_sources, "read_bill", late)
    response = await guard.http.post(
        f"{guard.admin_url}/admin/v1/reconcile",
        json={},
        headers={"authorization": "Bearer tadm-canary-admin-key-0123456789"},
    )
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "authority_unavailable"
    await asyncio.to_thread(postgres.start)
    monkeypatch.setattr(bill_sources, "read_bill", real)
    await until(lambda: guard.runtime.database.up)
    result = await guard.admin("POST", "/reconcile", json={})
    assert (result["not_billed"], result["still_open"]) == (3, 0)


async def test_a_database_that_takes_no_writes_is_away_and_kills_no_guard(
    make_guard: Any, governance_text: str, upstream: FakeUpstream, postgres: Postgres, database: str
) -> None:
    """A failover to a standby, or a managed server whose disk is full."""
    guard: InProcessGuard = await make_guard(governance=governance_text + CLOSED, **QUICK)
    key = await guard.key(policies=["closed"])
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
    with postgres.superuser() as connection:
        connection.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
        connection.execute(end, (database,))
    await until(lambda: not guard.runtime.database.up)
    await asyncio.sleep(guard.runtime.settings.policy_lease_seconds)
    for _ in range(20):
        response = await guard.chat(key)
        assert (response.status_code, guard.runtime.failed()) == (503, None)
        await asyncio.sleep(0.05)
    assert upstream.calls == []
    with postgres.superuser() as connection:
        connection.execute(f"ALTER DATABASE {database} RESET default_transaction_read_only")

    async def works() -> bool:
        return (await guard.chat(key)).status_code == 200

    await until(works)
    assert guard.runtime.failed() is None


async def test_many_reconciliations_at_once_write_each_correction_once(
    make_guard: Any, upstream: FakeUpstream, governance_text: str
) -> None:
    patient = governance_text.replace("kind: openai", "kind: openai\n    breaker: {unknowns: 100}")
    guards: list[InProcessGuard] = [
        await make_guard(replica=name, governance=patient, **QUICK) for name in "ab"
    ]
    key = await guards[0].key()
    upstream.behaviour = Behaviour(die_after_chunks=2, output_tokens=60)
    await asyncio.gather(*(guards[0].chat(key, stream=True) for _ in range(12)))
    runs = [guards[n % 2].admin("POST", "/reconcile", json={}) for n in range(6)]
    await asyncio.gather(*runs)
    entries = await guards[0].entries()
    assert [entry["kind"] for entry in entries].count("correction") == 12
    assert sum(entry["amount_micro_usd"] for entry in entries) == upstream.bill_total


async def test_credit_is_free_when_its_close_is_durable_and_not_before(
    make_guard: Any, upstream: FakeUpstream
) -> None:
    """A crash before that counts the whole reservation: who had been given the rest meanwhile would
    have stood above the cap."""
    guard: InProcessGuard = await make_guard(**QUICK)
    probe = await guard.key(budget_micro_usd=1_000_000)
    await guard.chat(probe, max_tokens=1000)
    entries = await until(guard.entries)
    key = await guard.key(budget_micro_usd=entries[0]["reserved_micro_usd"] + 60)
    closes = guard.runtime.journal.close
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def late(record: CloseRecord) -> None:
        reached.set()
        await go_on.wait()
        await closes(record)

    guard.runtime.journal.close = late  # type: ignore[method-assign]
    first = asyncio.create_task(guard.chat(key, max_tokens=1000))
    await reached.wait()
    refused = await guard.chat(key, max_tokens=1000)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "budget_exhausted")
    go_on.set()
    assert (await first).status_code == 200
    assert (await guard.chat(key, max_tokens=1000)).status_code == 200


async def test_a_close_that_cannot_be_written_keeps_its_reservation(
    make_guard: Any, upstream: FakeUpstream
) -> None:
    guard: InProcessGuard = await make_guard(**QUICK)
    key = await guard.key(budget_micro_usd=1_000_000)
    book, settled = guard.runtime.slices, []
    guard.runtime.slices.settle = lambda hold, actual: settled.append(hold)  # type: ignore

    async def broken(record: CloseRecord) -> None:
        raise SpoolBrokenError("the disk is gone")

    guard.runtime.journal.close = broken  # type: ignore[method-assign]
    held: list[Any] = []
    keep = book.keep
    guard.runtime.slices.keep = lambda hold: (held.append(hold), keep(hold))[1]  # type: ignore
    assert (await guard.chat(key)).status_code >= 500
    assert (len(held), settled) == (1, [])
