"""The admin API's core: who may call what, the document that describes it, caps at run time."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import pytest
from gateway_rig.admin import ADMIN_KEY, Admin, admin_of
from gateway_rig.guard import InProcessGuard
from gateway_rig.policy import Replica, example_text, replica_of
from gateway_rig.postgres import Postgres
from openapi_spec_validator import OpenAPIV31SpecValidator

from terrace_gateway.admin.authentication import AdminAuthenticator, AdminIdentity
from terrace_gateway.admin.routing import PREFIX, Role

SPEC = """
teams: [{name: team-a, quotas: [{dimension: requests, amount: 5, per: minute}]}, {name: team-b}]
"""
ROLES: dict[str, frozenset[Role]] = {
    "view": frozenset({"viewer"}), "audit": frozenset({"auditor"}), "root": frozenset({"admin"}),
    "nobody": frozenset(),
}  # fmt: skip


class Tokens(AdminAuthenticator):
    """Bearer tokens by name, as an identity provider would give them."""

    async def authenticate(self, token: str, headers: Mapping[str, str]) -> AdminIdentity | None:
        roles = ROLES.get(token)
        return None if roles is None else AdminIdentity(f"{token}@example", roles)


@pytest.fixture
async def replica(postgres: Postgres, database: str) -> AsyncIterator[Replica]:
    async with replica_of(postgres, database) as made:
        await made.apply(example_text() + SPEC)
        await made.feed.refresh()
        yield made


@pytest.fixture
async def admin(replica: Replica) -> AsyncIterator[Admin]:
    async with admin_of(replica, authenticators=(Tokens(),)) as made:
        yield made


async def document(admin: Admin) -> dict[str, Any]:
    return await admin.ok("GET", "/openapi.json")


async def test_the_document_is_valid_and_has_every_route(admin: Admin) -> None:
    described = await document(admin)
    OpenAPIV31SpecValidator(described).validate()
    app: Any = admin.http._transport.app  # type: ignore[attr-defined]
    served = {(method, route.path) for route in app.routes for method in route.methods - {"HEAD"}}
    listed = {
        (method.upper(), path) for path, methods in described["paths"].items() for method in methods
    }
    assert served == listed | {("GET", f"{PREFIX}/openapi.json")}
    names = [
        operation["operationId"]
        for methods in described["paths"].values()
        for operation in methods.values()
    ]
    assert len(names) == len(set(names))


async def test_bodies_in_the_document_are_what_is_accepted(admin: Admin) -> None:
    described = await document(admin)
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            if "requestBody" not in operation:
                continue
            reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            schema = described["components"]["schemas"][reference.rsplit("/", 1)[1]]
            assert schema["additionalProperties"] is False
            where = path.removeprefix(PREFIX).replace("{key_id}", "k")
            status, answer = await admin.error(method.upper(), where, {"no-such-field": 1})
            assert status == 400, (method, path)
            assert "no-such-field" in answer["error"]["message"] or "required" in str(answer)


async def test_every_route_asks_who_calls(admin: Admin) -> None:
    described = await document(admin)
    for path, methods in described["paths"].items():
        for method in methods:
            for token in ("", "Bearer x", f"Basic {ADMIN_KEY}", f"Bearer {ADMIN_KEY}x", "Bearer "):
                answer = await admin.http.request(
                    method, path, headers={"authorization": token}, json={}
                )
                assert answer.status_code == 401, (method, path, token)


async def test_a_role_may_do_what_it_says_and_no_more(admin: Admin) -> None:
    described = await document(admin)
    ranks = ["viewer", "auditor", "admin"]
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            needed = next(role for role in ranks if f"`{role}`" in operation["description"])
            for token, roles in ROLES.items():
                may = any(ranks.index(role) >= ranks.index(needed) for role in roles)
                if may and (method != "get" or "ledger" in path or "spend" in path):
                    continue  # allowed calls are other tests' subject
                answer: httpx.Response = await admin.http.request(
                    method, path, headers={"authorization": f"Bearer {token}"}, json={}
                )
                assert (answer.status_code == 403) is not may, (method, path, token)


async def test_changes_are_role_admin(admin: Admin) -> None:
    """A new route that changes something cannot be opened to readers by a slip."""
    described = await document(admin)
    reading = {("POST", f"{PREFIX}/governance/plan"), ("POST", f"{PREFIX}/models/explain")}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            if method != "get" and (method.upper(), path) not in reading:
                assert "`admin`" in operation["description"], (method, path)


@pytest.mark.parametrize(("token", "kind"), [("view", "look"), ("audit", "look"), ("root", "plan")])
async def test_who_may_not_apply_plans_in_places_of_their_own(
    admin: Admin, replica: Replica, monkeypatch: pytest.MonkeyPatch, token: str, kind: str
) -> None:
    kinds: list[str] = []
    planning = replica.versions._planning
    turn = planning.turn
    monkeypatch.setattr(
        planning, "turn", lambda kind, actor: (kinds.append(kind), turn(kind, actor))[1]
    )
    answer = await admin.http.post(
        f"{PREFIX}/governance/plan", json={"text": example_text()},
        headers={"authorization": f"Bearer {token}"},
    )  # fmt: skip
    assert (answer.status_code, kinds) == (200, [kind])


async def test_the_actor_of_a_token_is_its_own_and_of_the_key_a_claim(
    admin: Admin, postgres: Postgres, database: str
) -> None:
    headers = {"authorization": "Bearer root", "x-terrace-actor": "somebody-else"}
    answer = await admin.http.post(
        f"{PREFIX}/kill", headers=headers, json={"target": "all", "reason": "r"}
    )
    assert answer.status_code == 200
    await admin.ok("POST", "/unkill", {"target": "all", "reason": "r"})
    with postgres.superuser(database) as connection:
        rows = connection.execute(
            "SELECT actor, action FROM audit WHERE action LIKE '%kill' ORDER BY audit_id"
        ).fetchall()
    assert rows == [("root@example", "kill"), ("alice", "unkill")]


async def test_a_cap_is_raised_and_lowered_at_run_time(
    admin: Admin, replica: Replica, postgres: Postgres, database: str
) -> None:
    made = await admin.ok("POST", "/keys", {"team": "team-b", "budget_micro_usd": 50})
    body = {
        "scope": "key", "scope_id": made["key_id"], "dimension": "micro_usd", "amount": 70,
        "reason": "more", "thresholds": [50, 90],
    }  # fmt: skip
    changed = await admin.ok("PUT", "/caps", body)
    assert (changed["amount"], changed["thresholds"], changed["origin"]) == (
        70,
        [50, 90],
        "runtime",
    )
    principal = await replica.call(made["key"])
    assert principal is not None
    assert [(cap.amount, cap.thresholds) for cap in principal.caps] == [(70, (50, 90))]
    assert (await admin.ok("GET", f"/keys/{made['key_id']}"))["budget_micro_usd"] == 70
    with postgres.superuser(database) as connection:
        connection.execute(
            "INSERT INTO counter (scope, scope_id, dimension, window_seconds, window_start,"
            " settled) VALUES ('key', %s, 'micro_usd', 0, 'epoch', 30)",
            (made["key_id"],),
        )
    status, answer = await admin.error("PUT", "/caps", {**body, "amount": 29})
    assert (status, answer["error"]["code"], answer["used"]) == (409, "cap-below-spend", 30)
    lowered = await admin.ok("PUT", "/caps", {**body, "amount": 29, "allow": ["cap-below-spend"]})
    assert (lowered["amount"], lowered["settled"]) == (29, 30)
    with postgres.superuser(database) as connection:
        audited = connection.execute(
            "SELECT actor, reason, detail->>'before', detail->>'amount' FROM audit"
            " WHERE action = 'cap.change' ORDER BY audit_id"
        ).fetchall()
    assert audited == [("alice", "more", "50", "70"), ("alice", "more", "70", "29")]
    with postgres.superuser(database) as connection:
        connection.execute("DELETE FROM counter")


@pytest.mark.parametrize(
    "window",
    [
        {"window_kind": "fixed", "window_seconds": 60},
        {"window_kind": "rolling", "window_seconds": 3600},
        {"window_kind": "calendar", "window_unit": "month", "window_zone": "Europe/Berlin"},
        {},
    ],
)
async def test_every_kind_of_window_arrives_as_it_was_set(
    admin: Admin, replica: Replica, window: dict[str, Any]
) -> None:
    key, _ = await replica.mint(team="team-b")
    body = {"scope": "team", "scope_id": "team-b", "dimension": "output_tokens", "amount": 7,
            "reason": "r", **window}  # fmt: skip
    first, second = await admin.ok("PUT", "/caps", body), await admin.ok("PUT", "/caps", body)
    assert first == second
    principal = await replica.call(key)
    assert principal is not None
    [cap] = [cap for cap in principal.caps if cap.dimension == "output_tokens"]
    assert cap.window.kind == window.get("window_kind", "lifetime")
    assert cap.window.seconds == window.get("window_seconds", 0)
    assert cap.window.unit == window.get("window_unit")
    assert cap.window.zone == window.get("window_zone", "UTC")
    listed = (await admin.ok("GET", "/caps?scope=team&scope_id=team-b"))["caps"]
    assert [row["cap_id"] for row in listed] == [cap.cap_id]


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"scope": "org"}, 400, "scope"),
        ({"scope": "key", "scope_id": "key_none"}, 400, "no such key"),
        ({"scope_id": "team-c"}, 400, "there is no team 'team-c'; known: team-a, team-b"),
        ({"scope_id": "Team-b"}, 400, "there is no team"),
        ({"window_kind": "fixed"}, 400, "window_seconds"),
        ({"window_kind": "calendar"}, 400, "window_unit"),
        ({"window_kind": "calendar", "window_unit": "day", "window_zone": "Mars/Base"}, 400,
         "'Mars/Base' is no time zone"),
        ({"window_kind": "calendar", "window_unit": "day", "window_zone": "europe/berlin"}, 400,
         "is no time zone"),
        ({"window_zone": "Europe/Berlin"}, 400, "window_zone belongs to calendar windows"),
        ({"window_kind": "fixed", "window_seconds": 60, "window_zone": "Europe/Berlin"}, 400,
         "window_zone"),
        ({"window_kind": "rolling", "window_seconds": 60, "window_zone": "Europe/Berlin"}, 400,
         "window_zone"),
        ({"dimension": "concurrency", "window_kind": "rolling", "window_seconds": 9}, 400,
         "window"),
        ({"amount": -1}, 400, "amount"),
        ({"amount": 10**16}, 400, "amount"),
        ({"scope_id": "team-a", "dimension": "requests", "window_kind": "fixed",
          "window_seconds": 60}, 409, "governance spec declares"),
    ],
)  # fmt: skip
async def test_wrong_caps_are_explained(
    admin: Admin, change: dict[str, Any], status: int, message: str
) -> None:
    body = {"scope": "team", "scope_id": "team-b", "dimension": "micro_usd", "amount": 7,
            "reason": "r", **change}  # fmt: skip
    found, answer = await admin.error("PUT", "/caps", body)
    assert found == status, answer
    assert message in answer["error"]["message"]
    assert (await admin.ok("GET", "/caps"))["caps"][1:] == []  # beside the declared one


async def test_a_team_that_is_not_declared_and_has_keys_can_be_capped(
    admin: Admin, replica: Replica
) -> None:
    """As it can be killed: a spec without teams accepts any."""
    body = {"scope": "team", "scope_id": "team-c", "dimension": "requests", "amount": 1,
            "reason": "r"}  # fmt: skip
    await admin.error("PUT", "/caps", body)
    await replica.apply(example_text())
    await replica.feed.refresh()
    status, answer = await admin.error("PUT", "/caps", body)
    assert (status, answer["error"]["message"]) == (400, "there is no team 'team-c'; known: none")
    await replica.mint(team="team-c")
    assert (await admin.ok("PUT", "/caps", body))["scope_id"] == "team-c"


async def test_while_the_database_is_away_nothing_changes(
    admin: Admin, replica: Replica, postgres: Postgres
) -> None:
    postgres.stop()
    for method, path, body in [
        ("POST", "/keys", {"team": "team-a"}), ("GET", "/keys", None),
        ("POST", "/kill", {"target": "all", "reason": "r"}), ("GET", "/governance", None),
        ("POST", "/governance/plan", {"text": example_text()}),
    ]:  # fmt: skip
        status, answer = await admin.error(method, path, body)
        assert (status, answer["error"]["code"]) == (503, "authority_unavailable"), path
    postgres.start()


async def test_a_whole_guard_describes_itself(guard: InProcessGuard) -> None:
    """With the routes of every module: valid, no name twice, no change for less than an admin."""
    described = await guard.admin("GET", "/openapi.json")
    OpenAPIV31SpecValidator(described).validate()
    assert {f"{PREFIX}/keys", f"{PREFIX}/ledger", f"{PREFIX}/spend"} <= set(described["paths"])
    for path, methods in described["paths"].items():
        for method in methods:
            answer = await guard.http.request(method, guard.admin_url + path, json={})
            assert answer.status_code == 401, (method, path)
