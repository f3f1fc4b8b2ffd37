"""quotas: against a fake admin API."""

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


def pool(**changes: Any) -> dict[str, Any]:
    quota = {
        "dimension": "total_tokens", "window_seconds": 60, "quota_code": "L-1",
        "quota_name": "name", "quota_value": 200_000.0, "source": "applied", "share": 180_000,
        "in_force": 180_000, "vanished_at": None, "degraded_at": None, "age_seconds": 12.3,
        "stale_after_seconds": 10_800, "stale_percent": 80, "fence": 1,
    }  # fmt: skip
    quota.update(changes.pop("quota", {}))
    sound: dict[str, Any] = {
        "pool": "us-east-1/vendor.model", "region": "us-east-1", "models": ["m"],
        "access": "available", "leads_to": [], "findings": [], "age_seconds": 12.3,
        "quotas": [quota],
    }  # fmt: skip
    return {**sound, **changes}


def answer(admin: FakeAdmin, *pools: dict[str, Any]) -> None:
    admin.answers["/admin/v1/upstream-quotas"] = (200, {"pools": list(pools)})


def test_quotas_are_listed_with_shares_and_ages(invoke: Invoke, admin: FakeAdmin) -> None:
    answer(admin, pool())
    outcome = invoke("quotas", "--check")
    assert outcome.code == 0
    for word in ("us-east-1/vendor.model", "tokens per minute", "200000 (applied, L-1)", "180000",
                 "12 s", "fresh", "1 quota in 1 pool."):  # fmt: skip
        assert word in outcome.out


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"quota": {"degraded_at": "2026-11-30T00:00:00Z", "in_force": 144_000}}, "stale"),
        ({"quota": {"vanished_at": "2026-11-30T00:00:00Z"}}, "vanished"),
        ({"access": "denied"}, "may not call"),
        ({"findings": ["ambiguous"]}, "smallest holds"),
        ({"findings": ["unmatched"], "quotas": []}, "names no quota"),
        ({"findings": ["something_new"]}, "something_new"),
    ],
)
def test_what_is_wrong_is_told_and_checked(
    invoke: Invoke, admin: FakeAdmin, changes: dict[str, Any], word: str
) -> None:
    answer(admin, pool(**changes))
    assert word in invoke("quotas").out
    assert invoke("quotas").code == 0
    assert invoke("quotas", "--check").code == 1
    told = json.loads(invoke("quotas", "--check", "--json").out)
    assert len(told["problems"]) == 1


def test_no_quotas_are_no_error(invoke: Invoke, admin: FakeAdmin) -> None:
    answer(admin)
    assert invoke("quotas", "--check").out == "0 quotas in 0 pools.\n"
