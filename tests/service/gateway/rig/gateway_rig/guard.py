"""Guards for tests: in this process (fast) or as processes of their own (to be killed)."""

import asyncio
import contextlib
import os
import signal
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from gateway_rig.fake_upstream import FakeUpstream
from gateway_rig.postgres import free_port
from terrace_gateway.admin.admin_app import create_admin_app
from terrace_gateway.composition import build_runtime
from terrace_gateway.edge.public_app import create_public_app
from terrace_gateway.process import Server
from terrace_gateway.runtime import Runtime
from terrace_gateway.settings import Settings

ADMIN_KEY = "tadm-canary-admin-key-0123456789"
PEPPER = "ca" * 32
START_SECONDS = 120  # a process on a machine that does much else
AWAY_SECONDS = 15  # how long a reader asks again while the database is said to be away
SHIP_SECONDS = 30  # how long a reader of the books waits for what is spooled
BOOKS = ("/ledger", "/spend", "/reconcile")
EXAMPLE = "terrace_common/examples/governance.local.yaml"
CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {
    "model": "sim-small",
    "messages": [{"role": "user", "content": "canary-prompt hello"}],
    "max_tokens": 100,
}


def write_files(folder: Path, *, database_url: str, governance: str) -> dict[str, Path]:
    """The guard's files, as settings fields."""
    files = {
        "database_url_file": database_url,
        "key_pepper_file": PEPPER,
        "admin_key_file": ADMIN_KEY,
        "governance_file": governance,
    }
    paths: dict[str, Path] = {}
    for name, text in files.items():
        paths[name] = folder / name
        paths[name].write_text(text)
    return paths


def plain_http(**kwargs: Any) -> httpx.AsyncClient:
    """A client that loads no certificates, which would take longer than a call."""
    return httpx.AsyncClient(verify=False, **kwargs)


def _is_away(response: httpx.Response) -> bool:
    return response.status_code == 503 and "authority_unavailable" in response.text


@dataclass
class Api:
    """Calls to one guard."""

    public_url: str
    admin_url: str
    http: httpx.AsyncClient = field(
        default_factory=lambda: plain_http(timeout=60, limits=httpx.Limits(max_connections=None))
    )

    async def admin(self, method: str, path: str, **kwargs: Any) -> Any:
        headers = {"authorization": f"Bearer {ADMIN_KEY}"}
        url = f"{self.admin_url}/admin/v1{path}"
        if path.startswith(BOOKS):
            await self.shipped()
        # A connection that the database's restart broke is met once: who only reads asks again.
        until = time.monotonic() + (AWAY_SECONDS if method == "GET" else 0)
        response = await self.http.request(method, url, headers=headers, **kwargs)
        while _is_away(response) and time.monotonic() < until:
            await asyncio.sleep(0.2)
            response = await self.http.request(method, url, headers=headers, **kwargs)
        assert response.status_code < 300, response.text
        return response.json()

    async def shipped(self) -> None:
        """Wait for what this guard has spooled, if we can tell: its books wait for it themselves,
        but for a second only, in which a busy machine does little."""

    async def key(self, **fields: Any) -> str:
        return (await self.new_key(**fields))["key"]

    async def new_key(self, **fields: Any) -> dict[str, Any]:
        return await self.admin("POST", "/keys", json={"team": "team-a", **fields})

    async def chat(self, key: str, **fields: Any) -> httpx.Response:
        return await self.http.post(
            self.public_url + CHAT,
            json={**HELLO, **fields},
            headers={"authorization": f"Bearer {key}"},
        )

    async def entries(self) -> list[dict[str, Any]]:
        return (await self.admin("GET", "/ledger?limit=1000"))["entries"]

    async def cost(self, attempt_id: str) -> int:
        return sum(
            e["amount_micro_usd"] for e in await self.entries() if e["attempt_id"] == attempt_id
        )


@dataclass
class InProcessGuard(Api):
    """A guard in the test's own loop."""

    runtime: Runtime = field(kw_only=True)
    servers: list[Server] = field(kw_only=True)
    tasks: list[asyncio.Task[None]] = field(kw_only=True)

    @classmethod
    async def start(cls, settings: Settings, *, wait: bool = True) -> "InProcessGuard":
        runtime = build_runtime(settings)
        await runtime.open()
        servers: list[Server] = []
        ports = (free_port(), free_port())
        for app, port in zip(
            (create_public_app(runtime), create_admin_app(runtime)), ports, strict=True
        ):
            config = uvicorn.Config(
                app, host="127.0.0.1", port=port, lifespan="off", log_config=None, ws="none",
                access_log=False, timeout_graceful_shutdown=1,
            )  # fmt: skip
            servers.append(Server(config))
        tasks = [asyncio.create_task(server.serve()) for server in servers]
        guard = cls(
            f"http://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}", runtime=runtime,
            servers=servers, tasks=tasks,
        )  # fmt: skip
        while not all(server.started for server in servers):
            await asyncio.sleep(0.01)
        if wait:
            await until_ready(guard)
        return guard

    async def shipped(self) -> None:
        if self.runtime.database.up:
            await self.runtime.shipper.drain(SHIP_SECONDS)

    async def stop(self) -> None:
        await self.http.aclose()
        for server in self.servers:
            server.should_exit = True
        await self.runtime.close(running_seconds=0.5)
        await asyncio.gather(*self.tasks, return_exceptions=True)


@dataclass
class GuardProcess(Api):
    """A guard as a process."""

    process: asyncio.subprocess.Process = field(kw_only=True)
    metrics_url: str = field(kw_only=True, default="")
    log: Path = field(kw_only=True)

    @classmethod
    async def start(cls, settings: dict[str, Any], log: Path) -> "GuardProcess":
        ports = [free_port() for _ in range(3)]
        names = ("public_port", "admin_port", "metrics_port")
        values = {**settings, **dict(zip(names, ports, strict=True))}
        environment = {f"TERRACE_{name.upper()}": str(value) for name, value in values.items()}
        tracing = {name: value for name, value in os.environ.items() if name.startswith("OTEL_")}
        with log.open("ab") as out:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "terrace_gateway", stdout=out, stderr=out,
                env={"PATH": os.environ["PATH"], **tracing, **environment},
            )  # fmt: skip
        guard = cls(
            f"http://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}",
            process=process, log=log,
            metrics_url=f"http://127.0.0.1:{ports[2]}/metrics",
        )  # fmt: skip
        try:
            await until_ready(guard)
        except BaseException:  # nobody else knows of it
            await guard.kill()
            await guard.http.aclose()
            raise
        return guard

    async def shipped(self) -> None:
        if not self.metrics_url:
            return
        over = ("\nterrace_spool_unshipped_bytes 0.0\n", "\nterrace_database_up 0.0\n")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SHIP_SECONDS):
                while True:
                    told = (await self.http.get(self.metrics_url)).text
                    if any(line in told for line in over):
                        return
                    await asyncio.sleep(0.05)

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def stop(self) -> int:
        await self.http.aclose()
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        return await self.process.wait()


async def until_ready(api: Api) -> None:
    async with asyncio.timeout(START_SECONDS):
        while True:
            try:
                response = await api.http.get(f"{api.public_url}/readyz")
            except httpx.TransportError:
                response = None
            if response is not None and response.status_code == 200:
                body = response.json()
                if body["database_up"]:
                    return
            await asyncio.sleep(0.05)


def guard_settings(
    folder: Path, upstream: FakeUpstream, *, database_url: str, governance: str
) -> dict[str, Any]:
    """Settings for a guard before the fake upstream, quick in what does not matter."""
    return {
        **write_files(folder, database_url=database_url, governance=governance),
        "translator_socket": upstream.socket,
        "translator_key_file": upstream.key_file,
        "host": "127.0.0.1",
        "drain_delay_seconds": 0.1,
        "drain_seconds": 5,
        "replica": "test-guard",
        "spool_directory": folder / f"spool-{uuid.uuid4().hex[:8]}",
    }
