"""governance, kill, unkill, key show and rotate: against a fake admin API with its own books."""

import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from .conftest import Invoke
from .fake_admin import ADMIN_KEY, FakeAdmin

TEXT = (files("terrace_common") / "examples" / "governance.local.yaml").read_text("utf-8")
BLOCKING = {"code": "key-orphaned", "message": "2 live keys", "line": 7, "blocking": True}
NOTE = {"code": "policy-unused", "message": "policy 'x'", "line": None, "blocking": False}
IN_FORCE = {"version": 5, "applied_at": "2026-12-01T10:00:00Z", "actor": "jo", "reason": "hotfix",
            "text": TEXT}  # fmt: skip
CHANGE = {"action": "changed", "kind": "team", "name": "a", "detail": ["org: unset -> acme"]}


@pytest.fixture
def admin(clone: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAdmin]:
    del clone
    with FakeAdmin() as running:
        monkeypatch.setenv("TERRACE_ADMIN_URL", running.url)
        monkeypatch.setenv("TERRACE_ADMIN_KEY", ADMIN_KEY)
        yield running


@pytest.fixture
def spec(tmp_path: Path) -> str:
    path = tmp_path / "governance.yaml"
    path.write_text(TEXT)
    return str(path)


def planned(admin: FakeAdmin, *findings: dict[str, Any]) -> None:
    blocking = sorted({finding["code"] for finding in findings if finding["blocking"]})
    plan = {"base_version": 4, "changes": [CHANGE], "findings": findings, "blocking": blocking}
    admin.answers["/admin/v1/governance/plan"] = (200, plan)
    admin.answers["/admin/v1/governance/apply"] = (200, {"version": 5, **plan})


def refusal(code: str, **more: object) -> dict[str, Any]:
    return {"error": {"message": "no", "type": "x", "param": None, "code": code}, **more}


def posted(admin: FakeAdmin, path: str) -> list[Any]:
    return [body for method, target, body in admin.calls if (method, target) == ("POST", path)]


def test_validate_needs_no_gateway(invoke: Invoke, spec: str) -> None:
    outcome = invoke("governance", "validate", spec)
    assert outcome.code == 0
    assert "2 providers" in outcome.out
    outcome = invoke("governance", "validate", spec, "--json")
    assert json.loads(outcome.out) == {"valid": True, "problems": [], "findings": []}


def test_validate_names_every_line_that_is_wrong(invoke: Invoke, spec: str) -> None:
    wrong = TEXT + "teams: [{name: a, org: acme}]\nusers: [{name: jo, team: b}]\n"
    Path(spec).write_text(wrong)
    lines = len(TEXT.splitlines())
    outcome = invoke("governance", "validate", spec)
    assert outcome.code == 2
    assert f"{spec}:{lines + 1}: teams.0.org: org 'acme' is not declared" in outcome.err
    assert f"{spec}:{lines + 2}: users.0.team: team 'b' is not declared" in outcome.err
    said = json.loads(invoke("governance", "validate", spec, "--json").out)
    assert [problem["line"] for problem in said["problems"]] == [lines + 1, lines + 2]


@pytest.mark.parametrize("command", ["validate", "plan", "apply"])
@pytest.mark.parametrize("content", [None, b"\xff", b"version: 1\n", b"version: 2"])
def test_a_file_that_is_none_is_refused_before_anything_is_sent(
    invoke: Invoke, admin: FakeAdmin, tmp_path: Path, command: str, content: bytes | None
) -> None:
    path = tmp_path / "wrong.yaml"
    if content is not None:
        path.write_bytes(content)
    more = ["--reason", "r"] if command == "apply" else []
    outcome = invoke("governance", command, str(path), *more)
    assert outcome.code == 2
    assert "wrong.yaml" in outcome.err
    assert "Traceback" not in outcome.err
    assert admin.calls == []


def test_plan_shows_the_diff_and_says_whether_apply_would_take_it(
    invoke: Invoke, admin: FakeAdmin, spec: str
) -> None:
    planned(admin, NOTE)
    outcome = invoke("governance", "plan", spec)
    assert outcome.code == 0
    assert "~ team a\n    org: unset -> acme\n" in outcome.out
    assert "note: policy 'x' [policy-unused]" in outcome.out
    assert admin.calls == [("POST", "/admin/v1/governance/plan", {"text": TEXT})]
    planned(admin, BLOCKING)
    outcome = invoke("governance", "plan", spec)
    assert outcome.code == 1
    assert "blocks: 2 live keys [key-orphaned] (line 7)" in outcome.out
    assert "--allow key-orphaned" in outcome.out
    assert json.loads(invoke("governance", "plan", spec, "--json").out)["blocking"] == [
        "key-orphaned"
    ]


def test_apply_is_for_the_version_that_was_planned_against(
    invoke: Invoke, admin: FakeAdmin, spec: str
) -> None:
    planned(admin, NOTE)
    outcome = invoke("governance", "apply", spec, "--reason", "new team")
    assert outcome.code == 0
    assert "Version 5 is in force." in outcome.out
    assert posted(admin, "/admin/v1/governance/apply") == [
        {"text": TEXT, "base_version": 4, "reason": "new team", "allow": []}
    ]


def test_apply_sends_nothing_while_a_finding_blocks(
    invoke: Invoke, admin: FakeAdmin, spec: str
) -> None:
    planned(admin, BLOCKING)
    outcome = invoke("governance", "apply", spec, "--reason", "r", "--allow", "cap-below-spend")
    assert outcome.code == 1
    assert "--allow key-orphaned" in outcome.err
    assert posted(admin, "/admin/v1/governance/apply") == []
    outcome = invoke("governance", "apply", spec, "--reason", "r", "--allow", "key-orphaned")
    assert outcome.code == 0
    assert posted(admin, "/admin/v1/governance/apply")[0]["allow"] == ["key-orphaned"]
    assert "allowed: 2 live keys [key-orphaned]" in outcome.out
    assert "--allow" not in outcome.out


def test_apply_that_loses_a_race_says_so(invoke: Invoke, admin: FakeAdmin, spec: str) -> None:
    planned(admin)
    admin.answers["/admin/v1/governance/apply"] = (409, refusal("version_conflict"))
    outcome = invoke("governance", "apply", spec, "--reason", "r")
    assert outcome.code == 1
    assert "in between" in outcome.err
    blocked = refusal("governance_blocked", findings=[BLOCKING])
    admin.answers["/admin/v1/governance/apply"] = (409, blocked)
    outcome = invoke("governance", "apply", spec, "--reason", "r")
    assert outcome.code == 1
    assert "2 live keys" in outcome.out
    admin.answers["/admin/v1/governance/apply"] = (400, refusal("invalid_request"))
    assert invoke("governance", "apply", spec, "--reason", "r").code == 2


def test_apply_and_rollback_want_a_reason(invoke: Invoke, admin: FakeAdmin, spec: str) -> None:
    assert invoke("governance", "apply", spec).code == 2
    assert invoke("governance", "rollback", "3").code == 2
    assert admin.calls == []


def test_rollback_is_an_apply_of_an_older_text(invoke: Invoke, admin: FakeAdmin) -> None:
    path = "/admin/v1/governance/rollback"
    admin.answers["/admin/v1/governance"] = (200, IN_FORCE)
    admin.answers[path] = (200, {"version": 6, "changes": [CHANGE], "findings": []})
    outcome = invoke("governance", "rollback", "3", "--reason", "bad")
    assert outcome.code == 0
    assert "Version 6 is in force, with the text of version 3." in outcome.out
    assert posted(admin, path) == [{"version": 3, "base_version": 5, "reason": "bad", "allow": []}]
    admin.answers[path] = (409, refusal("governance_blocked", changes=[], findings=[BLOCKING]))
    assert invoke("governance", "rollback", "3", "--reason", "bad").code == 1
    admin.answers[path] = (404, refusal("not_found"))
    assert invoke("governance", "rollback", "3", "--reason", "bad").code == 2


def test_rollback_undoes_only_what_it_showed(invoke: Invoke, admin: FakeAdmin) -> None:
    path = "/admin/v1/governance/rollback"
    admin.answers["/admin/v1/governance"] = (200, IN_FORCE)
    admin.answers[path] = (409, refusal("version_conflict", in_force=6))
    outcome = invoke("governance", "rollback", "3", "--reason", "bad")
    assert outcome.code == 1
    assert "This undoes version 5, applied 2026-12-01T10:00:00Z by jo: hotfix" in outcome.err
    assert "in between, and nothing was applied" in outcome.err
    assert "run the same command again" in outcome.err
    given = invoke("governance", "rollback", "3", "--reason", "bad", "--base-version", "4")
    assert given.code == 1
    assert "give the one to undo" in given.err
    assert "same command" not in given.err
    assert [body["base_version"] for body in posted(admin, path)] == [5, 4]
    admin.answers["/admin/v1/governance"] = (404, refusal("not_found"))  # there is none yet
    assert invoke("governance", "rollback", "3", "--reason", "bad").code == 2
    assert len(posted(admin, path)) == 2


def test_history_and_show(invoke: Invoke, admin: FakeAdmin) -> None:
    versions = [
        {"version": 2, "applied_at": "2026-11-30T10:00:00Z", "actor": "jo", "reason": "two"},
        {"version": 1, "applied_at": "2026-11-29T10:00:00Z", "actor": "start", "reason": None},
    ]
    admin.answers["/admin/v1/governance/versions"] = (200, {"versions": versions, "next": None})
    out = invoke("governance", "history").out
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["2", "1"]
    said = json.loads(invoke("governance", "history", "--limit", "1", "--json").out)
    assert said["versions"] == versions[:1]
    admin.answers["/admin/v1/governance"] = (200, {**versions[0], "text": TEXT})
    outcome = invoke("governance", "show", "--version", "2")
    assert outcome.out == TEXT
    assert "applied 2026-11-30T10:00:00Z by jo: two" in outcome.err
    assert admin.calls[-1][1] == "/admin/v1/governance?version=2"


@pytest.mark.parametrize(
    "target",
    ["key:key_0", "team:a", "model:sim-small", "provider:p", "org:acme", "all",
     "key:oidc:0123456789abcdef01234567", "subject:corp:auth0|8f 3a",
     "subject:corp:zoé@acme.example"],
)  # fmt: skip
def test_kill_and_unkill(invoke: Invoke, admin: FakeAdmin, target: str) -> None:
    for command in ("kill", "unkill"):
        admin.answers[f"/admin/v1/{command}"] = (200, {"target": target, "active": True})
        outcome = invoke(command, target, "--reason", "incident 7")
        assert outcome.code == 0
        assert admin.calls[-1] == (
            "POST",
            f"/admin/v1/{command}",
            {"target": target, "reason": "incident 7"},
        )


@pytest.mark.parametrize(
    "arguments",
    [
        ("kill", "a", "--reason", "r"),
        ("kill", "tenant:a", "--reason", "r"),
        ("kill", "key:a b", "--reason", "r"),
        ("kill", "subject:zoe", "--reason", "r"),
        ("kill", "subject:corp:", "--reason", "r"),
        ("kill", "subject:corp:a\nb", "--reason", "r"),
        ("kill", "team:a"),
        ("kill", "--reason", "r"),
        ("kill", "all", "--reason", "  "),
        ("kill", "team:a", "--list"),
        ("unkill", "team:", "--reason", "r"),
        ("key", "rotate", "tk-secret"),
        ("key", "rotate", "key_0", "--overlap", "soon"),
        ("key", "show", "bot-prod"),
        ("key", "create"),
    ],
)
def test_wrong_usage_sends_nothing(
    invoke: Invoke, admin: FakeAdmin, arguments: tuple[str, ...]
) -> None:
    outcome = invoke(*arguments)
    assert outcome.code == 2
    assert admin.calls == []
    assert "tk-secret" not in outcome.out + outcome.err


def test_what_is_stopped_is_listed(invoke: Invoke, admin: FakeAdmin) -> None:
    admin.answers["/admin/v1/kill"] = (200, {"switches": []})
    assert invoke("kill", "--list").out == "nothing is stopped\n"
    switch = {"target": "team:a", "since": "2026-11-30T10:00:00Z", "actor": "jo", "reason": "r"}
    admin.answers["/admin/v1/kill"] = (200, {"switches": [switch]})
    assert "team:a" in invoke("kill", "--list").out


def test_a_key_is_shown_and_rotated(invoke: Invoke, admin: FakeAdmin) -> None:
    invoke("key", "create", "--app", "bot", "--policies", "eu-only", "--team", "a")
    assert admin.calls[-1][2] == {"team": "a", "app": "bot", "policies": ["eu-only"]}
    admin.answers["/admin/v1/keys/key_0"] = (200, admin.keys["key_0"])
    out = invoke("key", "show", "key_0").out
    assert "settled_micro_usd" in out
    assert "$0.000011" in out
    rotated = {"key": "tk-new", "old_secret_expires_at": "2026-12-01T00:00:00Z", "key_id": "key_0"}
    admin.answers["/admin/v1/keys/key_0/rotate"] = (201, rotated)
    outcome = invoke("key", "rotate", "key_0", "--overlap", "12h", "--reason", "quarterly")
    assert outcome.code == 0
    assert "tk-new" in outcome.out
    assert "tk-new" not in outcome.err
    assert admin.calls[-1][2] == {"overlap_seconds": 43_200, "reason": "quarterly"}


def test_all_pages_of_keys_are_listed(invoke: Invoke, admin: FakeAdmin) -> None:
    for _ in range(3):
        invoke("key", "create", "--team", "a")
    everything = list(admin.keys.values())
    inner = admin.handle

    def paged(method: str, target: str, body: Any) -> tuple[int, Any]:
        if target == "/admin/v1/keys":
            return 200, {"keys": everything[:2], "next": "key_1"}
        if target == "/admin/v1/keys?after=key_1":
            return 200, {"keys": everything[2:], "next": None}
        return inner(method, target, body)

    admin.handle = paged
    keys = json.loads(invoke("key", "list", "--json").out)["keys"]
    assert [key["key_id"] for key in keys] == ["key_0", "key_1", "key_2"]


def test_show_says_that_the_file_of_the_deployment_is_not_in_force(
    invoke: Invoke, admin: FakeAdmin
) -> None:
    path = "/admin/v1/governance"
    admin.answers[path] = (200, {**IN_FORCE, "problem": "the file is not in force: apply it"})
    outcome = invoke("governance", "show")
    assert (outcome.code, outcome.out) == (0, TEXT)
    assert "Problem: the file is not in force: apply it" in outcome.err
    admin.answers[path] = (200, {**IN_FORCE, "problem": None})
    assert "Problem" not in invoke("governance", "show").err
    admin.answers[path] = (200, {**IN_FORCE, "problem": None, "note": "another text is in force"})
    assert "Note: another text is in force" in invoke("governance", "show").err
