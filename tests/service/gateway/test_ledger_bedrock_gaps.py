"""What is missing in a log decides only while the log was on, and only of what was sent there."""

import gzip
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from gateway_rig.bedrock_log import FOLDER as LOG_FOLDER
from gateway_rig.bedrock_log import Bedrock, named, price, reconciler, sums
from gateway_rig.fake_aws import FakeAws
from gateway_rig.journal_records import close_record, open_record, unknown_close
from gateway_rig.ledger_rig import LedgerRig, ledger_rig, open_database
from gateway_rig.postgres import Postgres

from terrace_common.governance import BedrockProvider, Governance, load_governance
from terrace_gateway.calls.ports import OpenRecord
from terrace_gateway.database import Database
from terrace_gateway.ledger.bills.bill_places import MAX_VERSIONS, BillPlaces
from terrace_gateway.ledger.bills.bill_sources import BillApi, Candidate
from terrace_gateway.ledger.bills.log_sources import LogSources
from terrace_gateway.ledger.bills.provider_bill import Billed
from terrace_gateway.ledger.bills.reconcile import Reconciler
from terrace_gateway.ledger.bills.recorded_prices import RecordedPrices
from terrace_gateway.ledger.object_store import BucketObjects

SPEC = """
version: 1
price_version: p
defaults: {max_output_tokens: 100, hard_stream_limit_seconds: 600, reservation_overhead_tokens: 8}
providers: [{name: bedrock, kind: bedrock, region: us-east-1}]
models:
  - name: sim-small
    provider: bedrock
    upstream_model: us.anthropic.claude-sonnet-4-5-20250929-v1:0
    context_tokens: 1000
    max_output_tokens: 100
    price: {input_micro_usd_per_mtok: 3000000, output_micro_usd_per_mtok: 15000000}
"""
FOLDER = "AWSLogs/1/BedrockModelInvocationLogs"


def bedrock_provider(spec: Governance) -> BedrockProvider:
    return next(one for one in spec.providers if isinstance(one, BedrockProvider))


HERE = bedrock_provider(load_governance(SPEC, "spec"))
MOVED = SPEC.replace(f"region: {HERE.region}", "region: eu-west-1")


async def unknown(rig: LedgerRig, opened_at: datetime, **facts: Any) -> OpenRecord:
    values = {"provider": HERE.name, "opened_at": opened_at, **facts}
    opened = open_record(named(), incarnation=rig.incarnation, **values)
    await rig.journal.open(opened)
    await rig.journal.close(unknown_close(opened))
    await rig.drain()
    return opened


async def apply(database: Database, version: int, text: str, *, minutes_ago: float = 0) -> None:
    async with database.connection() as connection:
        await connection.execute(
            "INSERT INTO governance_version"
            " (version, text, digest, actor, source, plan, applied_at)"
            " VALUES (%s, %s, %s, 'jo', 'api', '{}',"
            "         clock_timestamp() - make_interval(secs => %s))",
            (version, text, str(version), minutes_ago * 60),
        )


@pytest.mark.parametrize(
    ("minutes", "decides"),
    [
        ((-12, 12), True),
        ((-25, 0, 25), True),
        ((12, 20), False),  # switched on later
        ((-12, -1), False),  # switched off, perhaps, or late
        ((-31, 31), False),  # off for an hour
        ((-31, 5, 36), False),
        ((-12, 5), False),  # the call may have gone on for ten minutes, and the log not
        ((-12, 5, 40), False),
    ],
)
async def test_a_missing_line_decides_only_between_two_lines_of_a_log_that_was_on(
    minutes: tuple[int, ...], *, decides: bool, aws: FakeAws, postgres: Postgres, database: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    bedrock = Bedrock(aws, "bucket")
    at = datetime.now(UTC) - timedelta(hours=3)
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        opened = await unknown(rig, at)
        other = await unknown(rig, datetime.now(UTC) - timedelta(minutes=20))
        for minute in minutes:
            bedrock.log(None, (1, 1), at=at + timedelta(minutes=minute))
        bedrock.log(other, (5, 7))
        found = await reconciler(rig, bedrock, price, HERE.name).reconcile()
        assert (found["not_billed"], found["trued_up"]) == (int(decides), 1)
        assert found["still_open"] == int(not decides)
        assert (await sums(rig))[opened.attempt_id] == (0 if decides else 900)


async def test_a_refusal_of_which_nothing_can_be_proved_is_forgotten_after_a_day(
    aws: FakeAws, postgres: Postgres, database: str, tmp_path: Path
) -> None:
    """It counts nothing already, and would be looked for for ever."""
    bedrock = Bedrock(aws, "bucket")
    now = datetime.now(UTC)
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        made = {
            hours: open_record(
                named(), incarnation=rig.incarnation, provider=HERE.name,
                opened_at=now - timedelta(hours=hours),
            )
            for hours in (3, 25, 26)
        }  # fmt: skip
        for opened in made.values():
            await rig.journal.open(opened)
            await rig.journal.close(
                close_record(opened, outcome="upstream_error", amount_micro_usd=0)
            )
        await rig.drain()
        bedrock.log(made[26], (5, 7))  # billed all the same
        await reconciler(rig, bedrock, price, HERE.name).reconcile()
        states = dict(await rig.rows("SELECT attempt_id, state FROM open_attempt"))
        assert states == {made[3].attempt_id: "free", made[25].attempt_id: "not_billed"}
        assert (await sums(rig))[made[26].attempt_id] == 120


async def test_what_was_sent_to_another_region_is_not_missing_here(
    aws: FakeAws, postgres: Postgres, database: str, tmp_path: Path
) -> None:
    aws.objects["logs"] = {}
    at = datetime.now(UTC) - timedelta(minutes=30)

    def log(region: str, minute: int) -> None:
        moment = at + timedelta(minutes=minute)
        line = {
            "schemaType": "ModelInvocationLog", "timestamp": f"{moment:%Y-%m-%dT%H:%M:%SZ}",
            "requestId": f"rq-{minute}", "operation": "Converse", "modelId": "m",
            "input": {"inputTokenCount": 5}, "output": {"outputTokenCount": 7},
        }  # fmt: skip
        name = f"{FOLDER}/{region}/{moment:%Y/%m/%d/%H}/{minute}.json.gz"
        aws.objects["logs"][name] = gzip.compress(json.dumps(line).encode())

    for minute in (-12, 12):
        log("eu-west-1", minute)
    spec = load_governance(MOVED, "moved")
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        await apply(rig.database, 1, SPEC)
        await apply(rig.database, 2, MOVED)
        before = await unknown(rig, at, policy_version=1)
        since = await unknown(rig, at, policy_version=2)
        sources = LogSources(
            lambda: spec, RecordedPrices(rig.database), BillPlaces(rig.database),
            bedrock_log=f"s3://logs/{FOLDER}", grace_seconds=60, bedrock_grace_seconds=60,
        )  # fmt: skip
        found = await Reconciler(rig.database, sources.sources, replica="r").reconcile()
        assert (found["not_billed"], found["still_open"]) == (1, 1)
        assert await sums(rig) == {before.attempt_id: 900, since.attempt_id: 0}


async def test_a_log_that_has_nothing_new_is_not_read_again(
    aws: FakeAws, postgres: Postgres, database: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """By the reconciler of one process, which makes its sources anew for each pass."""
    read: list[str] = []
    get = BucketObjects.get

    def seen(objects: BucketObjects, key: str) -> bytes:
        read.append(key)
        return get(objects, key)

    monkeypatch.setattr(BucketObjects, "get", seen)
    bedrock = Bedrock(aws, "bucket")
    at = datetime.now(UTC) - timedelta(hours=5)
    spec = load_governance(SPEC, "spec")
    folder = LOG_FOLDER.removesuffix(f"{HERE.region}/")
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        await apply(rig.database, 1, SPEC)
        opened = await unknown(rig, at, policy_version=1)
        sources = LogSources(
            lambda: spec, RecordedPrices(rig.database), BillPlaces(rig.database),
            bedrock_log=f"s3://logs/{folder}", grace_seconds=60, bedrock_grace_seconds=60,
        )  # fmt: skip
        reconciler = Reconciler(rig.database, sources.sources, replica="r")
        bedrock.log(None, (1, 1), at=at - timedelta(minutes=12))
        for objects in (1, 0, 0):
            found = await reconciler.reconcile()
            assert (found["checked"], found["still_open"]) == (1, 1)
            assert len(read) == objects
            read.clear()
        bedrock.log(None, (1, 1), at=at + timedelta(minutes=12))  # it comes hours later
        assert (await reconciler.reconcile())["not_billed"] == 1
        assert (await sums(rig))[opened.attempt_id] == 0


def candidate(name: str, version: int | None, *, minutes_ago: float = 30) -> Candidate:
    at = datetime.now(UTC) - timedelta(minutes=minutes_ago)
    return Candidate(name, HERE.name, "unknown", minutes_ago * 60, at, "m", policy_version=version)


async def test_the_version_that_an_attempt_was_sent_by_says_where_its_bill_is(
    postgres: Postgres, database: str
) -> None:
    async with open_database(postgres.url(database)) as pool:
        places = BillPlaces(pool)
        asked = [candidate("no version", None), candidate("older than all", None, minutes_ago=120)]
        await apply(pool, 1, SPEC, minutes_ago=60)
        await apply(pool, 2, MOVED, minutes_ago=50)
        await apply(pool, 3, SPEC, minutes_ago=40)
        asked += [candidate(str(version), version) for version in (1, 2, 3, 99)]
        assert await places.sent_here(HERE, None, asked) == {"no version", "1", "3"}
        await apply(pool, 4, MOVED)  # it has been elsewhere since
        assert await places.sent_here(HERE, None, asked) == {"1", "3"}
        await apply(pool, 5, "colour: 1")  # of a release that knew other keys
        assert await places.sent_here(HERE, None, [candidate("5", 5)]) == set()
        keys = HERE.model_copy(update={"credentials": "ambient"})  # perhaps another account
        assert await places.sent_here(keys, None, asked) == set()


async def test_too_many_versions_say_nothing(postgres: Postgres, database: str) -> None:
    async with open_database(postgres.url(database)) as pool:
        for version in range(1, MAX_VERSIONS + 2):
            await apply(pool, version, SPEC, minutes_ago=60)
        old = candidate("old", None)
        assert await BillPlaces(pool).sent_here(HERE, None, [old]) == {"old"}
        for version in range(MAX_VERSIONS + 2, 2 * MAX_VERSIONS + 2):
            await apply(pool, version, SPEC)
        assert await BillPlaces(pool).sent_here(HERE, None, [old]) == set()


async def test_a_log_that_is_read_elsewhere_says_nothing_of_before(
    postgres: Postgres, database: str
) -> None:
    async with open_database(postgres.url(database)) as pool:
        await apply(pool, 1, SPEC, minutes_ago=60)
        before = candidate("before", 1)
        assert await BillPlaces(pool).sent_here(HERE, "s3://one", [before]) == {"before"}
        assert await BillPlaces(pool).sent_here(HERE, "s3://two", [before]) == set()
        after = candidate("after", 1, minutes_ago=-1)
        assert await BillPlaces(pool).sent_here(HERE, "s3://two", [before, after]) == {"after"}
        assert await BillPlaces(pool).sent_here(HERE, "s3://one", [before]) == set()  # and back


async def test_a_bill_api_says_nothing_of_what_was_not_sent_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def read(_session: object, _url: str, attempt_id: str) -> Billed:
        calls = int(attempt_id == "billed")
        return Billed(calls, False, 0, 0, 30 * calls, "ok" if calls else "upstream_error")

    async def sent_here(missing: Any) -> set[str]:
        assert {one.attempt_id for one in missing} == {"here", "elsewhere"}
        return {"here"}

    monkeypatch.setattr("terrace_gateway.ledger.bills.bill_sources.read_bill", read)
    bill = BillApi("http://bill", grace_seconds=60, sent_here=sent_here)
    found = await bill.billed([candidate(name, 1) for name in ("billed", "here", "elsewhere")])
    assert {name: one.calls for name, one in found.items()} == {"billed": 1, "here": 0}
