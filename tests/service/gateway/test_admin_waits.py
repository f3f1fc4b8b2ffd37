"""Administrators who are stopped or removed while their change waits change nothing."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from gateway_rig.admin import MODULES, Admin, admin_of
from gateway_rig.fake_idp import FakeIdp
from gateway_rig.policy import Replica, example_text, replica_of
from gateway_rig.policy_changes import CHANGES, made_ready
from gateway_rig.postgres import Postgres
from gateway_rig.proofs import until

from terrace_common.governance.authentication import OidcIssuer
from terrace_gateway.admin import prices, upstream
from terrace_gateway.authentication.admin_tokens import AdminTokens
from terrace_gateway.authentication.bearer import person_id
from terrace_gateway.authentication.tokens import TokenVerifier
from terrace_gateway.policy.planning import Planning
from terrace_gateway.policy.snapshot import Snapshot
from terrace_gateway.policy.texts import digest_of

SPEC = """
teams: [{name: team-a}]
keys: [{name: bot-prod, team: team-a}]
authentication:
  issuers:
    - {name: corp, kind: oidc, issuer: "ISSUER", audiences: [terrace], role_claim: roles,
       admins: [{value: boss, role: admin}]}
"""
WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    " AND wait_event_type = 'Lock'"
)


@dataclass
class Room:
    """One replica that follows the database only when it is asked to, and who calls it."""

    postgres: Postgres
    database: str
    replica: Replica
    text: str
    idp: FakeIdp
    key: Admin

    def boss(self, sub: str) -> Admin:
        token = self.idp.sign("k", sub=sub, roles=["boss"], iat=None, exp=2**32)
        return Admin(self.key.http, {"authorization": f"Bearer {token}"})

    def stop(self, held: psycopg.Connection[Any], sub: str) -> None:
        [issuer] = self.replica.feed.current().snapshot.governance.authentication.issuers
        assert isinstance(issuer, OidcIssuer)
        held.execute(
            "INSERT INTO kill_switch (kind, target, reason, actor) VALUES ('key', %s, 'r', 'a')",
            (person_id(issuer, sub),),
        )

    def change(self, held: psycopg.Connection[Any], text: str) -> None:
        held.execute(
            "INSERT INTO governance_version (version, text, digest, actor, source, plan)"
            " SELECT max(version) + 1, %s, %s, 'a', 'api', '{}' FROM governance_version",
            (text, digest_of(text)),
        )

    def done(self) -> tuple[Any, ...] | None:
        """What every change adds to."""
        with self.postgres.superuser(self.database) as connection:
            return connection.execute(
                "SELECT epoch, (SELECT count(*) FROM audit) FROM policy_head"
            ).fetchone()

    async def until_waits(self) -> None:
        with self.postgres.superuser(self.database) as connection:
            await until(lambda: connection.execute(WAITING).fetchone() == (1,), 20)


@pytest.fixture
async def room(postgres: Postgres, database: str, idp: FakeIdp) -> AsyncIterator[Room]:
    text = example_text() + SPEC.replace("ISSUER", idp.issuer)
    async with replica_of(postgres, database) as replica:
        verifier = TokenVerifier(None, replica.clock)

        def prepare(_: Snapshot | None, new: Snapshot) -> Any:
            return verifier.prepare(new.governance.authentication)

        replica.feed.before_change(prepare)
        await replica.apply(text)
        await replica.feed.refresh()
        tokens = AdminTokens(verifier, replica.feed, replica.clock)
        modules = (*MODULES, prices.routes, upstream.routes)
        async with admin_of(replica, authenticators=(tokens,), modules=modules) as admin:
            yield Room(postgres, database, replica, text, idp, admin)
        await verifier.close()


@pytest.mark.parametrize(("end", "code"), [("stopped", "killed"), ("removed", "policy_denied")])
@pytest.mark.parametrize("change", CHANGES, ids=" ".join)
async def test_who_is_stopped_or_removed_before_the_lock_changes_nothing(
    room: Room, change: tuple[str, str], end: str, code: str
) -> None:
    method, path, body = await made_ready(room.key, change, room.text)
    jo = room.boss("jo")
    assert (await jo.send("GET", "/kill")).status_code == 200
    with room.postgres.superuser(room.database) as held, held.transaction():
        held.execute("SELECT epoch FROM policy_head FOR UPDATE")
        waits = asyncio.create_task(jo.send(method, path, body))
        await room.until_waits()
        if end == "stopped":
            room.stop(held, "jo")
        else:
            room.change(held, room.text.replace("value: boss", "value: none"))
    before = room.done()
    answer = await waits
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, code)
    assert room.done() == before


@pytest.mark.parametrize(
    "change", [("POST", "/keys"), ("POST", "/kill"), ("PUT", "/caps"), ("POST", "/prices")],
    ids=" ".join,
)  # fmt: skip
async def test_who_may_still_changes_it_whatever_came_before_the_lock(
    room: Room, change: tuple[str, str]
) -> None:
    method, path, body = await made_ready(room.key, change, room.text)
    with room.postgres.superuser(room.database) as held, held.transaction():
        held.execute("SELECT epoch FROM policy_head FOR UPDATE")
        waits = asyncio.create_task(room.boss("jo").send(method, path, body))
        await room.until_waits()
        room.stop(held, "zoe")
        room.change(held, room.text + "# another\n")
    assert (await waits).status_code in (200, 201)
    [*_, told] = await audit(room)
    assert told == "corp:jo"


@pytest.mark.parametrize("change", CHANGES, ids=" ".join)
async def test_the_admin_key_is_never_stopped(room: Room, change: tuple[str, str]) -> None:
    method, path, body = await made_ready(room.key, change, room.text)
    with room.postgres.superuser(room.database) as held, held.transaction():
        held.execute("SELECT epoch FROM policy_head FOR UPDATE")
        waits = asyncio.create_task(room.key.send(method, path, body))
        await room.until_waits()
        room.stop(held, "jo")
        held.execute(
            "INSERT INTO kill_switch (kind, target, reason, actor)"
            " VALUES ('all', '', 'r', 'a'), ('user', 'alice', 'r', 'a')"
        )
    assert (await waits).status_code in (200, 201)


async def audit(room: Room) -> list[str]:
    with room.postgres.superuser(room.database) as connection:
        rows = connection.execute("SELECT actor FROM audit ORDER BY audit_id").fetchall()
    return [row[0] for row in rows]


async def test_who_is_removed_before_the_turn_takes_nothing_back(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The removal is worked out while the rollback that would undo it waits behind it."""
    came: list[str] = []
    worked_out: list[str] = []
    go, prepare, turn = asyncio.Event(), Planning.prepare, Planning.turn

    async def slow(self: Planning, text: str, *more: Any) -> Any:
        worked_out.append(text)
        await go.wait()
        return await prepare(self, text, *more)

    def counted(self: Planning, kind: Any, actor: str) -> Any:
        came.append(actor)
        return turn(self, kind, actor)

    monkeypatch.setattr(Planning, "prepare", slow)
    monkeypatch.setattr(Planning, "turn", counted)
    without = room.text.replace("value: boss", "value: none")
    body = {"text": without, "base_version": 1, "reason": "left"}
    removal = asyncio.create_task(room.key.send("POST", "/governance/apply", body))
    await until(lambda: worked_out)
    back = {"version": 1, "reason": "mine"}
    rollback = asyncio.create_task(room.boss("jo").send("POST", "/governance/rollback", back))
    await until(lambda: len(came) == 2)
    go.set()
    assert (await removal).status_code == 200
    assert (await rollback).status_code == 403
    assert worked_out == [without]
    assert (await room.key.ok("GET", "/governance"))["version"] == 2


async def test_a_token_that_cannot_be_checked_again_changes_nothing(room: Room) -> None:
    """The version that came before the lock cannot be built here: it may have removed them."""

    def prepare(_: Snapshot | None, new: Snapshot) -> Any:
        if new.version > 1:
            raise ValueError
        return lambda: None

    room.replica.feed.before_change(prepare)
    with room.postgres.superuser(room.database) as held, held.transaction():
        held.execute("SELECT epoch FROM policy_head FOR UPDATE")
        waits = asyncio.create_task(room.boss("jo").send("PUT", "/caps", CHANGES["PUT", "/caps"]))
        await room.until_waits()
        room.change(held, room.text + "# another\n")
    before = room.done()
    answer = await waits
    assert answer.status_code == 503
    assert "admin key" in answer.json()["error"]["message"]
    assert room.done() == before
