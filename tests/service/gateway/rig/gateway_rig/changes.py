"""A policy that changes while a call waits, and what became of its attempts."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from gateway_rig.guard import InProcessGuard
from gateway_rig.proofs import until


class Gate:
    """Stops whoever comes by until ``go`` is set."""

    def __init__(self) -> None:
        self.reached, self.go = asyncio.Event(), asyncio.Event()

    async def passed(self) -> None:
        self.reached.set()
        await self.go.wait()

    def behind(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """``call``, whose answer has to pass."""

        async def gated(*args: Any, **more: Any) -> Any:
            answer = await call(*args, **more)
            await self.passed()
            return answer

        return gated


async def outcomes(guard: InProcessGuard, count: int = 1) -> list[tuple[str, int]]:
    """Outcome and amount of so many attempts, all that there are."""

    async def found() -> list[dict[str, Any]]:
        entries = await guard.entries()
        return entries if len(entries) >= count else []

    entries = await until(found)
    return [(entry["outcome"], entry["amount_micro_usd"]) for entry in entries]


async def in_force(guard: InProcessGuard, change: Callable[[Any], bool]) -> None:
    await until(lambda: change(guard.runtime.policy.current().snapshot))


async def apply(guard: InProcessGuard, text: str) -> None:
    """Put this spec in force at ``guard``."""
    base = (await guard.admin("GET", "/governance"))["version"]
    change = {"text": text, "reason": "a test", "base_version": base}
    applied = await guard.admin("POST", "/governance/apply", json=change)
    await in_force(guard, lambda snapshot: snapshot.version == applied["version"])


def applying(guard: InProcessGuard, texts: list[str]) -> Callable[..., Awaitable[Any]]:
    """``journal.open``, after which the next of ``texts`` is in force."""
    real = guard.runtime.journal.open

    async def opened(record: Any) -> None:
        await real(record)
        if texts:
            base = (await guard.admin("GET", "/governance"))["version"]
            change = {"text": texts.pop(0), "reason": "a test", "base_version": base}
            allow = ["cap-below-spend", "price-version-unchanged", "model-not-deployed"]
            await guard.admin("POST", "/governance/apply", json={**change, "allow": allow})

    return opened


def team(policy: str = "{name: p}", *, more: str = "") -> str:
    return f"policies: [{policy}]\nteams: [{{name: team-a, policies: [p]{more}}}]\n"
