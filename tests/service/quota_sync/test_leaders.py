"""Several replicas: one works, another takes over, and one that was paused changes nothing."""

import asyncio
import signal
from typing import Any

from conftest import CLAUDE, POOL, REQUESTS, MakeSync, pool_of, shares, sync_of, until
from fake_aws import FakeAws
from gateway_rig.guard import ADMIN_KEY, Api, InProcessGuard
from gateway_rig.postgres import Postgres


async def fence(api: Api) -> int:
    pool = await pool_of(api)
    return 0 if pool is None else max((quota["fence"] for quota in pool["quotas"]), default=0)


async def published(api: Api, requests: int) -> None:
    async def holds() -> bool:
        return (await shares(api) or {}).get("requests") == requests

    await until(holds)


async def test_one_of_two_works_and_the_other_goes_on_when_it_is_killed(
    guard: InProcessGuard, aws: FakeAws, make_sync: MakeSync
) -> None:
    first = await make_sync(guard)
    await published(guard, 18)
    assert await first.leading()
    second = await make_sync(guard)

    async def stands_by() -> bool:
        answer = await second.http.get(f"{second.url}/readyz")
        return answer.status_code == 200 and not answer.json()["leading"]

    async def answers() -> bool:
        try:
            return await stands_by()
        except Exception:
            return False

    await until(answers)
    assert await fence(guard) == 1
    first.tell(signal.SIGKILL)
    aws.regions["us-east-1"].applied["L-A1"] = (REQUESTS, 50.0)
    await published(guard, 45)
    assert await second.leading()
    assert await fence(guard) == 2


async def test_a_leader_that_was_paused_publishes_nothing_when_it_wakes_up(
    guard: InProcessGuard, aws: FakeAws, make_sync: MakeSync, postgres: Postgres, database: str
) -> None:
    first = await make_sync(guard, every_seconds=0.05)
    await published(guard, 18)
    first.tell(signal.SIGSTOP)
    second = await make_sync(guard)
    aws.regions["us-east-1"].applied["L-A1"] = (REQUESTS, 50.0)
    await published(guard, 45)
    assert await second.leading()
    first.tell(signal.SIGCONT)

    async def woke_up() -> bool:
        return not await first.leading() and b"leading" in first.log.read_bytes()

    await until(woke_up)
    with postgres.superuser(database) as connection:
        rows = connection.execute(
            "SELECT (detail->>'fence')::bigint FROM audit"
            " WHERE action = 'upstream_quota.publish' ORDER BY audit_id"
        ).fetchall()
    fences = [row[0] for row in rows]
    assert fences == sorted(fences)
    assert set(fences) == {1, 2}
    assert await shares(guard) == {"requests": 45, "total_tokens": 900_000}


async def test_a_publication_that_was_on_its_way_is_fenced_off(
    guard: InProcessGuard, aws: FakeAws, postgres: Postgres, database: str
) -> None:
    """The paused leader believes that it leads; the database knows better."""
    async with sync_of(guard, holder="old", every_seconds=3600, lease_seconds=600) as old:
        await published(guard, 18)
        with postgres.superuser(database) as connection:
            connection.execute("UPDATE service_lease SET expires_at = clock_timestamp()")
        async with sync_of(guard, holder="new") as new:

            async def leads() -> bool:
                return new.election.fence == 2

            await until(leads)
            aws.regions["us-east-1"].applied["L-A1"] = (REQUESTS, 50.0)
            await published(guard, 45)
            assert old.election.fence == 1
            aws.regions["us-east-1"].applied["L-A1"] = (REQUESTS, 1000.0)
            old.work.regions["us-east-1"].due_at = 0.0
            aws.regions["us-east-1"].failures.clear()

            async def noticed() -> bool:
                return old.election.fence is None

            await until(noticed)
            assert b'publications_total{result="fenced"} 1.0' in old.metrics.exposition()
            assert await fence(guard) == 2


async def test_a_leader_that_ends_in_order_gives_the_lease_back(
    guard: InProcessGuard, aws: FakeAws, make_sync: MakeSync
) -> None:
    first = await make_sync(guard, lease_seconds=600)
    await published(guard, 18)
    assert await first.stop() == 0
    taken = await guard.admin("POST", "/leases/quota-sync", json={"holder": "next", "seconds": 1})
    assert (taken["held"], taken["fence"]) == (True, 2)


async def test_no_secret_is_in_log_or_metrics(
    guard: InProcessGuard, aws: FakeAws, make_sync: MakeSync
) -> None:
    sync = await make_sync(guard)
    await published(guard, 18)
    told = b""

    async def shown() -> bool:
        nonlocal told
        told = (await sync.http.get(f"{sync.url}/metrics")).content
        return f'terrace_quota_sync_share{{dimension="requests",pool="{POOL}"'.encode() in told

    await until(shown)
    for failure in ("denied", "garbage", "throttle"):
        aws.regions["us-east-1"].failures["ListServiceQuotas"] = failure
        before = aws.count("ListServiceQuotas")

        async def tried(before: int = before) -> bool:
            return aws.count("ListServiceQuotas") > before + 1

        await until(tried)
    told += (await sync.http.get(f"{sync.url}/metrics")).content
    assert await sync.stop() == 0
    told += sync.log.read_bytes()
    assert CLAUDE.encode() in told
    for secret in (ADMIN_KEY, "AKIACANARY", "canary-aws-secret", "canary-aws-message"):
        assert secret.encode() not in told


async def test_wrong_settings_end_it_with_a_sentence(make_sync: MakeSync) -> None:
    nowhere: Any = type("Nowhere", (), {"admin_url": "http://127.0.0.1:1"})()
    for changes in (
        {"admin_key_file": "/nonexistent/key"},
        {"stale_percent": 101},
        {"admin_url": "ftp://gateway"},
    ):
        sync = await make_sync(nowhere, **changes)
        async with asyncio.timeout(120):
            assert await sync.process.wait() == 2
        assert b"quota_sync: " in sync.log.read_bytes()
        assert b"Traceback" not in sync.log.read_bytes()
