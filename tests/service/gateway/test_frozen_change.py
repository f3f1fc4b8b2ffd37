"""What holds off a kill switch: a frozen guard, a lock, slow reads; and what is said of it."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from gateway_rig.admin import MODULES, Admin, admin_of
from gateway_rig.policy import Replica, example_text
from gateway_rig.postgres import Postgres

from terrace_gateway.admin.routing import AdminCall, AdminRoute
from terrace_gateway.calls.ports import AuthorityUnavailableError
from terrace_gateway.database import NotDoneError
from terrace_gateway.runtime import Runtime

TEXT = example_text() + "teams: [{name: team-a}]\n"
OTHER = TEXT + "# another\n"
STOP = {"target": "all", "reason": "incident"}
READERS = 12


@pytest.fixture
def first_text() -> str:
    return TEXT


@pytest.mark.parametrize("point", ["kill.before-commit", "policy.before-commit"])
async def test_a_frozen_guard_keeps_no_kill_switch_from_being_turned_on(
    admin: Admin, replica: Replica, postgres: Postgres, database: str, point: str
) -> None:
    rig = Path(__file__).with_name("rig")
    frozen = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway_rig.frozen_change", postgres.url(database), point, OTHER,
        env={**os.environ, "PYTHONPATH": str(rig)}, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert frozen.stdout is not None
    try:
        while (line := await frozen.stdout.readline()) != b"frozen\n":
            assert line, "it never came to the point"
        assert (await admin.ok("POST", "/kill", STOP))["target"] == "all"
        await admin.ok("POST", "/unkill", STOP)
        frozen.send_signal(signal.SIGCONT)
        assert (await frozen.stdout.read()).split()[-1] in (
            b"NotDoneError", b"AuthorityUnavailableError",
        )  # fmt: skip
        assert await frozen.wait() == 0
    finally:
        if frozen.returncode is None:
            frozen.kill()
            await frozen.wait()
    assert (await admin.ok("GET", "/kill"))["switches"] == []
    newest = await replica.versions.version()
    assert newest is not None
    assert newest["text"] == TEXT
    assert [row["actor"] for row in await _audit(postgres, database) if row["actor"] == "bob"] == []


async def _audit(postgres: Postgres, database: str) -> list[dict[str, Any]]:
    with postgres.superuser(database) as connection:
        found = connection.execute("SELECT actor FROM audit").fetchall()
    return [{"actor": row[0]} for row in found]


async def test_a_kill_that_a_lock_holds_off_says_that_nothing_was_changed(
    admin: Admin, replica: Replica, postgres: Postgres, database: str
) -> None:
    with postgres.superuser(database) as holder, holder.transaction():
        holder.execute("SELECT epoch FROM policy_head FOR UPDATE")
        status, answer = await admin.error("POST", "/kill", STOP)
    assert status == 503
    message = answer["error"]["message"]
    assert "QueryCanceled" in message
    assert "nothing was changed" in message
    assert "away" not in message
    assert "not known" not in message
    assert replica.database.up
    await admin.ok("POST", "/kill", STOP)


async def test_a_kill_that_may_have_been_made_may_be_sent_again(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: Any, **__: Any) -> Any:
        raise AuthorityUnavailableError("lost", ambiguous=True)

    monkeypatch.setattr("terrace_gateway.admin.kill.KillStore.kill", lost)
    status, answer = await admin.error("POST", "/kill", STOP)
    assert status == 503
    assert "send it again" in answer["error"]["message"]
    assert "look before" not in answer["error"]["message"]


async def test_a_pool_that_is_used_up_is_not_a_database_that_is_away(replica: Replica) -> None:
    async with asyncio.TaskGroup() as tasks:
        enough, done = asyncio.Semaphore(0), asyncio.Event()

        async def hold() -> None:
            async with replica.database.connection():
                enough.release()
                await done.wait()

        for _ in range(8):
            tasks.create_task(hold())
        for _ in range(8):
            await enough.acquire()
        with pytest.raises(NotDoneError, match="no database connection of this replica is free"):
            async with replica.database.connection():
                pass
        done.set()


async def test_slow_reads_leave_connections_to_kill_switches(replica: Replica) -> None:
    done = asyncio.Event()

    def slow(runtime: Runtime) -> list[AdminRoute]:
        async def look(_: AdminCall) -> dict[str, Any]:
            async with runtime.database.connection():
                await done.wait()
            return {}

        return [AdminRoute("GET", "/slow", look, "Slow.", "viewer")]

    async with admin_of(replica, modules=(*MODULES, slow)) as admin:
        reads = [asyncio.create_task(admin.send("GET", "/slow")) for _ in range(READERS)]
        try:
            refused = [task async for task in _first(reads, READERS - 4)]
            await admin.ok("POST", "/kill", STOP)
        finally:
            done.set()
        answers = [await task for task in reads]
    assert sorted(answer.status_code for answer in answers) == [200] * 4 + [503] * (READERS - 4)
    message = (await refused[0]).json()["error"]["message"]
    assert "too many reads of this replica" in message
    assert "away" not in message


async def _first(tasks: list[asyncio.Task[Any]], count: int) -> AsyncIterator[asyncio.Task[Any]]:
    left = set(tasks)
    while count > 0:
        ended, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        count -= len(ended)
        for task in ended:
            yield task
