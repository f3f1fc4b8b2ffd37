"""The admin API over a policy replica, called without a socket."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import httpx
from pydantic import SecretStr

from gateway_rig.policy import PEPPER, Replica
from terrace_gateway.admin import caps, governance, keys, kill, models
from terrace_gateway.admin.admin_app import Module, create_admin_app
from terrace_gateway.admin.authentication import AdminAuthenticator
from terrace_gateway.policy.seed import DeploymentFile
from terrace_gateway.runtime import Runtime

ADMIN_KEY = "tadm-canary-admin-key-0123456789"
MODULES: tuple[Module, ...] = (
    keys.routes, governance.routes, kill.routes, caps.routes, models.routes,
)  # fmt: skip


@dataclass
class Admin:
    """Calls to the admin API of one replica."""

    http: httpx.AsyncClient
    headers: dict[str, str] = field(
        default_factory=lambda: {"authorization": f"Bearer {ADMIN_KEY}", "x-terrace-actor": "alice"}
    )

    async def send(self, method: str, path: str, body: Any = None) -> httpx.Response:
        return await self.http.request(method, f"/admin/v1{path}", headers=self.headers, json=body)

    async def ok(self, method: str, path: str, body: Any = None) -> Any:
        response = await self.send(method, path, body)
        assert response.status_code < 300, response.text
        return response.json()

    async def error(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
        response = await self.send(method, path, body)
        assert response.status_code >= 400, response.text
        return response.status_code, response.json()


@asynccontextmanager
async def admin_of(
    replica: Replica,
    *,
    authenticators: tuple[AdminAuthenticator, ...] = (),
    modules: Sequence[Module] = MODULES,
    deployment: DeploymentFile | None = None,
) -> AsyncIterator[Admin]:
    runtime = SimpleNamespace(
        database=replica.database, policy=replica.feed, key_use=replica.use,
        versions=replica.versions, admin_authenticators=authenticators,
        deployment=deployment or DeploymentFile(replica.versions, ""),
        settings=SimpleNamespace(replica="r"),
        secrets=SimpleNamespace(admin_key=SecretStr(ADMIN_KEY), key_pepper=PEPPER),
    )  # fmt: skip
    app = create_admin_app(cast("Runtime", runtime), modules)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://admin") as http:
        yield Admin(http)
