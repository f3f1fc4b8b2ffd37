"""The admin API: its own key, exact sums, pages, and a record of every change."""

import asyncio
from typing import Any

import psycopg
import pytest
from gateway_rig.fake_upstream import FakeUpstream
from gateway_rig.guard import ADMIN_KEY, InProcessGuard
from gateway_rig.postgres import Postgres

CALLS = [
    ("POST", "/keys"), ("GET", "/keys"), ("POST", "/keys/k/revoke"), ("GET", "/spend"),
    ("GET", "/ledger"), ("POST", "/reconcile"), ("GET", "/models"),
]  # fmt: skip


async def booked(guard: InProcessGuard, entries: int) -> None:
    """Wait until the spool has shipped so many entries."""
    async with asyncio.timeout(30):
        while len(await guard.entries()) < entries:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("header", [{}, {"authorization": "Bearer wrong"},
                                    {"authorization": f"Basic {ADMIN_KEY}"}])  # fmt: skip
async def test_every_call_needs_the_admin_key(
    guard: InProcessGuard, header: dict[str, str]
) -> None:
    virtual = await guard.key()
    for method, path in CALLS:
        for headers in (header, {"authorization": f"Bearer {virtual}"}):
            response = await guard.http.request(
                method, f"{guard.admin_url}/admin/v1{path}", headers=headers, json={}
            )
            assert response.status_code == 401, path
            assert response.json()["error"]["code"] == "invalid_api_key"


async def test_other_routes_do_not_exist(guard: InProcessGuard) -> None:
    for method, path in [("DELETE", "/keys"), ("POST", "/spend"), ("GET", "")]:
        response = await guard.http.request(method, f"{guard.admin_url}/admin/v1{path}")
        assert response.status_code == 404


async def test_a_key_is_shown_once(
    guard: InProcessGuard, postgres: Postgres, database: str
) -> None:
    fields: dict[str, Any] = {
        "team": "team-a", "name": "ci", "models": ["sim-small"], "budget_micro_usd": 5,
        "max_requests": 6, "requests_per_minute": 7, "expires_at": "2099-01-01T00:00:00Z",
    }  # fmt: skip
    new = await guard.new_key(**fields)
    assert new["key"].startswith("tk-")
    assert {name: new[name] for name in fields} == fields
    [listed] = (await guard.admin("GET", "/keys?team=team-a"))["keys"]
    assert listed == {name: value for name, value in new.items() if name != "key"}
    assert (await guard.admin("GET", "/keys?team=other"))["keys"] == []
    with postgres.superuser(database) as connection:
        dump = str(connection.execute("SELECT k::text FROM virtual_key k").fetchall())
        assert new["key"] not in dump
        assert new["key"][3:] not in dump


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "team"),
        ({"team": "Not A Team"}, "team: lower-case letters, digits, '.', '_' and '-', beginning"),
        ({"team": "a" * 64}, "at most 63"),
        ({"team": "a", "budget_usd": 5}, "valid: team, name, models, budget_micro_usd"),
        ({"team": "a", "budget_micro_usd": -1}, "budget_micro_usd"),
        ({"team": "a", "budget_micro_usd": 1.5}, "budget_micro_usd"),
        ({"team": "a", "max_requests": True}, "max_requests"),
        ({"team": "a", "models": ["nope"]}, "known: sim-small, sim-large, bedrock-claude"),
        ({"team": "a", "expires_at": "tomorrow"}, "expires_at"),
        ({"team": "a", "expires_at": "2030-01-01T00:00:00"}, "expires_at"),
    ],
)
async def test_wrong_keys_are_explained(
    guard: InProcessGuard, body: dict[str, Any], message: str
) -> None:
    response = await guard.http.post(
        f"{guard.admin_url}/admin/v1/keys", json=body,
        headers={"authorization": f"Bearer {ADMIN_KEY}"},
    )  # fmt: skip
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


async def test_spend_by_team_key_and_model(guard: InProcessGuard, upstream: FakeUpstream) -> None:
    keys = [await guard.new_key(team=team) for team in ("team-a", "team-a", "team-b")]
    for new in keys:
        await guard.chat(new["key"])
    await guard.chat(keys[2]["key"], model="sim-large")
    await booked(guard, 4)
    by_model = await guard.admin("GET", "/spend?by=model")
    assert {row["model"]: row["requests"] for row in by_model["rows"]} == {
        "sim-small": 3,
        "sim-large": 1,
    }
    by_team = await guard.admin("GET", "/spend?by=team")
    assert [(row["team"], row["requests"]) for row in by_team["rows"]] == [
        ("team-a", 2),
        ("team-b", 2),
    ]
    by_key = await guard.admin("GET", "/spend?by=key")
    assert {row["key"] for row in by_key["rows"]} == {new["key_id"] for new in keys}
    for spend in (by_model, by_team, by_key):
        assert spend["total_micro_usd"] == upstream.bill_total
        assert sum(row["settled_micro_usd"] for row in spend["rows"]) == upstream.bill_total
    listed = (await guard.admin("GET", "/keys"))["keys"]
    assert sum(key["settled_micro_usd"] for key in listed) == upstream.bill_total
    assert all(key["last_used_at"] for key in listed)


async def test_ledger_pages(guard: InProcessGuard) -> None:
    keys = [await guard.new_key() for _ in range(2)]
    for _ in range(3):
        for new in keys:
            await guard.chat(new["key"])
    await booked(guard, 6)
    seen: list[int] = []
    cursor: int | None = 0
    while cursor is not None:
        page = await guard.admin("GET", f"/ledger?after={cursor}&limit=4")
        seen += [entry["entry_id"] for entry in page["entries"]]
        cursor = page["next"]
    assert len(seen) == len(set(seen)) == 6
    one = await guard.admin("GET", f"/ledger?key_id={keys[0]['key_id']}")
    assert len(one["entries"]) == 3
    assert one["next"] is None


@pytest.mark.parametrize("query", ["after=-1", "limit=0", "limit=9999", "after=x", "limit=1e3"])
async def test_wrong_pages_are_explained(guard: InProcessGuard, query: str) -> None:
    response = await guard.http.get(
        f"{guard.admin_url}/admin/v1/ledger?{query}",
        headers={"authorization": f"Bearer {ADMIN_KEY}"},
    )
    assert response.status_code == 400
    assert query.split("=", maxsplit=1)[0] in response.json()["error"]["message"]


async def test_changes_are_audited_and_nothing_can_be_rewritten(
    guard: InProcessGuard, postgres: Postgres, database: str
) -> None:
    new = await guard.new_key()
    await guard.chat(new["key"])
    await guard.http.post(
        f"{guard.admin_url}/admin/v1/keys/{new['key_id']}/revoke", json={"reason": "leaked"},
        headers={"authorization": f"Bearer {ADMIN_KEY}", "x-terrace-actor": "alice"},
    )  # fmt: skip
    await guard.admin("POST", "/reconcile")
    with postgres.superuser(database) as connection:
        rows = connection.execute(
            "SELECT actor, action, subject, reason FROM audit ORDER BY audit_id"
        ).fetchall()
    assert rows == [
        ("deployment", "governance.apply", "version 1", "the file of the deployment"),
        ("admin", "key.create", new["key_id"], None),
        ("alice", "key.revoke", new["key_id"], "leaked"),
        ("admin", "reconcile", "ledger", None),
    ]
    await booked(guard, 1)  # a trigger needs a row
    statements = ["UPDATE {} SET {} = NULL", "DELETE FROM {}", "TRUNCATE {} CASCADE"]
    for table, column in (("ledger_entry", "trace_id"), ("audit", "created_at")):
        for shape in statements:
            statement = shape.format(table, column)
            with postgres.superuser(database) as connection, pytest.raises(psycopg.Error):
                connection.execute(statement)  # by trigger, even a superuser
            with psycopg.connect(postgres.url(database)) as connection:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(statement)
                connection.rollback()


async def test_models_show_prices(guard: InProcessGuard) -> None:
    answer = await guard.admin("GET", "/models")
    assert answer["price_version"] == "2026-11-local"
    price = answer["models"][0]["price"]
    assert price["input_micro_usd_per_mtok"] == 150000
    assert price["output_micro_usd_per_mtok"] == 600000
