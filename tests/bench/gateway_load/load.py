"""Closed-loop callers against one subject, and what the subject's process paid."""

import asyncio
import json
import time
from dataclasses import dataclass, field

import aiohttp

from .subjects import Subject


@dataclass
class Round:
    """One subject under one load."""

    subject: str
    shape: str
    callers: int
    calls: int = 0
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    first_byte: list[float] = field(default_factory=list[float])


class Load:
    """Callers of one subject."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject

    async def warm_up(self, shape: str) -> None:
        """A few calls: imports, connections, and a check that it works at all."""
        await self.run(shape, callers=2, seconds=0.5)

    async def run(self, shape: str, *, callers: int, seconds: float) -> Round:
        """So many callers, each one call after the other, for so long."""
        done = Round(self._subject.name, shape, callers)
        async with self._session() as session:
            before, start = self._subject.cpu_seconds(), time.perf_counter()
            until = start + seconds

            async def caller() -> None:
                while time.perf_counter() < until:
                    try:
                        done.first_byte.append(await self.call(session, shape, 20))
                    except aiohttp.ClientError as error:
                        raise RuntimeError(f"{self._subject.name}, {shape}: {error!r}") from error
                    done.calls += 1

            await asyncio.gather(*(caller() for _ in range(callers)))
            done.wall_seconds = time.perf_counter() - start
            done.cpu_seconds = self._subject.cpu_seconds() - before
        return done

    async def long_stream(self, chunks: int, *, calls: int) -> Round:
        """A few streams of many chunks."""
        done = Round(self._subject.name, f"stream of {chunks}", 1)
        async with self._session() as session:
            before = self._subject.cpu_seconds()
            for _ in range(calls):
                done.first_byte.append(await self.call(session, "stream", chunks))
                done.calls += 1
            done.cpu_seconds = self._subject.cpu_seconds() - before
        return done

    def _session(self) -> aiohttp.ClientSession:
        socket = self._subject.socket
        connector = (
            aiohttp.TCPConnector(limit=0)
            if socket is None
            else aiohttp.UnixConnector(str(socket), limit=0)
        )
        return aiohttp.ClientSession(connector=connector)

    async def call(self, session: aiohttp.ClientSession, shape: str, chunks: int) -> float:
        """One call. Returns the seconds to its first byte."""
        body: dict[str, object] = {
            "model": self._subject.model,
            "messages": [{"role": "user", "content": f"chunks:{chunks}"}],
            "max_tokens": 100,
        }
        if shape == "stream":
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        start = time.perf_counter()
        async with session.post(
            f"{self._subject.url}/v1/chat/completions",
            data=json.dumps(body),
            headers={"content-type": "application/json", **self._subject.headers},
        ) as response:
            first = await response.content.readany()
            took = time.perf_counter() - start
            rest = first + await response.read()
            if response.status != 200 or (shape == "stream" and b"[DONE]" not in rest):
                raise RuntimeError(f"{self._subject.name}: {response.status} {rest[-300:]!r}")
        return took
