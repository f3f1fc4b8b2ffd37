"""A provider that becomes a relay, is none any more, or moves, while a call waits for it: the call
goes the way that its body was made for, to where it was reserved, and its answer is read so."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from gateway_rig.changes import Gate, applying, outcomes
from gateway_rig.fake_upstream import Behaviour, FakeUpstream
from gateway_rig.guard import InProcessGuard
from gateway_rig.proofs import say, spec, until
from gateway_rig.relay_upstream import RawUpstream, Wire, plain

from terrace_gateway.upstream.pool import ConnectionPool

Make = Callable[..., Awaitable[InProcessGuard]]


@pytest.fixture
async def ways(upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Two specs: the provider of the model ``named`` is translated, and relayed."""
    monkeypatch.setenv("RELAY_KEY", "sk-canary-relay-0123456789")
    base = f"http://127.0.0.1:{await upstream.serve_relay()}/v1"
    plain = spec(upstream)
    for old, new in (
        ('"http://main.invalid/v1"', f'"{base}"\n    api_key_env: RELAY_KEY'),
        ("name: sim-small\n    provider: main", "name: named\n    provider: main"),
    ):
        assert old in plain
        plain = plain.replace(old, new)
    return plain, plain.replace("kind: openai\n", "kind: openai\n    relay: true\n", 1)


async def switched(guard: InProcessGuard, text: str) -> None:
    moved = frozenset({"model-not-deployed"})  # by the translator, which a relay does not ask
    await guard.runtime.versions.apply(text, actor="a", reason="r", check_base=False, allow=moved)
    await guard.runtime.policy.refresh()


@pytest.mark.parametrize("relay", [True, False])
async def test_a_call_goes_the_way_that_its_body_was_made_for(
    make_guard: Make, upstream: FakeUpstream, ways: tuple[str, str], *, relay: bool
) -> None:
    """The provider becomes a relay, or is none any more, once its reservation is open."""
    guard = await make_guard(governance=ways[0])
    await switched(guard, ways[not relay])
    key = await guard.key()
    guard.runtime.journal.open = applying(guard, [ways[relay]])
    assert (await say(guard, key, model="named")).status == 200
    [sent] = upstream.calls
    assert sent.body["model"] == ("sim-small" if relay else "named")
    assert ("extra_headers" in sent.body) is not relay
    assert sorted(outcome for outcome, _ in await outcomes(guard, 2)) == ["not_sent", "ok"]


async def test_a_relay_that_was_elsewhere_while_a_call_connected_gets_nothing(
    make_guard: Make, upstream: FakeUpstream, ways: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider is at A when the call is reserved, at B when it connects, at A when it sends."""
    here = ways[1]
    port = here.split('api_base: "http://127.0.0.1:')[1].split("/")[0]
    async with RawUpstream(refuses).running() as other:
        elsewhere = here.replace(f"127.0.0.1:{port}/v1", f"127.0.0.1:{other.port}/v1")
        guard = await make_guard(governance=ways[0])
        await switched(guard, here)
        key, opened, connected = await guard.key(), Gate(), Gate()
        guard.runtime.journal.open = opened.behind(guard.runtime.journal.open)
        acquire = ConnectionPool.acquire

        async def acquired(pool: ConnectionPool) -> Any:
            found = await acquire(pool)
            if pool._address.port == other.port:
                await connected.passed()
            return found

        monkeypatch.setattr(ConnectionPool, "acquire", acquired)
        task = asyncio.create_task(say(guard, key, model="named"))
        await opened.reached.wait()
        await switched(guard, elsewhere)
        opened.go.set()
        await connected.reached.wait()
        await switched(guard, here)
        connected.go.set()
        said = await task
        assert (said.status, len(upstream.calls)) == (200, 1)
        assert other.book == []
    assert sorted(outcome for outcome, _ in await outcomes(guard, 2)) == ["not_sent", "ok"]


async def refuses(wire: Wire) -> None:
    """What gets here was sent to the wrong place."""
    await wire.send(plain(b"{}", status="403 Forbidden"))


async def test_an_answer_is_read_the_way_that_its_call_went(
    make_guard: Make, upstream: FakeUpstream, ways: tuple[str, str]
) -> None:
    """A relayed answer is untouched, also if the provider is none any more by then."""
    guard = await make_guard(governance=ways[0])
    await switched(guard, ways[1])
    key = await guard.key()
    release = asyncio.Event()
    upstream.behaviour = Behaviour(hold=release)
    task = asyncio.create_task(say(guard, key, model="named"))
    await until(lambda: upstream.calls)
    await switched(guard, ways[0])
    release.set()
    said = await task
    assert (said.status, json.loads(said.text)["model"]) == (200, "sim-small")
