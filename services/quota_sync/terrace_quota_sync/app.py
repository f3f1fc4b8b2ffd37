"""Health and metrics over HTTP."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from terrace_quota_sync.election import Election
from terrace_quota_sync.metrics import Metrics
from terrace_quota_sync.quota_sync import QuotaSync
from terrace_quota_sync.settings import QuotaSyncSettings

ANSWERS_MISSED = 3


@dataclass
class Standing:
    """What the health routes tell of."""

    settings: QuotaSyncSettings
    election: Election
    sync: QuotaSync
    metrics: Metrics
    now: Callable[[], float]
    tasks: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])

    def ended(self) -> bool:
        """Whether work has ended that never ends by itself."""
        return any(task.done() for task in self.tasks)

    def problems(self) -> list[str]:
        """Why it is not ready; empty: it is. A replica that stands by needs the gateway only."""
        found: list[str] = []
        if self.ended():
            found.append("background work has ended")
        answered = self.election.answered_at
        patience = ANSWERS_MISSED * self.settings.lease_seconds
        if answered is None or self.now() - answered > patience:
            found.append("the gateway's admin API does not answer")
        if self.election.fence is not None:
            for name, state in sorted(self.sync.regions.items()):
                if state.published_at is None:
                    found.append(f"{name} was not read yet")
                elif self.now() - state.published_at >= self.settings.stale_after_seconds:
                    found.append(f"{name} was last read too long ago")
        return found


def create_app(standing: Standing) -> Starlette:
    """``/healthz``, ``/readyz``, ``/metrics``."""

    async def healthz(_: Request) -> Response:
        return JSONResponse({"ok": not standing.ended()}, 503 if standing.ended() else 200)

    async def readyz(_: Request) -> Response:
        problems = standing.problems()
        leading = standing.election.fence is not None
        body = {"ready": not problems, "leading": leading, "problems": problems}
        return JSONResponse(body, 503 if problems else 200)

    async def metrics(_: Request) -> Response:
        return Response(standing.metrics.exposition(), media_type="text/plain; version=0.0.4")

    return Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
        ]
    )
