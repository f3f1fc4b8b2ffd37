"""The books over HTTP, through a whole guard: pages, sums, verification, anchors, export."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from gateway_rig.fake_upstream import FakeUpstream
from gateway_rig.guard import ADMIN_KEY, InProcessGuard
from gateway_rig.postgres import Postgres
from psycopg.types.json import Jsonb

from terrace_gateway.ledger.books import SPEND_COLUMNS
from terrace_gateway.ledger.chains.signing import read_signer

MakeGuard = Callable[..., Awaitable[InProcessGuard]]
APPEND = "SELECT (append_chained(%s, 'replica-x', %s)).entry_id"


def decision(number: int, **more: Any) -> Jsonb:
    now = datetime.now(UTC).isoformat()
    fields = {"kind": "decision", "decision": "deny", "opened_at": now, "closed_at": now}
    return Jsonb({**fields, "reason": f"r{number}", **more})


async def pages(guard: InProcessGuard, after: int = 0) -> list[dict[str, Any]]:
    """All entries behind a cursor, two at a time."""
    found: list[dict[str, Any]] = []
    cursor: int | None = after
    while cursor is not None:
        page = await guard.admin("GET", f"/ledger?after={cursor}&limit=2&kind=attempt,decision")
        found += page["entries"]
        cursor = page["next"]
    return found


async def test_an_entry_that_commits_late_is_not_passed(
    guard: InProcessGuard, postgres: Postgres, database: str
) -> None:
    """The sequence gave it the smaller id, its transaction ended after one with a larger id."""
    url = postgres.url(database)
    before = await pages(guard)
    cursor = before[-1]["entry_id"] if before else 0
    async with await psycopg.AsyncConnection.connect(url) as slow:
        row = await (await slow.execute(APPEND, ("slow", decision(1)))).fetchone()
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as quick:
            later = await (await quick.execute(APPEND, ("quick", decision(2)))).fetchone()
        assert row is not None
        assert later is not None
        assert row[0] < later[0]
        assert [entry["entry_id"] for entry in await pages(guard, cursor)] == []
        await slow.commit()
    ids = [entry["entry_id"] for entry in await pages(guard, cursor)]
    assert (row[0] in ids, later[0] in ids, ids == sorted(ids)) == (True, True, True)


async def test_who_follows_the_ledger_sees_every_entry(
    guard: InProcessGuard, postgres: Postgres, database: str
) -> None:
    url, chance = postgres.url(database), random.Random(4)
    written: set[int] = set()
    done = asyncio.Event()

    async def writer(name: str) -> None:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            for number in range(12):
                row = await (await connection.execute(APPEND, (name, decision(number)))).fetchone()
                await asyncio.sleep(chance.random() * 0.03)
                assert row is not None
                if chance.random() < 0.2:
                    await connection.rollback()
                else:
                    await connection.commit()
                    written.add(row[0])

    async def follow() -> list[int]:
        seen: list[int] = []
        async with asyncio.timeout(120):
            while not (done.is_set() and written <= set(seen)):
                seen += [e["entry_id"] for e in await pages(guard, seen[-1] if seen else 0)]
        return seen

    following = asyncio.create_task(follow())
    await asyncio.gather(*(writer(f"w{number}") for number in range(6)))
    done.set()
    seen = await following
    assert written <= set(seen)
    assert len(seen) == len(set(seen))


async def test_changes_that_commit_late_are_not_passed(
    guard: InProcessGuard, postgres: Postgres, database: str
) -> None:
    await guard.new_key()
    changes = (await guard.admin("GET", "/audit"))["changes"]
    cursor = changes[-1]["audit_id"]
    async with await psycopg.AsyncConnection.connect(postgres.url(database)) as slow:
        await slow.execute("SELECT pg_current_xact_id()")
        await slow.execute("SELECT nextval(pg_get_serial_sequence('audit', 'audit_id'))")
        await guard.new_key()
        assert (await guard.admin("GET", f"/audit?after={cursor}"))["changes"] == []
    page = await guard.admin("GET", f"/audit?after={cursor}&limit=1")
    assert [change["action"] for change in page["changes"]] == ["key.create"]


async def test_sums_by_every_column_are_the_bill(
    guard: InProcessGuard, upstream: FakeUpstream
) -> None:
    for team in ("team-a", "team-b"):
        key = await guard.key(team=team)
        for _ in range(2):
            assert (await guard.chat(key)).status_code == 200
    today = datetime.now(UTC).date()
    for column in SPEND_COLUMNS:
        answer = await guard.admin("GET", f"/spend?by={column}&since={today - timedelta(days=1)}")
        assert answer["total_micro_usd"] == upstream.bill_total > 0
        assert sum(row["requests"] for row in answer["rows"]) == 4
        assert (await guard.admin("GET", f"/spend?by={column}&since=2999-01-01"))["rows"] == []


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/spend?by=colour", None),
        ("GET", "/spend?since=yesterday", None),
        ("GET", "/ledger?kind=attempt,guess", None),
        ("GET", "/audit?limit=0", None),
        ("GET", "/audit/chains?limit=x", None),
        ("POST", "/audit/verify", {"writer": 7}),
        ("POST", "/reconcile", {"recheck_hours": -1}),
        ("POST", "/ledger/export", {}),
        ("POST", "/ledger/export", {"keep_months": 0}),
        ("POST", "/ledger/export", {"settle_unknown": True}),
    ],
)
async def test_wrong_orders_are_explained(
    guard: InProcessGuard, method: str, path: str, body: Any
) -> None:
    response = await guard.http.request(
        method, f"{guard.admin_url}/admin/v1{path}", json=body,
        headers={"authorization": f"Bearer {ADMIN_KEY}"},
    )  # fmt: skip
    assert response.status_code == 400
    assert response.json()["error"]["message"]


async def test_chains_are_listed_anchored_and_verified(
    make_guard: MakeGuard, tmp_path: Path, postgres: Postgres, database: str
) -> None:
    signing = tmp_path / "signing-key"
    signing.write_text("5e" * 32)
    guard = await make_guard(
        anchor_location=str(tmp_path / "anchors"), anchor_seconds=600,
        ledger_signing_key_file=signing,
    )  # fmt: skip
    key = await guard.key()
    assert (await guard.chat(key)).status_code == 200
    await guard.entries()
    assert (await guard.admin("POST", "/audit/anchor"))["anchored"] >= 2
    chains: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        page = await guard.admin("GET", f"/audit/chains?after={after}&limit=1")
        chains += page["chains"]
        after = page["next"]
    assert "admin" in [chain["writer"] for chain in chains]
    assert all(chain["anchored_seq"] == chain["seq"] for chain in chains if chain["seq"])
    whole = await guard.admin("POST", "/audit/verify", json={})
    assert (whole["whole"], whole["unsigned_anchors"], whole["findings"]) == (True, 0, [])
    one = await guard.admin("POST", "/audit/verify", json={"writer": "admin"})
    assert (one["whole"], one["chains"]) == (True, 1)
    with postgres.superuser(database) as connection:  # as its owner could
        connection.execute("ALTER TABLE ledger_entry DISABLE TRIGGER ALL")
        connection.execute("UPDATE ledger_entry SET actor = 'nobody' WHERE writer = 'admin'")
    broken = await guard.admin("POST", "/audit/verify", json={})
    assert not broken["whole"]
    assert {finding["writer"] for finding in broken["findings"]} == {"admin"}


async def test_anchors_of_an_earlier_signing_key_are_known(
    make_guard: MakeGuard, tmp_path: Path
) -> None:
    old, new = tmp_path / "old-key", tmp_path / "new-key"
    old.write_text("5e" * 32)
    new.write_text("6f" * 32)
    values: dict[str, Any] = {
        "anchor_location": str(tmp_path / "anchors"), "anchor_seconds": 600,
    }  # fmt: skip
    before = await make_guard(**values, ledger_signing_key_file=old)
    await before.key()
    assert (await before.admin("POST", "/audit/anchor"))["anchored"] > 0
    strict = await make_guard(**values, ledger_signing_key_file=new, replica="strict")
    found = await strict.admin("POST", "/audit/verify", json={})
    assert {finding["kind"] for finding in found["findings"]} == {"signature"}
    public = read_signer(old).public.hex()
    knowing = await make_guard(
        **values, ledger_signing_key_file=new, ledger_old_public_keys=(public,), replica="knowing"
    )
    await knowing.key()
    assert (await knowing.admin("POST", "/audit/anchor"))["anchored"] > 0
    whole = await knowing.admin("POST", "/audit/verify", json={})
    assert (whole["whole"], whole["findings"]) == (True, [])


async def test_months_that_are_exported_go(
    make_guard: MakeGuard, tmp_path: Path, postgres: Postgres, database: str
) -> None:
    export = tmp_path / "export"
    guard = await make_guard(export_location=str(export))
    month = (datetime.now(UTC).replace(day=1) - timedelta(days=80)).replace(
        day=1, hour=0, minute=0, second=0, microsecond=0
    )
    end = (month + timedelta(days=32)).replace(day=1)
    name = f"ledger_entry_{month:%Y%m}"
    with psycopg.connect(postgres.url(database), autocommit=True) as connection:
        connection.execute(
            f"CREATE TABLE {name} PARTITION OF ledger_entry"
            f" FOR VALUES FROM ('{month.isoformat()}') TO ('{end.isoformat()}')".encode()
        )
        for number in range(5):
            moment = (month + timedelta(days=number)).isoformat()
            connection.execute(APPEND, ("old", decision(number, opened_at=moment)))
    done = await guard.admin("POST", "/ledger/export", json={})
    assert [day["rows"] for day in done["exported"]] == [1] * 5
    assert done["dropped"] == {}
    assert list(export.rglob("*.parquet"))
    again = await guard.admin("POST", "/ledger/export", json={"keep_months": 1})
    assert (again["exported"], again["dropped"]) == ([], {name: 5})
    assert await pages(guard) == [e for e in await pages(guard) if e["writer"] != "old"]
    verified = await guard.admin("POST", "/audit/verify", json={})
    assert verified["whole"]
    assert {finding["kind"] for finding in verified["findings"]} == {"exported"}
    actions = [c["action"] for c in (await guard.admin("GET", "/audit"))["changes"]]
    assert actions[-2:] == ["ledger.export", "ledger.drop"]
