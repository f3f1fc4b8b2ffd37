"""The policy in force: what is loaded, how old it may be, and what it never says."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from gateway_rig.policy import Replica, example_text, replica_of
from gateway_rig.postgres import Postgres

from terrace_gateway.authentication.keys import mint_key
from terrace_gateway.calls.ports import AuthorityUnavailableError, EffectivePolicy
from terrace_gateway.edge.errors import ApiError
from terrace_gateway.policy.feed import NoPolicyError
from terrace_gateway.policy.snapshot import Snapshot

TEAMS = """
orgs: [{name: acme, quotas: [{dimension: micro_usd, amount: 1000, per: month}]}]
teams:
  - {name: team-a, org: acme, quotas: [{dimension: requests, amount: 5, per: minute}]}
  - {name: team-b, org: acme}
apps: [{name: bot, team: team-a}]
keys: [{name: bot-prod, app: bot, quotas: [{dimension: requests, amount: 9, per: day}]}]
"""


@pytest.fixture
async def one(postgres: Postgres, database: str) -> AsyncIterator[Replica]:
    async with replica_of(postgres, database) as replica:
        yield replica


async def refused(replica: Replica, key: str) -> int | None:
    """Status of the refusal; ``None``: accepted."""
    try:
        await replica.call(key)
    except ApiError as error:
        return error.status
    return None


async def test_without_a_version_there_is_no_policy(one: Replica) -> None:
    with pytest.raises(NoPolicyError):
        await one.feed.refresh()
    with pytest.raises(NoPolicyError):
        one.feed.current()
    assert await refused(one, mint_key()) == 503


async def test_a_key_is_found_with_its_policy_and_caps(one: Replica) -> None:
    await one.apply(example_text() + TEAMS)
    key, key_id = await one.mint(app="bot", budget_micro_usd=70)
    await one.feed.refresh()
    principal = await one.call(key)
    assert principal is not None
    caller = principal.caller
    assert (caller.key_id, caller.team, caller.org, caller.app) == (key_id, "team-a", "acme", "bot")
    found = {(cap.scope, cap.scope_id, cap.dimension, cap.amount) for cap in principal.caps}
    assert found == {
        ("org", "acme", "micro_usd", 1000),
        ("team", "team-a", "requests", 5),
        ("key", key_id, "micro_usd", 70),
    }
    months = [cap.window for cap in principal.caps if cap.scope == "org"]
    assert months[0].kind == "calendar"
    assert months[0].unit == "month"
    assert months[0].seconds == 0
    assert await one.call(key) is principal  # worked out once


async def test_a_declared_key_has_the_caps_of_its_name(one: Replica) -> None:
    await one.apply(example_text() + TEAMS)
    key, _ = await one.mint(name="bot-prod", declared="bot-prod")
    await one.feed.refresh()
    principal = await one.call(key)
    assert principal is not None
    assert ("key", "bot-prod", 9) in {(c.scope, c.scope_id, c.amount) for c in principal.caps}


async def test_unknown_is_401_while_fresh_and_503_when_it_cannot_be_checked(
    one: Replica, postgres: Postgres
) -> None:
    await one.apply(example_text())
    key, _ = await one.mint()
    await one.feed.refresh()
    assert await refused(one, mint_key()) == 401
    assert await one.authenticator.authenticate(_shown("tk-short")) is None
    postgres.stop()
    assert await refused(one, key) is None
    assert await refused(one, mint_key()) == 503  # it may have been minted since
    postgres.start()


async def test_a_new_key_works_at_once_on_a_replica_that_has_not_polled(
    postgres: Postgres, database: str, one: Replica
) -> None:
    await one.apply(example_text())
    async with replica_of(postgres, database) as other:
        await other.feed.refresh()
        key, _ = await one.mint()
        assert await refused(other, key) is None


async def test_strangers_share_questions(one: Replica) -> None:
    await one.apply(example_text())
    await one.feed.refresh()
    asked = 0
    head = one.feed._store.head

    async def counted() -> Any:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.01)
        return await head()

    one.feed._store.head = counted  # type: ignore[method-assign]
    statuses = await asyncio.gather(*(refused(one, mint_key()) for _ in range(200)))
    assert statuses == [401] * 200
    assert asked <= 3


async def test_revoked_everywhere_after_one_lease(
    postgres: Postgres, database: str, one: Replica
) -> None:
    """Either the other replica has heard, or its lease has ended: no third way."""
    await one.apply(example_text())
    key, key_id = await one.mint()
    async with replica_of(postgres, database) as other:
        await other.feed.refresh()
        assert await refused(other, key) is None
        await one.keys.revoke(key_id, actor="alice", reason="leaked")
        other.clock.forward(0.9)
        assert other.feed.current().fresh
        other.clock.forward(0.2)
        closed = EffectivePolicy(outage="closed")
        assert other.feed.current().standing(closed).state == "ended"
        await other.feed.refresh()
        assert other.feed.current().fresh
        assert await refused(other, key) == 401


async def test_the_lease_counts_from_the_sending(one: Replica) -> None:
    await one.apply(example_text())
    await one.feed.refresh()
    epoch = one.feed.current().snapshot.epoch
    sent_at = one.clock.monotonic()
    one.clock.forward(0.7)  # the answer took so long
    one.feed.hear(epoch, sent_at)
    assert one.feed.current().age_seconds == pytest.approx(0.7, abs=0.01)
    one.clock.forward(0.35)
    assert not one.feed.current().fresh
    one.feed.hear(epoch, sent_at - 5)  # overtaken
    assert not one.feed.current().fresh


async def test_an_epoch_that_is_not_applied_confirms_nothing(one: Replica) -> None:
    await one.apply(example_text())
    await one.feed.refresh()
    one.clock.forward(2)
    one.feed.hear(one.feed.current().snapshot.epoch + 1, one.clock.monotonic())
    assert not one.feed.current().fresh


@pytest.mark.parametrize(
    ("policy", "age", "state", "left"),
    [
        (EffectivePolicy(outage_grace_seconds=60), 0.4, "fresh", 0.6),
        (EffectivePolicy(outage_grace_seconds=60), 11, "limited", 50),
        (EffectivePolicy(outage_grace_seconds=60), 61.5, "ended", 0),
        (EffectivePolicy(outage="closed"), 1.01, "ended", 0),
    ],
)
async def test_what_an_outage_leaves(
    one: Replica, policy: EffectivePolicy, age: float, state: str, left: float
) -> None:
    await one.apply(example_text())
    await one.feed.refresh()
    one.clock.forward(age)
    standing = one.feed.current().standing(policy)
    assert standing.state == state
    assert standing.seconds_left == pytest.approx(left, abs=0.01)


async def test_only_what_changed_is_loaded(one: Replica) -> None:
    await one.apply(example_text() + TEAMS)
    minted = [await one.mint(team="team-b") for _ in range(5)]
    await one.feed.refresh()
    before = {key: await one.call(key) for key, _ in minted}
    seen: list[Any] = []
    changes = one.feed._store.changes

    async def watched(since: int) -> Any:
        seen.append(await changes(since))
        return seen[-1]

    one.feed._store.changes = watched  # type: ignore[method-assign]
    await one.keys.revoke(minted[0][1], actor="alice", reason=None)
    await one.feed.refresh()
    [loaded] = seen
    assert loaded.gone_keys == (minted[0][1],)
    assert (loaded.version, loaded.keys, loaded.caps) == (None, (), ())
    assert await refused(one, minted[0][0]) == 401
    for key, _ in minted[1:]:
        assert await one.call(key) is before[key]


async def test_last_use_is_written_in_batches_and_is_no_change_of_the_policy(
    one: Replica, postgres: Postgres, database: str
) -> None:
    await one.apply(example_text())
    key, key_id = await one.mint()
    await one.feed.refresh()
    epoch = one.feed.current().snapshot.epoch
    for _ in range(50):
        await one.call(key)
    row = await one.keys.find(key_id)
    assert row is not None
    assert row["last_used_at"] is None
    await one.use.flush()
    row = await one.keys.find(key_id)
    assert row is not None
    assert row["last_used_at"] is not None
    await one.feed.refresh()
    assert one.feed.current().snapshot.epoch == epoch


async def test_who_prepares_sees_old_and_new(one: Replica) -> None:
    seen: list[tuple[Snapshot | None, Snapshot]] = []
    one.feed.before_change(lambda old, new: lambda: seen.append((old, new)))
    await one.apply(example_text())
    await one.feed.refresh()
    await one.feed.refresh()
    assert len(seen) == 1
    await one.mint()
    await one.feed.refresh()
    assert [(old and old.epoch, new.epoch) for old, new in seen] == [
        (None, seen[0][1].epoch),
        (seen[0][1].epoch, seen[1][1].epoch),
    ]


async def test_refresh_says_when_the_database_is_away(one: Replica, postgres: Postgres) -> None:
    await one.apply(example_text())
    await one.feed.refresh()
    postgres.stop()
    with pytest.raises(AuthorityUnavailableError):
        await one.feed.refresh()
    postgres.start()
    async with asyncio.timeout(60):
        while not await one.database.probe():
            await asyncio.sleep(0.1)
    await one.feed.refresh()
    assert one.feed.current().fresh


def _shown(token: str) -> Any:
    from gateway_rig.policy import presented

    return presented(token)


async def test_a_service_that_hides_its_time_line_has_a_policy(
    one: Replica, postgres: Postgres, database: str
) -> None:
    """As services do whose servers share one storage."""
    with postgres.superuser(database) as connection:
        connection.execute("REVOKE EXECUTE ON FUNCTION pg_current_wal_lsn() FROM PUBLIC")
    await one.apply(example_text())
    await one.feed.refresh()
    known = one.feed.current().snapshot
    assert known.timeline == 0
    key, key_id = await one.mint()
    await one.feed.refresh()
    assert await refused(one, key) is None
    assert key_id in one.feed.current().snapshot.keys
    assert one.feed.current().snapshot.compiled is known.compiled  # only what changed was read
