"""Bedrock's log of invocations, by botocore's own clients, against a fake with its own books."""

from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from gateway_rig.bedrock_log import Bedrock, named, reconciler, sums
from gateway_rig.fake_aws import FakeAws
from gateway_rig.journal_records import close_record, open_record, unknown_close
from gateway_rig.ledger_rig import ledger_rig
from gateway_rig.postgres import Postgres

from terrace_common.governance import load_governance
from terrace_common.prices import PriceBook
from terrace_gateway.calls.ports import Usage
from terrace_gateway.ledger.bills.recorded_prices import RecordedPrices
from terrace_gateway.ledger.chains.anchors import AnchorStore, make_anchor, read_anchor
from terrace_gateway.ledger.object_store import ObjectStoreError, open_objects
from terrace_gateway.prices.store import PriceStore


@pytest.mark.parametrize("kind", ["bucket", "group"])
async def test_the_log_is_read_line_by_line(
    kind: str, aws: FakeAws, postgres: Postgres, database: str, tmp_path: Path
) -> None:
    bedrock = Bedrock(aws, kind)
    old = datetime.now(UTC) - timedelta(minutes=30)
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        made = {
            name: open_record(
                named(), incarnation=rig.incarnation, provider="bedrock",
                opened_at=datetime.now(UTC) if name == "young" else old,
            )
            for name in ("lost", "by_request_id", "absent", "young", "settled", "failed", "cached")
        }  # fmt: skip
        for name, opened in made.items():
            await rig.journal.open(opened)
            if name == "settled":
                close = close_record(opened, usage=Usage(10, 20), amount_micro_usd=300)
            else:
                close = unknown_close(opened)
            await rig.journal.close(close)
        await rig.drain()
        await rig.rows(
            "UPDATE open_attempt SET upstream_request_id = 'rq-lone' WHERE attempt_id = %s"
            " RETURNING 1", made["by_request_id"].attempt_id,
        )  # fmt: skip
        bedrock.log(made["lost"], (5, 7))
        bedrock.log(made["by_request_id"], (1, 1), requestMetadata={}, requestId="rq-lone")
        bedrock.log(made["settled"], (10, 20))
        bedrock.log(made["failed"], (0, 0), errorCode="ThrottlingException")
        bedrock.log(
            made["cached"], (2, 3), input={"inputTokenCount": 2, "cacheReadInputTokenCount": 100}
        )
        bedrock.log_around(old)
        found = await reconciler(rig, bedrock).reconcile(recheck_hours=1)
        assert (found["trued_up"], found["not_billed"]) == (4, 1)
        assert (found["still_open"], found["drifted"]) == (1, 0)
        assert await sums(rig) == {
            made["lost"].attempt_id: 120,
            made["by_request_id"].attempt_id: 20,
            made["absent"].attempt_id: 0,
            made["young"].attempt_id: 900,  # a line may still come
            made["settled"].attempt_id: 300,
            made["failed"].attempt_id: 0,
            made["cached"].attempt_id: 150,
        }
        # Bedrock counted more than the answer said: corrected, and reported.
        bedrock.log(made["settled"], (0, 1))
        found = await reconciler(rig, bedrock).reconcile(recheck_hours=1)
        assert (found["drifted"], found["drift_micro_usd"]) == (1, 10)
        assert (await sums(rig))[made["settled"].attempt_id] == 310


@pytest.mark.parametrize("kind", ["bucket", "group"])
async def test_a_log_that_is_silent_or_away_decides_nothing(
    kind: str, aws: FakeAws, postgres: Postgres, database: str, tmp_path: Path
) -> None:
    bedrock = Bedrock(aws, kind)
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        opened = open_record(
            incarnation=rig.incarnation, provider="bedrock",
            opened_at=datetime.now(UTC) - timedelta(hours=3),
        )  # fmt: skip
        await rig.journal.open(opened)
        await rig.journal.close(unknown_close(opened))
        await rig.drain()
        found = await reconciler(rig, bedrock).reconcile()
        assert (found["still_open"], found["not_billed"]) == (1, 0)  # switched off, perhaps
        aws.events.clear()
        aws.objects.clear()
        found = await reconciler(rig, bedrock).reconcile()
        assert (found["still_open"], found["unreachable"]) == (1, ["bedrock"])
        assert await sums(rig) == {opened.attempt_id: 900}


def test_anchors_in_a_bucket_are_locked_and_never_overwritten(aws: FakeAws) -> None:
    aws.objects["anchors"] = {}
    store = AnchorStore(open_objects("s3://anchors"), retention_days=30)
    at = datetime(2026, 11, 30, tzinfo=UTC)
    for seq in (1, 2, 3):
        store.put(make_anchor("w-1", seq, bytes(32), sealed=False, at=at, signer=None))
    before = dict(aws.objects["anchors"])
    store.put(make_anchor("w-1", 3, b"\1" * 32, sealed=False, at=at, signer=None))
    assert aws.objects["anchors"] == before
    assert {read_anchor(document).seq for document in store.documents()} == {1, 2, 3}
    assert set(aws.retained.values()) == {"2026-12-30T00:00:00Z"}
    aws.broken = True
    with pytest.raises(ObjectStoreError, match="InternalError"):
        store.put(make_anchor("w-1", 4, bytes(32), sealed=False, at=at, signer=None))


@pytest.mark.parametrize("kind", ["bucket", "group"])
async def test_calls_that_no_ledger_knows_are_reported(
    kind: str, aws: FakeAws, postgres: Postgres, database: str, tmp_path: Path
) -> None:
    bedrock = Bedrock(aws, kind)
    old = datetime.now(UTC) - timedelta(minutes=30)
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        closed = open_record(incarnation=rig.incarnation, provider="bedrock", opened_at=old)
        running = open_record(incarnation=rig.incarnation, provider="bedrock", opened_at=old)
        stranger = open_record(provider="bedrock", opened_at=old)  # of a volume that is lost
        unshipped = open_record(provider="bedrock", opened_at=datetime.now(UTC))
        for opened in (closed, running):
            await rig.journal.open(opened)
        await rig.journal.close(close_record(closed, amount_micro_usd=30, usage=Usage(1, 2)))
        await rig.drain()
        for opened in (closed, running, stranger, unshipped):
            bedrock.log(opened, (1, 2))
        bedrock.log(None, (5, 5))  # names no attempt: somebody else's
        found = await reconciler(rig, bedrock).reconcile(recheck_hours=1)
        assert found["unknown_calls"] == 1
        line = found["unknown_to_ledger"][0]
        assert (line["provider"], line["attempt_id"]) == ("bedrock", stranger.attempt_id)
        assert (line["input_tokens"], line["output_tokens"]) == (1, 2)
        assert (await reconciler(rig, bedrock).reconcile())["unknown_calls"] == 0  # not asked


SPEC = (files("terrace_common") / "examples" / "governance.local.yaml").read_text()
MODEL = "bedrock-claude"


async def test_a_log_is_priced_at_what_the_attempt_was_reserved_at(
    aws: FakeAws, postgres: Postgres, database: str, tmp_path: Path
) -> None:
    """Prices fell since, in the spec and by a book; and nobody knows the price of one attempt."""
    bedrock = Bedrock(aws, "bucket")
    first = load_governance(SPEC, "first")
    model = first.find_model(MODEL)
    assert model is not None
    dear = model.price.input_micro_usd_per_mtok
    cheap = SPEC.replace(str(dear), str(dear // 3)).replace(first.price_version, "spec-2")
    old = datetime.now(UTC) - timedelta(minutes=30)
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        for number, text in enumerate((SPEC, cheap), start=1):
            await rig.rows(
                "INSERT INTO governance_version (version, text, digest, actor, source, plan)"
                " VALUES (%s, %s, %s, 'jo', 'api', '{}') RETURNING 1", number, text, str(number),
            )  # fmt: skip
        for version, rate in (("book-1", dear * 2), ("book-2", 1)):
            entry = {
                "provider": model.provider, "model": model.upstream_model,
                "effective_from": "2026-01-01T00:00:00Z",
                "price": {"input_micro_usd_per_mtok": rate, "output_micro_usd_per_mtok": 0},
            }  # fmt: skip
            book = PriceBook.model_validate({"version": version, "entries": [entry]})
            assert await PriceStore(rig.database).apply(book, actor="jo", reason="test")
        await rig.rows(  # by a release that knew other keys
            "INSERT INTO price_book VALUES ('book-9', '{\"colour\": 1}', 'd', 'jo')"
            " RETURNING version"
        )
        facts = {
            "spec": (first.price_version, 1), "new": ("spec-2", 2), "book": ("book-1", 1),
            "no number": (first.price_version, 99), "lost": ("forgotten", 1), "drifts": ("gone", 1),
            "not read": ("book-9", 1),
        }  # fmt: skip
        made = {
            name: open_record(
                incarnation=rig.incarnation, provider=model.provider, model=MODEL, opened_at=old,
                deployment=model.upstream_model, price_version=version, policy_version=number,
            )
            for name, (version, number) in facts.items()
        }  # fmt: skip
        for name, opened in made.items():
            await rig.journal.open(opened)
            await rig.journal.close(
                close_record(opened) if name == "drifts" else unknown_close(opened)
            )
            bedrock.log(opened, (1_000_000, 0))
        await rig.drain()
        reads = reconciler(rig, bedrock, RecordedPrices(rig.database).cost, model.provider)
        found = await reads.reconcile(recheck_hours=1)
        assert await sums(rig) == {
            made["spec"].attempt_id: dear,
            made["new"].attempt_id: dear // 3,
            made["book"].attempt_id: dear * 2,
            made["no number"].attempt_id: dear,
            made["lost"].attempt_id: 900,
            made["not read"].attempt_id: 900,
            made["drifts"].attempt_id: 300,
        }
        assert (found["trued_up"], found["still_open"], found["unpriced"]) == (4, 2, 3)
        assert {(line["price_version"], line["billed_micro_usd"]) for line in found["drifts"]} == {
            ("forgotten", None), ("gone", None), ("book-9", None),
        }  # fmt: skip


async def test_a_price_per_image_is_part_of_what_a_log_costs(
    aws: FakeAws, postgres: Postgres, database: str, tmp_path: Path
) -> None:
    """The log counts tokens only: how many images there were is in the attempt's own record."""
    bedrock = Bedrock(aws, "bucket")
    spec = load_governance(SPEC, "spec")
    model = spec.find_model(MODEL)
    assert model is not None
    old = datetime.now(UTC) - timedelta(minutes=30)
    entry = {
        "provider": model.provider, "model": model.upstream_model,
        "effective_from": "2026-01-01T00:00:00Z",
        "price": {"input_micro_usd_per_mtok": 1_000_000, "output_micro_usd_per_mtok": 0,
                  "micro_usd_per_image": 700, "micro_usd_per_request": 9},
    }  # fmt: skip
    book = PriceBook.model_validate({"version": "images", "entries": [entry]})
    async with ledger_rig(postgres.url(database), tmp_path) as rig:
        await rig.rows(
            "INSERT INTO governance_version (version, text, digest, actor, source, plan)"
            " VALUES (1, %s, 'd', 'jo', 'api', '{}') RETURNING 1", SPEC,
        )  # fmt: skip
        assert await PriceStore(rig.database).apply(book, actor="jo", reason="test")
        made = {
            name: open_record(
                named(), incarnation=rig.incarnation, provider=model.provider, model=MODEL,
                opened_at=old, deployment=model.upstream_model, price_version="images",
                policy_version=1, images=images,
            )
            for name, images in {
                "none": 0, "lost": 2, "settled": 3, "twice": 2, "refused": 2, "not billed": 2,
            }.items()
        }  # fmt: skip
        for name, opened in made.items():
            await rig.journal.open(opened)
            close = unknown_close(opened)
            if name == "settled":
                close = close_record(opened, usage=Usage(10, 0), amount_micro_usd=10 + 2100 + 9)
            await rig.journal.close(close)
            if name != "not billed":
                bedrock.log(opened, (0, 0) if name == "refused" else (10, 0))
        bedrock.log(made["twice"], (10, 0))
        bedrock.log_around(old)
        await rig.drain()
        reads = reconciler(rig, bedrock, RecordedPrices(rig.database).cost, model.provider)
        found = await reads.reconcile(recheck_hours=1)
        assert (found["rechecked"], found["drifted"], found["unpriced"]) == (1, 0, 0)
        assert await sums(rig) == {
            made["none"].attempt_id: 10 + 9,
            made["lost"].attempt_id: 10 + 1400 + 9,
            made["settled"].attempt_id: 10 + 2100 + 9,
            made["twice"].attempt_id: 2 * (10 + 1400 + 9),
            made["refused"].attempt_id: 0,
            made["not billed"].attempt_id: 0,
        }


@pytest.mark.parametrize("days", [None, 30])
async def test_a_guard_locks_its_anchors_as_long_as_its_setting_says(
    days: int | None, aws: FakeAws, make_guard: Any
) -> None:
    aws.objects["anchors"] = {}
    guard = await make_guard(
        anchor_location="s3://anchors", anchor_seconds=600, anchor_retention_days=days
    )
    await guard.key()  # an audit record: the head of its chain moves
    assert (await guard.admin("POST", "/audit/anchor"))["anchored"] > 0
    anchors = {key: read_anchor(body) for key, body in aws.objects["anchors"].items()}
    assert anchors
    until = {
        key: datetime.fromisoformat(anchor.signed_at) + timedelta(days=days or 0)
        for key, anchor in anchors.items()
    }
    assert aws.retained == {
        key: f"{moment:%Y-%m-%dT%H:%M:%SZ}" for key, moment in until.items() if days is not None
    }
