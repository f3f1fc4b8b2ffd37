"""Processes that are made to be killed: forked from one that has imported the gateway already."""

import asyncio
import importlib
import multiprocessing
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from gateway_rig.guard import START_SECONDS, Api
from gateway_rig.postgres import free_port
from terrace_gateway import crash_points

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["terrace_gateway.__main__"])


def fork(target: Callable[..., None], log: Path, environment: dict[str, str], *rest: Any) -> Any:
    """A process of this function; ``environment`` is all that it gets."""
    process = _FORKS.Process(target=_run, args=(target, str(log), environment, rest), daemon=True)
    process.start()
    return process


async def ended(process: Any, seconds: float) -> int:
    """Its exit code; a process that lives on is killed and raises ``TimeoutError``."""
    try:
        async with asyncio.timeout(seconds):
            while process.exitcode is None:
                await asyncio.sleep(0.02)
    finally:
        if process.exitcode is None:
            process.kill()
    process.join()
    return process.exitcode


def _run(target: Callable[..., None], log: str, environment: dict[str, str], rest: Any) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.clear()
    os.environ.update(environment)
    importlib.reload(crash_points)  # it reads the environment once; others keep its functions
    target(*rest)


def _guard() -> None:
    from terrace_gateway.__main__ import main

    sys.exit(main())


@dataclass
class CrashGuard(Api):
    """A guard that dies at a crash point, if it is given one."""

    process: Any = field(kw_only=True)

    @classmethod
    def start(cls, settings: dict[str, Any], log: Path, crash_at: str | None) -> "CrashGuard":
        """Does not wait."""
        ports = [free_port() for _ in range(3)]
        names = ("public_port", "admin_port", "metrics_port")
        values = {**settings, **dict(zip(names, ports, strict=True))}
        environment = {f"TERRACE_{name.upper()}": str(value) for name, value in values.items()}
        environment["PATH"] = os.environ["PATH"]
        if crash_at is not None:
            environment["TERRACE_CRASH_AT"] = crash_at
        return cls(
            f"http://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}",
            process=fork(_guard, log, environment),
        )  # fmt: skip

    @property
    def dead(self) -> bool:
        return self.process.exitcode is not None

    async def ready_or_dead(self) -> None:
        """Wait for either."""
        async with asyncio.timeout(START_SECONDS):
            while not self.dead:
                try:
                    response = await self.http.get(f"{self.public_url}/readyz")
                except httpx.TransportError:
                    response = None
                if response is not None and response.status_code == 200:
                    return
                await asyncio.sleep(0.05)

    async def end(self, seconds: float = 180) -> int:
        """Wait for its end, whoever brings it. Returns the exit code."""
        try:
            return await ended(self.process, seconds)
        finally:
            await self.http.aclose()
