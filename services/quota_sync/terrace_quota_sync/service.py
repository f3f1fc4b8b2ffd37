"""The service: election, readings and health in one loop, until it is told to stop."""

import asyncio
import contextlib
import signal
import time
import uuid
from collections.abc import Generator

import structlog
import uvicorn
from pydantic import SecretStr

from terrace_quota_sync.app import Standing, create_app
from terrace_quota_sync.election import Election
from terrace_quota_sync.gateway_admin import GatewayAdmin
from terrace_quota_sync.metrics import Metrics
from terrace_quota_sync.quota_sync import QuotaSync
from terrace_quota_sync.region_reader import RegionReader
from terrace_quota_sync.settings import QuotaSyncSettings

log = structlog.get_logger()


class Server(uvicorn.Server):
    """A uvicorn server that leaves signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Capture none."""
        yield


def boot_seconds() -> float:
    """Seconds on a clock that runs during suspend and that nobody sets."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


async def serve(settings: QuotaSyncSettings, admin_key: SecretStr) -> bool:
    """Serve until SIGTERM or SIGINT. False: work ended by itself."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    metrics = Metrics()
    async with GatewayAdmin(settings.admin_url, admin_key) as admin:
        election = Election(
            admin,
            holder=f"{settings.replica}/{uuid.uuid4().hex[:12]}",
            lease_seconds=settings.lease_seconds,
            now=boot_seconds,
        )
        sync = QuotaSync(
            settings, admin, election, RegionReader(boot_seconds), metrics=metrics, now=boot_seconds
        )
        standing = Standing(settings, election, sync, metrics, boot_seconds)
        server = Server(
            uvicorn.Config(
                create_app(standing),
                host=settings.host,
                port=settings.port,
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                timeout_graceful_shutdown=1,
            )
        )
        standing.tasks += [asyncio.create_task(election.run()), asyncio.create_task(sync.run())]
        serving = asyncio.create_task(server.serve())
        stopped = asyncio.create_task(stop.wait())
        work = {serving, stopped, *standing.tasks}
        try:
            await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            well = stopped.done() and not standing.ended()
        finally:
            stopped.cancel()
            for task in standing.tasks:
                task.cancel()
            results = await asyncio.gather(*standing.tasks, return_exceptions=True)
            server.should_exit = True
            await election.leave()
            await serving
        for result in results:
            if isinstance(result, Exception):
                log.error("ended", error=type(result).__name__, exc_info=result)
        log.info("stopped")
        return well
