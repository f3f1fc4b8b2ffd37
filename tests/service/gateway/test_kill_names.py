"""A switch, or a cap, of a name that stops, or caps, nobody is refused; one that holds is made."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import yaml
from gateway_rig.admin import Admin, admin_of
from gateway_rig.policy import Replica, example_text, replica_of
from gateway_rig.postgres import Postgres

from terrace_gateway.policy.snapshot import Snapshot
from terrace_gateway.policy.texts import digest_of

SPEC = """
orgs: [{name: acme}]
teams: [{name: team-a, org: acme}]
users: [{name: jo, team: team-a}]
apps: [{name: bot, team: team-a, user: jo}]
"""
TEXT = example_text() + SPEC
RENAMED = TEXT.replace("team-a", "team-b").replace("acme", "emca")
CAP = {"scope": "team", "dimension": "requests", "amount": 5, "reason": "r"}


@pytest.fixture
def first_text() -> str:
    return TEXT


async def apply(admin: Admin, base: int, text: str) -> None:
    body = {
        "text": text, "base_version": base, "reason": "r",
        "allow": ["model-not-deployed", "key-orphaned"],
    }  # fmt: skip
    await admin.ok("POST", "/governance/apply", body)


def stops(replica: Replica, key_id: str) -> bool:
    snapshot = replica.feed.current().snapshot
    return snapshot.killed(snapshot.principal(snapshot.keys[key_id]).caller) is not None


async def switches(admin: Admin) -> list[str]:
    return [one["target"] for one in (await admin.ok("GET", "/kill"))["switches"]]


def unbuildable_after(version: int) -> Callable[..., Callable[[], None]]:
    def prepare(_: Snapshot | None, new: Snapshot) -> Callable[[], None]:
        if new.version > version:
            raise RuntimeError("cannot be built here")
        return lambda: None

    return prepare


async def behind(
    admin: Admin, postgres: Postgres, database: str, text: str, version: int, *call: Any
) -> httpx.Response:
    """The answer of a call that waits for the lock until ``version`` is committed."""
    with postgres.superuser(database) as holder, postgres.superuser(database) as watcher:
        holder.autocommit = False
        holder.execute("SELECT FROM policy_head FOR UPDATE")
        waits = asyncio.create_task(admin.send(*call))
        async with asyncio.timeout(60):
            while watcher.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND wait_event_type = 'Lock'"
            ).fetchone() == (0,):
                await asyncio.sleep(0.01)
        holder.execute(
            "INSERT INTO governance_version (version, text, digest, actor, source, plan)"
            " VALUES (%s, %s, %s, 'a', 'api', '{}')",
            (version, text, digest_of(text)),
        )
        holder.commit()
    return await waits


async def test_a_team_that_only_rows_of_keys_name_is_refused(
    admin: Admin, replica: Replica
) -> None:
    key = (await admin.ok("POST", "/keys", {"app": "bot"}))["key_id"]
    await apply(admin, 1, RENAMED)
    assert (await admin.ok("GET", f"/keys/{key}"))["team"] == "team-a"
    for method, path, body in (
        ("POST", "/kill", {"target": "team:team-a", "reason": "r"}),
        ("PUT", "/caps", {**CAP, "scope_id": "team-a"}),
    ):
        status, answer = await admin.error(method, path, body)
        assert (status, "known: team-b" in answer["error"]["message"]) == (400, True)
    await admin.ok("PUT", "/caps", {**CAP, "scope_id": "team-b"})
    await admin.ok("POST", "/kill", {"target": "team:team-b", "reason": "r"})
    assert stops(replica, key)


@pytest.mark.parametrize(
    "call",
    [
        ("POST", "/kill", {"target": "team:team-a", "reason": "r"}),
        ("PUT", "/caps", {**CAP, "scope_id": "team-a"}),
    ],
)
async def test_a_team_that_is_renamed_meanwhile_is_refused(
    admin: Admin, postgres: Postgres, database: str, call: tuple[Any, ...]
) -> None:
    await admin.ok("POST", "/keys", {"app": "bot"})
    answer = await behind(admin, postgres, database, RENAMED, 2, *call)
    assert (answer.status_code, "known: team-b" in answer.text) == (400, True)
    assert await switches(admin) == []


async def test_a_spec_without_teams_has_those_of_keys(admin: Admin, replica: Replica) -> None:
    await apply(admin, 1, example_text())
    key = (await admin.ok("POST", "/keys", {"team": "free"}))["key_id"]
    await admin.ok("PUT", "/caps", {**CAP, "scope_id": "free"})
    await admin.ok("POST", "/kill", {"target": "team:free", "reason": "r"})
    assert stops(replica, key)
    assert (await admin.error("POST", "/kill", {"target": "team:fre", "reason": "r"}))[0] == 400


@pytest.mark.parametrize("target", ["team:team-a", "team:team-b", "org:acme", "org:emca"])
async def test_a_stuck_replica_stops_those_it_knows_and_those_of_the_newest(
    admin: Admin, replica: Replica, target: str
) -> None:
    key = (await admin.ok("POST", "/keys", {"app": "bot"}))["key_id"]
    replica.feed.before_change(unbuildable_after(1))
    await apply(admin, 1, RENAMED)
    await admin.ok("POST", "/kill", {"target": target, "reason": "r"})
    assert stops(replica, key) is (target in ("team:team-a", "org:acme"))
    assert await switches(admin) == [target]


async def test_a_team_of_keys_is_stopped_at_a_replica_without_a_policy(
    admin: Admin, replica: Replica, postgres: Postgres, database: str
) -> None:
    key = (await admin.ok("POST", "/keys", {"app": "bot"}))["key_id"]
    async with replica_of(postgres, database) as bare, admin_of(bare) as other:
        await other.ok("POST", "/kill", {"target": "team:team-a", "reason": "r"})
    await replica.feed.refresh()
    assert stops(replica, key)


async def test_a_lift_is_of_the_names_of_the_version_that_is_in_force(
    admin: Admin, postgres: Postgres, database: str
) -> None:
    """A version that gives a stopped model's alias to another comes first: that one stays."""
    spec = yaml.safe_load(TEXT)
    model = next(one for one in spec["models"] if one["name"] == "sim-small")
    model["aliases"] = ["chat"]
    await apply(admin, 1, yaml.safe_dump(spec))
    await admin.ok("POST", "/kill", {"target": "model:chat", "reason": "r"})
    assert set(await switches(admin)) == {"model:sim-small", "model:chat"}
    spec["models"].append({**model, "name": "chat", "aliases": []})
    model["aliases"] = []
    body = {"target": "model:sim-small", "reason": "r"}
    text = yaml.safe_dump(spec)
    answer = await behind(admin, postgres, database, text, 3, "POST", "/unkill", body)
    assert answer.status_code == 200
    assert await switches(admin) == ["model:chat"]
