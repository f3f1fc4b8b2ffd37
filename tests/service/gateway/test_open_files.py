"""What a guard holds open: callers that leave and upstreams that fail leave nothing behind."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

from gateway_rig.fake_upstream import Behaviour, FakeUpstream
from gateway_rig.guard import CHAT, HELLO, GuardProcess, plain_http

ROUNDS = 20
POOLED = 12
"""Connections that pools may keep: to the database, the translator and the bill."""


def open_sockets(guard: GuardProcess) -> int:
    kinds: Counter[str] = Counter()
    for entry in Path(f"/proc/{guard.process.pid}/fd").iterdir():
        try:
            kinds[str(entry.readlink()).split(":")[0]] += 1
        except OSError:
            continue
    return kinds["socket"]


async def leave_a_stream(guard: GuardProcess, key: str) -> None:
    async with (
        plain_http() as http,
        http.stream(
            "POST", guard.public_url + CHAT, json={**HELLO, "stream": True},
            headers={"authorization": f"Bearer {key}"},
        ) as response,
    ):  # fmt: skip
        await anext(response.aiter_bytes())


async def test_nothing_stays_open(
    make_process: Any, upstream: FakeUpstream, governance_text: str
) -> None:
    patient = "kind: openai\n    breaker: {unknowns: 1000, least_calls: 1000}"
    guard: GuardProcess = await make_process(
        governance=governance_text.replace("kind: openai", patient)
    )
    key = await guard.key(budget_micro_usd=10_000_000)
    assert (await guard.chat(key)).status_code == 200
    await guard.admin("POST", "/reconcile", json={})
    before = open_sockets(guard)
    for _ in range(ROUNDS):
        upstream.behaviour = Behaviour(hold_after_chunks=1)
        await leave_a_stream(guard, key)
        upstream.behaviour = Behaviour(status=500)
        assert (await guard.chat(key)).status_code == 502
        upstream.behaviour = Behaviour()
        assert (await guard.chat("tk-" + "a" * 43)).status_code == 401
        await guard.admin("POST", "/reconcile", json={})
    async with asyncio.timeout(30):
        while open_sockets(guard) > before + POOLED:
            await asyncio.sleep(0.2)
    assert (await guard.chat(key)).status_code == 200
