"""An OpenAI-compatible upstream over raw TCP that can misbehave byte by byte, with a book."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from terrace_gateway.surfaces.upstream_request import UpstreamRequest


@dataclass
class Received:
    """One request as it arrived."""

    line: str
    headers: dict[str, str]
    body: bytes
    connection: int


Script = Callable[["Wire"], Awaitable[None]]


@dataclass
class Wire:
    """A connection that waits for its next request to be answered."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    request: Received

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()


@dataclass
class RawUpstream:
    """Answers every request by ``script``; ``book`` has what arrived."""

    script: Script
    tls: ssl.SSLContext | None = None
    book: list[Received] = field(default_factory=list[Received])
    connections: int = 0
    writers: list[asyncio.StreamWriter] = field(default_factory=list[asyncio.StreamWriter])
    port: int = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["RawUpstream"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for writer in self.writers:
                writer.transport.abort()
            await server.wait_closed()
            await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        self.writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, OSError):
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                line, *rest = head.rstrip().split("\r\n")
                headers = {n.lower(): v for n, v in (h.split(": ", 1) for h in rest)}
                body = await reader.readexactly(int(headers["content-length"]))
                received = Received(line, headers, body, number)
                self.book.append(received)
                await self.script(Wire(reader, writer, received))


@dataclass(frozen=True)
class Towards:
    """A target."""

    provider: str = "relayed"


def relay_request(body: bytes = b'{"model":"m"}', **headers: str) -> UpstreamRequest:
    """A request as a surface makes it."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return UpstreamRequest("/v1/chat/completions", body, len(body), 10, headers=named, relayed=True)


def plain(body: bytes, *, status: str = "200 OK", extra: str = "") -> bytes:
    """A whole answer with a length."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{extra}"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked answer; of ``b""`` the last."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


def self_signed(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate that is its own root, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = folder / "cert.pem", folder / "key.pem"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files
