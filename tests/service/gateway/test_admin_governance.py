"""Governance by the admin API: planned on a version, applied whole or not at all, rolled back."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from gateway_rig.admin import Admin, admin_of
from gateway_rig.policy import Replica, example_text, replica_of
from gateway_rig.postgres import Postgres
from structlog.testing import capture_logs

from terrace_common.governance.compile import CompiledGovernance
from terrace_gateway.policy.seed import NOT_APPLIED, OVERTAKEN, DeploymentFile
from terrace_gateway.policy.texts import Texts

TEAMS = """
orgs: [{name: acme}]
teams: [{name: team-a, org: acme, quotas: [{dimension: micro_usd, amount: 1000, per: month}]}]
"""


@pytest.fixture
async def replica(postgres: Postgres, database: str) -> AsyncIterator[Replica]:
    async with replica_of(postgres, database) as made:
        await made.apply(example_text(), actor="deployment", source="deployment")
        await made.feed.refresh()
        yield made


@pytest.fixture
async def admin(replica: Replica) -> AsyncIterator[Admin]:
    async with admin_of(replica) as made:
        yield made


async def apply(admin: Admin, text: str, base: int | None, **fields: Any) -> Any:
    return await admin.send(
        "POST", "/governance/apply", {"text": text, "base_version": base, "reason": "r", **fields}
    )


def live_caps(postgres: Postgres, database: str) -> list[tuple[Any, ...]]:
    with postgres.superuser(database) as connection:
        return connection.execute(
            "SELECT scope, scope_id, dimension, amount FROM cap WHERE origin = 'declared'"
            " AND retired_at IS NULL ORDER BY 1, 2, 3"
        ).fetchall()


async def test_plan_then_apply(
    admin: Admin, replica: Replica, postgres: Postgres, database: str
) -> None:
    text = example_text() + TEAMS
    planned = await admin.ok("POST", "/governance/plan", {"text": text})
    assert planned["base_version"] == 1
    assert not planned["same"]
    assert {change["name"] for change in planned["changes"]} >= {"acme", "team-a"}
    assert live_caps(postgres, database) == []  # a plan changes nothing
    answer = await apply(admin, text, 1)
    assert answer.status_code == 200
    applied = answer.json()
    assert (applied["version"], applied["unchanged"]) == (2, False)
    assert applied["digest"] == planned["digest"]
    assert live_caps(postgres, database) == [("team", "team-a", "micro_usd", 1000)]
    shown = await admin.ok("GET", "/governance")
    assert (shown["version"], shown["text"], shown["actor"]) == (2, text, "alice")
    assert shown["reason"] == "r"
    again = (await apply(admin, text, 2)).json()
    assert (again["version"], again["unchanged"]) == (2, True)
    assert replica.feed.current().snapshot.version == 2
    with postgres.superuser(database) as connection:
        rows = connection.execute(
            "SELECT actor, subject, reason, detail->>'version' FROM audit"
            " WHERE action = 'governance.apply' ORDER BY audit_id"
        ).fetchall()
    assert rows[-1] == ("alice", "version 2", "r", "2")


@pytest.mark.parametrize(
    ("per", "window"),
    [
        ("month", {"window_kind": "calendar", "window_unit": "month", "window_zone": "UTC"}),
        ("lifetime", {"window_kind": "lifetime"}),
        ("hour", {"window_kind": "fixed", "window_seconds": 3600}),
    ],
)
async def test_a_cap_that_was_set_at_runtime_is_loosened_only_by_name(  # noqa: PLR0917  fixtures
    admin: Admin,
    replica: Replica,
    postgres: Postgres,
    database: str,
    per: str,
    window: dict[str, Any],
) -> None:
    emergency = {
        "scope": "team", "scope_id": "team-a", "dimension": "micro_usd", "amount": 10,
        "reason": "now", **window,
    }  # fmt: skip
    await replica.mint(team="team-a")
    await admin.ok("PUT", "/caps", emergency)
    text = example_text() + TEAMS.replace("per: month", f"per: {per}")
    refused = await apply(admin, text, 1)
    assert refused.status_code == 409
    assert "cap-set-at-runtime" in refused.text
    assert live_caps(postgres, database) == []
    allowed = await apply(admin, text, 1, allow=["cap-set-at-runtime"])
    assert allowed.status_code == 200, allowed.text
    assert live_caps(postgres, database) == [("team", "team-a", "micro_usd", 1000)]


async def test_plans_leave_threads_to_versions_that_come_into_force(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may only look may plan, and a large text takes seconds of a thread."""
    running, most = 0, 0
    real = Texts.compile

    def slow(self: Texts, text: str) -> CompiledGovernance:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.05)
        running -= 1
        return real(self, text)

    monkeypatch.setattr(Texts, "compile", slow)
    texts = [f"{example_text()}# {number}\n" for number in range(5)]
    plans = [admin.ok("POST", "/governance/plan", {"text": text}) for text in texts]
    assert [plan["base_version"] for plan in await asyncio.gather(*plans)] == [1] * 5
    assert most == 1


async def test_an_apply_on_an_old_plan_is_refused(admin: Admin) -> None:
    assert (await apply(admin, example_text() + TEAMS, 1)).status_code == 200
    late = await apply(admin, example_text() + "# other\n", 1)
    assert late.status_code == 409
    assert late.json()["error"]["code"] == "version_conflict"
    assert late.json()["in_force"] == 2


async def test_of_applies_at_once_one_wins(admin: Admin, replica: Replica) -> None:
    answers = await asyncio.gather(
        *(apply(admin, example_text() + f"# {number}\n", 1) for number in range(6))
    )
    assert sorted(answer.status_code for answer in answers) == [200] + [409] * 5
    [winner] = [answer.json() for answer in answers if answer.status_code == 200]
    assert replica.feed.current().snapshot.version == winner["version"] == 2
    listed = (await admin.ok("GET", "/governance/versions"))["versions"]
    assert [row["version"] for row in listed] == [2, 1]


async def test_a_wrong_spec_names_the_line(admin: Admin) -> None:
    text = example_text() + "teams: [{name: Bad Name}]\n"
    line = text.count("\n")
    for path, body in [
        ("/governance/plan", {"text": text}),
        ("/governance/apply", {"text": text, "base_version": 1, "reason": "r"}),
    ]:
        status, answer = await admin.error("POST", path, body)
        assert status == 400
        assert answer["error"]["code"] == "governance_invalid"
        assert [problem["line"] for problem in answer["problems"]] == [line]


async def test_orphaned_keys_block_unless_they_are_allowed(
    admin: Admin, replica: Replica, postgres: Postgres, database: str
) -> None:
    key, _ = await replica.mint(team="team-b")
    await replica.feed.refresh()
    answer = await apply(admin, example_text() + TEAMS, 1)
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "governance_blocked"
    assert answer.json()["blocking"] == ["key-orphaned"]
    assert live_caps(postgres, database) == []
    wrong = await apply(admin, example_text() + TEAMS, 1, allow=["anything"])
    assert wrong.status_code == 400
    assert "valid: " in wrong.json()["error"]["message"]
    assert (
        await apply(admin, example_text() + TEAMS, 1, allow=["key-orphaned"])
    ).status_code == 200
    with pytest.raises(Exception, match="not declared any more"):
        await replica.call(key)


async def test_a_model_that_is_not_deployed_needs_a_rollout(
    admin: Admin, postgres: Postgres, database: str
) -> None:
    other = example_text().replace("upstream_model: sim-large", "upstream_model: sim-huge")
    planned = await admin.ok("POST", "/governance/plan", {"text": other})
    assert "model-not-deployed" in planned["blocking"]
    [finding] = [f for f in planned["findings"] if f["code"] == "model-not-deployed"]
    assert "sim-large" in finding["message"]
    assert (await apply(admin, other, 1)).status_code == 409
    # A replica whose translator has it: the version comes from there, and this one knows.
    async with replica_of(postgres, database, text=other) as newer:
        await newer.apply(other)
    async with replica_of(postgres, database) as older:
        await older.feed.refresh()
        assert older.feed.current().snapshot.undeployed == {"sim-large"}


async def test_prices_change_live(admin: Admin, replica: Replica) -> None:
    text = example_text().replace("2026-11-local", "2026-12-local")
    text = text.replace("input_micro_usd_per_mtok: 150000", "input_micro_usd_per_mtok: 160000")
    assert (await apply(admin, text, 1)).status_code == 200
    snapshot = replica.feed.current().snapshot
    assert snapshot.price_version == "2026-12-local"
    assert (await admin.ok("GET", "/models"))["price_version"] == "2026-12-local"


async def test_rollback_is_a_new_version_and_counters_stay(
    admin: Admin, postgres: Postgres, database: str
) -> None:
    assert (await apply(admin, example_text() + TEAMS, 1)).status_code == 200
    with postgres.superuser(database) as connection:
        [before] = connection.execute("SELECT cap_id FROM cap WHERE scope = 'team'").fetchall()
    back = await admin.ok("POST", "/governance/rollback", {"version": 1, "reason": "bad"})
    assert back["version"] == 3
    assert live_caps(postgres, database) == []
    forth = await admin.ok("POST", "/governance/rollback", {"version": 2, "reason": "good"})
    assert forth["version"] == 4
    assert live_caps(postgres, database) == [("team", "team-a", "micro_usd", 1000)]
    with postgres.superuser(database) as connection:
        assert connection.execute("SELECT cap_id FROM cap WHERE scope = 'team'").fetchall() == [
            before
        ]
    listed = (await admin.ok("GET", "/governance/versions"))["versions"]
    assert [(row["version"], row["rollback_of"], row["in_force"]) for row in listed] == [
        (4, 2, True), (3, 1, False), (2, None, False), (1, None, False),
    ]  # fmt: skip
    page = await admin.ok("GET", "/governance/versions?limit=2")
    assert page["next"] == 3
    rest = await admin.ok("GET", "/governance/versions?limit=2&before=3")
    assert [row["version"] for row in rest["versions"]] == [2, 1]
    status, _ = await admin.error("POST", "/governance/rollback", {"version": 99, "reason": "r"})
    assert status == 404


async def test_a_rollback_undoes_no_version_that_came_since_somebody_looked(
    admin: Admin, postgres: Postgres, database: str
) -> None:
    """Who rolls version 2 back has not seen version 3, which somebody applied a second before."""
    assert (await apply(admin, example_text() + "# 2\n", 1)).status_code == 200
    assert (await apply(admin, example_text() + TEAMS, 2)).status_code == 200
    body = {"version": 1, "base_version": 2, "reason": "2 is bad"}
    status, answer = await admin.error("POST", "/governance/rollback", body)
    assert (status, answer["error"]["code"]) == (409, "version_conflict")
    assert answer["in_force"] == 3
    assert live_caps(postgres, database) == [("team", "team-a", "micro_usd", 1000)]
    back = await admin.ok("POST", "/governance/rollback", {**body, "base_version": 3})
    assert back["version"] == 4
    assert live_caps(postgres, database) == []


async def test_of_rollbacks_at_once_one_wins(admin: Admin) -> None:
    assert (await apply(admin, example_text() + "# 2\n", 1)).status_code == 200
    body = {"version": 1, "base_version": 2, "reason": "bad"}
    answers = await asyncio.gather(
        *(admin.send("POST", "/governance/rollback", body) for _ in range(4))
    )
    assert sorted(answer.status_code for answer in answers) == [200] + [409] * 3


async def test_a_cap_that_comes_back_is_measured_by_what_it_has_counted(
    admin: Admin, postgres: Postgres, database: str
) -> None:
    plain, lower = example_text(), example_text() + TEAMS.replace("1000", "100")
    assert (await apply(admin, example_text() + TEAMS, 1)).status_code == 200
    with postgres.superuser(database) as connection:
        connection.execute(
            "INSERT INTO counter (scope, scope_id, dimension, window_seconds, window_key,"
            " window_start, window_end, settled) SELECT c.scope, c.scope_id, c.dimension,"
            " c.window_seconds, c.window_key, w.window_start, w.window_end, 900 FROM cap c,"
            " cap_window(c.window_kind, abs(c.window_seconds), c.window_unit, c.window_zone,"
            " clock_timestamp()) w WHERE c.scope = 'team'"
        )
    assert (await apply(admin, plain, 2)).status_code == 200
    planned = await admin.ok("POST", "/governance/plan", {"text": lower})
    assert "cap-below-spend" in planned["blocking"]
    assert (await apply(admin, lower, 3)).status_code == 409
    enough = await admin.ok("POST", "/governance/plan", {"text": example_text() + TEAMS})
    assert enough["blocking"] == []
    body = {
        "scope": "team", "scope_id": "team-a", "dimension": "micro_usd", "amount": 100,
        "window_kind": "calendar", "window_unit": "month", "reason": "r",
    }  # fmt: skip
    assert (await apply(admin, lower.replace("n: micro_usd", "n: requests"), 3)).status_code == 200
    status, answer = await admin.error("PUT", "/caps", body)
    assert (status, answer["error"]["code"], answer["used"]) == (409, "cap-below-spend", 900)
    await admin.ok("PUT", "/caps", {**body, "allow": ["cap-below-spend"]})
    with postgres.superuser(database) as connection:
        connection.execute("DELETE FROM counter")


async def test_versions_cannot_be_rewritten(
    replica: Replica, postgres: Postgres, database: str
) -> None:
    for statement in (
        "UPDATE governance_version SET text = ''", "DELETE FROM governance_version",
        "TRUNCATE governance_version CASCADE",
    ):  # fmt: skip
        with (
            postgres.superuser(database) as connection,
            pytest.raises(Exception, match="append-only"),
        ):
            connection.execute(statement)


async def test_the_file_of_the_deployment_is_applied_once(
    postgres: Postgres, database: str
) -> None:
    first, second = example_text(), example_text() + TEAMS
    async with replica_of(postgres, database) as one, replica_of(postgres, database) as two:
        files = [DeploymentFile(replica.versions, first) for replica in (one, two)]
        await asyncio.gather(*(file.seed() for file in files))  # replicas start together
        assert (await one.versions.version() or {})["version"] == 1
        await DeploymentFile(one.versions, second).seed()
        await DeploymentFile(two.versions, first).seed()  # an old pod comes back
        row = await one.versions.version() or {}
        assert (row["version"], row["text"], row["actor"]) == (2, second, "deployment")


async def test_a_file_with_blocking_findings_leaves_the_last_version(
    replica: Replica,
) -> None:
    await replica.mint(team="team-b")
    file = DeploymentFile(replica.versions, example_text() + TEAMS)
    await file.seed()
    assert file.problem is not None
    assert "key-orphaned" in file.problem
    assert (await replica.versions.version() or {})["version"] == 1


async def test_a_file_that_was_in_force_and_is_not_is_told(admin: Admin, replica: Replica) -> None:
    """A deployment that goes back to an earlier file: it is applied by itself only once."""
    first, second = (example_text() + f"# {number}\n" for number in (1, 2))
    for text in (first, second):
        await DeploymentFile(replica.versions, text).seed()
    file = DeploymentFile(replica.versions, first)
    assert file.trouble(replica.feed.current().snapshot) is None  # it is not known yet
    with capture_logs() as logs:
        await file.seed()
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == [OVERTAKEN]
    await replica.feed.refresh()
    trouble = file.trouble(replica.feed.current().snapshot)
    assert trouble is not None
    assert trouble.line == OVERTAKEN
    assert "version 3 has another text" in trouble.words
    assert "terrace governance apply" in trouble.words
    assert (await apply(admin, first, 3)).status_code == 200
    assert file.trouble(replica.feed.current().snapshot) is None
    with capture_logs() as logs:
        await DeploymentFile(replica.versions, first).seed()
    assert [line for line in logs if line["log_level"] == "warning"] == []


async def test_a_file_that_was_refused_is_no_problem_once_somebody_allows_it(
    admin: Admin, replica: Replica
) -> None:
    await replica.mint(team="team-b")
    text = example_text() + TEAMS
    file = DeploymentFile(replica.versions, text)
    await file.seed()
    trouble = file.trouble(replica.feed.current().snapshot)
    assert trouble is not None
    assert trouble.line == NOT_APPLIED
    body = {"text": text, "base_version": 1, "reason": "r", "allow": ["key-orphaned"]}
    await admin.ok("POST", "/governance/apply", body)
    assert file.trouble(replica.feed.current().snapshot) is None


async def test_every_change_needs_a_reason(admin: Admin) -> None:
    for path, body in [
        ("/governance/apply", {"text": "x", "base_version": 1}),
        ("/governance/rollback", {"version": 1}),
        ("/kill", {"target": "all"}),
    ]:
        status, answer = await admin.error("POST", path, body)
        assert status == 400
        assert re.search("reason", answer["error"]["message"])
