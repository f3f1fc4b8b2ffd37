"""The policy under faults: lost notifications, races, killed applies, a database that goes back."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from gateway_rig.policy import Replica, example_text, replica_of
from gateway_rig.postgres import Postgres
from pydantic import SecretStr

from terrace_gateway.edge.errors import ApiError
from terrace_gateway.ending import end_tasks
from terrace_gateway.policy.feed import NoPolicyError
from terrace_gateway.policy.listener import PolicyListener

TEAMS = """
teams: [{name: team-a, quotas: [{dimension: requests, amount: 5, per: minute}]}]
"""


@pytest.fixture
async def replica(postgres: Postgres, database: str) -> AsyncIterator[Replica]:
    async with replica_of(postgres, database) as made:
        await made.apply(example_text())
        await made.feed.refresh()
        yield made


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def test_the_poll_finds_what_nobody_notified(replica: Replica) -> None:
    """No listener runs here: every notification is lost."""
    replica.feed._poll_seconds = 0.02
    task = asyncio.create_task(replica.feed.run())
    _, key_id = await replica.mint()
    replica.clock.forward(1)
    await until(lambda: key_id in replica.feed.current().snapshot.keys)
    await replica.keys.revoke(key_id, actor="a", reason=None)
    replica.clock.forward(1)
    await until(lambda: key_id not in replica.feed.current().snapshot.keys)
    await end_tasks([task], every_seconds=1)


async def test_a_notification_comes_before_the_poll(
    replica: Replica, postgres: Postgres, database: str
) -> None:
    replica.feed._poll_seconds = 3600
    listener = PolicyListener(SecretStr(postgres.url(database)), replica.feed.wake)
    tasks = [asyncio.create_task(replica.feed.run()), asyncio.create_task(listener.run())]
    _, first = await replica.mint()
    await until(lambda: first in replica.feed.current().snapshot.keys)
    with postgres.superuser() as connection:  # the listener's connection is cut
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'terrace-policy'"
        )
    _, second = await replica.mint()
    await until(lambda: second in replica.feed.current().snapshot.keys)
    await end_tasks(tasks, every_seconds=1)


async def test_heartbeats_carry_the_epoch(replica: Replica) -> None:
    replica.feed._poll_seconds = 3600
    task = asyncio.create_task(replica.feed.run())
    known = replica.feed.current().snapshot.epoch
    _, key_id = await replica.mint()
    assert replica.feed.current().snapshot.epoch == known
    replica.feed.hear(known + 1, replica.clock.monotonic())
    await until(lambda: key_id in replica.feed.current().snapshot.keys)
    await end_tasks([task], every_seconds=1)


async def test_epochs_commit_in_order_whoever_writes(
    replica: Replica, postgres: Postgres, database: str
) -> None:
    """Every change is seen by a reader that only asks for what is newer than what it knows."""
    async with replica_of(postgres, database) as reader:
        await reader.feed.refresh()
        done = asyncio.Event()

        async def read() -> None:
            while not done.is_set():
                await reader.feed.refresh()

        async def write(number: int) -> list[str]:
            kept: list[str] = []
            for turn in range(6):
                _, key_id = await replica.mint(team=f"t{number}", budget_micro_usd=turn)
                kept.append(key_id)
                if turn % 2:
                    await replica.keys.revoke(kept.pop(0), actor="a", reason=None)
            return kept

        reading = asyncio.create_task(read())
        kept = [key for keys in await asyncio.gather(*map(write, range(5))) for key in keys]
        done.set()
        await reading
        await reader.feed.refresh()
        assert set(reader.feed.current().snapshot.keys) == set(kept)
        caps = reader.feed.current().snapshot.caps
        assert all(caps[("key", key_id)] for key_id in kept)


async def test_a_call_sees_one_version_whole(
    replica: Replica, postgres: Postgres, database: str
) -> None:
    """Version and caps change together, also for a reader in the middle of an apply."""
    texts = {
        amount: example_text().replace("2026-11-local", f"v{amount}")
        + TEAMS.replace("amount: 5", f"amount: {amount}")
        for amount in (5, 6)
    }
    await replica.apply(texts[5], allow=["cap-below-spend"])
    async with replica_of(postgres, database) as reader:
        await reader.feed.refresh()
        done = asyncio.Event()
        seen: set[tuple[str, int]] = set()

        async def read() -> None:
            while not done.is_set():
                await reader.feed.refresh()
                snapshot = reader.feed.current().snapshot
                [cap] = snapshot.caps_of("team", "team-a")
                seen.add((snapshot.price_version, cap.amount))

        reading = asyncio.create_task(read())
        async with asyncio.timeout(60):
            applied = 0
            while applied < 5 or len(seen) < 2:  # until the reader has met both
                applied += 1
                await replica.apply(texts[5 + applied % 2])
        done.set()
        await reading
    assert seen == {("v5", 5), ("v6", 6)}


async def test_a_database_that_went_back_is_read_anew(
    replica: Replica, postgres: Postgres, database: str
) -> None:
    key, _ = await replica.mint()
    await replica.feed.refresh()
    assert await replica.call(key) is not None
    with postgres.superuser(database) as connection:  # as a restored backup would be
        connection.execute("ALTER TABLE virtual_key DISABLE TRIGGER USER")
        connection.execute("DELETE FROM virtual_key")
        connection.execute("UPDATE policy_head SET epoch = epoch - 1")
    await replica.feed.refresh()
    with pytest.raises(ApiError):
        await replica.call(key)


async def test_a_version_that_this_guard_cannot_read_ends_its_lease_and_still_revokes(
    replica: Replica, postgres: Postgres, database: str
) -> None:
    """A newer guard wrote it; an older one must not go on by half."""
    key, key_id = await replica.mint()
    await replica.feed.refresh()
    with postgres.superuser(database) as connection:
        connection.execute(
            "INSERT INTO governance_version (version, text, digest, actor, source, plan)"
            " VALUES (2, 'version: 9', 'x', 'a', 'api', '{}')"
        )
    with pytest.raises(NoPolicyError):
        await replica.feed.refresh()
    assert replica.feed.problem is not None
    replica.clock.forward(1.01)
    assert not replica.feed.current().fresh
    assert await replica.call(key) is not None  # as the policy says: limited
    await replica.keys.revoke(key_id, actor="a", reason=None)
    with pytest.raises(NoPolicyError):
        await replica.feed.refresh()
    with pytest.raises(ApiError) as refused:
        await replica.call(key)
    assert refused.value.status == 503
    with postgres.superuser(database) as connection:
        connection.execute(
            "INSERT INTO governance_version (version, text, digest, actor, source, plan)"
            " VALUES (3, %s, 'y', 'a', 'api', '{}')",
            (example_text(),),
        )
    await replica.feed.refresh()
    assert replica.feed.problem is None
    assert replica.feed.current().snapshot.version == 3
    with pytest.raises(ApiError) as gone:
        await replica.call(key)
    assert gone.value.status == 401


KILLED_APPLY = """
import asyncio, sys
sys.path.insert(0, {rig!r})
from pathlib import Path
from pydantic import SecretStr
from terrace_common.governance import load_governance
from terrace_gateway.database import Database
from terrace_gateway.policy.deployed import Deployed
from terrace_gateway.policy.versions import GovernanceVersions

async def main():
    url, text = sys.argv[1], Path(sys.argv[2]).read_text()
    database = Database(SecretStr(url), size=2, wait_seconds=5)
    await database.open()
    await database.prepare()
    await database.probe()
    versions = GovernanceVersions(database, Deployed(load_governance(text, "f")))
    await versions.apply(text, actor="a", reason="r", check_base=False)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("point", "version"),
    [
        ("policy.before-version", 1), ("policy.after-version", 1), ("policy.after-caps", 1),
        ("policy.before-commit", 1), ("policy.after-commit", 2),
    ],
)  # fmt: skip
async def test_an_apply_that_is_killed_is_whole_or_not_there(  # noqa: PLR0917  fixtures
    replica: Replica, postgres: Postgres, database: str, tmp_path: Path, point: str, version: int
) -> None:
    spec = tmp_path / "governance.yaml"
    spec.write_text(example_text() + TEAMS)
    rig = str(Path(__file__).parent / "rig")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED_APPLY.format(rig=rig), postgres.url(database), str(spec),
        env={**os.environ, "TERRACE_CRASH_AT": point}, stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert await process.wait() == -signal.SIGKILL
    await replica.feed.refresh()
    snapshot = replica.feed.current().snapshot
    assert snapshot.version == version
    assert len(snapshot.caps_of("team", "team-a")) == version - 1
    with postgres.superuser(database) as connection:
        audited = connection.execute(
            "SELECT count(*) FROM audit WHERE action = 'governance.apply'"
        ).fetchone()
    assert audited == (version,)
    # Nothing is left that would keep the next one from coming.
    await replica.apply(example_text() + TEAMS + "# next\n")
