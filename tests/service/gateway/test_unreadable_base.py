"""A version in force that this release cannot read, of a newer one, say: there is a way back."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from gateway_rig.admin import Admin, admin_of
from gateway_rig.policy import Replica, example_text, replica_of
from gateway_rig.postgres import Postgres

from terrace_gateway.policy.seed import DeploymentFile
from terrace_gateway.policy.texts import digest_of

CODE = "base-unreadable"
UNKNOWN_KEY = "of_another_release: 1\n"
GOOD = example_text() + "# good\n"
PATHS: list[tuple[str, dict[str, Any]]] = [
    ("apply", {"text": GOOD, "base_version": 2, "reason": "r"}),
    ("rollback", {"version": 1, "reason": "r"}),
]


@pytest.fixture(params=[example_text() + UNKNOWN_KEY, "models: [\n"])
async def replica(
    request: pytest.FixtureRequest, postgres: Postgres, database: str
) -> AsyncIterator[Replica]:
    async with replica_of(postgres, database) as made:
        await made.apply(example_text())
        with postgres.superuser(database) as connection:
            connection.execute(
                "INSERT INTO governance_version (version, text, digest, actor, source, plan)"
                " VALUES (2, %s, %s, 'bob', 'api', '{}')",
                (request.param, digest_of(request.param)),
            )
        yield made


@pytest.fixture
async def admin(replica: Replica) -> AsyncIterator[Admin]:
    async with admin_of(replica) as made:
        yield made


@pytest.mark.parametrize(("path", "body"), PATHS)
async def test_a_good_text_is_put_in_force_if_that_is_allowed(
    admin: Admin, replica: Replica, path: str, body: dict[str, Any]
) -> None:
    planned = await admin.ok("POST", "/governance/plan", {"text": GOOD})
    assert planned["base_version"] == 2
    assert planned["blocking"] == [CODE]
    first = planned["findings"][0]
    assert first["code"] == CODE
    assert "cannot read version 2, which is in force: governance.yaml" in first["message"]
    status, answer = await admin.error("POST", f"/governance/{path}", body)
    assert (status, answer["error"]["code"]) == (409, "governance_blocked")
    applied = await admin.ok("POST", f"/governance/{path}", {**body, "allow": [CODE]})
    assert applied["version"] == 3
    await replica.feed.refresh()
    snapshot = replica.feed.current().snapshot
    assert snapshot is not None
    assert snapshot.version == 3


async def test_a_kill_switch_that_would_stop_nothing_is_told_all_the_same(
    admin: Admin, replica: Replica, postgres: Postgres, database: str
) -> None:
    with postgres.superuser(database) as connection:
        connection.execute(
            "INSERT INTO kill_switch (kind, target, reason, actor)"
            " VALUES ('model', 'gone', 'r', 'bob'), ('model', 'sim-small', 'r', 'bob'),"
            " ('all', '', 'r', 'bob'), ('key', 'key_1', 'r', 'bob')"
        )
    planned = await admin.ok("POST", "/governance/plan", {"text": GOOD})
    assert planned["blocking"] == [CODE, "kill-switch-lost"]
    [lost] = [found for found in planned["findings"] if found["code"] == "kill-switch-lost"]
    assert "model:gone" in lost["message"]


async def test_a_bad_text_is_refused_for_its_own_lines(admin: Admin) -> None:
    status, answer = await admin.error(
        "POST", "/governance/plan", {"text": example_text() + "nonsense: 1\n"}
    )
    assert (status, answer["error"]["code"]) == (400, "governance_invalid")
    assert "nonsense" in answer["error"]["message"]


async def test_the_deployments_file_says_what_to_do(replica: Replica) -> None:
    file = DeploymentFile(replica.versions, GOOD)
    await file.seed()
    assert file.problem is not None
    assert f"`terrace governance apply FILE --reason WHY --allow {CODE}`" in file.problem
