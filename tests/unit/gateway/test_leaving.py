"""A client that leaves is noticed, whatever its connection has carried before."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn

from terrace_gateway.edge.client import LEAVING, Client
from terrace_gateway.edge.http_limits import bounded_protocol


class Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


class App:
    """``/now`` answers at once, and is not over yet then; ``/wait`` waits for its client to go."""

    def __init__(self) -> None:
        self.reading = asyncio.Event()
        self.noticed = asyncio.Event()
        self.answered = asyncio.Event()
        self.lingers = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        leaving = scope["extensions"][LEAVING]
        client = Client(receive, send, request_id="req_test", leaving=leaving)
        await client.read_body(limit=10**7, seconds=60, free=10**7, grow=lambda _: None)
        client.watch()
        try:
            if scope["path"] == "/wait":
                self.reading.set()
                with client.telling(self.noticed.set):
                    await self.noticed.wait()
                return
            await client.respond(200, [], b"x")
            self.answered.set()
            await self.lingers.wait()
        finally:
            client.unwatch()


@pytest.fixture
async def served() -> AsyncIterator[tuple[App, int]]:
    app = App()
    protocol = bounded_protocol(max_connections=10, head_seconds=60, stalled_seconds=60)
    config = uvicorn.Config(app, port=0, http=protocol, lifespan="off", log_config=None, ws="none")
    server = Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    yield app, server.servers[0].sockets[0].getsockname()[1]
    app.lingers.set()
    app.noticed.set()
    server.should_exit = True
    await task


def request(path: str, size: int) -> tuple[bytes, bytes]:
    head = f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {size}\r\n\r\n"
    return head.encode(), b"a" * size


@pytest.mark.parametrize("late", [False, True], ids=["at once", "body late"])
@pytest.mark.parametrize("size", [1, 60_000, 70_000, 1_000_000])
async def test_after_a_body_of_any_size(served: tuple[App, int], size: int, late: bool) -> None:
    """uvicorn stops to read a connection above 64 KiB of a body."""
    app, port = served
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    head, body = request("/wait", size)
    writer.write(head)
    if late:
        await writer.drain()
        await asyncio.sleep(0.05)
    writer.write(body)
    async with asyncio.timeout(60):
        await app.reading.wait()
        writer.close()
        await app.noticed.wait()


@pytest.mark.parametrize("pipelined", [False, True], ids=["kept alive", "pipelined"])
async def test_behind_an_answer_whose_call_is_not_over_yet(
    served: tuple[App, int], pipelined: bool
) -> None:
    """The end of one call took the watch of the next one away."""
    app, port = served
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    first, then = b"".join(request("/now", 5)), b"".join(request("/wait", 13))
    async with asyncio.timeout(60):
        writer.write(first + then if pipelined else first)
        await reader.readuntil(b"\r\n\r\n")
        await app.answered.wait()
        if not pipelined:
            writer.write(then)
        await app.reading.wait()
        app.lingers.set()
        await asyncio.sleep(0.05)  # the first call ends
        writer.close()
        await app.noticed.wait()
