"""Working out what large texts would change holds up nothing else: one at a time, no connection."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from gateway_rig.admin import ADMIN_KEY, Admin
from gateway_rig.policy import Replica, example_text
from gateway_rig.postgres import Postgres

from terrace_common.governance.compile import CompiledGovernance
from terrace_common.governance.effects import PreparedChange
from terrace_gateway.policy import planning
from terrace_gateway.policy.planning import MAX_WAITING, MAX_WAITING_OF_ONE
from terrace_gateway.policy.texts import digest_of

WAIT = 20  # seconds, until a test has failed
STOP = {"target": "all", "reason": "incident"}
TEAM_A = "teams: [{name: team-a}]\n"


class Gate:
    """In front of the heavy work: every text waits here, in its thread, until it is let through."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        """In the order in which they came."""
        self.running = self.most = 0
        self._came, self._through = threading.Semaphore(0), threading.Semaphore(0)

    def make(
        self, old: CompiledGovernance | None, new: CompiledGovernance, *, new_text: str
    ) -> PreparedChange:
        self.running += 1
        self.most = max(self.most, self.running)
        self.texts.append(new_text)
        self._came.release()
        assert self._through.acquire(timeout=2 * WAIT)
        try:
            return PreparedChange(old, new, new_text=new_text)
        finally:
            self.running -= 1

    async def came(self) -> None:
        """Returns when the next text is here."""
        async with asyncio.timeout(WAIT):
            while not self._came.acquire(blocking=False):
                await asyncio.sleep(0.005)

    def let(self, texts: int = 1) -> None:
        """Through, those that are here or come."""
        self._through.release(texts)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate()
    monkeypatch.setattr(planning, "PreparedChange", made.make)
    yield made
    made.let(1000)


def named(admin: Admin, actor: str) -> Admin:
    headers = {"authorization": f"Bearer {ADMIN_KEY}", "x-terrace-actor": actor}
    return Admin(admin.http, headers)


def text(number: int, more: str = "") -> str:
    return f"{example_text()}{more}# {number}\n"


def plan(admin: Admin, number: int) -> asyncio.Task[Any]:
    return asyncio.create_task(admin.send("POST", "/governance/plan", {"text": text(number)}))


async def refused(admin: Admin) -> tuple[int, dict[str, Any]]:
    async with asyncio.timeout(WAIT):
        return await admin.error("POST", "/governance/plan", {"text": text(0)})


def apply(admin: Admin, body: str, base: int = 1) -> asyncio.Task[Any]:
    document = {"text": body, "base_version": base, "reason": "r"}
    return asyncio.create_task(admin.send("POST", "/governance/apply", document))


def held(replica: Replica) -> int:
    stats = replica.database._pool.get_stats()
    return stats["pool_size"] - stats["pool_available"]


async def waiting(replica: Replica, kind: planning.Kind, number: int) -> None:
    """Until so many are there, the one whose turn it is among them."""
    async with asyncio.timeout(WAIT):
        while replica.versions._planning._there[kind].total() < number:
            await asyncio.sleep(0.005)


async def test_plans_and_an_apply_leave_connections_and_the_kill_switch_alone(
    admin: Admin, replica: Replica, gate: Gate
) -> None:
    plans = [plan(admin, 7) for _ in range(MAX_WAITING_OF_ONE + 1)]  # the same text is as heavy
    await gate.came()
    applied = apply(named(admin, "bob"), text(8))
    await waiting(replica, "plan", len(plans))
    await waiting(replica, "apply", 1)
    assert held(replica) == 0
    assert (await admin.ok("POST", "/kill", STOP))["active"]  # beside a plan
    gate.let()
    await gate.came()
    assert gate.texts[-1] == text(8)  # before all plans that wait
    assert held(replica) == 0
    assert not (await admin.ok("POST", "/unkill", STOP))["active"]  # beside an apply
    assert not applied.done()
    gate.let(len(plans))
    assert (await applied).status_code == 200
    assert [answer.status_code for answer in await asyncio.gather(*plans)] == [200] * len(plans)
    assert gate.most == 1


async def test_a_rollback_is_worked_out_in_its_turn_too(
    admin: Admin, replica: Replica, gate: Gate
) -> None:
    gate.let()
    assert (await apply(admin, text(1))).status_code == 200
    await gate.came()
    first = plan(admin, 2)
    await gate.came()
    back = asyncio.create_task(
        admin.send("POST", "/governance/rollback", {"version": 1, "reason": "r"})
    )
    await waiting(replica, "apply", 1)
    assert (len(gate.texts), held(replica)) == (2, 0)
    gate.let(2)
    assert (await first).status_code == (await back).status_code == 200
    assert gate.texts[-1] == example_text()


async def test_too_many_are_refused_by_actor_and_in_all(
    admin: Admin, replica: Replica, gate: Gate
) -> None:
    """Who floods the gateway with plans is refused; others plan, and apply."""
    mallory = named(admin, "mallory")
    flood = [plan(mallory, number) for number in range(MAX_WAITING_OF_ONE + 1)]
    await waiting(replica, "plan", len(flood))
    status, answer = await refused(mallory)
    assert (status, answer["error"]["code"]) == (503, "too_many_waiting")
    assert "try again" in answer["error"]["message"]
    others = [plan(named(admin, f"a{number}"), number) for number in range(MAX_WAITING_OF_ONE)]
    await waiting(replica, "plan", MAX_WAITING + 1)
    status, answer = await refused(admin)
    assert (status, answer["error"]["code"]) == (503, "too_many_waiting")
    applied = apply(admin, text(99))
    gate.let(100)
    assert (await applied).status_code == 200
    assert {answer.status_code for answer in await asyncio.gather(*flood, *others)} == {200}
    assert (await plan(mallory, 0)).status_code == 200
    assert gate.most == 1


async def test_plans_of_viewers_keep_out_no_plan_of_an_admin(replica: Replica, gate: Gate) -> None:
    looks = [
        asyncio.create_task(replica.versions.plan(text(number), actor=f"v{number % 2}",
                                                  may_apply=False))
        for number in range(MAX_WAITING + 1)
    ]  # fmt: skip
    await waiting(replica, "look", len(looks))
    with pytest.raises(planning.TooManyWaitingError, match="wait for their plan already"):
        await replica.versions.plan(text(0), actor="v3", may_apply=False)
    planned = asyncio.create_task(replica.versions.plan(text(99), actor="admin"))
    await waiting(replica, "plan", 1)
    gate.let(100)
    assert (await planned).base_version == 1
    assert text(99) in gate.texts[:3]  # behind the two that had their turns
    await asyncio.gather(*looks)


async def test_who_is_cancelled_twice_waits_for_the_thread() -> None:
    began, goes_on, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        assert goes_on.wait(WAIT)
        done.set()

    task = asyncio.create_task(planning.in_thread(work))
    async with asyncio.timeout(WAIT):
        while not began.is_set():
            await asyncio.sleep(0.005)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert not task.done()
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert done.is_set()


async def test_a_key_that_is_minted_meanwhile_is_in_the_plan(
    admin: Admin, replica: Replica, gate: Gate
) -> None:
    """What was read before the work is read again before the commit."""
    applied = apply(admin, text(1, TEAM_A))
    await gate.came()
    _, key_id = await replica.mint(team="team-b")
    gate.let()
    answer = (await applied).json()
    assert answer["error"]["code"] == "governance_blocked"
    [found] = [finding for finding in answer["findings"] if finding["code"] == "key-orphaned"]
    assert key_id in found["message"]
    assert (await admin.ok("GET", "/governance"))["version"] == 1


def another_version(postgres: Postgres, database: str, version: int, body: str) -> None:
    """What another replica commits."""
    with postgres.superuser(database) as connection:
        connection.execute(
            "INSERT INTO governance_version (version, text, digest, actor, source, plan)"
            " VALUES (%s, %s, %s, 'bob', 'api', '{}')",
            (version, body, digest_of(body)),
        )


async def test_a_rollback_with_a_base_undoes_no_version_that_comes_meanwhile(
    admin: Admin, postgres: Postgres, database: str, gate: Gate
) -> None:
    another_version(postgres, database, 2, text(2))
    body = {"version": 1, "base_version": 2, "reason": "bad"}
    back = asyncio.create_task(admin.send("POST", "/governance/rollback", body))
    await gate.came()
    another_version(postgres, database, 3, text(3))
    gate.let()
    refused = await back
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "version_conflict")
    assert refused.json()["in_force"] == 3
    assert (await admin.ok("GET", "/governance"))["text"] == text(3)
    again = await admin.send("POST", "/governance/rollback", body)  # refused before the work
    assert again.status_code == 409
    assert len(gate.texts) == 1


async def test_a_rollback_without_a_base_is_planned_on_what_came_meanwhile(
    admin: Admin, postgres: Postgres, database: str, gate: Gate
) -> None:
    another_version(postgres, database, 2, text(2))
    body = {"version": 1, "reason": "bad"}
    back = asyncio.create_task(admin.send("POST", "/governance/rollback", body))
    await gate.came()
    another_version(postgres, database, 3, text(3, TEAM_A))
    gate.let()
    await gate.came()
    gate.let()
    answer = (await back).json()
    assert answer["version"] == 4
    assert [(change["action"], change["name"]) for change in answer["changes"]] == [
        ("removed", "team-a")
    ]


async def test_who_is_cancelled_keeps_the_turn_until_the_thread_is_done(
    admin: Admin, gate: Gate
) -> None:
    first = plan(admin, 1)
    await gate.came()
    second = plan(admin, 2)
    first.cancel()
    done, _ = await asyncio.wait([first], timeout=0.05)
    assert not done
    assert gate.texts == [text(1)]
    gate.let(2)
    with pytest.raises(asyncio.CancelledError):
        await first
    assert (await second).status_code == 200
    assert gate.most == 1
