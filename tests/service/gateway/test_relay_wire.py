"""The relay on real sockets: what goes out, what comes back untouched, and what counts as sent."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from gateway_rig.relay_upstream import (
    STREAM_HEAD,
    RawUpstream,
    Script,
    Towards,
    Wire,
    chunk,
    plain,
    relay_request,
    self_signed,
)

from terrace_gateway.upstream.credentials import Credentials
from terrace_gateway.upstream.port import NotSentError, UpstreamLostError, WayChangedError
from terrace_gateway.upstream.relay import Relay, RelayProvider, RelaySettings, tls_context

SECRET = "canary-provider-secret"


@asynccontextmanager
async def relay_to(
    port: int,
    *,
    idle_seconds: float = 60.0,
    scheme: str = "http",
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Relay]:
    credentials = Credentials(Path("/nowhere"), {"KEY": SECRET})
    relay = Relay(credentials, RelaySettings(30.0, idle_seconds), tls=tls)
    relay.apply([RelayProvider("relayed", f"{scheme}://localhost:{port}/v1", "KEY")])
    try:
        yield relay
    finally:
        await relay.close()


async def ask(relay: Relay) -> bytes:
    async with relay.call(relay_request(), Towards()) as response:
        assert response.status == 200
        return b"".join([data async for data in response.chunks()])


async def test_certificate_and_name_are_checked(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path, "localhost")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    trusting = tls_context(str(certificate))
    async with RawUpstream(answers(plain(b"{}")), tls=server).running() as upstream:
        async with relay_to(upstream.port, scheme="https", tls=trusting) as relay:
            assert await ask(relay) == b"{}"
            assert await ask(relay) == b"{}"
            relay.apply([RelayProvider("relayed", f"https://127.0.0.1:{upstream.port}/v1", "KEY")])
            with pytest.raises(NotSentError, match="SSLCertVerificationError"):
                await ask(relay)
        async with relay_to(upstream.port, scheme="https") as relay:
            with pytest.raises(NotSentError, match="SSLCertVerificationError"):
                await ask(relay)
    assert len(upstream.book) == 2
    assert upstream.book[0].connection == upstream.book[1].connection


def answers(*parts: bytes, close: bool = False) -> Script:
    async def script(wire: Wire) -> None:
        for part in parts:
            await wire.send(part)
            await asyncio.sleep(0)
        if close:
            wire.writer.close()

    return script


async def test_request_is_ours_and_answer_is_theirs() -> None:
    body = b'{"odd"  :\t"spacing", "\xc3\xa9": 1}\n'
    extra = (
        "x-request-id: theirs-1\r\nset-cookie: a=b\r\nserver: them\r\nx-litellm-key: v\r\n"
        "connection: keep-alive, x-hop\r\nx-hop: 1\r\nretry-after: 7\r\n"
    )
    async with (
        RawUpstream(answers(plain(body, extra=extra))).running() as upstream,
        relay_to(upstream.port) as relay,
    ):
        request = relay_request(b'{"a":1}', x_terrace_attempt_id="att_1", cookie="no")
        async with relay.call(request, Towards()) as response:
            got = b"".join([data async for data in response.chunks()])
            assert dict(response.headers) == {"content-type": "application/json"}
            assert (response.request_id, response.retry_after) == ("theirs-1", "7")
    assert got == body
    [received] = upstream.book
    assert received.line == "POST /v1/chat/completions HTTP/1.1"
    assert received.body == b'{"a":1}'
    assert received.headers["authorization"] == f"Bearer {SECRET}"
    assert received.headers["x-terrace-attempt-id"] == "att_1"
    assert "cookie" not in received.headers


async def test_stream_bytes_are_untouched_however_they_are_cut() -> None:
    events = b"".join(b'data: {"n": %d}\r\n\r\n' % n for n in range(50)) + b"data: [DONE]\n\n"
    wire = STREAM_HEAD + b"".join(chunk(events[i : i + 7]) for i in range(0, len(events), 7))
    wire += chunk(b"")
    pieces = [wire[i : i + 11] for i in range(0, len(wire), 11)]
    async with (
        RawUpstream(answers(*pieces)).running() as upstream,
        relay_to(upstream.port) as relay,
    ):
        assert await ask(relay) == events


async def test_connection_is_used_again_at_once_only() -> None:
    async with RawUpstream(answers(plain(b"{}"))).running() as upstream:
        async with relay_to(upstream.port) as relay:
            for _ in range(3):
                await ask(relay)
            assert upstream.connections == 1
        async with relay_to(upstream.port, idle_seconds=0.05) as relay:
            await ask(relay)
            await asyncio.sleep(0.1)
            await ask(relay)
    assert upstream.connections == 3
    assert len(upstream.book) == 5


async def test_connection_that_was_closed_while_idle_costs_nothing() -> None:
    async def script(wire: Wire) -> None:
        await wire.send(plain(b"{}"))

    async with RawUpstream(script).running() as upstream, relay_to(upstream.port) as relay:
        for _ in range(20):
            await ask(relay)
            upstream.writers[-1].close()  # its goodbye arrives before we send again
            await upstream.writers[-1].wait_closed()
        assert len(upstream.book) == 20


async def test_server_that_announces_an_early_end_is_believed() -> None:
    for extra in (
        "keep-alive: timeout=1\r\n",
        "keep-alive: max=9, timeout=0\r\n",
        "connection: close\r\n",
    ):
        async with (
            RawUpstream(answers(plain(b"{}", extra=extra))).running() as upstream,
            relay_to(upstream.port) as relay,
        ):
            await ask(relay)
            await ask(relay)
        assert upstream.connections == 2


@pytest.mark.parametrize("told", ["\u00b2", "9" * 5000, "-1", "1.5", ""])
async def test_an_idle_time_that_is_none_is_no_defect(told: str) -> None:
    extra = f"keep-alive: timeout={told}\r\n"
    head = plain(b"{}").replace(b"content-type", extra.encode("latin-1") + b"content-type")
    async with (
        RawUpstream(answers(head)).running() as upstream,
        relay_to(upstream.port) as relay,
    ):
        await ask(relay)
        await ask(relay)
    assert upstream.connections == 1


@pytest.mark.parametrize("goodbye", ["end", "reset", "a word"])
async def test_what_ends_before_the_first_byte_was_not_sent(goodbye: str) -> None:
    """The guard asks whether a call is still allowed with a connection at hand."""
    async with RawUpstream(answers(plain(b"{}"))).running() as upstream:

        async def ends() -> None:
            await until_connected(upstream)
            [writer] = upstream.writers
            if goodbye == "reset":
                writer.transport.abort()
            elif goodbye == "end":
                writer.close()
            else:
                writer.write(plain(b"{}"))
            await asyncio.sleep(0.1)

        async with relay_to(upstream.port) as relay:
            with pytest.raises(NotSentError):
                async with relay.call(relay_request(), Towards(), ends):
                    pass
    assert upstream.book == []


async def until_connected(upstream: RawUpstream) -> None:
    async with asyncio.timeout(60):
        while not upstream.writers:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "wire",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n123",
        STREAM_HEAD + b"5\r\nab",
        STREAM_HEAD + chunk(b"ab"),
        b"not http at all\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 70_000,
    ],
)
async def test_broken_answer_is_unknown_and_asked_once(wire: bytes) -> None:
    async with (
        RawUpstream(answers(wire, close=True)).running() as upstream,
        relay_to(upstream.port) as relay,
    ):
        with pytest.raises(UpstreamLostError):
            await ask(relay)
    assert len(upstream.book) == 1


async def test_answer_without_a_length_ends_with_its_connection() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    async with (
        RawUpstream(answers(head, b"data: {}\n\n", close=True)).running() as upstream,
        relay_to(upstream.port) as relay,
    ):
        assert await ask(relay) == b"data: {}\n\n"
        assert await ask(relay) == b"data: {}\n\n"
    assert upstream.connections == 2


async def test_interim_answers_are_skipped() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"
    async with (
        RawUpstream(answers(interim + plain(b'{"a":1}'))).running() as upstream,
        relay_to(upstream.port) as relay,
    ):
        assert await ask(relay) == b'{"a":1}'


async def test_second_answer_that_nobody_asked_for_reaches_no_other_call() -> None:
    async with (
        RawUpstream(answers(plain(b'{"a":1}') + plain(b'{"evil":1}'))).running() as upstream,
        relay_to(upstream.port) as relay,
    ):
        assert await ask(relay) == b'{"a":1}'
        assert await ask(relay) == b'{"a":1}'
    assert upstream.connections == 2


async def test_redirect_is_not_followed() -> None:
    async with RawUpstream(answers(plain(b"{}"))).running() as elsewhere:
        location = f"location: http://localhost:{elsewhere.port}/v1/chat/completions\r\n"
        script = answers(plain(b"", status="307 Temporary Redirect", extra=location))
        async with (
            RawUpstream(script).running() as upstream,
            relay_to(upstream.port) as relay,
            relay.call(relay_request(), Towards()) as response,
        ):
            assert response.status == 307
            assert response.provider_answered is False
    assert elsewhere.book == []


@pytest.mark.parametrize(
    ("status", "kind", "own"),
    [
        ("400 Bad Request", "application/json", True),
        ("429 Too Many Requests", "text/plain", True),
        ("408 Request Timeout", "application/json", False),
        ("500 Internal Server Error", "application/json; charset=utf-8", True),
        ("503 Service Unavailable", "application/json", True),
        ("503 Service Unavailable", "text/plain", False),
        ("503 Service Unavailable", "text/html\r\nx-request-id: p1", False),
        ("500 Internal Server Error", "application/json-seq", False),
        ("502 Bad Gateway", "application/json", False),
        ("504 Gateway Timeout", "text/html", False),
    ],
)
async def test_whose_word_an_error_is(status: str, kind: str, *, own: bool) -> None:
    wire = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: 2\r\n\r\nno".encode()
    async with (
        RawUpstream(answers(wire)).running() as upstream,
        relay_to(upstream.port) as relay,
        relay.call(relay_request(), Towards()) as response,
    ):
        assert response.provider_answered is own
        assert await response.error_body() == b"no"


async def test_a_provider_that_moved_while_a_call_connected_is_not_sent_it() -> None:
    async with (
        RawUpstream(answers(plain(b"{}"))).running() as old,
        RawUpstream(answers(plain(b"{}"))).running() as new,
        relay_to(old.port) as relay,
    ):

        async def moves() -> None:
            relay.apply([RelayProvider("relayed", f"http://localhost:{new.port}/v1", "KEY")])

        with pytest.raises(WayChangedError):
            async with relay.call(relay_request(), Towards(), moves):
                pass
        assert (old.book, new.book) == ([], [])
        assert await ask(relay) == b"{}"
        assert (len(old.book), len(new.book)) == (0, 1)


async def test_what_cannot_connect_was_not_sent(tmp_path: Path) -> None:
    async with RawUpstream(answers()).running() as upstream:
        port = upstream.port
    async with relay_to(port) as relay:
        with pytest.raises(NotSentError, match=r"ConnectionRefusedError|OSError"):
            await ask(relay)
    relay = Relay(Credentials(tmp_path, {}), RelaySettings())
    relay.apply([RelayProvider("relayed", "http://no-such-host.invalid/v1", "KEY")])
    with pytest.raises(NotSentError, match="credential"):
        await ask(relay)
    (tmp_path / "KEY").write_text("from-a-file\n")
    with pytest.raises(NotSentError, match="no connection"):
        await ask(relay)


async def test_credential_cannot_smuggle_a_header(tmp_path: Path) -> None:
    (tmp_path / "KEY").write_text("abc\r\nx-evil: 1")
    with pytest.raises(NotSentError):
        Credentials(tmp_path, {}).of("KEY")
    assert "abc" not in repr(Credentials(tmp_path, {}))


async def test_slow_client_stops_the_reading() -> None:
    sent = 0

    async def script(wire: Wire) -> None:
        nonlocal sent
        size = 64 * 1024
        total = 256
        await wire.send(f"HTTP/1.1 200 OK\r\ncontent-length: {size * total}\r\n\r\n".encode())
        for _ in range(total):
            await wire.send(b"x" * size)
            sent += size

    async with (
        RawUpstream(script).running() as upstream,
        relay_to(upstream.port) as relay,
        relay.call(relay_request(), Towards()) as response,
    ):
        before = -1
        while sent != before:  # until the upstream cannot send any more
            before = sent
            await asyncio.sleep(0.05)
        assert sent < 12 * 1024 * 1024
        got = 0
        async for data in response.chunks():
            got += len(data)
        assert got == 16 * 1024 * 1024


async def test_leaving_early_closes_the_connection() -> None:
    closed = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.send(STREAM_HEAD + chunk(b"data: {}\n\n"))
        await wire.reader.read()
        closed.set()

    async with RawUpstream(script).running() as upstream, relay_to(upstream.port) as relay:
        async with relay.call(relay_request(), Towards()) as response:
            async for _ in response.chunks():
                break
        async with asyncio.timeout(60):
            await closed.wait()
    assert upstream.connections == 1


async def test_new_version_keeps_unchanged_providers_and_forgets_others() -> None:
    async with (
        RawUpstream(answers(plain(b"{}"))).running() as upstream,
        relay_to(upstream.port) as relay,
    ):
        await ask(relay)
        same = RelayProvider("relayed", f"http://localhost:{upstream.port}/v1", "KEY")
        relay.apply([same])
        await ask(relay)
        assert upstream.connections == 1
        relay.apply([])
        assert not relay.serves("relayed")
        with pytest.raises(NotSentError):
            await ask(relay)
    assert len(upstream.book) == 2
