"""Who is asked about in a pass of reconciliation."""

from collections.abc import Sequence

from gateway_rig.ledger_rig import open_database
from gateway_rig.postgres import Postgres

from terrace_gateway.ledger.bills.bill_sources import Candidate
from terrace_gateway.ledger.bills.provider_bill import Billed
from terrace_gateway.ledger.bills.reconcile import PASS_LIMIT, Reconciler

_ADD = """
INSERT INTO open_attempt (attempt_id, state, opened_at, writer, incarnation_id, provider,
                          hard_limit_seconds, record)
SELECT %(name)s || i, %(state)s, clock_timestamp() - make_interval(hours => %(hours)s), 'w', 1,
       %(provider)s, 600, '{"model": "m"}' FROM generate_series(1, %(count)s) i
"""


class Asked:
    """A log that decides nothing and remembers what it was asked."""

    def __init__(self) -> None:
        self.names: list[str] = []

    async def billed(self, candidates: Sequence[Candidate]) -> dict[str, Billed]:
        self.names += [candidate.attempt_id for candidate in candidates]
        return {}


async def test_no_provider_waits_behind_another(postgres: Postgres, database: str) -> None:
    """Neither behind one without a log, whose refusals are forgotten after a day, nor behind one
    that cannot decide."""
    log, stuck = Asked(), Asked()
    async with open_database(postgres.url(database)) as pool:
        rows = (
            ("old-free-", "free", 48, "no-log", PASS_LIMIT),
            ("young-free-", "free", 1, "no-log", 1),
            ("no-log-unknown-", "unknown", 48, "no-log", 2),
            ("stuck-", "unknown", 30, "stuck", PASS_LIMIT),
            ("free-", "free", 26, "log", 1),
            ("unknown-", "unknown", 1, "log", 1),
        )
        async with pool.connection() as connection:
            for name, state, hours, provider, count in rows:
                values = {"name": name, "state": state, "hours": hours, "provider": provider}
                await connection.execute(_ADD, {**values, "count": count})
        reconciler = Reconciler(pool, lambda: {"log": log, "stuck": stuck}, replica="r")
        found = await reconciler.reconcile()
        assert log.names == ["free-1", "unknown-1"]
        assert len(stuck.names) == PASS_LIMIT
        assert (found["checked"], found["still_open"]) == (PASS_LIMIT + 2, PASS_LIMIT + 3)
        async with pool.connection() as connection:
            cursor = await connection.execute(
                "SELECT attempt_id FROM open_attempt WHERE provider <> 'stuck' ORDER BY 1"
            )
            assert [row[0] for row in await cursor.fetchall()] == [
                "free-1", "no-log-unknown-1", "no-log-unknown-2", "unknown-1", "young-free-1",
            ]  # fmt: skip


async def test_what_cannot_be_decided_for_a_week_keeps_no_younger_one(
    postgres: Postgres, database: str
) -> None:
    log = Asked()
    async with open_database(postgres.url(database)) as pool:
        for name, hours, count in (("old-", 8 * 24, PASS_LIMIT), ("young-", 1, 1)):
            values = {"name": name, "state": "unknown", "hours": hours, "provider": "log"}
            async with pool.connection() as connection:
                await connection.execute(_ADD, {**values, "count": count})
        await Reconciler(pool, lambda: {"log": log}, replica="r").reconcile()
        assert log.names[0] == "young-1"
        assert len(log.names) == PASS_LIMIT
