"""Attacks on the wire: what strangers can send to the public port, and what it costs the guard."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from gateway_rig.fake_upstream import Behaviour, FakeUpstream
from gateway_rig.guard import CHAT, HELLO, GuardProcess, guard_settings
from gateway_rig.postgres import Postgres
from gateway_rig.sync_guard import SyncGuard

STRANGER = "tk-" + "a" * 43
MIB = 1024 * 1024
OPEN: list[asyncio.StreamWriter] = []


@pytest.fixture(autouse=True)
async def close_wires() -> AsyncIterator[None]:
    yield
    for writer in OPEN:
        writer.transport.abort()
    for writer in OPEN:
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    OPEN.clear()
    await asyncio.sleep(0)


@dataclass
class Served:
    """One guard for all tests of this file: each has a fake of its own behind the same socket."""

    folder: Path
    database_url: str
    stack: contextlib.ExitStack
    guard: SyncGuard | None = None


@pytest.fixture(scope="module")
def served(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    name = "attacks_on_the_wire"
    postgres.new_database(name)
    with contextlib.ExitStack() as stack:
        yield Served(tmp_path_factory.mktemp("wire"), postgres.url(name), stack)
    postgres.drop_database(name)


@pytest.fixture
async def upstream(served: Served) -> AsyncIterator[FakeUpstream]:
    fake = FakeUpstream(served.folder)
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def guard(
    served: Served, upstream: FakeUpstream, governance_text: str
) -> AsyncIterator[GuardProcess]:
    if served.guard is None:
        settings = {
            **guard_settings(
                served.folder, upstream, database_url=served.database_url,
                governance=governance_text,
            ),
            "head_read_seconds": 1, "body_read_seconds": 3, "stalled_reader_seconds": 2,
            "max_connections": 60,
        }  # fmt: skip
        running = SyncGuard.running(served.folder / "guard.log", **settings)
        served.guard = await asyncio.to_thread(served.stack.enter_context, running)
    known = served.guard
    guard = GuardProcess(
        known.public_url, known.admin_url, process=cast("Any", known.process), log=known.log
    )
    yield guard
    await guard.http.aclose()


class Wire:
    """A raw connection to the public port."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, guard: GuardProcess, receive_buffer: int | None = None) -> "Wire":
        wire = socket.socket()
        if receive_buffer is not None:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        wire.setblocking(False)
        port = int(guard.public_url.rsplit(":", 1)[1])
        await asyncio.get_running_loop().sock_connect(wire, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=wire, limit=1024)
        OPEN.append(writer)
        return cls(reader, writer)

    async def send(self, data: bytes) -> bool:
        """False if the guard has closed the connection."""
        try:
            self.writer.write(data)
            await self.writer.drain()
        except ConnectionError:
            return False
        return True

    async def rest(self, seconds: float = 60) -> bytes:
        """Everything until the guard closes."""
        with contextlib.suppress(ConnectionError):
            return await asyncio.wait_for(self.reader.read(-1), seconds)
        return b""

    async def call(self, data: bytes) -> bytes:
        await self.send(data)
        return await self.rest()


def memory(guard: GuardProcess) -> int:
    status = Path(f"/proc/{guard.process.pid}/status").read_text("ascii")
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def head(key: str, *, length: int | None, more: str = "", path: str = CHAT) -> bytes:
    size = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    return (
        f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n{size}\r\n{more}\r\n"
    ).encode()


async def until_served(guard: GuardProcess) -> None:
    """Until it has seen that connections above its maximum are gone."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(httpx.TransportError):
                await guard.http.get(f"{guard.public_url}/healthz")
                return
            await asyncio.sleep(0.05)


async def alive(guard: GuardProcess) -> None:
    assert (await guard.http.get(f"{guard.public_url}/healthz")).status_code == 200


@pytest.mark.parametrize(
    "start",
    [b"GET /", b"GET / HTTP/1.1\r\nx: ", b"GET / HTTP/1.1\r\n", b"\r\n"],
    ids=["url", "value", "fields", "nothing"],
)
async def test_a_head_without_end_is_cut(guard: GuardProcess, start: bytes) -> None:
    part = {b"\r\n": b"\r\n" * 32768, b"GET / HTTP/1.1\r\n": b"a: b\r\n" * 10922}.get(
        start, b"x" * 65532
    )
    wire = await Wire.open(guard)
    await wire.send(start)
    sent = 0
    while sent < 64 * MIB and await wire.send(part):
        sent += len(part)
    assert sent < 8 * MIB
    assert memory(guard) < 200 * MIB
    await alive(guard)


@pytest.mark.parametrize("data", [b"", b"GET /", b"\r\n", b"POST / HTTP/1.1\r\na: "])
async def test_a_slow_head_is_cut(guard: GuardProcess, data: bytes) -> None:
    wire = await Wire.open(guard)
    await wire.send(data)

    async def drip() -> None:
        while await wire.send(data[-1:]):
            await asyncio.sleep(0.2)

    task = asyncio.create_task(drip())
    assert await wire.rest() == b""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_trailers_without_end_are_cut(guard: GuardProcess) -> None:
    wire = await Wire.open(guard)
    await wire.send(head(STRANGER, length=None) + b"2\r\n{}\r\n0\r\n")
    sent = 0
    while sent < 64 * MIB and await wire.send(b"x: " + b"y" * 65000 + b"\r\n"):
        sent += 65005
    assert sent < 8 * MIB
    await alive(guard)


async def test_a_refused_body_is_not_read_for_ever(guard: GuardProcess) -> None:
    wire = await Wire.open(guard)
    await wire.send(head(STRANGER, length=10**12))
    async with asyncio.timeout(60):
        while await wire.send(b" " * 65536):
            await asyncio.sleep(0.01)


async def test_strangers_do_not_fill_the_memory_with_bodies(guard: GuardProcess) -> None:
    before = memory(guard)
    wires = [await Wire.open(guard) for _ in range(50)]

    async def fill(wire: Wire) -> bytes:
        await wire.send(head(STRANGER, length=4 * MIB))
        for _ in range(60):
            if not await wire.send(b" " * 65536):
                break
        return await wire.rest()

    answers = await asyncio.gather(*(fill(wire) for wire in wires))
    assert memory(guard) - before < 60 * MIB
    assert sum(b"401" in answer[:20] for answer in answers) > 25  # the rest saw a reset
    await alive(guard)


async def test_keys_do_not_fill_the_memory_with_bodies(
    make_process: Any, upstream: FakeUpstream
) -> None:
    guard: GuardProcess = await make_process(body_read_seconds=600)
    key = await guard.key()
    before = memory(guard)
    wires = [await Wire.open(guard) for _ in range(60)]

    async def fill(wire: Wire) -> bytes:
        await wire.send(head(key, length=4 * MIB))
        for _ in range(63):
            if not await wire.send(b" " * 65536):
                break
        return await answer_of(wire)

    async def answer_of(wire: Wire) -> bytes:
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(wire.reader.read(200), 3)
        return b"reading"

    answers = await asyncio.gather(*(fill(wire) for wire in wires))
    assert memory(guard) - before < 160 * MIB
    # 96 MiB in bodies of 4 MiB; how many share the room depends on who is quick.
    async with asyncio.timeout(180):
        while answers.count(b"reading") > 25:
            late = [n for n, answer in enumerate(answers) if answer == b"reading"]
            more = await asyncio.gather(*(answer_of(wires[n]) for n in late))
            for n, answer in zip(late, more, strict=True):
                answers[n] = answer
    held = answers.count(b"reading")
    assert held <= 25
    assert sum(b"429" in answer[:20] for answer in answers) > 0
    assert all(b"429" in answer[:20] for answer in answers if answer.startswith(b"HTTP"))
    assert (await guard.chat(key)).status_code == 200
    for wire in wires:
        wire.writer.transport.abort()
    large = {**HELLO, "messages": [{"role": "user", "content": "x" * 3 * MIB}]}
    async with asyncio.timeout(60):
        # The model has no room for it, which is said once there is room for the body.
        while (answer := await guard.chat(key, **large)).status_code == 429:
            await asyncio.sleep(0.2)
    assert answer.json()["error"]["code"] == "not_servable"


async def test_pipelined_requests_are_few(guard: GuardProcess) -> None:
    wire = await Wire.open(guard, receive_buffer=2048)
    before = memory(guard)
    one = b"GET /v1/models HTTP/1.1\r\n\r\n"
    for _ in range(100):
        if not await wire.send(one * 2500):
            break
    assert memory(guard) - before < 60 * MIB
    await alive(guard)


async def test_connections_above_the_maximum_are_closed(guard: GuardProcess) -> None:
    await alive(guard)
    wires = [await Wire.open(guard) for _ in range(200)]
    async with asyncio.timeout(60):
        while sum(w.reader.at_eof() or w.reader.exception() is not None for w in wires) < 140:
            await asyncio.sleep(0.05)
    for wire in wires:
        wire.writer.close()
    await until_served(guard)
    await alive(guard)


async def test_a_reader_that_stalls_has_left_and_pays_the_truth(
    make_process: Any, upstream: FakeUpstream
) -> None:
    guard: GuardProcess = await make_process(stalled_reader_seconds=2)
    key = await guard.key()
    upstream.behaviour = Behaviour(chunks=60_000)
    wire = await Wire.open(guard, receive_buffer=2048)
    body = json.dumps({**HELLO, "stream": True}).encode()
    await wire.send(head(key, length=len(body)) + body)
    wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
    async with asyncio.timeout(240):
        while not (entries := await guard.entries()):
            await asyncio.sleep(0.2)
    assert entries[0]["outcome"] == "client_cancelled"
    assert entries[0]["amount_micro_usd"] == upstream.bill_total
    wire.writer.close()


BODY = json.dumps(HELLO).encode()
SMUGGLED = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello"


@pytest.mark.parametrize(
    "more",
    ["transfer-encoding: chunked\r\n", "content-length: 3\r\n", "transfer-encoding: xchunked\r\n",
     "transfer-encoding : chunked\r\n", " transfer-encoding: chunked\r\n",
     "transfer-encoding: chunked, identity\r\n", "x: a\0b\r\n", "x: a\rb\r\n",
     "content-length: +5\r\n"],
)  # fmt: skip
async def test_requests_with_two_lengths_are_refused(
    guard: GuardProcess, upstream: FakeUpstream, more: str
) -> None:
    key = await guard.key()
    wire = await Wire.open(guard)
    answer = await wire.call(head(key, length=len(BODY), more=more) + BODY + SMUGGLED)
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1
    assert upstream.calls == []


@pytest.mark.parametrize(
    "line",
    ["GET //v1/models", "GET /v1//models", "GET /v1/models/", "GET /v1/./models", "HEAD /v1/models",
     "OPTIONS /v1/models", "CONNECT x:1", "TRACE /v1/models", "GET /v1/models%00",
     "GET /../v1/models", "GET /admin/v1/keys", "GET /metrics", "GET /v1/models%0a", "POST /health",
     "GET /%ff", "POST /bedrock/model/bedrock-claude/converse", "GET /config/yaml", "GET *",
     "GET http://engine/key/list", "POST /model//converse", "POST /v1/completions/",
     "PRI * HTTP/2.0", "GET /V1/models", "GET /v1/models;a=b"],
)  # fmt: skip
async def test_other_routes_do_not_exist(
    guard: GuardProcess, upstream: FakeUpstream, line: str
) -> None:
    key = await guard.key()
    wire = await Wire.open(guard)
    request = f"{line} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\nconnection: close\r\n"
    answer = await wire.call(request.encode() + b"content-length: 0\r\n\r\n")
    assert answer[9:12] in (b"404", b"400"), answer[:200]
    assert upstream.calls == []


async def test_gzip_and_other_encodings_are_no_bomb(
    guard: GuardProcess, upstream: FakeUpstream
) -> None:
    import gzip

    key = await guard.key()
    response = await guard.http.post(
        guard.public_url + CHAT,
        content=gzip.compress(b" " * 100 * MIB + BODY),
        headers={"authorization": f"Bearer {key}", "content-encoding": "gzip"},
    )
    assert response.status_code == 400
    assert upstream.calls == []


async def test_pipelining_and_keep_alive_still_work(guard: GuardProcess) -> None:
    key = await guard.key()
    wire = await Wire.open(guard)
    request = head(key, length=len(BODY)) + BODY
    await wire.send(request + request[:30])
    await asyncio.sleep(0.5)
    await wire.send(request[30:] + request.replace(b"\r\nhost", b"\r\nconnection: close\r\nhost"))
    answer = await wire.rest()
    assert answer.count(b"HTTP/1.1 200") == 3
    large = await guard.http.post(
        guard.public_url + CHAT, content=b" " * 5 * MIB, headers={"authorization": f"Bearer {key}"}
    )
    assert large.status_code == 413


async def test_an_idle_connection_is_kept_as_long_as_asked(make_process: Any) -> None:
    """A load balancer keeps its own for an hour, and must not find them closed."""
    guard = await make_process(keep_alive_seconds=1)
    wire = await Wire.open(guard)
    request = b"GET /healthz HTTP/1.1\r\nhost: guard\r\n\r\n"
    await wire.send(request)
    assert (await wire.rest()).count(b"HTTP/1.1 200") == 1
    patient = await make_process()
    wire = await Wire.open(patient)
    await wire.send(request)
    await asyncio.sleep(3)
    await wire.send(request.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
    assert (await wire.rest()).count(b"HTTP/1.1 200") == 2
