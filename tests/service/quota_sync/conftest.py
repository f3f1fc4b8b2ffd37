"""Guards on a real Postgres (the gateway's own rig), a fake AWS, and quota_sync between them."""

import asyncio
import importlib.util
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
_spec = importlib.util.spec_from_file_location(
    "terrace_gateway_fixtures", HERE.parent / "gateway" / "conftest.py"
)
assert _spec is not None
assert _spec.loader is not None
_gateway = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_gateway)

database = _gateway.database
governance_text = _gateway.governance_text
guard = _gateway.guard
make_guard = _gateway.make_guard
patience = _gateway.patience
postgres = _gateway.postgres
settings_of = _gateway.settings_of
upstream = _gateway.upstream

from fake_aws import FakeAws, Region  # noqa: E402
from gateway_rig.guard import ADMIN_KEY, Api  # noqa: E402
from gateway_rig.postgres import free_port  # noqa: E402

from terrace_quota_sync.app import Standing, create_app  # noqa: E402
from terrace_quota_sync.election import Election  # noqa: E402
from terrace_quota_sync.gateway_admin import GatewayAdmin  # noqa: E402
from terrace_quota_sync.metrics import Metrics  # noqa: E402
from terrace_quota_sync.quota_sync import QuotaSync  # noqa: E402
from terrace_quota_sync.region_reader import RegionReader  # noqa: E402
from terrace_quota_sync.service import boot_seconds  # noqa: E402
from terrace_quota_sync.settings import QuotaSyncSettings  # noqa: E402

CLAUDE = "anthropic.claude-sonnet-4-5-20250929-v1:0"
POOL = f"us-east-1/{CLAUDE}"
IN_QUOTAS = "Anthropic Claude Sonnet 4.5 V1"
REQUESTS = f"On-demand model inference requests per minute for {IN_QUOTAS}"
TOKENS = f"On-demand model inference tokens per minute for {IN_QUOTAS}"
PATIENCE_SECONDS = 90

QUICK: dict[str, Any] = {
    "every_seconds": 0.3, "retry_seconds": 0.05, "catalogue_seconds": 0.2, "lease_seconds": 6,
    "simulated": True, "stale_after_seconds": 3600,
}  # fmt: skip


@pytest.fixture
async def aws(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeAws]:
    fake = FakeAws()
    await fake.start()
    for name, value in fake.environment().items():
        monkeypatch.setenv(name, value)
    fake.regions["us-east-1"] = Region(
        applied={"L-A1": (REQUESTS, 20.0)},
        defaults={"L-A1": (REQUESTS, 5.0), "L-A2": (TOKENS, 1_000_000.0)},
        models=[(CLAUDE, "Anthropic", "Claude Sonnet 4.5")],
        profiles={f"us.{CLAUDE}": [f"arn:aws:bedrock:us-east-1::foundation-model/{CLAUDE}"]},
    )
    yield fake
    await fake.stop()


@dataclass
class Sync:
    """quota_sync in the test's own loop."""

    settings: QuotaSyncSettings
    admin: GatewayAdmin
    election: Election
    work: QuotaSync
    metrics: Metrics
    standing: Standing
    http: httpx.AsyncClient

    async def ready(self) -> tuple[int, dict[str, Any]]:
        answer = await self.http.get("/readyz")
        return answer.status_code, answer.json()


@asynccontextmanager
async def sync_of(
    api: Api, *, holder: str = "one", now: Callable[[], float] = boot_seconds, **changes: Any
) -> AsyncIterator[Sync]:
    settings = QuotaSyncSettings(**{**QUICK, "admin_url": api.admin_url, **changes})
    async with GatewayAdmin(settings.admin_url, SecretStr(ADMIN_KEY)) as admin:
        election = Election(admin, holder=holder, lease_seconds=settings.lease_seconds, now=now)
        metrics = Metrics()
        work = QuotaSync(settings, admin, election, RegionReader(now), metrics=metrics, now=now)
        standing = Standing(settings, election, work, metrics, now)
        standing.tasks = [asyncio.create_task(election.run()), asyncio.create_task(work.run())]
        transport = httpx.ASGITransport(app=create_app(standing))
        async with httpx.AsyncClient(transport=transport, base_url="http://sync") as http:
            try:
                yield Sync(settings, admin, election, work, metrics, standing, http)
            finally:
                for task in standing.tasks:
                    task.cancel()
                await asyncio.gather(*standing.tasks, return_exceptions=True)
                await election.leave()


@dataclass
class SyncProcess:
    """quota_sync as a process of its own."""

    process: asyncio.subprocess.Process
    url: str
    log: Path
    http: httpx.AsyncClient = field(default_factory=lambda: httpx.AsyncClient(timeout=30))

    async def leading(self) -> bool:
        try:
            answer = await self.http.get(f"{self.url}/readyz")
        except httpx.TransportError:
            return False
        return bool(answer.json()["leading"])

    def tell(self, number: signal.Signals) -> None:
        if self.process.returncode is None:
            self.process.send_signal(number)

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.tell(signal.SIGCONT)
        self.tell(number)
        code = await self.process.wait()
        await self.http.aclose()
        return code


MakeSync = Callable[..., Awaitable[SyncProcess]]


@pytest.fixture
async def make_sync(aws: FakeAws, tmp_path: Path) -> AsyncIterator[MakeSync]:
    running: list[SyncProcess] = []

    async def make(api: Api, **changes: Any) -> SyncProcess:
        key = tmp_path / "sync-admin-key"
        key.write_text(ADMIN_KEY + "\n")
        port = free_port()
        values = {
            **QUICK, "admin_url": api.admin_url, "admin_key_file": key, "port": port,
            "host": "127.0.0.1", "replica": f"sync-{len(running)}", **changes,
        }  # fmt: skip
        environment = {f"TERRACE_QUOTA_SYNC_{k.upper()}": str(v) for k, v in values.items()}
        log = tmp_path / f"sync-{len(running)}.log"
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "terrace_quota_sync", stdout=out, stderr=out,
                env={"PATH": os.environ["PATH"], **aws.environment(), **environment},
            )  # fmt: skip
        made = SyncProcess(process, f"http://127.0.0.1:{port}", log)
        running.append(made)
        return made

    yield make
    for one in running:
        await one.stop(signal.SIGKILL)


async def until(what: Callable[[], Awaitable[Any]]) -> Any:
    """The first true answer of ``what``; fails after a long time."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (found := await what()):
            await asyncio.sleep(0.05)
        return found


async def pool_of(api: Api, name: str = POOL) -> dict[str, Any] | None:
    answer = await api.http.get(
        f"{api.admin_url}/admin/v1/upstream-quotas",
        headers={"authorization": f"Bearer {ADMIN_KEY}"},
    )
    if answer.status_code == 503:  # the database is away
        return None
    assert answer.status_code == 200, answer.text
    pools = answer.json()["pools"]
    return next((pool for pool in pools if pool["pool"] == name), None)


async def shares(api: Api, name: str = POOL) -> dict[str, int] | None:
    """What is in force: dimension -> amount per minute."""
    pool = await pool_of(api, name)
    if pool is None or not pool["quotas"]:
        return None
    return {quota["dimension"]: quota["in_force"] for quota in pool["quotas"]}
