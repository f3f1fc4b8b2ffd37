"""What is committed is answered as done, also where this replica cannot go by it yet."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from gateway_rig.admin import MODULES, Admin, admin_of
from gateway_rig.policy import Replica, example_text, replica_of
from gateway_rig.policy_changes import CHANGES, KEY, STOP, made_ready
from gateway_rig.postgres import Postgres

from terrace_gateway.admin import pending, prices, upstream
from terrace_gateway.admin.pending import PENDING
from terrace_gateway.admin.routing import PREFIX
from terrace_gateway.calls.ports import AuthorityUnavailableError
from terrace_gateway.edge.errors import ApiError
from terrace_gateway.policy.feed import NoPolicyError, Switch
from terrace_gateway.policy.snapshot import Snapshot
from terrace_gateway.policy.store import PolicyStore

SPEC = """
teams: [{name: team-a}]
keys: [{name: bot-prod, team: team-a}]
"""
TEXT = example_text() + SPEC
OTHERS = {  # of administrators, and the policy in force is the same afterwards
    ("POST", "/prices/rerate"), ("POST", "/models/{name}/thaw"), ("POST", "/leases/{name}"),
    ("POST", "/leases/{name}/release"),
}  # fmt: skip


@pytest.fixture
def first_text() -> str:
    return TEXT


@pytest.fixture
async def admin(replica: Replica) -> AsyncIterator[Admin]:
    modules = (*MODULES, prices.routes, upstream.routes)
    async with admin_of(replica, modules=modules) as made:
        yield made


async def status_of(replica: Replica, key: str) -> int:
    try:
        await replica.call(key)
    except ApiError as error:
        return error.status
    return 200


async def test_every_change_of_the_policy_may_be_pending_and_says_so(admin: Admin) -> None:
    described = await admin.ok("GET", "/openapi.json")
    may: set[tuple[str, str]] = set()
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            [answer] = [one for at, one in operation["responses"].items() if at.startswith("2")]
            schema = answer["content"]["application/json"]["schema"]
            if PENDING in schema.get("properties", {}):
                may.add((method.upper(), path.removeprefix(PREFIX)))
            elif method != "get" and "`admin`" in operation["description"]:
                assert (method.upper(), path.removeprefix(PREFIX)) in OTHERS, path
    assert may == set(CHANGES)


@pytest.mark.parametrize(
    "failure", [AuthorityUnavailableError("no connection is free"), KeyError("canary")]
)
@pytest.mark.parametrize("change", CHANGES, ids=" ".join)
async def test_what_is_committed_is_answered_and_this_replica_says_why_it_waits(
    admin: Admin,
    replica: Replica,
    monkeypatch: pytest.MonkeyPatch,
    change: tuple[str, str],
    failure: Exception,
) -> None:
    method, path, body = await made_ready(admin, change, TEXT)
    epoch = replica.feed.current().snapshot.epoch

    async def lost(_: PolicyStore, since: int) -> Any:
        raise failure

    with monkeypatch.context() as patched:
        patched.setattr(PolicyStore, "changes", lost)
        response = await admin.send(method, path, body)
        assert replica.feed.current().snapshot.epoch == epoch
    assert response.status_code in (200, 201), response.text
    answer = response.json()
    assert answer[PENDING] in ("no connection is free", "a defect of ours (KeyError)")
    await replica.feed.refresh()
    assert replica.feed.current().snapshot.epoch > epoch
    if "key" in answer:
        assert await status_of(replica, answer["key"]) == 200


async def test_a_change_that_this_replica_goes_by_is_not_pending(admin: Admin) -> None:
    made = await admin.ok("POST", "/keys", KEY)
    assert PENDING not in made
    assert PENDING not in await admin.ok("POST", f"/keys/{made['key_id']}/rotate", {})


async def test_a_rotation_where_the_newest_version_cannot_be_built_shows_the_secret(
    admin: Admin, replica: Replica
) -> None:
    made = await admin.ok("POST", "/keys", KEY)
    broken = True

    def prepare(_: Snapshot | None, new: Snapshot) -> Switch:
        if broken and new.version > 1:
            raise KeyError("canary")
        return lambda: None

    replica.feed.before_change(prepare)
    await replica.apply(TEXT + "# next\n")
    rotated = await admin.ok("POST", f"/keys/{made['key_id']}/rotate", {})
    assert "KeyError" in rotated[PENDING]
    assert "canary" not in rotated[PENDING]
    assert await status_of(replica, rotated["key"]) == 200  # what forbids holds all the same
    stopped = await admin.ok("POST", "/kill", STOP)
    assert stopped["active"]
    assert PENDING in stopped
    # Nothing is committed that this replica cannot judge, and it says what is wrong.
    status, refused = await admin.error("POST", "/keys", KEY)
    assert (status, refused["error"]["code"]) == (503, "authority_unavailable")
    assert "KeyError" in refused["error"]["message"]
    broken = False
    await replica.feed.refresh()
    assert await status_of(replica, rotated["key"]) == 200
    assert await status_of(replica, made["key"]) == 401


async def test_nobody_waits_for_a_replica_that_is_slow(
    admin: Admin, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await admin.ok("POST", "/keys", KEY)

    async def never(_: PolicyStore, since: int) -> Any:
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(PolicyStore, "changes", never)
        patched.setattr(pending, "WAIT_SECONDS", 0.01)
        rotated = await admin.ok("POST", f"/keys/{made['key_id']}/rotate", {})
    assert "longer" in rotated[PENDING]
    assert await status_of(replica, rotated["key"]) == 200


async def test_a_commit_without_an_answer_is_not_called_a_change_that_was_not_made(
    admin: Admin, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*, ambiguous: bool) -> Callable[..., Any]:
        async def work(*_: Any, **__: Any) -> Any:
            raise AuthorityUnavailableError("lost", ambiguous=ambiguous)

        return work

    made = await admin.ok("POST", "/keys", KEY)
    for ambiguous in (False, True):
        monkeypatch.setattr(
            "terrace_gateway.admin.key_store.KeyStore.rotate", lost(ambiguous=ambiguous)
        )
        status, answer = await admin.error("POST", f"/keys/{made['key_id']}/rotate", {})
        assert status == 503
        assert ("not known" in answer["error"]["message"]) is ambiguous


async def test_a_replica_without_a_policy_says_so(postgres: Postgres, database: str) -> None:
    async with replica_of(postgres, database) as bare:
        with pytest.raises(NoPolicyError):
            await bare.feed.refresh()
        async with admin_of(bare) as admin:
            status, answer = await admin.error("POST", "/kill", STOP)
    assert (status, answer["error"]["code"]) == (503, "authority_unavailable")
    assert "no governance version" in answer["error"]["message"]
