"""Admin routes of upstream quotas, and of the lease by which their publishers agree on one."""

from typing import Annotated, Any, Literal

import structlog
from pydantic import BaseModel, ConfigDict, Field

from terrace_common.governance.upstream_pools import upstream_pools
from terrace_gateway.admin.routing import AdminCall, AdminRefusal, AdminRoute
from terrace_gateway.policy.upstream_quotas import (
    LEASE,
    Access,
    FencedError,
    OtherVersionError,
    Publication,
    ReadPool,
    ReadQuota,
    UpstreamQuotaStore,
)
from terrace_gateway.runtime import Runtime
from terrace_gateway.surfaces.json_body import invalid

log = structlog.get_logger()

MAX_PUBLICATION_BYTES = 1024 * 1024
MAX_AMOUNT = 10**15

Text = Annotated[str, Field(min_length=1, max_length=512)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PublishedQuota(_Body):
    """One quota as AWS names it, and our share of it."""

    dimension: Literal["requests", "total_tokens"]
    window_seconds: Literal[60, 86_400]
    quota_code: Text
    quota_name: Text
    quota_value: float = Field(ge=0, le=1e18, allow_inf_nan=False)
    source: Literal["applied", "default"]
    amount: int = Field(ge=0, le=MAX_AMOUNT, strict=True)


class PublishedPool(_Body):
    """One pool; a quota that it had and that is not named here has vanished."""

    pool: Text
    access: Access
    leads_to: list[Text] = Field(default_factory=list[str], max_length=100)
    findings: list[Text] = Field(default_factory=list[str], max_length=20)
    quotas: list[PublishedQuota] = Field(default_factory=list[PublishedQuota], max_length=4)


class PublishedRegion(_Body):
    """A region that was read whole. One that could not be read is left out and keeps its rows."""

    region: Text
    age_seconds: float = Field(ge=0, le=7 * 86_400, allow_inf_nan=False)
    """Since the reading began."""
    pools: list[PublishedPool] = Field(max_length=2000)


class QuotaPublication(_Body):
    """What the holder of the lease has read."""

    holder: Text
    fence: int = Field(ge=1, strict=True)
    governance_version: int = Field(ge=1, strict=True)
    stale_after_seconds: int = Field(ge=1, le=30 * 86_400, strict=True)
    stale_percent: int = Field(ge=0, le=100, strict=True)
    reason: Text
    regions: list[PublishedRegion] = Field(max_length=100)


class LeaseWish(_Body):
    """Take a lease, or renew it."""

    holder: Text
    seconds: float = Field(gt=0, le=600, allow_inf_nan=False)


class LeaseEnd(_Body):
    """Give a lease back."""

    holder: Text
    fence: int = Field(ge=1, strict=True)


class UpstreamQuotas:
    """Endpoints of upstream quotas and leases."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._store = UpstreamQuotaStore(runtime.database)

    async def list_pools(self, _: AdminCall) -> dict[str, Any]:
        """Pools with quotas, shares and ages."""
        snapshot = self._runtime.policy.current().snapshot
        models = {
            pool.name: list(pool.models)
            for pool in upstream_pools(snapshot.governance, simulated=True)
        }
        pools = [
            {**pool, "models": models.get(pool["pool"], [])} for pool in await self._store.pools()
        ]
        return {"pools": pools}

    async def publish(self, call: AdminCall) -> dict[str, Any]:
        """Put what was read in force; it holds within one policy lease."""
        body = await call.read(QuotaPublication)
        policy = self._runtime.policy
        await policy.refresh()
        snapshot = policy.current().snapshot
        if snapshot.version != body.governance_version:
            raise _other_version(snapshot.version)
        regions = {
            pool.name: pool.region for pool in upstream_pools(snapshot.governance, simulated=True)
        }
        try:
            changes = await self._store.publish(
                _publication(body, regions), actor=call.actor, reason=body.reason,
                admission=call.admission,
            )  # fmt: skip
        except FencedError:
            raise AdminRefusal(
                409, "fenced", f"{body.holder!r} does not hold the lease {LEASE!r} with this fence"
            ) from None
        except OtherVersionError:
            raise _other_version(None) from None
        log.info("upstream_quotas_published", fence=body.fence, caps=len(changes["caps"]))
        return changes

    async def take(self, call: AdminCall) -> dict[str, Any]:
        """Take or renew a lease by the database's clock."""
        body = await call.read(LeaseWish)
        return await self._store.take_lease(call.path["name"], body.holder, body.seconds)

    async def give(self, call: AdminCall) -> dict[str, Any]:
        """End a lease before its time."""
        body = await call.read(LeaseEnd)
        given = await self._store.give_lease(call.path["name"], body.holder, body.fence)
        return {"given": given}


def _publication(body: QuotaPublication, regions: dict[str, str]) -> Publication:
    """Raises ``ApiError`` for a pool that is not the catalogue's, or is there twice."""
    pools: list[ReadPool] = []
    quotas: list[ReadQuota] = []
    seen: set[object] = set()
    for region in body.regions:
        for pool in region.pools:
            if regions.get(pool.pool) != region.region:
                raise invalid(f"{pool.pool!r} is no pool of the catalogue in {region.region}")
            pools.append(
                ReadPool(
                    pool.pool, region.region, pool.access, tuple(pool.leads_to),
                    tuple(pool.findings), region.age_seconds,
                )
            )  # fmt: skip
            for quota in pool.quotas:
                place = (pool.pool, quota.dimension, quota.window_seconds)
                if quota.amount > quota.quota_value:
                    raise invalid(f"a share of {quota.quota_name!r} is larger than the quota")
                quotas.append(
                    ReadQuota(
                        place, quota.quota_code, quota.quota_name, quota.quota_value,
                        quota.source, quota.amount, region.age_seconds,
                    )
                )  # fmt: skip
                if place in seen:
                    raise invalid(f"{pool.pool!r} has a quota twice")
                seen.add(place)
            if pool.pool in seen:
                raise invalid(f"{pool.pool!r} is given twice")
            seen.add(pool.pool)
    return Publication(
        holder=body.holder,
        fence=body.fence,
        governance_version=body.governance_version,
        pools=tuple(pools),
        quotas=tuple(quotas),
        wanted=frozenset(regions),
        stale_after_seconds=body.stale_after_seconds,
        stale_percent=body.stale_percent,
    )


def _other_version(version: int | None) -> AdminRefusal:
    extra = {} if version is None else {"version": version}
    message = "the governance version in force is another: read it again"
    return AdminRefusal(409, "version_conflict", message, extra=extra)


def routes(runtime: Runtime) -> list[AdminRoute]:
    """Routes of upstream quotas and leases."""
    quotas = UpstreamQuotas(runtime)
    return [
        AdminRoute("GET", "/upstream-quotas", quotas.list_pools,
                   "Quotas of the providers, our shares of them, and how old they are.", "viewer",
                   answer="`pools`."),
        AdminRoute("PUT", "/upstream-quotas", quotas.publish,
                   "Put quotas in force that the holder of the lease has read.", "admin",
                   body=QuotaPublication, answer="What changed.",
                   max_body_bytes=MAX_PUBLICATION_BYTES, changes_policy=True),
        AdminRoute("POST", "/leases/{name}", quotas.take, "Take or renew a lease.", "admin",
                   body=LeaseWish, answer="`held`, `fence`, `holder`, `seconds_left`."),
        AdminRoute("POST", "/leases/{name}/release", quotas.give, "Give a lease back.", "admin",
                   body=LeaseEnd, answer="`given`."),
    ]  # fmt: skip
