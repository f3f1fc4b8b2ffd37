"""From the spool into Postgres: exactly once, in order, whatever comes between."""

import asyncio
import json
import random
import signal
from collections import Counter
from pathlib import Path

import pytest
from gateway_rig.journal_records import close_record, decision, open_record, unknown_close
from gateway_rig.ledger_rig import LedgerRig, begin_incarnation, ledger_rig, open_database
from gateway_rig.postgres import Postgres

from terrace_gateway.calls.ports import Charge, Usage
from terrace_gateway.ledger import shipper as shipping


async def test_an_attempt_is_one_entry_with_all_its_facts(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        opened = open_record(incarnation=rig.incarnation, clamped="max_tokens 9999 to 200")
        await rig.journal.open(opened)
        await rig.drain()
        assert await rig.rows("SELECT attempt_id, state FROM open_attempt") == [
            (opened.attempt_id, "open")
        ]
        assert await rig.rows("SELECT * FROM ledger_entry") == []
        await rig.journal.close(close_record(opened))
        await rig.drain()
        entries = await rig.rows(
            """SELECT kind, attempt_id, request_id, trace_id, incarnation_id, replica, org, team,
               user_name, app, key_id, key_name, surface, model, deployment, provider, purpose,
               clamped, price_version, policy_version, reserved_micro_usd, outcome, usage_source,
               input_tokens, output_tokens, cache_read_tokens, cache_write_tokens,
               amount_micro_usd, latency_ms, first_byte_ms, upstream_request_id, seq, opened_at
               FROM ledger_entry"""
        )
        assert entries == [
            ("attempt", opened.attempt_id, opened.request_id, opened.trace_id, rig.incarnation,
             "gateway-0", "acme", "search", "jo", "assistant", "key_1", "bot", "chat", "sim-small",
             "sim-small-1", "simulator", "call", "max_tokens 9999 to 200", "2026-11", 7, 900, "ok",
             "response", 10, 20, 3, 4, 300, 12, 5, "up-1", 1, opened.opened_at)
        ]  # fmt: skip
        assert await rig.rows("SELECT * FROM open_attempt") == []
        spend = await rig.rows(
            "SELECT org, team, user_name, app, key_id, model, requests, input_tokens,"
            " amount_micro_usd FROM spend_daily"
        )
        assert spend == [("acme", "search", "jo", "assistant", "key_1", "sim-small", 1, 10, 300)]


async def test_unknown_and_free_attempts_stay_for_reconcile(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        lost, refused = (open_record(incarnation=rig.incarnation) for _ in range(2))
        for opened in (lost, refused):
            await rig.journal.open(opened)
        await rig.journal.close(unknown_close(lost))
        await rig.journal.close(
            close_record(refused, outcome="upstream_error", amount_micro_usd=0, usage=Usage(0, 0))
        )
        await rig.drain()
        states = dict(await rig.rows("SELECT attempt_id, state FROM open_attempt"))
        assert states == {lost.attempt_id: "unknown", refused.attempt_id: "free"}
        amounts = dict(await rig.rows("SELECT attempt_id, amount_micro_usd FROM ledger_entry"))
        assert amounts == {lost.attempt_id: 900, refused.attempt_id: 0}


async def test_decisions_of_one_cause_are_one_entry_per_second(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        for _ in range(500):
            rig.journal.note(decision())
        for _ in range(3):
            rig.journal.note(decision("rate_limited"))
        await rig.journal.seal()
        await rig.drain()
        rows = await rig.rows(
            "SELECT decision, reason, key_id, (detail ->> 'count')::int FROM ledger_entry"
        )
        counted: dict[str, int] = {}
        for kind, reason, key_id, count in rows:
            assert (kind, key_id) == ("deny", "key_1")
            counted[reason] = counted.get(reason, 0) + count
        assert counted == {"model_not_allowed": 500, "rate_limited": 3}
        assert len(rows) <= 4


async def test_a_dead_writers_spool_is_shipped_and_its_incarnation_closed(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    async with ledger_rig(postgres.url(database), tmp_path) as first:
        done, left = (open_record(incarnation=first.incarnation) for _ in range(2))
        await first.journal.open(done)
        await first.journal.open(left)
        await first.drain()
        dead = first.incarnation
    async with ledger_rig(postgres.url(database), tmp_path) as second:
        assert second.journal.recovery.abandoned == 2
        await second.drain()
        kinds = await second.rows("SELECT attempt_id, kind FROM ledger_entry ORDER BY seq")
        assert sorted(kinds) == sorted([(done.attempt_id, "unknown"), (left.attempt_id, "unknown")])
        assert second.closed == [dead]
        assert await second.rows("SELECT count(*) FROM chain WHERE sealed_at IS NOT NULL") == [(1,)]


async def test_a_batch_sent_again_changes_nothing(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    url = postgres.url(database)
    async with ledger_rig(url, tmp_path) as first:
        for _ in range(20):
            opened = open_record(incarnation=first.incarnation)
            await first.journal.open(opened)
            await first.journal.close(close_record(opened))
        await first.drain()
        before = await first.rows("SELECT * FROM ledger_entry ORDER BY entry_id")
    # The next process does not know how far the last one was, and sends everything again.
    async with ledger_rig(url, tmp_path) as second:
        await second.drain()
        assert second.shipper.shipped.skipped > 20
        assert await second.rows("SELECT * FROM ledger_entry ORDER BY entry_id") == before
        assert await second.rows(
            "SELECT sum(requests), sum(amount_micro_usd) FROM spend_daily"
        ) == [(20, 6000)]


async def test_a_refused_record_is_buried_and_blocks_nothing(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        records = [open_record(incarnation=rig.incarnation) for _ in range(9)]
        for opened in records:
            await rig.journal.open(opened)
        for opened in records:
            poisoned = opened is records[4]
            await rig.journal.close(close_record(opened, usage=Usage(2**70 if poisoned else 1, 1)))
        await rig.drain()
        rows = await rig.rows("SELECT attempt_id FROM ledger_entry ORDER BY seq")
        assert [row[0] for row in rows] == [
            opened.attempt_id for opened in records if opened is not records[4]
        ]
        letters = (tmp_path / "dead-letters.jsonl").read_text().splitlines()
        assert [json.loads(letter)["key"] for letter in letters] == [records[4].attempt_id]
        # Its reservation still counts: the reaper finds it open.
        assert await rig.rows("SELECT attempt_id, state FROM open_attempt") == [
            (records[4].attempt_id, "open")
        ]
        gaps = await rig.rows("SELECT after_seq, before_seq FROM chain_gap")
        assert gaps == [(4, 6)]
        # By hand, as docs/gateway/ledger.md says: mended, once the reaper has given it up.
        body = json.loads(letters[0])["body"].replace(str(2**70), "7")
        given_up = "SELECT give_up_open_attempt(%s, 'reaper', 'r')"
        assert await rig.rows(given_up, records[4].attempt_id) == [(True,)]
        by_hand = (
            "SELECT correct_entry('late-facts', 'by-hand', b ->> 'attempt_id',"
            " (b ->> 'opened_at')::timestamptz, b) FROM (SELECT %s::jsonb AS b) AS letter"
        )
        assert await rig.rows(by_hand, body) == [(True,)]
        assert await rig.rows(by_hand, body) == [(False,)]
        assert await rig.rows(
            "SELECT sum(amount_micro_usd)::bigint, sum(input_tokens)::bigint FROM ledger_entry"
            " WHERE attempt_id = %s", records[4].attempt_id,
        ) == [(300, 7)]  # fmt: skip


async def test_texts_that_postgres_cannot_hold_are_shipped_all_the_same(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        opened = open_record(incarnation=rig.incarnation, clamped="a\0b\ud800c\U0001f600")
        await rig.journal.open(opened)
        await rig.journal.close(close_record(opened, upstream_request_id="\0é\ud800"))
        await rig.drain()
        assert rig.shipper.shipped.dead == 0
        assert await rig.rows("SELECT clamped FROM ledger_entry") == [
            ("a\ufffdb\ufffdc\U0001f600",)
        ]


async def test_a_new_incarnation_of_a_living_process_closes_the_old_one(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        opened = open_record(incarnation=rig.incarnation)
        await rig.journal.open(opened)
        new = await begin_incarnation(rig.database, "gateway-0")
        await rig.journal.act_for(new)
        await rig.drain()
        assert rig.closed == []  # an attempt of it is still running
        await rig.journal.close(close_record(opened))
        await rig.drain()
        assert rig.closed == [rig.incarnation]


async def test_an_incarnation_is_closed_only_when_its_last_entry_is_committed(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    """A slice that was given back too early is money that two replicas may spend."""
    opened: Counter[int] = Counter()
    reserved: Counter[int] = Counter()
    committed: dict[int, tuple[int, int]] = {}
    url = postgres.url(database)
    async with open_database(url) as other:

        async def closing(number: int) -> None:
            async with other.connection() as connection:
                cursor = await connection.execute(
                    "SELECT count(*) FROM ledger_entry WHERE incarnation_id = %s", (number,)
                )
                row = await cursor.fetchone()
            assert row is not None
            committed[number] = (row[0], opened[number])

        async with ledger_rig(
            url, tmp_path, on_closing=closing, running=lambda n: reserved[n]
        ) as rig:
            current = [rig.incarnation]
            stop = asyncio.Event()

            async def caller() -> None:
                while not stop.is_set():
                    number = current[0]
                    record = open_record(incarnation=number)
                    reserved[number] += 1
                    opened[number] += 1
                    await asyncio.sleep(random.random() / 50)  # reserved, not open yet
                    await rig.journal.open(record)
                    await asyncio.sleep(random.random() / 50)
                    reserved[number] -= 1
                    await rig.journal.close(close_record(record))

            tasks = [asyncio.create_task(caller()) for _ in range(8)]
            for _ in range(15):
                await asyncio.sleep(0.1)
                current[0] = await begin_incarnation(rig.database, "gateway-0")
                await rig.journal.act_for(current[0])
            stop.set()
            await asyncio.gather(*tasks)
            await rig.drain()
            assert len(committed) == 15
            assert {number: pair for number, pair in committed.items() if len(set(pair)) > 1} == {}


CAP = 1000
ASK = '[{{"since": null, "asks": [[{cap}, 0, 0, 0, {amount}, 0]]}}]'


async def take_all(rig: LedgerRig) -> int:
    """A cap and a slice of the whole of it. Returns the counter."""
    scope = "('team', 'search', 'micro_usd', 0, %s)"
    [(cap,)] = await rig.rows(
        "INSERT INTO cap (scope, scope_id, dimension, window_seconds, amount)"
        f" VALUES {scope} RETURNING cap_id", CAP,
    )  # fmt: skip
    await rig.rows(
        "SELECT grant_slices(%s, 1, ARRAY[%s]::bigint[], %s::jsonb)",
        rig.incarnation, cap, ASK.format(cap=cap, amount=CAP),
    )  # fmt: skip
    [(counter,)] = await rig.rows("SELECT counter_id FROM counter WHERE scope = 'team'")
    return counter


async def counted(rig: LedgerRig, counter: int) -> int:
    [(sum_,)] = await rig.rows(
        "SELECT settled + sliced + outstanding FROM counter WHERE counter_id = %s", counter
    )
    return sum_


async def assert_forfeited(
    rig: LedgerRig, dead: int, counter: int, *, alerts: int, give_back: bool
) -> None:
    await rig.drain()
    while alerts and not await rig.rows(
        "SELECT 1 FROM ledger_entry WHERE reason = 'incarnation_forfeited'"
        " AND detail ->> 'incarnation' = %s", str(dead),
    ):  # fmt: skip
        await asyncio.sleep(0.05)
    assert (rig.closed, await counted(rig, counter)) == ([], CAP)
    assert rig.shipper.shipped.forfeited == alerts
    if give_back:  # an operator looked
        await rig.rows(
            "UPDATE incarnation SET lease_until = clock_timestamp() WHERE incarnation_id = %s"
            " RETURNING 1", dead,
        )  # fmt: skip
        assert await rig.rows("SELECT close_lost_incarnation(%s, 'jo', 'looked', true)", dead) == [
            ("closed",)
        ]
        assert await counted(rig, counter) < CAP


@pytest.mark.parametrize("how", ["hole", "tail", "zeros", "set aside"])
async def test_a_damaged_spool_gives_nothing_back(
    how: str, postgres: Postgres, database: str, tmp_path: Path
) -> None:
    """``set aside``: by an earlier start, which died before the writer's end was shipped."""
    url = postgres.url(database)
    async with ledger_rig(url, tmp_path, segment_bytes=4096) as rig:
        dead, counter = rig.incarnation, await take_all(rig)
        postgres.stop(signal.SIGQUIT)  # nothing is shipped
        for _ in range(20):
            opened = open_record(
                incarnation=dead, charges=(Charge(counter, "micro_usd", CAP // 20),)
            )
            await rig.journal.open(opened)
            await rig.journal.close(close_record(opened, amount_micro_usd=CAP // 20))
    file = sorted((tmp_path / "spool").glob("*.spool"))[0]
    data = bytearray(file.read_bytes())
    end = {"hole": 1500, "tail": len(data) - 500}.get(how, len(data))
    data[500:end] = bytes(end - 500)
    file.write_bytes(data)
    postgres.start()
    if how == "set aside":
        file.rename(file.with_suffix(".damaged"))
    async with ledger_rig(url, tmp_path) as rig:
        assert bool(rig.journal.recovery.damage) == (how != "set aside")
        await assert_forfeited(rig, dead, counter, alerts=1, give_back=True)


async def test_a_refused_record_gives_nothing_back(
    postgres: Postgres, database: str, tmp_path: Path
) -> None:
    url = postgres.url(database)
    async with ledger_rig(url, tmp_path) as rig:
        dead, counter = rig.incarnation, await take_all(rig)
        opened = open_record(incarnation=dead, charges=(Charge(counter, "micro_usd", 600),))
        await rig.journal.open(opened)
        await rig.journal.close(close_record(opened, amount_micro_usd=900, usage=Usage(2**70, 1)))
        await rig.drain()
        assert rig.shipper.shipped.dead == 1
        # In the process that lost it: neither when its incarnation is followed by another ...
        assert not rig.shipper.is_whole(rig.journal.chain.writer)
        after = await begin_incarnation(rig.database, "gateway-0")
        await rig.journal.act_for(after)
        await assert_forfeited(rig, dead, counter, alerts=1, give_back=False)
    # ... nor by the start after it, which has it from the file.
    async with ledger_rig(url, tmp_path) as rig:
        await rig.drain()
        assert rig.shipper.shipped.forfeited == 2  # with that of ``after``
        await assert_forfeited(rig, dead, counter, alerts=2, give_back=True)


async def test_many_records_are_followed_by_a_longer_gathering(
    postgres: Postgres, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered: list[tuple[int, float]] = []

    async def gather(shipper: shipping.Shipper, seconds: float) -> None:
        gathered.append((shipper.shipped.opens, seconds))
        await asyncio.sleep(0)

    monkeypatch.setattr(shipping.Shipper, "_gather", gather)
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        for count in (1, shipping.MANY_RECORDS, 1):
            records = [open_record(incarnation=rig.incarnation) for _ in range(count)]
            await asyncio.gather(*(rig.journal.open(record) for record in records))
            await rig.drain()
    few, many = shipping.GATHER_SECONDS, shipping.LONG_GATHER_SECONDS
    assert few < many
    assert {opens for opens, seconds in gathered if seconds == many} == {shipping.MANY_RECORDS + 1}
    assert {1, shipping.MANY_RECORDS + 2} <= {opens for opens, s in gathered if s == few}


async def test_who_drains_does_not_wait_for_the_gathering(
    postgres: Postgres, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "GATHER_SECONDS", 3600)
    monkeypatch.setattr(shipping, "LONG_GATHER_SECONDS", 3600)
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        for count in (1, 2 * shipping.MANY_RECORDS, 1):
            records = [open_record(incarnation=rig.incarnation) for _ in range(count)]
            await asyncio.gather(*(rig.journal.open(record) for record in records))
            await rig.drain()
        assert rig.shipper.shipped.opens == 2 * shipping.MANY_RECORDS + 2
