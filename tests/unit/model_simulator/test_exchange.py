"""The order that the bill rests on: open synced, first byte, ..., close synced, last byte."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message

from terrace_model_simulator.app import create_app
from terrace_model_simulator.settings import SimulatorSettings

CLAUDE = "anthropic.claude-sonnet-4-5-20250929-v1:0"
TEXT = "[[tokens=12]]"
CHAT = {"model": "sim-small", "messages": [{"role": "user", "content": TEXT}]}
CONVERSE = {"messages": [{"role": "user", "content": [{"text": TEXT}]}]}


def settings(directory: Path) -> SimulatorSettings:
    for name in ("simulator-api-key", "aws-access-key-id", "aws-secret-access-key"):
        (directory / name).write_text("k")
    return SimulatorSettings(
        bill_path=directory / "bill.jsonl", credentials_dir=directory, bill_reserve_bytes=0
    )


def scope(path: str) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"authorization", b"Bearer k")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "scheme": "http",
        "root_path": "",
    }


@pytest.mark.parametrize(
    ("path", "body", "parts"),
    [
        ("/v1/chat/completions", CHAT, 0),
        ("/v1/chat/completions", {**CHAT, "stream": True}, 4),
        (f"/model/{CLAUDE}/converse", CONVERSE, 0),
        (f"/model/{CLAUDE}/converse-stream", CONVERSE, 4),
    ],
)
async def test_the_disk_comes_before_the_wire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, body: object, parts: int
) -> None:
    events: list[str] = []
    bill = tmp_path / "bill.jsonl"
    real = os.fdatasync

    def synced(fd: int) -> None:
        real(fd)
        last = json.loads(bill.read_bytes().splitlines()[-1])
        events.append(f"{last['record']} synced")

    async def send(message: Message) -> None:
        kind = message["type"].removeprefix("http.response.")
        last = kind == "body" and not message.get("more_body", False)
        events.append("last byte" if last else kind)

    incoming: asyncio.Queue[Message] = asyncio.Queue()
    incoming.put_nowait(
        {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
    )
    app = create_app(settings(tmp_path))
    async with app.router.lifespan_context(app):
        monkeypatch.setattr(os, "fdatasync", synced)
        await app(scope(path), incoming.get, send)
    streamed = ["start"] if parts else []
    expected = ["open synced", *streamed, *["body"] * parts, "close synced"]
    expected += [*([] if streamed else ["start"]), "last byte"]
    assert events == expected


async def test_the_first_byte_waits_for_a_slow_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Message] = []
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()
    waiting = asyncio.Event()
    real = os.fdatasync

    def slow(fd: int) -> None:
        loop.call_soon_threadsafe(waiting.set)
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(timeout=60)
        real(fd)

    async def send(message: Message) -> None:
        sent.append(message)

    incoming: asyncio.Queue[Message] = asyncio.Queue()
    body = json.dumps({**CHAT, "stream": True}).encode()
    incoming.put_nowait({"type": "http.request", "body": body, "more_body": False})
    app = create_app(settings(tmp_path))
    async with app.router.lifespan_context(app):
        monkeypatch.setattr(os, "fdatasync", slow)
        call = asyncio.create_task(app(scope("/v1/chat/completions"), incoming.get, send))
        await waiting.wait()
        for _ in range(50):
            await asyncio.sleep(0)
        assert sent == []
        gate.set()
        await call
    assert sent[-1]["body"].endswith(b"data: [DONE]\n\n")
