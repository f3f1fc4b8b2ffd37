"""Proof 1: a cap is a cap, by the provider's own bill, whatever races for it; and it is used."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from gateway_rig.fake_upstream import Behaviour, Call, FakeUpstream
from gateway_rig.guard import Api, InProcessGuard
from gateway_rig.postgres import Postgres
from gateway_rig.proofs import QUICK, Books, fill, say, spec

CALLERS = 200
ORDINARY = Behaviour(input_tokens=60, output_tokens=100, chunks=3, delay=0.005)
SPARE_RESERVATION = 210  # micro-USD, the largest: checked below


@pytest.fixture
def books(postgres: Postgres, database: str, upstream: FakeUpstream) -> Books:
    return Books(postgres, database, upstream)


def now_and_then(call: Call) -> Behaviour:
    """The main provider refuses, dies and breaks off; the spare one always answers."""
    if call.model == "sim-small":
        if call.seq % 7 == 0:
            return Behaviour(status=503)
        if call.seq % 11 == 0:
            return Behaviour(input_tokens=60, output_tokens=100, die_before_answer=True)
        if call.seq % 13 == 0:
            return Behaviour(input_tokens=60, output_tokens=100, chunks=4, die_after_chunks=2)
    return ORDINARY


async def storm(
    apis: list[Any], keys: list[str], upstream: FakeUpstream, callers: int = CALLERS
) -> Counter[str]:
    """Callers that call again and again until they are refused while nothing runs upstream."""
    seen: Counter[str] = Counter()

    async def caller(number: int) -> None:
        while True:
            api, key = apis[number % len(apis)], keys[number % len(keys)]
            said = await say(api, key, stream=number % 2 == 0)
            seen[said.code or str(said.status)] += 1
            if said.status == 429:
                assert said.code == "budget_exhausted"
                if all(call.status == "final" for call in upstream.calls):
                    return
                await asyncio.sleep(0.05)

    async with asyncio.timeout(300):
        await asyncio.gather(*(caller(number) for number in range(callers)))
    return seen


async def test_200_callers_on_one_cap_over_two_replicas(
    make_process: Any, upstream: FakeUpstream, books: Books
) -> None:
    governance = spec(upstream)
    apis: list[Api] = [
        await make_process(**QUICK, governance=governance, replica=f"replica-{n}") for n in range(2)
    ]
    cap = 60 * SPARE_RESERVATION
    minted = await apis[0].new_key(budget_micro_usd=cap)
    upstream.plan_for = now_and_then
    seen = await storm(apis, [minted["key"]], upstream)
    # What may have been billed counts while nobody knows; nothing was ever above the cap.
    assert upstream.bill_total <= cap
    assert {call.model for call in upstream.calls} == {"sim-small", "sim-spare"}
    assert {call.body.get("stream", False) for call in upstream.calls} == {True, False}
    assert seen["200"] > 0
    assert seen["budget_exhausted"] >= CALLERS
    ledger = await books.balance(apis[0])
    assert {"ok", "unknown"} <= {outcome for _, outcome in ledger.values()}
    # What reconcile gave back can be used: until no reservation is open and none fits.
    upstream.plan_for = None
    upstream.behaviour = ORDINARY
    await fill(apis, minted["key"])
    await books.balance(apis[0])
    assert max(entry["reserved_micro_usd"] for entry in await apis[0].entries()
               if entry["reserved_micro_usd"]) <= SPARE_RESERVATION  # fmt: skip
    assert 0.95 * cap < upstream.bill_total <= cap
    assert books.counted("key", minted["key_id"]) <= cap


async def test_caps_of_a_team_and_of_its_keys_hold_together(
    make_guard: Any, upstream: FakeUpstream, books: Books
) -> None:
    team_cap, small_key, large_key = 50 * 105, 15 * 105, 45 * 105
    governance = spec(
        upstream,
        more="teams:\n  - name: team-a\n    quotas:\n"
        f"      - {{dimension: micro_usd, amount: {team_cap}, per: lifetime}}\n",
    )
    apis: list[InProcessGuard] = [
        await make_guard(**QUICK, governance=governance, replica=f"replica-{n}") for n in range(2)
    ]
    caps = {"small": small_key, "large": large_key}
    minted = {n: await apis[0].new_key(name=n, budget_micro_usd=c) for n, c in caps.items()}
    await asyncio.gather(*(api.runtime.policy.refresh() for api in apis))
    upstream.behaviour = ORDINARY
    await storm(apis, [key["key"] for key in minted.values()], upstream, callers=40)
    for key in minted.values():
        await fill(apis, key["key"])
    await books.balance(apis[0])
    assert 0.95 * team_cap < upstream.bill_total <= team_cap
    rows = (await apis[0].admin("GET", "/spend?by=key"))["rows"]
    spent = {row["key"]: row["settled_micro_usd"] for row in rows}
    for name, key in minted.items():
        assert 0 < spent[key["key_id"]] <= caps[name]
    assert sum(spent.values()) == upstream.bill_total


async def test_a_full_provider_makes_calls_fall_back_instead_of_failing(
    make_guard: Any, upstream: FakeUpstream, books: Books
) -> None:
    provider_cap = 40 * 105
    governance = spec(
        upstream,
        main_quotas=f"[{{dimension: micro_usd, amount: {provider_cap}, per: lifetime}}]",
    )
    apis: list[InProcessGuard] = [
        await make_guard(**QUICK, governance=governance, replica=f"replica-{n}") for n in range(2)
    ]
    key = await apis[0].key()
    await asyncio.gather(*(api.runtime.policy.refresh() for api in apis))
    upstream.behaviour = ORDINARY
    answers = await asyncio.gather(*(say(apis[n % 2], key, stream=n % 3 == 0) for n in range(90)))
    assert {said.status for said in answers} == {200}
    assert {said.headers["x-terrace-model"] for said in answers} == {"sim-small", "sim-spare"}
    await books.balance(apis[0])
    main = sum(call.cost for call in upstream.calls if call.model == "sim-small")
    assert 0.9 * provider_cap < main <= provider_cap
    assert upstream.bill_total > main
