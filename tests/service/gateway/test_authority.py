"""The authority against a model of it: any order of calls, repeats, losses and corrections."""

import asyncio
import secrets
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
from gateway_rig.postgres import Postgres
from gateway_rig.release_before.authority import Grant, Refusal, Reservation, Settlement
from gateway_rig.release_before.incarnation import Incarnation
from gateway_rig.release_before.postgres_authority import PostgresAuthority
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from pydantic import SecretStr

from terrace_gateway.database import Database, DatabaseConfigError, migration_files

AMOUNTS = st.integers(0, 120)
OUTCOMES = st.sampled_from(["ok", "upstream_error", "not_sent", "unknown"])


class Rig:
    """A loop, a database and an authority for synchronous rules."""

    def __init__(self, url: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.database = Database(SecretStr(url), size=4, wait_seconds=2)
        self.run(self._open())
        self.authority = PostgresAuthority(self.database, self.incarnation, replica="r")

    async def _open(self) -> None:
        await self.database.prepare()
        await self.database.open()
        while not await self.database.probe():
            await asyncio.sleep(0.05)
        self.incarnation = Incarnation(
            self.database, replica="r", heartbeat_seconds=1, silent_seconds=15
        )

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(coroutine)

    def call(self, query: str, *parameters: object) -> Any:
        async def execute() -> Any:
            async with self.database.connection() as connection:
                cursor = await connection.execute(query.encode(), parameters)
                return await cursor.fetchone()

        return self.run(execute())

    def close(self) -> None:
        self.run(self.database.close())
        self.loop.close()


@pytest.fixture
def rig(postgres: Postgres, database: str) -> Iterator[Rig]:
    rig = Rig(postgres.url(database))
    yield rig
    rig.close()


def new_key(rig: Rig, *, budget: int | None, requests: int | None) -> tuple[str, bytes]:
    key_id, key_hash = f"key_{secrets.token_hex(6)}", secrets.token_bytes(32)
    rig.call(
        "INSERT INTO virtual_key (key_id, key_hash, team) VALUES (%s, %s, 't') RETURNING 1",
        key_id, key_hash,
    )  # fmt: skip
    caps = [("micro_usd", budget), *([] if requests is None else [("requests", requests)])]
    for dimension, amount in caps:  # money is counted even where it is not capped
        rig.call(
            "INSERT INTO cap (scope, scope_id, dimension, window_seconds, amount)"
            " VALUES ('key', %s, %s, 0, %s) RETURNING 1",
            key_id, dimension, amount,
        )  # fmt: skip
    return key_id, key_hash


def reservation(key_hash: bytes, amount: int) -> Reservation:
    return Reservation(
        attempt_id=f"att_{secrets.token_hex(8)}", request_id="req", trace_id="0" * 32,
        key_hash=key_hash, model="m", deployment="d", provider="p", surface="chat",
        reserved_micro_usd=amount, price_version="v", hard_limit_seconds=60,
    )  # fmt: skip


def settlement(attempt_id: str, outcome: Any, amount: int) -> Settlement:
    unknown = outcome == "unknown"
    return Settlement(
        attempt_id=attempt_id, kind="unknown" if unknown else "attempt", outcome=outcome,
        usage_source="reservation" if unknown else "response", input_tokens=0,
        output_tokens=0 if unknown else amount, amount_micro_usd=amount,
    )  # fmt: skip


def test_the_authority_behaves_like_its_model(rig: Rig) -> None:
    class Machine(RuleBasedStateMachine):
        attempts: Bundle[str] = Bundle("attempts")

        def __init__(self) -> None:
            super().__init__()
            self.cost: dict[str, int] = {}
            self.reserved: dict[str, int] = {}
            self.state: dict[str, str] = {}
            self.requests = 0
            # What the provider's log later proved above its own answer. It was spent when a
            # later call could already have been granted the difference, so no cap can hold it.
            self.proved_late = 0

        @initialize(budget=st.integers(0, 400), requests=st.none() | st.integers(0, 6))
        def make_key(self, budget: int, requests: int | None) -> None:
            self.budget, self.max_requests = budget, requests
            self.key_id, self.key_hash = new_key(rig, budget=budget, requests=requests)
            self.revoked = False

        def used(self) -> int:
            open_ = sum(a for i, a in self.reserved.items() if self.state[i] == "open")
            return open_ + sum(self.cost.values())

        @rule(target=attempts, amount=AMOUNTS)
        def reserve(self, amount: int) -> Any:
            decision = rig.run(rig.authority.reserve(reservation(self.key_hash, amount)))
            fits = self.used() + amount <= self.budget and (
                self.max_requests is None or self.requests < self.max_requests
            )
            if self.revoked:
                assert decision == Refusal("invalid_key")
                return multiple()
            assert isinstance(decision, Grant) == fits
            if not isinstance(decision, Grant):
                return multiple()
            self.reserved[decision.attempt_id] = amount
            self.state[decision.attempt_id] = "open"
            self.requests += 1
            return decision.attempt_id

        @rule(attempt=attempts, outcome=OUTCOMES, part=st.floats(0, 1))
        def settle(self, attempt: str, outcome: str, part: float) -> None:
            amount = 0 if outcome in ("not_sent", "upstream_error") else round(
                self.reserved[attempt] * part
            )  # fmt: skip
            result = rig.run(rig.authority.settle(settlement(attempt, outcome, amount)))
            state = self.state[attempt]
            if state == "open":
                assert result == "settled"
                self.cost[attempt] = self.reserved[attempt] if outcome == "unknown" else amount
                self.state[attempt] = "unknown" if outcome == "unknown" else "settled"
                self.requests -= outcome == "not_sent"
            elif state == "unknown" and outcome != "unknown":
                assert result == "corrected"
                self.cost[attempt] = amount
                self.state[attempt] = "settled"
            else:
                assert result == "already"

        @rule(attempt=attempts)
        def give_up(self, attempt: str) -> None:
            (done,) = rig.call("SELECT give_up_attempt(%s, 'r')", attempt)
            assert done == (self.state[attempt] == "open")
            if done:
                self.cost[attempt] = self.reserved[attempt]
                self.state[attempt] = "unknown"

        @rule(attempt=attempts, part=st.floats(0, 1))
        def reconcile(self, attempt: str, part: float) -> None:
            amount = round(self.reserved[attempt] * part)
            query = "SELECT reconcile_attempt(%s, 0, %s, %s, 'ok', 'r')"
            rig.call(query, attempt, amount, amount)
            (again,) = rig.call(query, attempt, amount, amount)
            assert again is False
            if self.state[attempt] != "open":
                self.proved_late += max(0, amount - self.cost[attempt])
                self.cost[attempt] = amount
                self.state[attempt] = "reconciled"

        @rule(attempt=consumes(attempts))
        def forget(self, attempt: str) -> None:
            """A guard that died: nobody will call for this attempt again."""

        @rule()
        def revoke(self) -> None:
            revoke = "UPDATE virtual_key SET revoked_at = clock_timestamp() WHERE key_id = %s"
            rig.call(f"{revoke} RETURNING 1", self.key_id)
            self.revoked = True

        @invariant()
        def books_agree(self) -> None:
            if not hasattr(self, "key_id"):
                return
            settled, outstanding = rig.call(
                "SELECT coalesce(max(settled), 0), coalesce(max(outstanding), 0) FROM counter"
                " WHERE scope_id = %s AND dimension = 'micro_usd'",
                self.key_id,
            )
            assert settled == sum(self.cost.values())
            assert settled + outstanding == self.used() <= self.budget + self.proved_late
            for attempt, cost in self.cost.items():
                row = rig.call(
                    "SELECT sum(amount_micro_usd), count(*) FILTER (WHERE kind <> 'correction')"
                    " FROM ledger WHERE attempt_id = %s",
                    attempt,
                )
                assert row == (cost, 1)

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=25,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_concurrent_settlements_of_one_attempt_count_once(rig: Rig) -> None:
    _, key_hash = new_key(rig, budget=1000, requests=None)
    grant = rig.run(rig.authority.reserve(reservation(key_hash, 100)))

    async def all_at_once() -> list[str]:
        calls = [rig.authority.settle(settlement(grant.attempt_id, "ok", 40)) for _ in range(20)]
        return list(await asyncio.gather(*calls))

    results = rig.run(all_at_once())
    assert sorted(results) == ["already"] * 19 + ["settled"]
    assert rig.call("SELECT sum(amount_micro_usd), count(*) FROM ledger") == (40, 1)


def test_a_settlement_of_nothing_is_told(rig: Rig) -> None:
    assert rig.run(rig.authority.settle(settlement("att_none", "ok", 1))) == "no_attempt"


def test_migrations_run_once_and_are_not_changed(postgres: Postgres, empty_database: str) -> None:
    url = SecretStr(postgres.url(empty_database))

    async def prepare(guards: int) -> None:
        databases = [Database(url, size=2, wait_seconds=2) for _ in range(guards)]
        await asyncio.gather(*(each.prepare() for each in databases))
        for each in databases:
            await each.close()

    asyncio.run(prepare(3))
    with postgres.superuser(empty_database) as connection:
        applied = connection.execute("SELECT count(*) FROM schema_migration").fetchone()
        assert applied == (len(migration_files()),)
        connection.execute("UPDATE schema_migration SET checksum = 'x' WHERE version = 1")
    with pytest.raises(DatabaseConfigError, match="0001_money_path"):
        asyncio.run(prepare(1))


def test_commits_that_are_not_durable_are_refused(postgres: Postgres, database: str) -> None:
    with postgres.superuser() as connection:
        connection.execute(f"ALTER DATABASE {database} SET synchronous_commit = off")
    unsafe = Database(SecretStr(postgres.url(database)), size=2, wait_seconds=2)
    with pytest.raises(DatabaseConfigError, match="synchronous_commit=off"):
        asyncio.run(unsafe.prepare())


def test_reservations_that_meet_at_one_row_see_each_other(
    rig: Rig, postgres: Postgres, database: str
) -> None:
    """All wait for one row, then go on at once: the moment at which a stale read would pass."""
    _, key_hash = new_key(rig, budget=300, requests=None)
    rig.run(rig.authority.reserve(reservation(key_hash, 0)))

    async def meet() -> list[Grant | Refusal]:
        with postgres.superuser(database) as blocker, postgres.superuser() as watcher:
            with blocker.transaction():
                blocker.execute("SELECT FROM counter FOR UPDATE")
                calls = [
                    asyncio.create_task(rig.authority.reserve(reservation(key_hash, 100)))
                    for _ in range(4)
                ]
                waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                while watcher.execute(waiting).fetchone() != (4,):
                    assert not any(call.done() for call in calls)
                    await asyncio.sleep(0.01)
            return list(await asyncio.gather(*calls))

    decisions = rig.run(meet())
    assert sum(isinstance(decision, Grant) for decision in decisions) == 3
    assert rig.call("SELECT settled + outstanding FROM counter") == (300,)


def test_a_refusal_tells_what_is_left_beside_running_calls(
    rig: Rig, postgres: Postgres, database: str
) -> None:
    key_id, key_hash = new_key(rig, budget=300, requests=None)
    first = rig.run(rig.authority.reserve(reservation(key_hash, 100)))
    rig.run(rig.authority.settle(settlement(first.attempt_id, "ok", 40)))
    rig.run(rig.authority.reserve(reservation(key_hash, 200)))
    cap = Refusal("cap", key_id, "t", "key", "micro_usd", None, 60)
    assert rig.run(rig.authority.reserve(reservation(key_hash, 61))) == cap
    with postgres.superuser(database) as connection:
        connection.execute(
            "INSERT INTO cap (scope, scope_id, dimension, window_seconds, amount)"
            " VALUES ('team', 't', 'micro_usd', 0, 50)"
        )
    team = Refusal("cap", key_id, "t", "team", "micro_usd", None, 50)
    assert rig.run(rig.authority.reserve(reservation(key_hash, 51))) == team
    with postgres.superuser(database) as connection:  # a cap that was lowered below what is used
        connection.execute("UPDATE cap SET amount = 10 WHERE scope = 'key' AND amount = 300")
    assert rig.run(rig.authority.reserve(reservation(key_hash, 1))).remaining == 0
    assert isinstance(rig.run(rig.authority.reserve(reservation(key_hash, 1))), Refusal)


def test_guards_of_the_release_before_share_the_caps(rig: Rig) -> None:
    """They call reserve_attempt; a rolling update has both at once."""
    _, key_hash = new_key(rig, budget=300, requests=None)
    incarnation = rig.run(rig.incarnation.ensure_fresh())
    old = "SELECT verdict FROM reserve_attempt(%s, %s, 'r', 't', %s, 'r', 'm', 'd', 'p', 'chat',"
    assert rig.call(f"{old} 200, 'v', 60)", key_hash, "att_old_1", incarnation) == ("granted",)
    assert rig.run(rig.authority.reserve(reservation(key_hash, 101))).remaining == 100
    assert isinstance(rig.run(rig.authority.reserve(reservation(key_hash, 100))), Grant)
    assert rig.call(f"{old} 1, 'v', 60)", key_hash, "att_old_2", incarnation) == ("cap",)
