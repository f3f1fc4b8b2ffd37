"""What ``GET /governance`` says of the deployment's file is of the newest version, also at a
replica that is stuck at an older one."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from gateway_rig.admin import Admin, admin_of
from gateway_rig.policy import Replica, example_text, replica_of
from gateway_rig.postgres import Postgres

from terrace_gateway.calls.ports import AuthorityUnavailableError
from terrace_gateway.policy.seed import DeploymentFile
from terrace_gateway.policy.snapshot import Snapshot

FILE = example_text() + "# the file\n"
OTHER = example_text() + "# other\n"
TEAMS = "\nteams: [{name: team-a}]\n"


@pytest.fixture
async def replica(postgres: Postgres, database: str) -> AsyncIterator[Replica]:
    async with replica_of(postgres, database) as made:
        yield made


def stuck_from_now(replica: Replica) -> None:
    def prepare(_: Snapshot | None, new: Snapshot) -> Any:
        raise ValueError

    replica.feed.before_change(prepare)


async def newest_and_stuck(replica: Replica, text: str, last: str) -> None:
    await replica.apply(text)
    await replica.feed.refresh()
    stuck_from_now(replica)
    await replica.apply(last)
    with pytest.raises(AuthorityUnavailableError):
        await replica.feed.refresh()


async def shown(admin: Admin, path: str = "/governance") -> tuple[int, str, str | None]:
    answer = await admin.ok("GET", path)
    return answer["version"], answer["problem"] or "", answer["note"]


async def test_the_newest_is_the_file_and_this_replica_has_another(replica: Replica) -> None:
    await replica.apply(FILE)
    await newest_and_stuck(replica, OTHER, FILE)
    file = DeploymentFile(replica.versions, FILE)
    await file.seed()
    async with admin_of(replica, deployment=file) as admin:
        version, problem, note = await shown(admin)
        assert (version, note) == (3, None)
        assert "ValueError" in problem
        assert await shown(admin, "/governance?version=1") == (1, problem, None)


async def test_the_newest_is_another_and_this_replica_has_the_file(replica: Replica) -> None:
    await newest_and_stuck(replica, FILE, OTHER)
    file = DeploymentFile(replica.versions, FILE)
    await file.seed()
    async with admin_of(replica, deployment=file) as admin:
        for path in ("/governance", "/governance?version=1"):
            _, problem, note = await shown(admin, path)
            assert "version 2 has another text" in (note or "")
            assert "ValueError" in problem


async def test_why_the_file_was_refused_is_told_by_a_replica_that_is_stuck(
    replica: Replica,
) -> None:
    await replica.apply(example_text())
    await replica.mint(team="team-b")
    file = DeploymentFile(replica.versions, example_text() + TEAMS)
    await file.seed()
    await newest_and_stuck(replica, OTHER, example_text() + "# last\n")
    async with admin_of(replica, deployment=file) as admin:
        _, problem, note = await shown(admin)
    assert note is None
    assert "ValueError" in problem
    assert "key-orphaned" in problem
