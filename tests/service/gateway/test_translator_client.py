"""The translator's client: connections used again only while they are surely open, and its key read
anew after a restart."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from terrace_gateway.surfaces.upstream_request import UpstreamRequest
from terrace_gateway.upstream.port import NotSentError, UpstreamLostError
from terrace_gateway.upstream.translator import Translator

REQUEST = UpstreamRequest("/v1/chat/completions", b"{}", 2, 1)
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Engine:
    """Counts connections and keeps the heads that came."""

    def __init__(self, folder: Path) -> None:
        self.socket, self.key_file = folder / "engine.sock", folder / "master-key"
        self.key_file.write_text("first")
        self.connections = 0
        self.heads: list[str] = []
        self.answer: Callable[[asyncio.StreamWriter], None] = lambda writer: writer.write(OK)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head)
                if "content-length: 2" in head:
                    await reader.readexactly(2)
                self.answer(writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Translator]:
        server = await asyncio.start_unix_server(self.serve, self.socket)
        translator = Translator(self.socket, self.key_file)
        await translator.open()
        try:
            yield translator
        finally:
            await translator.close()
            server.close()
            await server.wait_closed()


async def body_of(translator: Translator) -> bytes:
    async with translator.call(REQUEST) as response:
        return b"".join([data async for data in response.chunks()])


async def test_a_quiet_connection_is_used_again_and_the_key_is_the_present_one(
    tmp_path: Path,
) -> None:
    engine = Engine(tmp_path)
    async with engine.running() as translator:
        assert await body_of(translator) == b"ok"
        engine.key_file.write_text("second")
        assert await body_of(translator) == b"ok"
        assert engine.connections == 1
    assert ["Bearer first" in engine.heads[0], "Bearer second" in engine.heads[1]] == [True, True]


async def test_a_connection_that_the_engine_closed_is_no_lost_call(tmp_path: Path) -> None:
    engine = Engine(tmp_path)

    def once(writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        writer.close()

    async with engine.running() as translator:
        engine.answer = once
        for _ in range(20):
            assert await body_of(translator) == b"ok"
            await asyncio.sleep(0.005)
        assert (engine.connections, len(engine.heads)) == (20, 20)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 0\r\n\r\n",
        b"nonsense\r\n\r\n",
    ],
)
async def test_a_broken_answer_is_a_lost_call_and_is_sent_once(
    tmp_path: Path, answer: bytes
) -> None:
    engine = Engine(tmp_path)

    def breaks(writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    engine.answer = breaks
    async with engine.running() as translator:
        with pytest.raises(UpstreamLostError):
            await body_of(translator)
    assert len(engine.heads) == 1


async def test_without_socket_or_key_nothing_is_sent(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    async with engine.running() as translator:
        engine.key_file.unlink()
        with pytest.raises(NotSentError):
            await body_of(translator)
        engine.key_file.write_text("back")
        engine.socket.unlink()
        with pytest.raises(NotSentError):
            await body_of(translator)
        assert await translator.is_ready() is False
    assert engine.heads == []


SEEN = {
    "400": True, "401": True, "403": True, "404": True, "413": True, "422": True, "429": True,
    "none": True, "408": False, "424": False, "499": False, "200": False, "302": False,
    "500": False, "lost": False, "200, 400": False, "lost, 400": False, "400, 400": False,
    "": False, "+40": False, "4000": False, "x": False, "4\xb20": False,
}  # fmt: skip


@pytest.mark.parametrize("seen", [*SEEN, None])
@pytest.mark.parametrize("status", [400, 422, 429])
async def test_a_refusal_is_what_came_off_the_wire(
    tmp_path: Path, status: int, seen: str | None
) -> None:
    answered, headers = await judged(tmp_path, status, seen)
    assert answered is (seen is not None and SEEN[seen])
    assert headers == {}, "what is behind is named to a client"


@pytest.mark.parametrize(
    ("status", "seen", "more", "expected"),
    [
        (500, "429", "", True),
        (500, "none", "", False),
        (408, "none", "", False),
        (200, "400", "", False),
        (302, "302", "", False),
        *((status, f"{status} json", "", True) for status in (500, 501, 503, 529)),
        (503, "503", "x-amzn-requestid: r", False),
        (503, "503", "llm_provider-x-request-id: r", False),
        (503, "503", "llm_provider-content-type: application/json", False),
        (503, "503", "content-type: application/json", False),
        *((status, f"{status} json", "", False) for status in (502, 504, 520)),
        (503, "503 html", "", False),
        (503, "503json", "", False),
        (503, "503 json, 503 json", "", False),
        (503, "lost json", "", False),
        (503, "200 json", "", False),
        (503, "200", "x-amzn-requestid: r", False),
        (503, "lost", "x-amzn-requestid: r", False),
        (400, "503 json", "", True),
    ],
)
async def test_a_failure_is_the_providers_own_if_it_came_off_the_wire(
    tmp_path: Path, status: int, seen: str, more: str, expected: bool
) -> None:
    assert (await judged(tmp_path, status, seen, more))[0] is expected


async def judged(
    folder: Path, status: int, seen: str | None, more: str = ""
) -> tuple[bool, Mapping[str, str]]:
    engine = Engine(folder)
    lines = [] if seen is None else [f"x-terrace-upstream-status: {seen}"]
    lines += [more] if more else []
    head = "\r\n".join([f"HTTP/1.1 {status} Said", *lines, "content-length: 2", "", "ok"])
    engine.answer = lambda writer: writer.write(head.encode("latin-1"))
    async with engine.running() as translator, translator.call(REQUEST) as response:
        return response.provider_answered, response.headers
