"""Price books through the admin API, down to what the next call costs; and re-rating."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
import yaml
from gateway_rig.fake_upstream import Behaviour, FakeUpstream
from gateway_rig.guard import ADMIN_KEY, InProcessGuard
from gateway_rig.ledger_rig import open_database
from gateway_rig.postgres import Postgres
from psycopg.types.json import Jsonb
from pydantic import ValidationError

from terrace_common.prices import PriceBook
from terrace_gateway.prices.rerating import PastAttempt, rerate
from terrace_gateway.prices.rerating_store import ReratingStore
from terrace_gateway.prices.store import NoSuchVersionError, PriceStore, VersionTakenError

TWICE = {"input_micro_usd_per_mtok": 300_000, "output_micro_usd_per_mtok": 1_200_000}
LONG_AGO = "2020-01-01T00:00:00Z"
PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
    "rkJggg=="
)


def book(version: str = "b1", **fields: Any) -> dict[str, Any]:
    entry = {"provider": "simulator-openai", "model": "sim-small", "effective_from": LONG_AGO}
    return {"version": version, "entries": [{**entry, "price": TWICE, **fields}]}


async def refused(guard: InProcessGuard, path: str, body: dict[str, Any]) -> httpx.Response:
    return await guard.http.post(
        f"{guard.admin_url}/admin/v1{path}",
        json=body,
        headers={"authorization": f"Bearer {ADMIN_KEY}"},
    )


async def until_entries(guard: InProcessGuard, count: int) -> list[dict[str, Any]]:
    async with asyncio.timeout(60):
        while True:
            found = [e for e in await guard.entries() if e["kind"] == "attempt"]
            if len(found) >= count:
                return found
            await asyncio.sleep(0.02)


async def test_a_book_in_force_is_what_the_next_call_costs(
    guard: InProcessGuard, upstream: FakeUpstream
) -> None:
    key = await guard.key()
    await guard.chat(key)
    body = {"book": book(), "reason": "new list"}
    assert (await guard.admin("POST", "/prices", json=body))["state"] == "applied"
    assert (await guard.admin("POST", "/prices", json=body))["state"] == "unchanged"
    await guard.chat(key)
    use = {"version": None, "reason": "back"}
    assert (await guard.admin("POST", "/prices/use", json=use))["in_force"] is None
    await guard.chat(key)
    entries = await until_entries(guard, 3)
    assert [(e["price_version"], e["amount_micro_usd"]) for e in entries] == [
        ("2026-11-local", 8), ("b1", 16), ("2026-11-local", 8),
    ]  # fmt: skip
    assert all(e["reserved_micro_usd"] >= e["amount_micro_usd"] for e in entries)
    listed = await guard.admin("GET", "/prices")
    assert listed["in_force"] is None
    assert [one["version"] for one in listed["books"]] == ["b1"]


async def test_past_calls_are_rerated_once_and_budgets_do_not_move(
    guard: InProcessGuard, upstream: FakeUpstream
) -> None:
    made = await guard.new_key(budget_micro_usd=10_000)
    for _ in range(3):
        await guard.chat(made["key"])
    await until_entries(guard, 3)
    await guard.admin("POST", "/prices", json={"book": book(), "reason": "new list"})
    asked = {"version": "b1", **EVERY_PAST}
    told = await guard.admin("POST", "/prices/rerate", json=asked)
    assert (told["attempts"], told["changed"], told["written"]) == (3, 3, 0)
    assert told["delta_micro_usd"] == 3 * (15 + 1 - 8)  # 15.3 rounded up, against 7.65 rounded up
    write = {**asked, "write": True, "reason": "new list"}
    assert (await guard.admin("POST", "/prices/rerate", json=write))["written"] == 3
    again = await guard.admin("POST", "/prices/rerate", json=write)
    assert (again["changed"], again["written"]) == (0, 0)
    entries = await guard.entries()
    assert sum(e["amount_micro_usd"] for e in entries if e["kind"] == "rerating") == 24
    [change] = await changes(guard, "prices.rerate")
    assert (change["subject"], change["reason"]) == ("prices:b1", "new list")
    assert change["detail"] == {"written": 3}
    missing = {**asked, "version": "b2"}
    assert (await refused(guard, "/prices/rerate", missing)).status_code == 404
    assert (await refused(guard, "/prices/rerate", {**asked, "write": True})).status_code == 400


EVERY_PAST = {"since": LONG_AGO, "until": "2100-01-01T00:00:00Z"}


async def sums(guard: InProcessGuard) -> dict[str, int]:
    """What each attempt costs, all its entries together."""
    found: dict[str, int] = {}
    for entry in await guard.entries():
        if entry["attempt_id"]:
            amount = entry["amount_micro_usd"]
            found[entry["attempt_id"]] = found.get(entry["attempt_id"], 0) + amount
    return found


async def learn(guard: InProcessGuard, attempt: PastAttempt, **tokens: int) -> None:
    """The provider's log says another usage; it is priced at 8 micro-USD."""
    target = {"input_tokens": 0, "output_tokens": 0, "amount_micro_usd": 8, **tokens}
    async with guard.runtime.database.connection() as connection:
        cursor = await connection.execute(
            "SELECT reconcile_entry('reconcile', 'r', %s, %s, %s)",
            (attempt.attempt_id, attempt.opened_at, Jsonb(target)),
        )
        assert await cursor.fetchone() == ("written",)


async def test_what_comes_between_reading_and_writing_is_part_of_a_rerating(
    guard: InProcessGuard, upstream: FakeUpstream
) -> None:
    """A correction, or a re-rating to another version: the sum is the price of what is known."""
    key = await guard.key()
    for _ in range(2):
        await guard.chat(key)
    await until_entries(guard, 2)
    store = ReratingStore(guard.runtime.database, replica="r")
    spec = guard.runtime.policy.current().snapshot.governance
    year = {"since": datetime(2020, 1, 1, tzinfo=UTC), "until": datetime(2100, 1, 1, tzinfo=UTC)}
    page = await store.page(**year, model=None, after=None, limit=10)
    first, second = page

    async def write(version: str, rate: int) -> list[int]:
        price = {"input_micro_usd_per_mtok": rate, "output_micro_usd_per_mtok": 0}
        prices = PriceBook.model_validate(book(version, price=price))
        written = await store.write(
            page,
            lambda past: [one for _, one in rerate(past, spec, prices) if one is not None],
            actor="jo",
            reason="r",
        )
        return [one.delta_micro_usd for one in written]

    await learn(guard, first, input_tokens=1000)
    tokens = second.units.input_tokens
    assert await write("one", 1_000_000) == [1000 - 8, tokens - 8]
    assert await sums(guard) == {first.attempt_id: 1000, second.attempt_id: tokens}
    assert await write("two", 2_000_000) == [1000, tokens]  # ``page`` is older than the first
    assert await sums(guard) == {first.attempt_id: 2000, second.attempt_id: 2 * tokens}
    assert await write("two", 2_000_000) == []
    await learn(guard, second, input_tokens=500)  # later: to the same version once more
    assert await write("two", 2_000_000) == [1000 - 2 * tokens + second.amount_micro_usd - 8]
    assert await sums(guard) == {first.attempt_id: 2000, second.attempt_id: 1000}
    assert (await guard.admin("POST", "/audit/verify", json={}))["findings"] == []


async def test_reratings_at_the_same_time_do_not_add_up(
    guard: InProcessGuard, upstream: FakeUpstream
) -> None:
    key = await guard.key()
    for _ in range(3):
        await guard.chat(key)
    await until_entries(guard, 3)
    for version, rate in (("b1", 1_000_000), ("b2", 5_000_000)):
        price = {"input_micro_usd_per_mtok": rate, "output_micro_usd_per_mtok": 0}
        await guard.admin(
            "POST", "/prices", json={"book": book(version, price=price), "reason": "r"}
        )
    asked = {**EVERY_PAST, "write": True, "reason": "r"}
    await asyncio.gather(
        *(
            guard.admin("POST", "/prices/rerate", json={**asked, "version": version})
            for version in ("b1", "b2", "b1", "b2")
        )
    )
    tokens = {e["attempt_id"]: e["input_tokens"] for e in await until_entries(guard, 3)}
    for attempt, amount in (await sums(guard)).items():
        assert amount in (tokens[attempt], 5 * tokens[attempt])


async def test_a_stored_book_that_this_release_cannot_read_is_named(
    guard: InProcessGuard, postgres: Postgres, database: str
) -> None:
    with postgres.superuser(database) as sql:
        sql.execute("INSERT INTO price_book VALUES ('b9', '{\"version\": \"b9\"}', 'd', 'jo')")
    for path, body in (
        ("/prices/use", {"version": "b9", "reason": "r"}),
        ("/prices/rerate", {**EVERY_PAST, "version": "b9"}),
    ):
        answer = await refused(guard, path, body)
        assert answer.status_code == 409, answer.text
        assert answer.json()["error"]["code"] == "price_book_unreadable"
        assert "'b9': entries: Field required" in answer.json()["error"]["message"]
    assert (await guard.admin("GET", "/prices"))["in_force"] is None


def sees(text: str, **price: int) -> str:
    """The spec with a model that takes images, at ``price`` beside its tokens'."""
    spec = yaml.safe_load(text)
    [model] = [one for one in spec["models"] if one["name"] == "sim-small"]
    model |= {"features": ["streaming", "images"], "max_tokens_per_image": 300}
    model["price"] |= price
    return yaml.safe_dump(spec)


async def test_images_are_rerated_where_they_were_billed(
    make_guard: Any, governance_text: str, upstream: FakeUpstream
) -> None:
    guard: InProcessGuard = await make_guard(
        governance=sees(governance_text, micro_usd_per_image=1000, micro_usd_per_request=5)
    )
    key = await guard.key()
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    for images, status in ((0, 200), (1, 200), (3, 200), (2, 400)):
        upstream.behaviour = Behaviour(status=status)
        content = [{"type": "text", "text": "hello"}, *([part] * images)]
        answer = await guard.chat(key, messages=[{"role": "user", "content": content}])
        assert answer.status_code == status
    settled = await until_entries(guard, 4)
    assert [(e["images"], e["amount_micro_usd"]) for e in settled] == [
        (0, 13), (1, 1013), (3, 3013), (2, 0),  # 7.65 micro-USD of tokens and 5 a request
    ]  # fmt: skip
    price = {**TWICE, "micro_usd_per_image": 1500, "micro_usd_per_request": 5}
    await guard.admin("POST", "/prices", json={"book": book(price=price), "reason": "new list"})
    asked = {
        "version": "b1", "since": LONG_AGO, "until": "2100-01-01T00:00:00Z", "write": True,
        "reason": "new list",
    }  # fmt: skip
    told = await guard.admin("POST", "/prices/rerate", json=asked)
    assert (told["attempts"], told["changed"], told["written"]) == (4, 3, 3)
    deltas = {e["attempt_id"]: e for e in await guard.entries() if e["kind"] == "rerating"}
    assert [deltas[e["attempt_id"]]["amount_micro_usd"] for e in settled[:3]] == [
        8, 508, 1508,  # 15.3 of tokens, 500 more an image
    ]  # fmt: skip
    assert (await guard.admin("POST", "/audit/verify", json={}))["findings"] == []


async def test_wrong_books_change_nothing(guard: InProcessGuard, upstream: FakeUpstream) -> None:
    await guard.admin("POST", "/prices", json={"book": book(), "reason": "r"})
    other = book(price={**TWICE, "input_micro_usd_per_mtok": 1})
    for path, body, status in (
        ("/prices", {"book": other, "reason": "r"}, 409),
        ("/prices", {"book": book("b2", price={}), "reason": "r"}, 400),
        ("/prices", {"book": book("b2"), "reason": ""}, 400),
        ("/prices", {"book": book("b2", effective_from="2020-01-01"), "reason": "r"}, 400),
        ("/prices", {"book": {"version": "b2", "entries": []}, "reason": "r"}, 400),
        ("/prices/use", {"version": "nope", "reason": "r"}, 404),
    ):
        answer = await refused(guard, path, body)
        assert answer.status_code == status, answer.text
    listed = await guard.admin("GET", "/prices")
    assert [one["version"] for one in listed["books"]] == ["b1"]
    assert listed["in_force"] == "b1"


async def test_explain_says_what_a_call_then_does(
    guard: InProcessGuard, upstream: FakeUpstream
) -> None:
    made = await guard.new_key(models=["sim-large", "bedrock-claude"])
    asked = {"model": "auto", "input_bytes": 500, "key_id": made["key_id"]}
    told = await guard.admin("POST", "/models/explain", json=asked)
    assert told["chosen"] == "sim-large"
    reasons = {one["model"]: one["reason"] for one in told["models"]}
    assert {name for name, reason in reasons.items() if reason is None} == {
        "sim-large", "bedrock-claude",
    }  # fmt: skip
    assert set(reasons.values()) == {None, "model_not_allowed"}
    response = await guard.chat(made["key"], model="auto")
    assert response.status_code == 200, response.text
    [entry] = await until_entries(guard, 1)
    assert entry["model"] == "sim-large"
    nothing = {**asked, "model": "sim-small"}
    told = await guard.admin("POST", "/models/explain", json=nothing)
    assert told["refusal"]["code"] == "model_not_allowed"
    assert (
        await refused(guard, "/models/explain", {**asked, "key_id": "key_x"})
    ).status_code == 404
    assert (await refused(guard, "/models/explain", {**asked, "hints": "wat"})).status_code == 400


async def changes(guard: InProcessGuard, action: str) -> list[dict[str, Any]]:
    found = (await guard.admin("GET", "/audit"))["changes"]
    return [change for change in found if change["action"] == action]


async def test_a_thaw_is_recorded_before_it_holds(
    guard: InProcessGuard, upstream: FakeUpstream
) -> None:
    key = await guard.key()
    upstream.behaviour = Behaviour(input_tokens=5_000_000)  # what no bound allows
    assert (await guard.chat(key, model="sim-large")).status_code == 200
    upstream.behaviour = Behaviour()
    assert (await guard.chat(key, model="sim-large")).status_code == 503
    thaw, why = "/models/sim-large/thaw", {"reason": "the book was wrong"}
    assert (await refused(guard, thaw, {"why": "x"})).status_code == 400
    assert (await guard.chat(key, model="sim-large")).status_code == 503
    told = {"model": "sim-large", "thawed": True}
    assert await guard.admin("POST", thaw, json=why) == told
    assert (await guard.chat(key, model="sim-large")).status_code == 200
    assert await guard.admin("POST", thaw, json={}) == {**told, "thawed": False}
    [change] = await changes(guard, "model.thaw")
    assert (change["subject"], change["reason"]) == ("model:sim-large", "the book was wrong")
    assert change["detail"].keys() == {"replica"}


async def test_books_in_the_database_never_change(postgres: Postgres, database: str) -> None:
    async with open_database(postgres.url(database)) as connected:
        store = PriceStore(connected)
        assert await store.load() is None
        first, second = (PriceBook.model_validate(book(version)) for version in ("b1", "b2"))
        assert await store.apply(first, actor="jo", reason="r")
        assert not await store.apply(first, actor="jo", reason="r")
        assert await store.apply(second, actor="jo", reason="r")
        assert await store.load() == second
        changed = PriceBook.model_validate(book("b1", batch_premium_basis_points=1))
        with pytest.raises(VersionTakenError):
            await store.apply(changed, actor="jo", reason="r")
        assert await store.use("b1", actor="jo", reason="r")
        assert await store.load() == first
        with pytest.raises(NoSuchVersionError):
            await store.use("b3", actor="jo", reason="r")
        assert await store.use(None, actor="jo", reason="r")
        assert await store.load() is None
        async with connected.connection() as connection:
            cursor = await connection.execute(
                "SELECT count(*) FROM audit WHERE action = 'prices.use'"
            )
            assert await cursor.fetchone() == (4,)
            for change in ("UPDATE price_book SET actor = 'x'", "DELETE FROM price_book_use"):
                with pytest.raises(Exception, match="append-only"):
                    await connection.execute(change.encode())


def test_two_prices_from_one_moment_are_no_book() -> None:
    twice = book()
    twice["entries"] *= 2
    with pytest.raises(ValidationError, match="two prices"):
        PriceBook.model_validate(twice)
