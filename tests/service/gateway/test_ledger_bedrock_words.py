"""What Bedrock's log leaves open: lines that are missing, and how long cache writes live."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gateway_rig.bedrock_log import Bedrock, named, reconciler, sums
from gateway_rig.fake_aws import FakeAws
from gateway_rig.journal_records import close_record, open_record, unknown_close
from gateway_rig.ledger_rig import ledger_rig
from gateway_rig.postgres import Postgres

from terrace_common.prices import Price, Quote
from terrace_gateway.calls.ports import OpenRecord, Usage
from terrace_gateway.ledger.bills.bill_sources import Candidate
from terrace_gateway.prices import units_of
from terrace_gateway.prices.rerating_store import ReratingStore


async def test_a_missing_line_says_nothing_of_what_the_log_would_not_name(
    aws: FakeAws, postgres: Postgres, database: str, tmp_path: Path
) -> None:
    bedrock = Bedrock(aws, "bucket")
    now = datetime.now(UTC)
    old, ancient = now - timedelta(minutes=30), now - timedelta(hours=30)
    facts: dict[str, tuple[str | None, dict[str, Any]]] = {
        "named": (named(), {}),
        "converse": (None, {"surface": "converse"}),
        "request id": (None, {}),
        "before": (None, {}),  # of a guard that named calls of converse only
        "before, in the log": (None, {}),
        "long before": (None, {"opened_at": ancient}),
        "guardrail": (named(), {"purpose": "guardrail"}),
        "free guardrail": (None, {"purpose": "guardrail", "opened_at": ancient}),
    }
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        made: dict[str, OpenRecord] = {}
        for name, (attempt_id, more) in facts.items():
            values = {"provider": "bedrock", "opened_at": old, **more}
            made[name] = open_record(attempt_id, incarnation=rig.incarnation, **values)
            await rig.journal.open(made[name])
            close = unknown_close(made[name])
            if name == "free guardrail":
                close = close_record(made[name], outcome="upstream_error", amount_micro_usd=0)
            await rig.journal.close(close)
        await rig.drain()
        await rig.rows(
            "UPDATE open_attempt SET upstream_request_id = 'rq-known' WHERE attempt_id = %s"
            " RETURNING 1", made["request id"].attempt_id,
        )  # fmt: skip
        bedrock.log(made["before, in the log"], (5, 7))
        bedrock.log_around(old)
        found = await reconciler(rig, bedrock).reconcile()
        paid = await sums(rig)
        assert {name: paid[opened.attempt_id] for name, opened in made.items()} == {
            "named": 0, "converse": 0, "request id": 0,
            "before": 900, "before, in the log": 120, "long before": 900, "guardrail": 900,
            "free guardrail": 0,
        }  # fmt: skip
        assert (found["not_billed"], found["trued_up"], found["still_open"]) == (3, 1, 3)
        left = await rig.rows("SELECT attempt_id, state FROM open_attempt")
        assert made["free guardrail"].attempt_id not in dict(left)  # nobody will ever tell


CACHING = Quote(
    "2026-11",
    Price(
        input_micro_usd_per_mtok=3_000_000, output_micro_usd_per_mtok=15_000_000,
        cache_write_micro_usd_per_mtok=3_750_000, cache_write_1h_micro_usd_per_mtok=6_000_000,
    ),
)  # fmt: skip


async def test_cache_writes_of_a_log_are_long_unless_the_answer_said_otherwise(
    aws: FakeAws, postgres: Postgres, database: str, tmp_path: Path
) -> None:
    """The log has one number for both kinds, which cost 3.75 and 6 micro-USD."""
    bedrock = Bedrock(aws, "bucket")

    async def rate(attempt: Candidate, usage: Usage) -> int:
        return CACHING.cost(units_of(usage))

    usages = {
        "long": Usage(0, 0, 0, 100_000, 100_000),
        "short": Usage(0, 0, 0, 100_000),
        "both": Usage(0, 0, 0, 100_000, 40_000),
        "more in the log": Usage(0, 0, 0, 60_000),
        "less in the log": Usage(0, 0, 0, 150_000, 140_000),
        "lost": None,
    }
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        made: dict[str, OpenRecord] = {}
        for name, usage in usages.items():
            made[name] = opened = open_record(
                named(), incarnation=rig.incarnation, provider="bedrock",
                opened_at=datetime.now(UTC) - timedelta(minutes=30),
            )  # fmt: skip
            await rig.journal.open(opened)
            close = unknown_close(opened)
            if usage is not None:
                amount = CACHING.cost(units_of(usage))
                close = close_record(opened, usage=usage, amount_micro_usd=amount)
            await rig.journal.close(close)
            bedrock.log(opened, (0, 0), input={"cacheWriteInputTokenCount": 100_000})
        await rig.drain()
        for drifted in (2, 0):
            found = await reconciler(rig, bedrock, rate).reconcile(recheck_hours=1)
            assert (found["drifted"], found["unpriced"]) == (drifted, 0)
        paid = await sums(rig)
        assert {name: paid[opened.attempt_id] for name, opened in made.items()} == {
            "long": 600_000, "short": 375_000, "both": 60_000 * 15 // 4 + 240_000,
            "more in the log": 60_000 * 15 // 4 + 240_000,
            "less in the log": 10_000 * 15 // 4 + 540_000,
            "lost": 600_000,
        }  # fmt: skip
        since, until = (datetime.now(UTC) + timedelta(hours=hours) for hours in (-1, 1))
        past = await ReratingStore(rig.database, replica="r").page(
            since=since, until=until, model=None, after=None, limit=10
        )
        assert {one.attempt_id: CACHING.cost(one.units) for one in past} == {
            opened.attempt_id: paid[opened.attempt_id]
            for name, opened in made.items() if name != "lost"
        }  # fmt: skip
