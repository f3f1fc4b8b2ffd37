"""Alerts reach receivers that fail, hang, redirect or come back; and guards tell them once."""

import asyncio
import contextlib
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_rig.budgets import Budgets, Guard, Receiver, budgets_on
from gateway_rig.fake_upstream import FakeUpstream
from gateway_rig.guard import Api, GuardProcess, InProcessGuard
from gateway_rig.postgres import Postgres
from structlog.testing import capture_logs

from terrace_common.governance.alerts import Webhook
from terrace_gateway.ending import end_tasks
from terrace_gateway.money.alert_webhooks import AlertWebhooks, CredentialMissingError

TOKEN = "canary-webhook-token-0123456789"
MakeProcess = Callable[..., Any]


@pytest.fixture
async def budgets(postgres: Postgres, database: str) -> AsyncIterator[Budgets]:
    async with budgets_on(postgres, database) as found:
        yield found


@pytest.fixture
async def receivers() -> AsyncIterator[list[Receiver]]:
    made = [Receiver() for _ in range(2)]
    for receiver in made:
        await receiver.start()
    yield made
    for receiver in made:
        await receiver.stop()


def hook(receiver: Receiver, name: str = "ops", token_env: str | None = None) -> Webhook:
    return Webhook(name=name, url=receiver.url, token_env=token_env)


def no_credential(variable: str) -> str:
    raise CredentialMissingError(variable)


def sender(guard: Guard, *hooks: Webhook, **options: Any) -> asyncio.Task[None]:
    webhooks = AlertWebhooks(
        guard.store, guard.metrics, lambda: hooks, options.pop("credential", no_credential),
        every_seconds=0.02, first_wait_seconds=0.02, **{"timeout_seconds": 5.0, **options},
    )  # fmt: skip
    return asyncio.create_task(webhooks.run())


async def raise_one(budgets: Budgets, guard: Guard, *hooks: str, scope_id: str = "search") -> None:
    guard.webhooks[:] = hooks
    budgets.use(budgets.cap(10, [50], scope_id=scope_id), 5)
    assert len(await guard.watch.look()) == 1


async def states(budgets: Budgets, wanted: dict[str, str]) -> None:
    """Until every delivery stands as it should."""
    query = (
        "SELECT webhook, CASE WHEN delivered_at IS NOT NULL THEN 'delivered'"
        " WHEN gave_up_at IS NOT NULL THEN 'given_up' ELSE last_error END FROM budget_delivery"
    )
    async with asyncio.timeout(60):
        while dict(budgets.sql(query)) != wanted:
            await asyncio.sleep(0.02)


async def test_an_alert_is_posted_with_its_token_and_identity(
    budgets: Budgets, receivers: list[Receiver]
) -> None:
    guard = await budgets.guard()
    await raise_one(budgets, guard, "ops")
    with capture_logs() as logs:
        task = sender(guard, hook(receivers[0], token_env="OPS"), credential=lambda _: TOKEN)
        await states(budgets, {"ops": "delivered"})
        await end_tasks([task], every_seconds=1)
    ((headers, body),) = receivers[0].heard
    assert headers["authorization"] == f"Bearer {TOKEN}"
    assert headers["idempotency-key"] == body["alert"] == guard.journal.uids[0]
    assert (body["kind"], body["scope_id"], body["percent"]) == ("budget_threshold", "search", 50)
    assert TOKEN not in json.dumps(logs, default=str)
    assert str(receivers[0].port) not in json.dumps(logs, default=str)
    sample = guard.registry.get_sample_value
    labels = {"webhook": "ops", "result": "delivered"}
    assert sample("terrace_alert_deliveries_total", labels) == 1


@pytest.mark.parametrize("answer", [500, 429, 401, 302, 307, "hang"])
async def test_a_receiver_that_does_not_take_it_is_asked_again(
    budgets: Budgets, receivers: list[Receiver], answer: int | str
) -> None:
    guard = await budgets.guard()
    receiver, elsewhere = receivers
    receiver.answer, receiver.location = answer, elsewhere.url
    await raise_one(budgets, guard, "ops")
    task = sender(guard, hook(receiver), timeout_seconds=0.2)
    await receiver.until(3)
    receiver.answer, receiver.location = 204, ""
    await states(budgets, {"ops": "delivered"})
    await end_tasks([task], every_seconds=1)
    assert len(set(receiver.uids)) == 1
    assert elsewhere.heard == []  # a redirect is a failure
    assert len(guard.journal.uids) == 1


async def test_a_receiver_that_hangs_holds_up_no_other_and_no_look(
    budgets: Budgets, receivers: list[Receiver]
) -> None:
    guard = await budgets.guard()
    slow, quick = receivers
    slow.answer = "hang"
    guard.webhooks[:] = ["slow", "quick"]
    hooks = hook(slow, "slow"), hook(quick, "quick")
    task = sender(guard, *hooks, timeout_seconds=600)  # the slow one is not asked again meanwhile
    for number in range(5):
        await raise_one(budgets, guard, "slow", "quick", scope_id=f"team-{number}")
    await quick.until(5)
    assert len(slow.heard) == 1
    await end_tasks([task], every_seconds=1)


async def test_without_its_token_nothing_is_sent(
    budgets: Budgets, receivers: list[Receiver]
) -> None:
    guard = await budgets.guard()
    await raise_one(budgets, guard, "ops")
    task = sender(guard, hook(receivers[0], token_env="OPS_TOKEN"))
    await states(budgets, {"ops": "OPS_TOKEN is not set"})
    await end_tasks([task], every_seconds=1)
    assert receivers[0].heard == []


async def test_what_nobody_takes_for_a_day_is_given_up(
    budgets: Budgets, receivers: list[Receiver]
) -> None:
    guard = await budgets.guard()
    await raise_one(budgets, guard, "ops", "gone")
    budgets.sql("UPDATE budget_alert SET raised_at = raised_at - interval '25 hours'")
    receivers[0].answer = 500
    task = sender(guard, hook(receivers[0]))
    await states(budgets, {"ops": "given_up", "gone": "given_up"})
    await end_tasks([task], every_seconds=1)


async def test_two_guards_post_one_alert_once(budgets: Budgets, receivers: list[Receiver]) -> None:
    guards = [await budgets.guard() for _ in range(3)]
    tasks = [sender(guard, hook(receivers[0])) for guard in guards]
    for number in range(20):
        await raise_one(budgets, guards[0], "ops", scope_id=f"team-{number}")
    await receivers[0].until(20)
    while budgets.sql("SELECT FROM budget_delivery WHERE delivered_at IS NULL"):
        await asyncio.sleep(0.02)
    await end_tasks(tasks, every_seconds=1)
    assert set(Counter(receivers[0].uids).values()) == {1}


async def test_an_outage_of_the_database_ends_no_delivery(
    budgets: Budgets, receivers: list[Receiver], postgres: Postgres
) -> None:
    guard = await budgets.guard()
    await raise_one(budgets, guard, "ops")
    postgres.stop()
    task = sender(guard, hook(receivers[0]))
    await asyncio.sleep(0.1)
    postgres.start()
    async with asyncio.timeout(60):
        while not receivers[0].heard:
            await guard.database.probe()
            await asyncio.sleep(0.02)
    await states(budgets, {"ops": "delivered"})
    assert not task.done()
    await end_tasks([task], every_seconds=1)


# --- whole guards --------------------------------------------------------------------------------


def declared(governance_text: str, receiver: Receiver) -> str:
    return (
        f"{governance_text}\n"
        "teams: [{name: team-a, quotas:"
        " [{dimension: requests, amount: 10, per: lifetime, alert_at: [50, 100]}]}]\n"
        f"alerts: {{webhooks: [{{name: ops, url: '{receiver.url}'}}]}}\n"
    )


async def alert_decisions(guard: Api, count: int) -> list[dict[str, Any]]:
    async with asyncio.timeout(30):
        while True:
            page = await guard.admin("GET", "/ledger?kind=decision&limit=1000")
            found = [entry for entry in page["entries"] if entry["reason"] == "budget_threshold"]
            if len(found) >= count:
                return found
            await asyncio.sleep(0.05)


async def test_two_replicas_tell_each_threshold_once(
    make_guard: Any, governance_text: str, receivers: list[Receiver], upstream: FakeUpstream
) -> None:
    del upstream
    text = declared(governance_text, receivers[0])
    guards: list[InProcessGuard] = [
        await make_guard(governance=text, replica=f"gateway-{n}") for n in range(2)
    ]
    key = await guards[0].key()
    answers = [await guards[n % 2].chat(key) for n in range(10)]
    assert [answer.status_code for answer in answers] == [200] * 10
    await receivers[0].until(2)
    decisions = await alert_decisions(guards[0], 2)
    page = await guards[1].admin("GET", "/alerts")
    assert [alert["percent"] for alert in page["alerts"]] == [50, 100]
    assert len(decisions) == 2
    assert {d["detail"]["alert"] for d in decisions} == {a["alert"] for a in page["alerts"]}
    assert Counter(receivers[0].uids) == {a["alert"]: 1 for a in page["alerts"]}
    assert (await guards[1].chat(key)).status_code == 429
    last = page["alerts"][-1]["alert_id"]
    assert (await guards[0].admin("GET", f"/alerts?after={last}"))["alerts"] == []

    def counted() -> float:
        return sum(
            guard.runtime.metrics.registry.get_sample_value(
                "terrace_budget_alerts_total",
                {"scope": "team", "dimension": "requests", "mode": "block"},
            ) or 0
            for guard in guards
        )  # fmt: skip

    async with asyncio.timeout(60):
        while counted() < 2:  # who has told an alert counts it a moment later
            await asyncio.sleep(0.02)
    assert counted() == 2


@pytest.mark.parametrize(
    ("point", "told", "posted"),
    [
        ("alerts.after-raise", 1, 1),
        ("alerts.after-claim", 1, 1),
        ("alerts.after-record", 2, 1),  # it stands in both journals, with one identity
        ("alerts.after-post", 1, 2),
    ],
)
async def test_a_guard_that_is_killed_leaves_its_alert_to_another(
    *,
    make_process: MakeProcess,
    governance_text: str,
    receivers: list[Receiver],
    upstream: FakeUpstream,
    tmp_path: Path,
    postgres: Postgres,
    database: str,
    point: str,
    told: int,
    posted: int,
) -> None:
    text = declared(governance_text, receivers[0]).replace("[50, 100]", "[50]")
    spool = tmp_path / "spool-of-the-killed"
    options = {"governance": text, "replica": "gateway-0", "spool_directory": spool}
    killed: GuardProcess = await make_process(**options, crash_at=point)
    key = await killed.key()
    with contextlib.suppress(httpx.TransportError):
        while len(upstream.calls) < 5:  # also those that a busy machine refused
            await killed.chat(key)
    assert await asyncio.wait_for(killed.process.wait(), 60) == -signal.SIGKILL
    Budgets(postgres, database).claims_lapse()
    survivors = [
        await make_process(
            **{**options, "replica": "gateway-1", "spool_directory": tmp_path / "b"}
        ),
        await make_process(**options),
    ]
    await receivers[0].until(posted)
    decisions = await alert_decisions(survivors[0], told)
    (alert,) = (await survivors[0].admin("GET", "/alerts"))["alerts"]
    assert {entry["detail"]["alert"] for entry in decisions} == {alert["alert"]}
    assert len(decisions) == told
    assert Counter(receivers[0].uids) == {alert["alert"]: posted}
