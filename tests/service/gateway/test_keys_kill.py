"""Kill switches: what each stops, that it holds everywhere, and that a misspelt one is refused."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from gateway_rig.admin import Admin, admin_of
from gateway_rig.policy import Replica, example_text, replica_of
from gateway_rig.postgres import Postgres

from terrace_common.governance.authentication import OidcIssuer
from terrace_gateway.authentication.bearer import person_id
from terrace_gateway.calls.ports import Caller
from terrace_gateway.policy.snapshot import Snapshot

SPEC = """
orgs: [{name: acme}]
teams: [{name: team-a, org: acme}]
users: [{name: jo, team: team-a}]
apps: [{name: bot, team: team-a, user: jo}]
keys: [{name: bot-prod, app: bot}]
authentication:
  issuers:
    - {name: corp, kind: oidc, issuer: "https://login.acme.example", audiences: [terrace]}
    - {name: cluster, kind: kubernetes, issuer: "https://oidc.acme.example", audiences: [terrace],
       workloads: [{namespace: agents, service_account: runner, app: bot}]}
"""
CALLER = Caller("key_1", "team-a", key_name="bot-prod", org="acme", user="jo", app="bot")
STRANGER = Caller("key_2", "team-z")


@pytest.fixture
async def replica(postgres: Postgres, database: str) -> AsyncIterator[Replica]:
    async with replica_of(postgres, database) as made:
        await made.apply(example_text() + SPEC)
        await made.feed.refresh()
        yield made


@pytest.fixture
async def admin(replica: Replica) -> AsyncIterator[Admin]:
    async with admin_of(replica) as made:
        yield made


def stopped(replica: Replica, caller: Caller, **where: Any) -> bool:
    where = {"model": "sim-small", "provider": "simulator-openai", **where}
    return replica.feed.current().snapshot.killed(caller, **where) is not None


@pytest.mark.parametrize(
    ("target", "spares_stranger"),
    [
        ("team:team-a", True), ("org:acme", True), ("user:jo", True), ("app:bot", True),
        ("key:bot-prod", True), ("model:sim-small", False), ("provider:simulator-openai", False),
        ("all", False),
    ],
)  # fmt: skip
async def test_each_target_stops_its_calls_and_no_others(
    admin: Admin, replica: Replica, target: str, spares_stranger: bool
) -> None:
    assert not stopped(replica, CALLER)
    body = {"target": target, "reason": "incident"}
    switch = await admin.ok("POST", "/kill", body)
    assert (switch["target"], switch["active"], switch["actor"]) == (target, True, "alice")
    assert stopped(replica, CALLER)
    assert stopped(replica, STRANGER) is not spares_stranger
    other = {"model": "bedrock-claude", "provider": "simulator-bedrock"}
    assert stopped(replica, STRANGER, **other) is (target == "all")
    assert (await admin.ok("GET", "/kill"))["switches"] == [switch]
    lifted = await admin.ok("POST", "/unkill", body)
    assert not lifted["active"]
    assert not stopped(replica, CALLER)
    assert (await admin.ok("GET", "/kill"))["switches"] == []


async def test_one_person_is_stopped_by_their_tokens_whom_the_spec_does_not_name(
    admin: Admin, replica: Replica, postgres: Postgres, database: str
) -> None:
    issuer = next(one for one in replica.feed.current().snapshot.governance.authentication.issuers
                  if isinstance(one, OidcIssuer))  # fmt: skip
    zoe, bob = (
        Caller(person_id(issuer, subject), "team-a", org="acme") for subject in ("zoé|1", "bob")
    )
    switch = await admin.ok("POST", "/kill", {"target": "subject:corp:zoé|1", "reason": "left"})
    assert switch["target"] == f"key:{zoe.key_id}"
    assert (stopped(replica, zoe), stopped(replica, bob), stopped(replica, CALLER)) == (
        True, False, False,
    )  # fmt: skip
    await admin.ok("POST", "/unkill", {"target": "subject:corp:zoé|1", "reason": "back"})
    assert not stopped(replica, zoe)
    await admin.ok("POST", "/kill", {"target": f"key:{bob.key_id}", "reason": "as the ledger says"})
    assert stopped(replica, bob)
    with postgres.superuser(database) as connection:
        for table in ("kill_switch", "audit"):
            rows = connection.execute(f"SELECT t::text FROM {table} AS t").fetchall()
            assert "zo" not in str(rows)


async def test_an_alias_stops_its_model(admin: Admin, replica: Replica) -> None:
    alias = "model:anthropic.claude-sonnet-4-5-20250929-v1:0"
    await admin.ok("POST", "/kill", {"target": alias, "reason": "r"})
    assert replica.feed.current().snapshot.killed_models == {"bedrock-claude"}
    await admin.ok("POST", "/unkill", {"target": alias, "reason": "r"})
    assert replica.feed.current().snapshot.killed_models == frozenset()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("model:sim-smal", "known: bedrock-claude, sim-embed, sim-large, sim-small"),
        ("team:team-z", "known: team-a"), ("key:key_none", "known: bot-prod"),
        ("provider:x", "simulator-openai"), ("everything", "or all"), ("team:", "or all"),
        ("all:x", "or all"), ("planet:earth", "team:NAME"), ("subject:corp:", "SUBJECT"),
        ("subject:zoe", "known: corp"), ("subject:cluster:zoe", "known: corp"),
        ("subject:", "ISSUER"), ("key:oidc:zoe", "known: bot-prod"),
    ],
)  # fmt: skip
async def test_a_target_that_does_not_exist_is_refused(
    admin: Admin, target: str, message: str
) -> None:
    status, answer = await admin.error("POST", "/kill", {"target": target, "reason": "r"})
    assert status == 400
    assert message in answer["error"]["message"]


async def test_a_switch_holds_on_another_replica_after_one_lease_and_shows_the_change(
    admin: Admin, postgres: Postgres, database: str
) -> None:
    cut: list[str] = []

    def watch(_: Snapshot | None, new: Snapshot) -> Callable[[], None]:
        why = new.killed(CALLER, model="sim-small", provider="simulator-openai")
        return lambda: None if why is None else cut.append(why)

    async with replica_of(postgres, database) as other:
        other.feed.before_change(watch)
        await other.feed.refresh()
        await admin.ok("POST", "/kill", {"target": "team:team-a", "reason": "r"})
        other.clock.forward(1.01)
        assert not other.feed.current().fresh  # it may not go by what it knows
        await other.feed.refresh()
        assert other.feed.current().fresh
        assert cut == ["team 'team-a' is stopped by an administrator"]


async def test_switching_is_audited_once_per_change(
    admin: Admin, postgres: Postgres, database: str
) -> None:
    body = {"target": "team:team-a", "reason": "incident"}
    await asyncio.gather(*(admin.ok("POST", "/kill", body) for _ in range(4)))
    await admin.ok("DELETE", "/kill", body)
    await admin.ok("POST", "/unkill", body)
    with postgres.superuser(database) as connection:
        rows = connection.execute(
            "SELECT actor, action, subject, reason FROM audit WHERE action LIKE '%kill'"
            " ORDER BY audit_id"
        ).fetchall()
    assert rows == [
        ("alice", "kill", "team:team-a", "incident"),
        ("alice", "unkill", "team:team-a", "incident"),
    ]
