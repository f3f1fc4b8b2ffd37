"""`terrace audit`: against a fake admin API."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import Invoke
from .fake_admin import ADMIN_KEY, FakeAdmin

WHOLE: dict[str, Any] = {
    "whole": True, "chains": 2, "entries": 12, "anchors": 3, "unsigned_anchors": 0,
    "findings": [], "more_findings": 0,
}  # fmt: skip
BROKEN: dict[str, Any] = WHOLE | {
    "whole": False,
    "findings": [
        {"kind": "missing", "writer": "w-1", "seq": 5, "text": "entries 5 to 5 are missing"}
    ],
}


@pytest.fixture
def admin(clone: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAdmin]:
    del clone
    with FakeAdmin() as running:
        monkeypatch.setenv("TERRACE_ADMIN_URL", running.url)
        monkeypatch.setenv("TERRACE_ADMIN_KEY", ADMIN_KEY)
        yield running


@pytest.mark.parametrize(("answer", "code"), [(WHOLE, 0), (BROKEN, 1)])
def test_verify_fails_when_something_was_found(
    invoke: Invoke, admin: FakeAdmin, answer: dict[str, Any], code: int
) -> None:
    admin.answers["/admin/v1/audit/verify"] = (200, answer)
    outcome = invoke("audit", "verify")
    assert outcome.code == code
    assert ("NOT whole" in outcome.out) == bool(code)
    assert ("entries 5 to 5 are missing" in outcome.out) == bool(code)
    outcome = invoke("audit", "verify", "--json", "--writer", "w-1")
    assert outcome.code == code
    assert json.loads(outcome.out) == answer
    assert admin.calls[-1] == ("POST", "/admin/v1/audit/verify", {"writer": "w-1"})


def test_a_reason_forges_no_row_and_no_terminal_obeys_it(invoke: Invoke, admin: FakeAdmin) -> None:
    row = {"created_at": "t1", "actor": "eve", "action": "key.create", "subject": "key_x"}
    forged = "x\x1b[1A\x1b[2K\nt1  admin  cap.put  team:a  routine\r\u202eenituor\u2028\x9b2J"
    answer = {"changes": [{**row, "reason": forged}, {**row, "reason": "d\u00fcrr"}], "next": None}
    admin.answers["/admin/v1/audit"] = (200, answer)
    out = invoke("audit", "list").out
    assert all(line.isprintable() for line in out.split("\n"))
    assert len(out.splitlines()) == 3
    assert "x\\x1b[1A\\x1b[2K\\nt1  admin" in out
    assert "d\u00fcrr" in out
    assert json.loads(invoke("audit", "list", "--json").out) == {"changes": answer["changes"]}
    finding = {"kind": "changed", "writer": "w\x1b[2J", "seq": 5, "text": "a\nThe ledger is whole"}
    admin.answers["/admin/v1/audit/verify"] = (200, BROKEN | {"findings": [finding]})
    assert invoke("audit", "verify").out.splitlines()[0] == (
        "changed: w\\x1b[2J entry 5: a\\nThe ledger is whole"
    )


def test_verify_says_what_it_cannot_see_without_anchors(invoke: Invoke, admin: FakeAdmin) -> None:
    admin.answers["/admin/v1/audit/verify"] = (200, WHOLE | {"anchors": 0})
    assert "no anchors outside of the database" in invoke("audit", "verify").out


def test_chains_and_changes_are_listed(invoke: Invoke, admin: FakeAdmin) -> None:
    chain = {
        "writer": "w-1", "replica": "gateway-0", "seq": 7, "hash": "ab" * 32, "sealed_at": None,
        "anchored_seq": 6,
    }  # fmt: skip
    admin.answers["/admin/v1/audit/chains"] = (200, {"chains": [chain], "next": None})
    assert "abababababababab" in invoke("audit", "chains").out
    change = {
        "created_at": "2026-11-30T00:00:00Z", "actor": "jo", "action": "key.create",
        "subject": "key_1", "reason": None,
    }  # fmt: skip
    admin.answers["/admin/v1/audit"] = (200, {"changes": [change], "next": None})
    assert "key.create" in invoke("audit", "list").out
    assert json.loads(invoke("audit", "list", "--json").out) == {"changes": [change]}
