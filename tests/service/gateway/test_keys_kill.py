"""Kill switches: what each stops, that it holds everywhere, and that a misspelt one is refused."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from gateway_rig.admin import Admin, admin_of
from gateway_rig.policy import Replica, example_text, replica_of
from gateway_rig.postgres import Postgres

from terrace_common.governance.authentication import OidcIssuer
from terrace_gateway.authentication.bearer import person_id
from terrace_gateway.calls.ports import Caller
from terrace_gateway.policy.feed import NoPolicyError
from terrace_gateway.policy.snapshot import Snapshot
from terrace_gateway.policy.texts import digest_of

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
def first_text() -> str:
    return example_text() + SPEC


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
    assert stopped(replica, STRANGER, model="bedrock-claude")
    assert (await admin.ok("GET", "/kill"))["switches"][0]["target"] == "model:bedrock-claude"
    await admin.ok("POST", "/unkill", {"target": alias, "reason": "r"})
    assert replica.feed.current().snapshot.killed_models == frozenset()


RENAMED = (example_text() + SPEC).replace(
    "- name: sim-small\n", "- name: sim-tiny\n    aliases: [sim-small]\n"
)
GONE = RENAMED.replace("    aliases: [sim-small]\n", "")
OTHER_PROVIDER = (example_text() + SPEC).replace("simulator-openai", "simulator-oai")


async def put(admin: Admin, base: int, text: str, *allow: str) -> tuple[int, Any]:
    """As an operator does whose translator was rolled out before."""
    response = await admin.send(
        "POST", "/governance/apply",
        {"text": text, "base_version": base, "reason": "rename",
         "allow": ["model-not-deployed", *allow]},
    )  # fmt: skip
    return response.status_code, response.json()


@pytest.mark.parametrize("name", ["sim-small", "sim-tiny"])
async def test_a_model_that_is_renamed_stays_stopped_and_either_name_lifts_it(
    admin: Admin, replica: Replica, name: str
) -> None:
    await admin.ok("POST", "/kill", {"target": "model:sim-small", "reason": "r"})
    status, answer = await put(admin, 1, RENAMED)
    assert status == 200
    moves = [one["message"] for one in answer["findings"] if one["code"] == "kill-switch-moves"]
    assert len(moves) == 1
    assert "'sim-tiny'" in moves[0]
    assert stopped(replica, CALLER, model="sim-tiny")
    again = await admin.ok("POST", "/kill", {"target": "model:sim-small", "reason": "r"})
    assert again["target"] == "model:sim-tiny"
    assert len((await admin.ok("GET", "/kill"))["switches"]) == 2
    lifted = await admin.ok("POST", "/unkill", {"target": f"model:{name}", "reason": "r"})
    assert not lifted["active"]
    assert not stopped(replica, CALLER, model="sim-tiny")
    assert (await admin.ok("GET", "/kill"))["switches"] == []


async def test_a_call_that_began_before_the_rename_is_stopped_by_the_new_name(
    admin: Admin, replica: Replica
) -> None:
    assert (await put(admin, 1, RENAMED))[0] == 200
    await admin.ok("POST", "/kill", {"target": "model:sim-tiny", "reason": "r"})
    assert stopped(replica, CALLER, model="sim-small")


@pytest.mark.parametrize(
    ("target", "text", "told"),
    [
        ("model:sim-small", GONE, "keep its name as an alias"),
        ("provider:simulator-openai", OTHER_PROVIDER, "kill its models"),
        ("org:acme", (example_text() + SPEC).replace("acme}", "acme-2}"), "kill its teams"),
        ("team:team-a", (example_text() + SPEC).replace("team-a", "team-b"), "kill its users"),
        ("user:jo", (example_text() + SPEC).replace("jo", "joe"), "keys"),
        ("app:bot", (example_text() + SPEC).replace("bot", "robot"), "keys"),
        ("key:bot-prod", (example_text() + SPEC).replace("bot-prod", "bot-2"), "secrets"),
    ],
)  # fmt: skip
async def test_an_apply_that_would_make_a_switch_stop_nothing_is_refused(
    admin: Admin, replica: Replica, target: str, text: str, told: str
) -> None:
    await admin.ok("POST", "/kill", {"target": target, "reason": "r"})
    status, answer = await put(admin, 1, text)
    assert (status, answer["error"]["code"]) == (409, "governance_blocked")
    [found] = [one for one in answer["findings"] if one["code"] == "kill-switch-lost"]
    assert found["blocking"]
    assert target in found["message"]
    assert told in found["message"]
    assert (await put(admin, 1, example_text() + SPEC + "# as it was\n"))[0] == 200
    status, answer = await put(admin, 2, text, "kill-switch-lost")
    assert status == 200
    # One that stops nothing already blocks nothing that has to do with it.
    status, answer = await put(admin, 3, text + "# more\n")
    assert (status, "kill-switch-lost" in answer["blocking"]) == (200, False)


async def test_a_switch_is_of_the_version_that_is_in_force_when_it_is_turned_on(
    admin: Admin, replica: Replica, postgres: Postgres, database: str
) -> None:
    """A rename that commits while a switch waits for the lock: its plan knew of no switch."""
    digest, text = digest_of(GONE), GONE
    with postgres.superuser(database) as connection:
        connection.autocommit = False
        connection.execute("SELECT FROM policy_head FOR UPDATE")
        waits = asyncio.create_task(
            admin.send("POST", "/kill", {"target": "model:sim-small", "reason": "r"})
        )
        await until_waits(postgres, database)
        connection.execute(
            "INSERT INTO governance_version (version, text, digest, actor, source, plan)"
            " VALUES (2, %s, %s, 'a', 'api', '{}')",
            (text, digest),
        )
        connection.commit()
    answer = await waits
    assert answer.status_code == 400
    assert "sim-tiny" in answer.json()["error"]["message"]
    assert (await admin.ok("GET", "/kill"))["switches"] == []
    await admin.ok("POST", "/kill", {"target": "model:sim-tiny", "reason": "r"})
    assert stopped(replica, CALLER, model="sim-tiny")


async def until_waits(postgres: Postgres, database: str) -> None:
    """Until somebody waits for a lock of a row."""
    with postgres.superuser(database) as connection:
        async with asyncio.timeout(60):
            while connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND wait_event_type = 'Lock'"
            ).fetchone() == (0,):
                await asyncio.sleep(0.01)


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


def _unbuildable_after(version: int) -> Callable[..., Callable[[], None]]:
    def prepare(_: Snapshot | None, new: Snapshot) -> Callable[[], None]:
        if new.version > version:
            raise RuntimeError("cannot be built here")
        return lambda: None

    return prepare


@pytest.mark.parametrize("lifted", ["sim-small", "sim-tiny"])
async def test_the_name_that_is_served_here_is_stopped_while_the_newest_version_cannot_be_built(
    admin: Admin, replica: Replica, lifted: str
) -> None:
    replica.feed.before_change(_unbuildable_after(1))
    assert (await put(admin, 1, RENAMED))[0] == 200
    for asked in ("sim-small", "sim-tiny"):
        target = {"target": f"model:{asked}", "reason": "r"}
        assert (await admin.ok("POST", "/kill", target))["target"] == "model:sim-tiny"
        assert replica.feed.current().snapshot.version == 1
        assert stopped(replica, CALLER, model="sim-small")
        on = {one["target"] for one in (await admin.ok("GET", "/kill"))["switches"]}
        assert on == {"model:sim-tiny", "model:sim-small"}
        await admin.ok("POST", "/unkill", {"target": f"model:{lifted}", "reason": "r"})
        assert (await admin.ok("GET", "/kill"))["switches"] == []


async def test_a_model_that_only_this_stuck_replica_serves_can_be_stopped(
    admin: Admin, replica: Replica
) -> None:
    replica.feed.before_change(_unbuildable_after(1))
    assert (await put(admin, 1, GONE))[0] == 200
    await admin.ok("POST", "/kill", {"target": "model:sim-small", "reason": "r"})
    assert stopped(replica, CALLER, model="sim-small")


async def test_a_kill_at_another_replica_stops_the_name_that_a_stuck_one_serves(
    admin: Admin, replica: Replica, postgres: Postgres, database: str
) -> None:
    async with replica_of(postgres, database) as stuck:
        await stuck.feed.refresh()
        stuck.feed.before_change(_unbuildable_after(1))
        assert (await put(admin, 1, RENAMED))[0] == 200
        await admin.ok("POST", "/kill", {"target": "model:sim-small", "reason": "r"})
        for one, name in ((replica, "sim-tiny"), (stuck, "sim-small")):
            with contextlib.suppress(NoPolicyError):
                await one.feed.refresh()
            assert stopped(one, CALLER, model=name)
        await admin.ok("POST", "/unkill", {"target": "model:sim-tiny", "reason": "r"})
        assert (await admin.ok("GET", "/kill"))["switches"] == []


async def test_a_stuck_replica_lifts_no_switch_of_another_model(
    admin: Admin, replica: Replica
) -> None:
    """What it calls ``chat`` is still another model, by the newest version too."""
    spec = yaml.safe_load(example_text() + SPEC)
    model = next(one for one in spec["models"] if one["name"] == "sim-small")
    model["aliases"] = ["chat"]
    assert (await put(admin, 1, yaml.safe_dump(spec)))[0] == 200
    spec["models"].append({**model, "name": "successor"})
    model["aliases"] = []
    replica.feed.before_change(_unbuildable_after(2))
    assert (await put(admin, 2, yaml.safe_dump(spec)))[0] == 200
    for target in ("model:sim-small", "model:successor"):
        await admin.ok("POST", "/kill", {"target": target, "reason": "r"})
    await admin.ok("POST", "/unkill", {"target": "model:chat", "reason": "r"})
    on = [one["target"] for one in (await admin.ok("GET", "/kill"))["switches"]]
    assert on == ["model:sim-small"]


async def test_all_is_stopped_and_lifted_at_a_replica_without_a_policy(
    replica: Replica, postgres: Postgres, database: str
) -> None:
    async with replica_of(postgres, database) as bare, admin_of(bare) as admin:
        assert not bare.feed.ready
        for path in ("/kill", "/unkill"):
            answer = await admin.ok("POST", path, {"target": "all", "reason": "r"})
            await replica.feed.refresh()
            assert stopped(replica, CALLER) is answer["active"] is (path == "/kill")


async def test_no_text_is_read_for_what_needs_no_name_and_one_is_read_once(
    admin: Admin, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    version = type(replica.versions).version

    async def counted(self: Any, number: int | None = None) -> Any:
        read.append(number or 0)
        return await version(self, number)

    def prepare(_: Snapshot | None, new: Snapshot) -> Callable[[], None]:
        if new.version > 1:
            raise RuntimeError("cannot be built here")
        return lambda: None

    key = (await admin.ok("POST", "/keys", {"team": "team-a"}))["key_id"]
    replica.feed.before_change(prepare)
    await replica.apply(example_text() + SPEC + "# more\n")
    monkeypatch.setattr(type(replica.versions), "version", counted)
    monkeypatch.setattr(type(replica.versions.texts), "known", lambda *_: None)
    for target in ("all", f"key:{key}", "key:oidc:" + 24 * "0"):
        await admin.ok("POST", "/kill", {"target": target, "reason": "r"})
        await admin.ok("POST", "/unkill", {"target": target, "reason": "r"})
    assert read == []
    names = ("model:sim-small", "team:team-a", "user:jo", "provider:simulator-openai")
    await asyncio.gather(
        *(admin.ok("POST", "/kill", {"target": name, "reason": "r"}) for name in names)
    )
    assert read == [2]
