"""budgets and alerts: against a fake admin API."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import Invoke
from .fake_admin import ADMIN_KEY, FakeAdmin


@pytest.fixture
def admin(clone: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAdmin]:
    del clone
    with FakeAdmin() as running:
        monkeypatch.setenv("TERRACE_ADMIN_URL", running.url)
        monkeypatch.setenv("TERRACE_ADMIN_KEY", ADMIN_KEY)
        yield running


def cap(**changes: Any) -> dict[str, Any]:
    return {
        "cap_id": 1, "scope": "team", "scope_id": "search", "dimension": "micro_usd",
        "window_kind": "calendar", "window_seconds": 0, "window_unit": "month",
        "window_zone": "Europe/Berlin", "window_ends": "2026-12-31T23:00:00Z",
        "amount": 3_000_000, "mode": "block", "thresholds": [50], "origin": "declared",
        "settled": 1_000_000, "outstanding": 500_001, **changes,
    }  # fmt: skip


def alert(**changes: Any) -> dict[str, Any]:
    return {
        "alert_id": 7, "alert": "0b9f", "scope": "org", "scope_id": "acme",
        "dimension": "requests", "window": "calendar day UTC", "window_start": None,
        "window_ends": None, "mode": "block", "percent": 80, "amount": 100, "used": 81,
        "raised_at": "2026-11-30T10:00:00Z", "rearmed_at": None,
        "recorded_at": "2026-11-30T10:00:01Z", "recorded_by": "gateway-0",
        "deliveries": [{"webhook": "ops", "attempts": 1, "last_error": None,
                        "state": "delivered"}], **changes,
    }  # fmt: skip


def test_budgets_are_listed_the_fullest_first(invoke: Invoke, admin: FakeAdmin) -> None:
    full = cap(
        scope="key", scope_id="key_1", dimension="requests", window_kind="rolling",
        window_seconds=3600, window_ends=None, amount=4, settled=3, outstanding=1, mode="audit",
    )  # fmt: skip
    counted_only = cap(scope_id="nobody", amount=None)
    admin.answers["/admin/v1/caps"] = (200, {"caps": [cap(), full, counted_only], "next": None})
    outcome = invoke("budgets")
    lines = outcome.out.splitlines()
    heads = ["scope", "dimension", "window", "used", "held", "amount", "percent", "ends"]
    assert lines[0].split() == heads
    rows = [line for line in lines if line.startswith(("key", "team"))]
    assert [row.split()[1] for row in rows] == ["key_1", "search"]
    for word in ("requests (audit)", "rolling hour", "100 %"):
        assert word in rows[0]
    for word in (
        "month Europe/Berlin",
        "$1.000000",
        "$0.500001",
        "$3.000000",
        "50 %",
        "2026-12-31T23:00:00Z",
    ):
        assert word in rows[1]
    assert "nobody" not in outcome.out
    assert lines[-1] == "2 budgets."


def test_budgets_can_be_narrowed(invoke: Invoke, admin: FakeAdmin) -> None:
    admin.answers["/admin/v1/caps"] = (200, {"caps": [cap()], "next": None})
    told = json.loads(invoke("budgets", "--scope", "team", "--id", "search", "--json").out)
    [budget] = told["budgets"]
    assert (budget["used"], budget["held"], budget["percent"]) == (1_000_000, 500_001, 50)
    assert admin.calls[-1][1] == "/admin/v1/caps?limit=500&scope=team&scope_id=search"
    assert invoke("budgets", "--over", "51").out == "0 budgets.\n"
    assert "search" in invoke("budgets", "--over", "50").out
    assert invoke("budgets", "--scope", "nonsense").code == 2


def test_a_budget_of_nothing_has_no_percentage(invoke: Invoke, admin: FakeAdmin) -> None:
    nothing = cap(amount=0, settled=0, outstanding=0)
    admin.answers["/admin/v1/caps"] = (200, {"caps": [nothing], "next": None})
    assert "1 budget." in invoke("budgets", "--over", "100").out
    assert json.loads(invoke("budgets", "--json").out)["budgets"][0]["percent"] is None


def test_alerts_are_listed_with_who_was_told(invoke: Invoke, admin: FakeAdmin) -> None:
    waiting = alert(
        alert_id=8, scope="team", scope_id="search", dimension="micro_usd", used=2_000_000,
        amount=2_500_000, deliveries=[],
    )  # fmt: skip
    admin.answers["/admin/v1/alerts"] = (200, {"alerts": [alert(), waiting], "next": None})
    out = invoke("alerts", "--after", "6").out
    assert admin.calls[-1][1] == "/admin/v1/alerts?limit=500&after=6"
    for word in ("org acme", "80 %", "81", "ops: delivered", "$2.000000", "journal", "2 alerts."):
        assert word in out
    assert len(json.loads(invoke("alerts", "--json").out)["alerts"]) == 2


def test_no_alerts_are_no_error(invoke: Invoke, admin: FakeAdmin) -> None:
    admin.answers["/admin/v1/alerts"] = (200, {"alerts": [], "next": None})
    assert invoke("alerts").out == "0 alerts.\n"
