"""The signed snapshot on the volume: for a start without a database, on the same boot only."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from gateway_rig.policy import PEPPER, Replica, TickingClock, example_text, replica_of
from gateway_rig.postgres import Postgres

from terrace_gateway.authentication.keys import mint_key
from terrace_gateway.calls.ports import EffectivePolicy
from terrace_gateway.edge.errors import ApiError
from terrace_gateway.policy.saved import CONFIRMED, SNAPSHOT, SavedPolicy

SPEC = """
orgs: [{name: acme, quotas: [{dimension: micro_usd, amount: 1000, per: month, alert_at: [50]}]}]
teams: [{name: team-a, org: acme}]
policies: [{name: short, max_output_tokens: 7, outage: limited, outage_grace_seconds: 60}]
"""


@pytest.fixture
async def replica(postgres: Postgres, database: str) -> AsyncIterator[Replica]:
    async with replica_of(postgres, database) as made:
        await made.apply(example_text() + SPEC)
        await made.feed.refresh()
        yield made


def saved(folder: Path, clock: TickingClock, **options: str) -> SavedPolicy:
    pepper = bytes.fromhex(options.pop("pepper", PEPPER.hex()))
    return SavedPolicy(folder, clock, pepper=pepper, boot_id=options.get("boot_id", "boot-1"))


async def restart(
    postgres: Postgres, database: str, folder: Path, *, after: float, clock: TickingClock
) -> AsyncIterator[Replica]:
    async with replica_of(postgres, database) as again:
        again.clock.seconds = clock.seconds + after
        found = saved(folder, again.clock).load()
        if found is not None:
            again.feed.restore(found[0], confirmed_at=found[1])
        yield again


async def test_a_start_without_the_database_goes_by_what_was_last_confirmed(
    replica: Replica, postgres: Postgres, database: str, tmp_path: Path
) -> None:
    key, key_id = await replica.mint(policies=["short"], models=["sim-small"], budget_micro_usd=9)
    old_key, rotated = await replica.mint()
    from terrace_gateway.authentication.keys import hash_key

    new_key = mint_key()
    await replica.keys.rotate(
        rotated, hash_key(PEPPER, new_key), overlap_seconds=600, actor="a", reason=None
    )
    await replica.feed.refresh()
    before = await replica.call(key)
    await saved(tmp_path, replica.clock).save(replica.feed)
    postgres.stop()
    async for again in restart(postgres, database, tmp_path, after=20, clock=replica.clock):
        assert await again.call(key) == before  # caps, policy, owner: the same
        assert await again.call(old_key) is not None
        assert await again.call(new_key) is not None
        in_force = again.feed.current()
        assert not in_force.fresh
        standing = in_force.standing(EffectivePolicy(outage_grace_seconds=60))
        assert standing.state == "limited"
        assert standing.seconds_left == pytest.approx(41, abs=0.5)
        assert in_force.standing(EffectivePolicy(outage="closed")).state == "ended"
        with pytest.raises(ApiError) as refused:
            await again.call(mint_key())
        assert refused.value.status == 503  # never 401 for what cannot be checked
        postgres.start()
        await again.database.prepare()
        async with asyncio.timeout(60):
            while not await again.database.probe():
                await asyncio.sleep(0.05)
        await replica_revokes(again, key_id)
        with pytest.raises(ApiError) as revoked:
            await again.call(key)
        assert revoked.value.status == 401


async def replica_revokes(replica: Replica, key_id: str) -> None:
    await replica.keys.revoke(key_id, actor="alice", reason=None)
    await replica.feed.refresh()
    assert replica.feed.current().fresh


async def test_without_the_file_it_is_503(
    replica: Replica, postgres: Postgres, database: str, tmp_path: Path
) -> None:
    key, _ = await replica.mint()
    postgres.stop()
    async for again in restart(postgres, database, tmp_path, after=1, clock=replica.clock):
        with pytest.raises(ApiError) as refused:
            await again.call(key)
        assert refused.value.status == 503


async def test_a_forged_or_foreign_file_is_refused(replica: Replica, tmp_path: Path) -> None:
    await saved(tmp_path, replica.clock).save(replica.feed)
    assert saved(tmp_path, replica.clock).load() is not None
    assert saved(tmp_path, replica.clock, pepper="ab" * 32).load() is None
    assert saved(tmp_path, replica.clock, boot_id="boot-2").load() is None
    for name in (SNAPSHOT, CONFIRMED):
        good = (tmp_path / name).read_bytes()
        mac, _, body = good.partition(b"\n")
        document = json.loads(body)
        document["epoch"] += 1
        forged = [
            mac + b"\n" + json.dumps(document).encode(), body, b"", b"\n", mac, good[:-1],
            good + b" ", b"\xff" * 100, b"0" * 64 + b"\n" + body,
        ]  # fmt: skip
        for content in forged:
            (tmp_path / name).write_bytes(content)
            assert saved(tmp_path, replica.clock).load() is None
        (tmp_path / name).write_bytes(good)
    # One signed file in the other's place, and a snapshot that is older than its confirmation.
    snapshot = (tmp_path / SNAPSHOT).read_bytes()
    (tmp_path / SNAPSHOT).write_bytes((tmp_path / CONFIRMED).read_bytes())
    assert saved(tmp_path, replica.clock).load() is None
    await replica.mint()
    await replica.feed.refresh()
    await saved(tmp_path, replica.clock).save(replica.feed)
    assert saved(tmp_path, replica.clock).load() is not None
    (tmp_path / SNAPSHOT).write_bytes(snapshot)
    assert saved(tmp_path, replica.clock).load() is None


async def test_an_old_file_and_one_from_the_future_are_refused(
    replica: Replica, tmp_path: Path
) -> None:
    await saved(tmp_path, replica.clock).save(replica.feed)
    replica.clock.forward(3599)
    assert saved(tmp_path, replica.clock).load() is not None
    replica.clock.forward(2)
    assert saved(tmp_path, replica.clock).load() is None
    replica.clock.seconds -= 5000
    assert saved(tmp_path, replica.clock).load() is None


async def test_the_snapshot_is_written_only_when_it_changed(
    replica: Replica, tmp_path: Path
) -> None:
    writer = saved(tmp_path, replica.clock)
    await writer.save(replica.feed)
    (tmp_path / SNAPSHOT).unlink()
    await writer.save(replica.feed)
    assert not (tmp_path / SNAPSHOT).exists()
    await replica.mint()
    await replica.feed.refresh()
    await writer.save(replica.feed)
    assert (tmp_path / SNAPSHOT).exists()


async def test_the_files_hold_no_key(replica: Replica, tmp_path: Path) -> None:
    key, _ = await replica.mint()
    await replica.feed.refresh()
    await saved(tmp_path, replica.clock).save(replica.feed)
    content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert key[3:].encode() not in content
    assert PEPPER.hex().encode() not in content
