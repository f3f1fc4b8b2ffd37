"""Where a request ends on the wire, whatever it says about upgrades and codings."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn

from terrace_gateway.edge.http_limits import bounded_protocol

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: x\r\nauthorization: Bearer other\r\n\r\n"
LAST = b"GET /last HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
OFFERS = {
    "java": "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n",
    "websocket": "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n",
    "anything": "Proxy-Connection: keep-alive, uPgRaDe\r\nUPGRADE: a/1, b/2\r\n",
}
Seen = list[tuple[str, str, bytes]]


class Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


@pytest.fixture
async def served() -> AsyncIterator[tuple[int, Seen]]:
    """A port, and what the application behind it sees."""
    seen: Seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message.get("body", b""), message.get("more_body", False)
        seen.append((scope["method"], scope["path"], body))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    protocol = bounded_protocol(max_connections=10, head_seconds=60, stalled_seconds=60)
    config = uvicorn.Config(app, port=0, http=protocol, lifespan="off", log_config=None, ws="none")
    server = Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.002)
    yield server.servers[0].sockets[0].getsockname()[1], seen
    server.should_exit = True
    await task


async def answers(port: int, *parts: bytes) -> bytes:
    """What comes back until the connection ends; each part is a read of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for part in parts:
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(0.002)
    async with asyncio.timeout(60):
        found = await reader.read()
    writer.close()
    await writer.wait_closed()
    return found


def post(more: str, length: str) -> bytes:
    return f"POST /a HTTP/1.1\r\nhost: x\r\n{more}{length}\r\n".encode()


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (*parts, b""))


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("framed", ["length", "chunked", "none"])
@pytest.mark.parametrize("late", [False, True], ids=["one read", "body late"])
async def test_an_offered_upgrade_is_ignored_and_the_body_is_read(
    served: tuple[int, Seen], offer: str, framed: str, late: bool
) -> None:
    """RFC 9110, 7.8. The body was dropped, or read as the next request of the connection."""
    port, seen = served
    length = {
        "length": f"content-length: {len(SMUGGLED)}\r\n",
        "chunked": "Transfer-Encoding: chunked\r\n",
        "none": "",
    }[framed]
    body = {"length": SMUGGLED, "chunked": chunked(SMUGGLED[:9], SMUGGLED[9:]), "none": b""}[framed]
    head = post(OFFERS[offer], length)
    parts = (head, body, LAST) if late else (head + body + LAST,)
    found = await answers(port, *parts)
    assert found.count(b"HTTP/1.1 200") == found.count(b"HTTP/1.1 ") == 2
    assert seen == [("POST", "/a", SMUGGLED if body else b""), ("GET", "/last", b"")]


async def test_every_split_of_pipelined_upgrades_is_the_same(served: tuple[int, Seen]) -> None:
    port, seen = served
    one = post(OFFERS["java"], "content-length: 3\r\n") + b"abc"
    two = post(OFFERS["websocket"], "transfer-encoding: chunked\r\n") + chunked(b"de", b"f")
    data = one + two + LAST
    for cut in range(1, len(data)):
        seen.clear()
        await answers(port, data[:cut], data[cut:])
        assert seen == [("POST", "/a", b"abc"), ("POST", "/a", b"def"), ("GET", "/last", b"")], cut


async def test_an_upgrade_ends_its_connection_where_its_client_says(
    served: tuple[int, Seen],
) -> None:
    port, seen = served
    head = post("connection: upgrade, close\r\nupgrade: h2c\r\n", "content-length: 2\r\n")
    found = await answers(port, head + b"{}")
    assert found.count(b"HTTP/1.1 200") == 1
    assert seen == [("POST", "/a", b"{}")]


async def test_httpx_with_an_offer_is_served(served: tuple[int, Seen]) -> None:
    import httpx

    port, seen = served
    body = json.dumps({"model": "m", "text": "x" * 200_000}).encode()
    headers = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": ""}
    async with httpx.AsyncClient() as client:
        for _ in range(2):  # on one connection
            url = f"http://127.0.0.1:{port}/a"
            assert (await client.post(url, content=body, headers=headers)).status_code == 200
    assert seen == [("POST", "/a", body)] * 2


@pytest.mark.parametrize(
    ("version", "codings"),
    [
        ("1.1", ["gzip, chunked"]),
        ("1.1", ["identity", "chunked"]),
        ("1.1", ["chunked", "chunked"]),
        ("1.1", ["chunked, chunked"]),
        ("1.1", [""]),
        ("1.1", ["chunked;q=1"]),
        ("1.0", ["chunked"]),
    ],
)
@pytest.mark.parametrize("offer", ["", OFFERS["java"]], ids=["plain", "upgrade"])
async def test_codings_that_readers_may_disagree_on_are_refused(
    served: tuple[int, Seen], version: str, codings: list[str], offer: str
) -> None:
    """RFC 9112, 6.1 and 6.3."""
    port, seen = served
    lengths = "".join(f"transfer-encoding: {coding}\r\n" for coding in codings)
    head = f"POST /a HTTP/{version}\r\nhost: x\r\n{offer}{lengths}\r\n".encode()
    found = await answers(port, head + chunked(b"Z") + SMUGGLED)
    assert found.startswith(b"HTTP/1.1 400")
    assert found.count(b"HTTP/1.1 ") == 1
    assert seen == []


@pytest.mark.parametrize(
    "line", ["CONNECT a:1", "CONNECT http://a/v1/models", "CONNECT /v1/models"]
)
async def test_connect_is_refused(served: tuple[int, Seen], line: str) -> None:
    port, seen = served
    found = await answers(port, f"{line} HTTP/1.1\r\nhost: x\r\n\r\n".encode() + SMUGGLED)
    assert found.startswith(b"HTTP/1.1 400")
    assert found.count(b"HTTP/1.1 ") == 1
    assert seen == []


async def test_chunked_in_any_case_and_with_spaces_is_chunked(served: tuple[int, Seen]) -> None:
    port, seen = served
    head = post("", "Transfer-Encoding:  Chunked \r\n")
    await answers(port, head + chunked(b"a", b"b") + LAST)
    assert seen == [("POST", "/a", b"ab"), ("GET", "/last", b"")]
