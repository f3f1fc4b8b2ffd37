"""Late facts: the reaper, replays after it, the providers' logs. Never a double count."""

from collections.abc import Sequence
from pathlib import Path

from gateway_rig.journal_records import close_record, open_record, unknown_close
from gateway_rig.ledger_rig import LedgerRig, ledger_rig
from gateway_rig.postgres import Postgres

from terrace_gateway.calls.ports import Charge, OpenRecord, Usage
from terrace_gateway.ledger.bills.bill_sources import Candidate
from terrace_gateway.ledger.bills.provider_bill import Billed, BillUnreachableError
from terrace_gateway.ledger.bills.reconcile import Reconciler
from terrace_gateway.ledger.chains.verify import LedgerVerifier
from terrace_gateway.ledger.reaper import LedgerReaper


class FakeBill:
    """A provider's books: what it charged, by attempt."""

    def __init__(self) -> None:
        self.calls: dict[str, Billed] = {}
        self.away = False

    def charge(self, opened: OpenRecord, amount: int, tokens: int = 7) -> None:
        self.calls[opened.attempt_id] = Billed(1, False, tokens, tokens, amount, "ok")

    async def billed(self, candidates: Sequence[Candidate]) -> dict[str, Billed]:
        if self.away:
            raise BillUnreachableError("away")
        nothing = Billed(0, False, 0, 0, 0, "upstream_error")
        return {c.attempt_id: self.calls.get(c.attempt_id, nothing) for c in candidates}


def reconciler(rig: LedgerRig, bill: FakeBill) -> Reconciler:
    return Reconciler(rig.database, lambda: {"simulator": bill}, replica="gateway-0")


def reaper(rig: LedgerRig) -> LedgerReaper:
    return LedgerReaper(rig.database, replica="gateway-1", every_seconds=1, margin_seconds=0)


async def counters(rig: LedgerRig) -> tuple[Charge, ...]:
    """Real counters of money, requests and tokens, and a gauge."""
    made: list[Charge] = []
    for dimension, amount in (
        ("micro_usd", 900), ("requests", 1), ("total_tokens", 300), ("concurrency", 1),
    ):  # fmt: skip
        rows = await rig.rows(
            "INSERT INTO counter (scope, scope_id, dimension, window_seconds, window_start)"
            " VALUES ('team', 'search', %s, 0, 'epoch') RETURNING counter_id",
            dimension,
        )
        made.append(Charge(rows[0][0], dimension, amount))  # pyright: ignore[reportArgumentType]
    return tuple(made)


async def settled(rig: LedgerRig) -> dict[str, int]:
    """What the counters say, beside what the entries say: the same."""
    said = dict(
        await rig.rows(
            "SELECT c ->> 1, sum((c ->> 2)::bigint)::bigint FROM ledger_entry,"
            " jsonb_array_elements(charges) c WHERE NOT late GROUP BY 1"
        )
    )
    held = dict(await rig.rows("SELECT dimension, settled FROM counter WHERE settled <> 0"))
    assert held == {name: amount for name, amount in said.items() if amount}
    return held


async def lose(rig: LedgerRig) -> None:
    """The incarnation's lease has ended, and Postgres has been up for a while."""
    await rig.rows(
        "UPDATE incarnation SET lease_until = clock_timestamp() - interval '1 second'"
        " RETURNING incarnation_id"
    )


async def money(rig: LedgerRig) -> int:
    rows = await rig.rows(
        "SELECT coalesce(sum(amount_micro_usd), 0)::bigint FROM ledger_entry WHERE NOT late"
    )
    spend = await rig.rows("SELECT coalesce(sum(amount_micro_usd), 0)::bigint FROM spend_daily")
    assert rows == spend
    return rows[0][0]


async def whole(rig: LedgerRig) -> None:
    result = await LedgerVerifier(rig.database, store=None).verify()
    assert result.findings == []


async def test_the_reaper_waits_for_lease_and_hard_limit_then_counts_the_reservation(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        held = await counters(rig)
        long = open_record(incarnation=rig.incarnation, charges=held)
        short = open_record(incarnation=rig.incarnation, charges=held, hard_limit_seconds=0)
        await rig.journal.open(long)
        await rig.drain()
        assert await reaper(rig).reap() == 0  # the lease runs
        await lose(rig)
        assert await reaper(rig).reap() == 0  # its call may still run upstream
        await rig.journal.open(short)
        await rig.drain()
        assert await reaper(rig).reap() == 1
        assert await reaper(rig).reap() == 0
        assert await rig.rows("SELECT attempt_id, writer, kind FROM ledger_entry") == [
            (short.attempt_id, "reaper", "unknown")
        ]
        assert await settled(rig) == {"micro_usd": 900, "requests": 1, "total_tokens": 300}
        await whole(rig)


async def test_an_attempt_that_the_database_refuses_keeps_no_other(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    """Neither of the reaper nor of reconcile, and it is found as it was at the next pass."""
    refuse = (
        "ALTER TABLE ledger_entry ADD CONSTRAINT no CHECK (attempt_id <> '{}' OR writer = '{}')"
        " NOT VALID"
    )
    bill = FakeBill()
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        first, second = [
            open_record(incarnation=rig.incarnation, hard_limit_seconds=0) for _ in range(2)
        ]
        for opened in (first, second):
            await rig.journal.open(opened)
            bill.charge(opened, 70)
        await rig.drain()
        await lose(rig)
        with postgres.superuser(database) as sql:
            sql.autocommit = True
            sql.execute(refuse.format(first.attempt_id, "nobody").encode())
            guard = reaper(rig)
            assert (await guard.reap(), guard.turns.failed) == (1, 1)
            sql.execute("ALTER TABLE ledger_entry DROP CONSTRAINT no")
            assert (await guard.reap(), guard.turns.failed) == (1, 1)
            sql.execute(refuse.format(first.attempt_id, "reaper").encode())
            found = await reconciler(rig, bill).reconcile()
            assert (found["trued_up"], found["still_open"]) == (1, 1)
            sql.execute("ALTER TABLE ledger_entry DROP CONSTRAINT no")
        found = await reconciler(rig, bill).reconcile()
        assert (found["trued_up"], found["still_open"]) == (1, 0)
        assert await money(rig) == 140
        await whole(rig)


async def test_a_close_that_comes_after_the_reaper_is_a_correction_and_no_second_charge(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        opened = open_record(
            incarnation=rig.incarnation, charges=await counters(rig), hard_limit_seconds=0
        )
        await rig.journal.open(opened)
        await rig.drain()
        await lose(rig)
        assert await reaper(rig).reap() == 1
        cost = {"micro_usd": 300, "total_tokens": 37}
        truth = tuple(
            Charge(c.counter_id, c.dimension, cost.get(c.dimension, 1))
            for c in opened.hold.charges
        )  # fmt: skip
        await rig.journal.close(close_record(opened, charges=truth))
        await rig.drain()
        assert rig.shipper.shipped.late == 1
        rows = await rig.rows(
            "SELECT kind, late, amount_micro_usd, input_tokens FROM ledger_entry ORDER BY entry_id"
        )
        assert rows == [
            ("unknown", False, 900, 0), ("attempt", True, 300, 10), ("correction", False, -600, 10),
        ]  # fmt: skip
        assert await money(rig) == 300
        assert await settled(rig) == {"micro_usd": 300, "requests": 1, "total_tokens": 37}
        assert await rig.rows("SELECT * FROM open_attempt") == []
        await whole(rig)


async def test_the_providers_log_corrects_what_was_assumed(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    bill = FakeBill()
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        held = await counters(rig)
        names = ("lost", "never_sent", "refused_but_billed", "refused", "running", "settled")
        records = {name: open_record(incarnation=rig.incarnation, charges=held) for name in names}
        free = {"outcome": "upstream_error", "amount_micro_usd": 0, "usage": Usage(0, 0)}
        for name, opened in records.items():
            await rig.journal.open(opened)
            if name in ("lost", "never_sent"):
                await rig.journal.close(unknown_close(opened))
            elif name.startswith("refused"):
                nothing = tuple(Charge(c.counter_id, c.dimension, 0) for c in held)
                await rig.journal.close(close_record(opened, charges=nothing, **free))
            elif name == "settled":
                await rig.journal.close(close_record(opened))
        await rig.drain()
        for name, amount in (("lost", 450), ("refused_but_billed", 70), ("running", 5)):
            bill.charge(records[name], amount)
        bill.charge(records["settled"], 310, tokens=10)
        found = await reconciler(rig, bill).reconcile()
        assert found["checked"] == 4
        assert (found["trued_up"], found["not_billed"], found["still_open"]) == (2, 1, 0)
        sums = dict(
            await rig.rows(
                "SELECT attempt_id, sum(amount_micro_usd)::bigint FROM ledger_entry GROUP BY 1"
            )
        )
        assert sums == {
            records["lost"].attempt_id: 450,
            records["never_sent"].attempt_id: 0,
            records["refused_but_billed"].attempt_id: 70,
            records["refused"].attempt_id: 0,
            records["settled"].attempt_id: 300,
        }
        await settled(rig)
        # The same again changes nothing.
        again = await reconciler(rig, bill).reconcile()
        assert (again["trued_up"], again["not_billed"]) == (0, 0)
        # Settled ones are compared on request, and corrected.
        drift = await reconciler(rig, bill).reconcile(recheck_hours=1)
        assert (drift["drifted"], drift["drift_micro_usd"]) == (1, 10)
        assert await money(rig) == 450 + 70 + 310
        assert (await reconciler(rig, bill).reconcile(recheck_hours=1))["drifted"] == 0
        await settled(rig)
        await whole(rig)


async def test_what_was_not_billed_may_be_billed_later_and_only_rises(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    bill = FakeBill()
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        opened = open_record(incarnation=rig.incarnation, charges=await counters(rig))
        await rig.journal.open(opened)
        await rig.journal.close(unknown_close(opened))
        await rig.drain()
        bill.away = True
        found = await reconciler(rig, bill).reconcile()
        assert (found["still_open"], found["unreachable"]) == (1, ["simulator"])
        assert await money(rig) == 900
        bill.away = False
        assert (await reconciler(rig, bill).reconcile())["not_billed"] == 1
        assert await money(rig) == 0
        bill.charge(opened, 42)
        assert (await reconciler(rig, bill).reconcile())["trued_up"] == 1
        assert await money(rig) == 42
        bill.calls.clear()  # a log that forgets is not believed
        await reconciler(rig, bill).reconcile(recheck_hours=1)
        assert await money(rig) == 42
        await settled(rig)
        await whole(rig)


async def test_a_replay_after_reconcile_does_not_outvote_the_providers_log(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    bill = FakeBill()
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        opened = open_record(
            incarnation=rig.incarnation, charges=await counters(rig), hard_limit_seconds=0
        )
        await rig.journal.open(opened)
        await rig.drain()
        await lose(rig)
        await reaper(rig).reap()
        bill.charge(opened, 555)
        await reconciler(rig, bill).reconcile()
    # The replica comes back with its volume: its spool still has the open record only.
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        assert rig.journal.recovery.abandoned == 1
        await rig.drain()
        assert rig.shipper.shipped.late == 1
        assert await money(rig) == 555
        await settled(rig)
        await whole(rig)


async def test_rerating_is_an_entry_of_its_own_and_comes_once(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        opened = open_record(incarnation=rig.incarnation, charges=await counters(rig))
        await rig.journal.open(opened)
        await rig.journal.close(close_record(opened))
        await rig.drain()
        before = await settled(rig)
        call = "SELECT rerate_entry('rerating', 'r', %s, %s, 25, '2027-01', 'jo', 'new prices')"
        for expected in (True, False):
            assert await rig.rows(call, opened.attempt_id, opened.opened_at) == [(expected,)]
        assert await money(rig) == 325
        assert await settled(rig) == before
        await whole(rig)


async def test_a_second_close_of_the_same_attempt_is_not_recorded(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        opened = open_record(incarnation=rig.incarnation)
        await rig.journal.open(opened)
        await rig.journal.close(close_record(opened))
        await rig.journal.close(close_record(opened, amount_micro_usd=1))
        await rig.drain()
        assert await rig.rows("SELECT amount_micro_usd FROM ledger_entry") == [(300,)]
