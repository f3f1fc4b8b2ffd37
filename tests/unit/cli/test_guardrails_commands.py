"""`terrace guardrails`: against a fake admin API."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import Invoke
from .fake_admin import ADMIN_KEY, FakeAdmin

PATH = "/admin/v1/guardrails/test"
MASKED: dict[str, Any] = {
    "policy": "careful",
    "before": {
        "blocked": False,
        "text": "mail [masked:email]",
        "findings": [{"guardrail": "people", "did": "mask", "rules": ["email"]}],
    },
    "after": {"blocked": False, "text": "mail [masked:email]", "findings": []},
    "not_asked": ["aws"],
}
BLOCKED = MASKED | {
    "after": {
        "blocked": True,
        "text": None,
        "findings": [{"guardrail": "ours", "did": "block", "rules": ["words"]}],
    }
}


@pytest.fixture
def admin(clone: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAdmin]:
    del clone
    with FakeAdmin() as running:
        monkeypatch.setenv("TERRACE_ADMIN_URL", running.url)
        monkeypatch.setenv("TERRACE_ADMIN_KEY", ADMIN_KEY)
        yield running


@pytest.mark.parametrize(("answer", "code"), [(MASKED, 0), (BLOCKED, 1)])
def test_a_text_that_would_be_blocked_fails(
    invoke: Invoke, admin: FakeAdmin, tmp_path: Path, answer: dict[str, Any], code: int
) -> None:
    admin.answers[PATH] = (200, answer)
    file = tmp_path / "text"
    file.write_text("mail jo@acme.example")
    outcome = invoke("guardrails", "test", "--file", str(file), "--policy", "careful")
    assert outcome.code == code
    assert admin.calls == [("POST", PATH, {"policy": "careful", "text": "mail jo@acme.example"})]
    assert "as a prompt: passes\n  people: mask (email)\n" in outcome.out
    assert ("as an answer: blocked\n  ours: block (words)" in outcome.out) == bool(code)
    assert "not asked: aws" in outcome.out
    assert "jo@" not in outcome.out
    as_json = invoke("guardrails", "test", "--file", str(file), "--policy", "careful", "--json")
    assert json.loads(as_json.out) == answer


@pytest.mark.parametrize("data", [b"\xff\xfe", b"x" * (1024 * 1024 + 1)])
def test_what_is_no_text_or_too_large_is_not_sent(
    invoke: Invoke, admin: FakeAdmin, tmp_path: Path, data: bytes
) -> None:
    file = tmp_path / "text"
    file.write_bytes(data)
    outcome = invoke("guardrails", "test", "--file", str(file), "--policy", "careful")
    assert outcome.code == 2
    assert admin.calls == []


def test_the_gateway_s_refusal_is_said(invoke: Invoke, admin: FakeAdmin, tmp_path: Path) -> None:
    error = {"message": "there is no such policy", "code": "model_not_found"}
    admin.answers[PATH] = (404, {"error": error})
    file = tmp_path / "text"
    file.write_text("x")
    outcome = invoke("guardrails", "test", "--file", str(file), "--policy", "nope")
    assert outcome.code == 2
    assert "there is no such policy" in outcome.err
