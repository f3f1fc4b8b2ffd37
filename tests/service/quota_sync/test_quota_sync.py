"""Quotas that AWS names really limit the guards, and nothing worse than AWS's truth ever holds."""

import asyncio
from collections import Counter
from typing import Any
from unittest.mock import AsyncMock

import pytest
import yaml
from conftest import (
    CLAUDE,
    IN_QUOTAS,
    POOL,
    REQUESTS,
    TOKENS,
    pool_of,
    shares,
    sync_of,
    until,
)
from fake_aws import FakeAws, Region
from gateway_rig.fake_upstream import FakeUpstream
from gateway_rig.guard import Api, InProcessGuard
from gateway_rig.postgres import Postgres

from terrace_gateway.policy.quota_watch import UpstreamQuotaWatch
from terrace_gateway.policy.upstream_quotas import UpstreamQuotaStore

FRESH = {"requests": 18, "total_tokens": 900_000}  # the default headroom of 10 % is taken off


async def in_force(api: Any, wanted: dict[str, int]) -> None:
    async def holds() -> bool:
        return await shares(api) == wanted

    await until(holds)


async def read_again(aws: FakeAws, times: int = 2) -> None:
    """Until whole readings have begun and ended since now."""
    begun = aws.count("ListServiceQuotas", "us-east-1")

    async def done() -> bool:
        return aws.count("ListServiceQuotas", "us-east-1") >= begun + 2 * times

    await until(done)


async def room_in_the_minute(postgres: Postgres, database: str) -> None:
    """Not in the last 20 s of a window: the calls of a test fall into one."""
    with postgres.superuser(database) as connection:
        while True:
            row = connection.execute("SELECT extract(second FROM clock_timestamp())").fetchone()
            assert row is not None
            if row[0] < 40:
                return
            await asyncio.sleep(0.5)


def with_fallback(text: str) -> str:
    spec = yaml.safe_load(text)
    for model in spec["models"]:
        if model["name"] == "bedrock-claude":
            model["fallbacks"] = ["sim-small"]
    return yaml.safe_dump(spec)


async def test_a_quota_limits_two_guards_together(
    make_guard: Any, upstream: FakeUpstream, aws: FakeAws, postgres: Postgres, database: str
) -> None:
    guards = [await make_guard(replica=f"guard-{n}") for n in range(2)]
    async with sync_of(guards[0]):
        await in_force(guards[0], FRESH)
        await in_force(guards[1], FRESH)
    for guard in guards:
        await guard.runtime.policy.refresh()
    key = await guards[0].key()
    await room_in_the_minute(postgres, database)
    answers = await asyncio.gather(
        *(guards[n % 2].chat(key, model="bedrock-claude") for n in range(50))
    )
    assert Counter(answer.status_code for answer in answers) == {200: 18, 429: 32}
    assert len(upstream.calls) == 18


async def test_a_spent_quota_leaves_the_call_to_the_next_candidate(
    make_guard: Any, governance_text: str, aws: FakeAws, postgres: Postgres, database: str
) -> None:
    guard: InProcessGuard = await make_guard(governance=with_fallback(governance_text))
    async with sync_of(guard):
        await in_force(guard, FRESH)
    key = await guard.key()
    await room_in_the_minute(postgres, database)
    answers = [await guard.chat(key, model="bedrock-claude") for _ in range(25)]
    assert {answer.status_code for answer in answers} == {200}
    served = Counter(answer.headers["x-terrace-model"] for answer in answers)
    assert served == {"bedrock-claude": 18, "sim-small": 7}


async def test_applied_values_go_before_defaults_and_codes_are_stored(
    guard: InProcessGuard, aws: FakeAws
) -> None:
    async with sync_of(guard) as sync:
        await in_force(guard, FRESH)
        found = await pool_of(guard)
        assert found is not None
        assert found["models"] == ["bedrock-claude"]
        assert found["access"] == "available"
        assert {
            q["dimension"]: (q["quota_code"], q["quota_value"], q["source"])
            for q in found["quotas"]
        } == {"requests": ("L-A1", 20.0, "applied"), "total_tokens": ("L-A2", 1e6, "default")}
        assert all(call.signed for call in aws.calls)
        assert {call.region for call in aws.calls} == {"us-east-1"}
        assert any(call.page for call in aws.calls)  # all pages were read

        async def ready() -> bool:
            return (await sync.ready())[0] == 200

        await until(ready)


async def test_an_increase_and_a_decrease_at_aws_reach_the_guards(
    guard: InProcessGuard, aws: FakeAws
) -> None:
    async with sync_of(guard):
        for value, amount in ((20.0, 18), (100.0, 90), (0.0, 0)):
            aws.regions["us-east-1"].applied["L-A1"] = (REQUESTS, value)
            await in_force(guard, {**FRESH, "requests": amount})
        key = await guard.key()
        await guard.runtime.policy.refresh()
        assert (await guard.chat(key, model="bedrock-claude")).status_code == 429


async def test_a_quota_that_vanished_is_kept_and_flagged_until_it_is_back(
    guard: InProcessGuard, aws: FakeAws
) -> None:
    region = aws.regions["us-east-1"]
    async with sync_of(guard):
        await in_force(guard, FRESH)
        del region.defaults["L-A2"]

        async def vanished() -> bool:
            found = await pool_of(guard)
            quotas = [] if found is None else found["quotas"]
            return [q["dimension"] for q in quotas if q["vanished_at"]] == ["total_tokens"]

        await until(vanished)
        assert await shares(guard) == FRESH
        await guard.runtime.quota_watch.look()
        assert b"terrace_upstream_quotas_vanished 1.0" in guard.runtime.metrics.exposition()
        region.defaults["L-A3"] = (TOKENS, 2_000_000.0)  # its code changed
        await in_force(guard, {**FRESH, "total_tokens": 1_800_000})
        assert not await vanished()


async def test_a_value_that_makes_no_sense_changes_nothing(
    guard: InProcessGuard, aws: FakeAws
) -> None:
    region = aws.regions["us-east-1"]
    async with sync_of(guard):
        await in_force(guard, FRESH)
        for value in (-1.0, "many", None, True, 1e300):
            region.applied["L-A1"] = (REQUESTS, value)
            region.defaults["L-A1"] = (REQUESTS, value)
            await read_again(aws)
            assert await shares(guard) == FRESH


@pytest.mark.parametrize("operation", ["ListServiceQuotas", "ListAWSDefaultServiceQuotas"])
async def test_a_region_that_cannot_be_read_keeps_its_values(
    guard: InProcessGuard, aws: FakeAws, operation: str
) -> None:
    region = aws.regions["us-east-1"]
    async with sync_of(guard, every_seconds=0.2) as sync:
        await in_force(guard, FRESH)
        region.applied.clear()
        for failure in ("throttle", "error", "garbage", "empty", "reset", "denied"):
            region.failures[operation] = failure
            state = sync.work.regions["us-east-1"]
            before = state.failures

            async def failed(state: Any = state, before: int = before) -> bool:
                return state.failures >= before + 2

            await until(failed)
            assert await shares(guard) == FRESH, failure
        found = await pool_of(guard)
        assert found is not None
        assert not any(quota["vanished_at"] for quota in found["quotas"])


async def test_a_list_that_breaks_off_counts_as_unread(guard: InProcessGuard, aws: FakeAws) -> None:
    region = aws.regions["us-east-1"]
    async with sync_of(guard):
        await in_force(guard, FRESH)
        region.failures["second page"] = "error"
        region.applied["L-A1"] = (REQUESTS, 7.0)
        before = len([call for call in aws.calls if call.page == "broken"])

        async def tried() -> bool:
            return len([call for call in aws.calls if call.page == "broken"]) >= before + 4

        await until(tried)
        assert await shares(guard) == FRESH


@pytest.mark.parametrize("failure", ["garbage", "denied", "empty"])
async def test_without_bedrocks_own_answers_quotas_are_published_all_the_same(
    guard: InProcessGuard, aws: FakeAws, failure: str
) -> None:
    operations = ("ListFoundationModels", "ListInferenceProfiles", "GetFoundationModelAvailability")
    aws.regions["us-east-1"].failures = dict.fromkeys(operations, failure)
    async with sync_of(guard):
        await in_force(guard, FRESH)
        found = await pool_of(guard)
        assert found is not None
        assert found["access"] == "unknown"


async def test_a_model_without_access_is_told(guard: InProcessGuard, aws: FakeAws) -> None:
    aws.regions["us-east-1"].denied.add(CLAUDE)
    async with sync_of(guard) as sync:
        await in_force(guard, FRESH)
        found = await pool_of(guard)
        assert found is not None
        assert found["access"] == "denied"

        async def shown() -> bool:
            text = sync.metrics.exposition().decode()
            return f'terrace_quota_sync_denied{{pool="{POOL}"}} 1.0' in text

        await until(shown)


async def test_throttled_by_aws_it_comes_less_and_less_often(
    guard: InProcessGuard, aws: FakeAws
) -> None:
    aws.regions["us-east-1"].failures["ListServiceQuotas"] = "throttle"
    seconds = [1000.0]
    async with sync_of(
        guard, now=lambda: seconds[0], every_seconds=3600, retry_seconds=0.05
    ) as sync:

        async def failed(times: int) -> bool:
            state = sync.work.regions.get("us-east-1")
            return state is not None and state.failures == times

        for times in range(1, 5):
            await until(lambda times=times: failed(times))
            state = sync.work.regions["us-east-1"]
            # 4 x 0.05 s, doubled each time, at least half of it: the next is no sooner.
            longest = 4 * 0.05 * 2 ** (times - 1)
            assert longest / 2 - 1e-6 <= state.due_at - seconds[0] <= longest + 1e-6
            assert aws.count("ListServiceQuotas") <= 2 * times
            if times < 4:
                seconds[0] = state.due_at
        status, body = await sync.ready()
        assert status == 503
        assert body["problems"] == ["us-east-1 was not read yet"]
        assert (await sync.http.get("/healthz")).status_code == 200
        aws.regions["us-east-1"].failures.clear()


def two_regions(text: str) -> str:
    spec = yaml.safe_load(text)
    provider = next(p for p in spec["providers"] if p["name"] == "simulator-bedrock")
    model = next(m for m in spec["models"] if m["name"] == "bedrock-claude")
    spec["providers"].append({**provider, "name": "far", "region": "eu-west-1"})
    far = {**model, "name": "far-claude", "provider": "far", "aliases": []}
    spec["models"].append(far)
    return yaml.safe_dump(spec)


async def test_one_region_fails_and_the_other_goes_on(
    make_guard: Any, governance_text: str, aws: FakeAws
) -> None:
    guard = await make_guard(governance=two_regions(governance_text))
    far = f"eu-west-1/{CLAUDE}"
    aws.regions["eu-west-1"] = Region(
        applied={"L-F1": (REQUESTS, 200.0)}, failures={"ListServiceQuotas": "error"}
    )
    async with sync_of(guard) as sync:
        await in_force(guard, FRESH)
        assert await shares(guard, far) is None
        aws.regions["eu-west-1"].failures.clear()

        async def both() -> bool:
            return await shares(guard, far) == {"requests": 180}

        await until(both)
        aws.regions["us-east-1"].failures["ListServiceQuotas"] = "error"
        aws.regions["eu-west-1"].applied["L-F1"] = (REQUESTS, 10.0)

        async def lower() -> bool:
            return await shares(guard, far) == {"requests": 9}

        await until(lower)
        assert await shares(guard) == FRESH
        assert (await sync.http.get("/healthz")).status_code == 200


async def test_stale_quotas_give_a_lower_share_until_they_are_read_again(
    guard: InProcessGuard, aws: FakeAws, postgres: Postgres, database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    look = guard.runtime.quota_watch.look
    # Else its own look, every ten seconds, may be the one that lowers.
    monkeypatch.setattr(guard.runtime.quota_watch, "look", AsyncMock(return_value=0))
    async with sync_of(guard, stale_after_seconds=3600, stale_percent=50):
        await in_force(guard, FRESH)
        assert await look() == 0
        aws.regions["us-east-1"].failures["ListServiceQuotas"] = "error"
        await read_again(aws)
        with postgres.superuser(database) as connection:
            connection.execute("UPDATE upstream_quota SET read_at = read_at - interval '1 hour'")
        runtime = guard.runtime
        ending = UpstreamQuotaWatch(UpstreamQuotaStore(runtime.database), runtime.journal)
        ending.rest()
        assert await ending.look() == 0  # its journal is about to be sealed: another guard's turn
        assert await look() == 2
        assert await look() == 0  # told once
        assert await shares(guard) == {"requests": 9, "total_tokens": 450_000}
        text = guard.runtime.metrics.exposition()
        assert b"terrace_upstream_quotas_stale 2.0" in text
        audit = (await guard.admin("GET", "/audit"))["changes"]
        degraded = [row for row in audit if row["action"] == "upstream_quota.degrade"]
        assert [row["subject"] for row in degraded] == [POOL, POOL]
        aws.regions["us-east-1"].failures.clear()
        await in_force(guard, FRESH)


async def test_a_guard_lowers_what_is_stale_without_any_quota_sync(
    guard: InProcessGuard, aws: FakeAws, postgres: Postgres, database: str
) -> None:
    async with sync_of(guard):
        await in_force(guard, FRESH)
    with postgres.superuser(database) as connection:
        connection.execute("UPDATE upstream_quota SET read_at = read_at - interval '2 hours'")
    await in_force(guard, {"requests": 14, "total_tokens": 720_000})

    # Both were lowered in one look: each has its entry.
    expected = [("requests", 14, 1), ("total_tokens", 720_000, 1)]

    async def decided() -> bool:
        with postgres.superuser(database) as connection:
            rows = connection.execute(
                "SELECT detail ->> 'dimension', (detail ->> 'amount')::int,"
                " (detail ->> 'count')::int FROM ledger_entry WHERE kind = 'decision'"
                " AND reason = 'upstream_quota_stale' ORDER BY 1"
            ).fetchall()
        return rows == expected

    await until(decided)


async def apply(api: Api, spec: dict[str, Any]) -> None:
    version = (await api.admin("GET", "/governance"))["version"]
    body = {"text": yaml.safe_dump(spec), "reason": "test", "base_version": version}
    await api.admin("POST", "/governance/apply", json=body)


async def test_governance_changes_leave_upstream_caps_alone(
    make_guard: Any, governance_text: str, aws: FakeAws
) -> None:
    guard = await make_guard(governance=two_regions(governance_text))
    aws.regions["eu-west-1"] = Region(applied={"L-F1": (REQUESTS, 200.0)})
    far = f"eu-west-1/{CLAUDE}"
    async with sync_of(guard):

        async def both() -> bool:
            return bool(await shares(guard) == FRESH and await shares(guard, far))

        await until(both)
        spec = yaml.safe_load(two_regions(governance_text))
        spec["teams"] = [{"name": "team-a", "quotas": [
            {"dimension": "requests", "per": "minute", "amount": 5}]}]  # fmt: skip
        await apply(guard, spec)
        assert await shares(guard) == FRESH
        del spec["models"][-1], spec["providers"][-1]
        await apply(guard, spec)

        async def retired() -> bool:
            return await pool_of(guard, far) is None

        await until(retired)
        assert await shares(guard) == FRESH
        caps = (await guard.admin("GET", "/caps?scope=model"))["caps"]
        assert {cap["scope_id"] for cap in caps} == {POOL}


async def test_an_unchanged_reading_moves_no_epoch(
    guard: InProcessGuard, aws: FakeAws, postgres: Postgres, database: str
) -> None:
    def epoch() -> Any:
        with postgres.superuser(database) as connection:
            return connection.execute("SELECT epoch FROM policy_head").fetchone()

    async with sync_of(guard):
        await in_force(guard, FRESH)
        before = epoch()
        await read_again(aws, 3)
        assert epoch() == before


async def test_readiness_tells_the_truth(guard: InProcessGuard, aws: FakeAws) -> None:
    seconds = [1000.0]

    async with sync_of(guard, now=lambda: seconds[0], every_seconds=3600) as sync:
        await in_force(guard, FRESH)

        async def ready() -> bool:
            return (await sync.ready())[0] == 200

        await until(ready)
        seconds[0] += 1e6  # nothing was heard of the gateway or of AWS for days
        status, body = await sync.ready()
        assert status == 503
        assert body["leading"] is False


async def test_the_gateway_is_away_and_comes_back(
    guard: InProcessGuard, aws: FakeAws, postgres: Postgres
) -> None:
    async with sync_of(guard) as sync:
        await in_force(guard, FRESH)
        postgres.stop()
        aws.regions["us-east-1"].applied["L-A1"] = (REQUESTS, 40.0)

        async def leads_no_more() -> bool:
            return sync.election.fence is None

        await until(leads_no_more)
        postgres.start()

        async def back() -> bool:
            answer = await guard.http.get(f"{guard.public_url}/readyz")
            return bool(answer.json()["database_up"])

        await until(back)
        await in_force(guard, {**FRESH, "requests": 36})
        assert not sync.standing.ended()


def publication(fence: int, **changes: Any) -> dict[str, Any]:
    quota = {
        "dimension": "requests", "window_seconds": 60, "quota_code": "L-A1",
        "quota_name": REQUESTS, "quota_value": 20.0, "source": "applied", "amount": 18,
    }  # fmt: skip
    pool = {"pool": POOL, "access": "unknown", "quotas": [quota]}
    body: dict[str, Any] = {
        "holder": "me", "fence": fence, "governance_version": 1, "stale_after_seconds": 60,
        "stale_percent": 80, "reason": IN_QUOTAS,
        "regions": [{"region": "us-east-1", "age_seconds": 1.0, "pools": [pool]}],
    }  # fmt: skip
    return {**body, **changes}


async def put(guard: InProcessGuard, body: dict[str, Any]) -> tuple[int, str]:
    answer = await guard.http.put(
        f"{guard.admin_url}/admin/v1/upstream-quotas", json=body,
        headers={"authorization": "Bearer tadm-canary-admin-key-0123456789"},
    )  # fmt: skip
    document = answer.json()
    return answer.status_code, document.get("error", {}).get("code", "")


async def test_what_cannot_be_right_is_refused_whole(guard: InProcessGuard) -> None:
    lease = await guard.admin("POST", "/leases/quota-sync", json={"holder": "me", "seconds": 600})
    fence = lease["fence"]
    good = publication(fence)

    def changed(**fields: Any) -> dict[str, Any]:
        body = publication(fence)
        body["regions"][0]["pools"][0]["quotas"][0].update(fields)
        return body

    unknown = publication(fence)
    unknown["regions"][0]["pools"][0]["pool"] = "us-east-1/another.model-v1:0"
    elsewhere = publication(fence)
    elsewhere["regions"][0]["region"] = "eu-west-1"
    twice = publication(fence)
    twice["regions"][0]["pools"] *= 2
    wrong: list[tuple[dict[str, Any], int, str]] = [
        (publication(fence + 1), 409, "fenced"),
        (publication(fence, holder="another"), 409, "fenced"),
        (publication(fence, governance_version=7), 409, "version_conflict"),
        (changed(amount=21), 400, "invalid_request"),
        (changed(amount=-1), 400, "invalid_request"),
        (changed(amount=1.5), 400, "invalid_request"),
        (changed(quota_value="NaN"), 400, "invalid_request"),
        (changed(dimension="micro_usd"), 400, "invalid_request"),
        (changed(window_seconds=61), 400, "invalid_request"),
        (unknown, 400, "invalid_request"),
        (elsewhere, 400, "invalid_request"),
        (twice, 400, "invalid_request"),
        ({**good, "stale_percent": 101}, 400, "invalid_request"),
        ({**good, "more": 1}, 400, "invalid_request"),
    ]
    for body, status, code in wrong:
        assert await put(guard, body) == (status, code), body
    assert await shares(guard) is None
    assert await put(guard, good) == (200, "")
    assert await shares(guard) == {"requests": 18}


async def test_a_lease_has_one_holder_at_a_time_and_fences_only_grow(
    guard: InProcessGuard, postgres: Postgres, database: str
) -> None:
    async def take(holder: str, seconds: float = 600) -> dict[str, Any]:
        return await guard.admin("POST", "/leases/a", json={"holder": holder, "seconds": seconds})

    answers = await asyncio.gather(*(take(f"h{n}") for n in range(8)))
    [winner] = [answer for answer in answers if answer["held"]]
    assert {answer["holder"] for answer in answers} == {winner["holder"]}
    assert (await take(winner["holder"]))["fence"] == winner["fence"]
    with postgres.superuser(database) as connection:
        connection.execute("UPDATE service_lease SET expires_at = clock_timestamp()")
    # Too late, by a moment: another may have held it between.
    again = await take(winner["holder"])
    assert (again["held"], again["fence"]) == (True, winner["fence"] + 1)
    body = {"holder": winner["holder"], "fence": winner["fence"]}
    assert await guard.admin("POST", "/leases/a/release", json=body) == {"given": False}
    body["fence"] = again["fence"]
    assert await guard.admin("POST", "/leases/a/release", json=body) == {"given": True}
    other = await take("another")
    assert (other["held"], other["fence"]) == (True, again["fence"] + 1)
