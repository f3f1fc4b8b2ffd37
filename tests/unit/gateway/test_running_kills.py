"""Running calls are asked about switches by who their callers are now: cheaply, each on its own,
and without keeping the event loop."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from terrace_gateway.calls import found_anew, kills
from terrace_gateway.calls.kills import caller_kill, kill_by_admission, kill_by_caller_now
from terrace_gateway.calls.ports import Principal
from terrace_gateway.calls.running import RunningCall, RunningCalls

from .token_world import World, a_world, snapshot_of

pytestmark = pytest.mark.unit

JO = {"sub": "jo-subject"}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


def moved_text(world: World) -> str:
    alone = world.text.replace(", user: jo}", "}")
    return alone.replace("{name: jo, team: search", "{name: jo, team: ads")


def running(principal: Principal) -> RunningCall:
    return RunningCall(principal, "sim-small", "simulator-openai", asyncio.timeout(None))


async def test_a_bearer_is_looked_for_once_per_spec(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = running(await world.call(world.token(**JO)))
    asked: list[Any] = []
    real = found_anew.bearer_of

    def counted(*args: Any, **more: Any) -> Principal:
        asked.append(args)
        return real(*args, **more)

    monkeypatch.setattr(found_anew, "bearer_of", counted)
    now = world.clock.database_now()
    moved = snapshot_of(moved_text(world), kills=frozenset({("org", "nobody")}))
    assert kill_by_caller_now(call, moved, now) is None
    stopped = replace(moved, kills=frozenset({("team", "ads")}))
    assert "team 'ads'" in (kill_by_caller_now(call, stopped, now) or "")
    assert len(asked) == 1
    back = snapshot_of(world.text, kills=stopped.kills)
    assert kill_by_caller_now(call, back, now) is None
    assert len(asked) == 2


async def test_a_defect_with_one_caller_leaves_its_names_of_then(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    principal = await world.call(world.token(**JO))
    call = running(principal)

    def broken(*_: Any) -> Principal:
        raise RuntimeError("a defect")

    monkeypatch.setattr(kills, "found_anew", broken)
    stopped = snapshot_of(moved_text(world), kills=frozenset({("team", "search")}))
    now = world.clock.database_now()
    assert kill_by_caller_now(call, stopped, now) is None
    assert "team 'search'" in (kill_by_admission(call, stopped) or "")
    assert "team 'search'" in (caller_kill(principal, stopped, now) or "")


async def test_a_caller_is_stopped_by_the_names_of_then_and_of_now(world: World) -> None:
    principal, now = await world.call(world.token(**JO)), world.clock.database_now()
    moved = snapshot_of(moved_text(world))
    for team in ("search", "ads"):
        stopped = replace(moved, kills=frozenset({("team", team)}))
        assert team in (caller_kill(principal, stopped, now) or "")
    assert caller_kill(principal, moved, now) is None


async def test_other_work_has_its_turn_between_slices(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, principal = RunningCalls(), await world.call(world.token(**JO))
    monkeypatch.setattr("terrace_gateway.calls.running.SLICE_SECONDS", 0)
    seen: list[RunningCall] = []
    first = asyncio.timeout(None), asyncio.timeout(None)
    with (
        calls.entered(principal, "m", "p", first[0]) as one,
        calls.entered(principal, "m", "p", first[1]) as two,
    ):

        def reason(call: RunningCall) -> None:
            seen.append(call)

        task = asyncio.create_task(calls.cut_in_slices(reason))
        await asyncio.sleep(0)
        assert len(seen) == 1
        assert not task.done()
    assert await task == 0
    assert len(seen) == 1  # the other one ended meanwhile
    assert seen[0] in (one, two)
