"""`terrace smoke` on a small platform that keeps the contract, and on ones that break it."""

import json
from collections.abc import Callable

import pytest

from terrace_cli.endpoints import Endpoints, write_endpoints
from terrace_cli.smoke import refusals, run

from .conftest import Invoke, Outcome
from .fake_platform import ADMIN_KEY, FakePlatform

Smoke = Callable[..., tuple[Outcome, FakePlatform]]


@pytest.fixture
def smoke(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> Smoke:
    monkeypatch.setattr(run, "_BOOKS_SETTLE_SECONDS", 0.1)
    monkeypatch.setattr(run, "SCRAPE_WAIT_SECONDS", 0.1)
    monkeypatch.setattr(refusals, "POLICY_LEASE_SECONDS", 0.0)
    monkeypatch.setattr(refusals, "_PATIENCE_SECONDS", 0.1)
    monkeypatch.setenv("TERRACE_ADMIN_KEY", ADMIN_KEY)

    def smoke(
        *broken: str, arguments: tuple[str, ...] = ("--json",)
    ) -> tuple[Outcome, FakePlatform]:
        with FakePlatform(*broken) as platform:
            url = platform.url
            write_endpoints(Endpoints(gateway=url, admin=url, prometheus=url, simulator=url))
            monkeypatch.setenv("TERRACE_ADMIN_URL", url)
            return invoke("smoke", *arguments), platform

    return smoke


def failed(outcome: Outcome) -> list[str]:
    return [check["name"] for check in json.loads(outcome.out)["checks"] if not check["passed"]]


def test_a_platform_that_keeps_the_contract_passes(smoke: Smoke) -> None:
    outcome, platform = smoke()
    assert failed(outcome) == [], outcome.out
    assert outcome.code == 0
    document = json.loads(outcome.out)
    assert document["passed"] is True
    assert set(document["checks"][0]) == {"name", "passed", "expected", "seen", "seconds"}
    assert all(key["revoked_at"] for key in platform.keys.values())
    assert all(key["team"].startswith("smoke-") for key in platform.keys.values())


def test_people_get_a_line_per_check_and_no_key(smoke: Smoke) -> None:
    outcome, platform = smoke(arguments=())
    lines = outcome.out.splitlines()
    assert [line[:2] for line in lines[:-2]] == ["ok"] * 26
    assert lines[-1] == "All 26 checks passed."
    assert not any(key in outcome.out + outcome.err for key in (*platform.keys, ADMIN_KEY))


@pytest.mark.parametrize(
    ("broken", "names"),
    [
        ("models", {"models", "denied model"}),
        ("streaming", {"stream"}),
        ("budget", {"exhausted budget"}),
        ("revocation", {"revoked key"}),
        ("rotation", {"rotated key"}),
        ("kill switch", {"kill and unkill"}),
        ("plan", {"governance plan"}),
        ("audit", {"audit verify"}),
        ("counting", {"ledger equals bill"}),
        ("routes", {"unlisted route"}),
        ("price", {"ledger equals bill"}),
        ("double billing", {"ledger equals bill"}),
        ("hidden call", {"ledger equals bill"}),
        ("metrics", {"prometheus"}),
    ],
)
def test_a_broken_promise_fails_its_check(smoke: Smoke, broken: str, names: set[str]) -> None:
    outcome, _ = smoke(broken)
    assert outcome.code == 1
    assert names <= set(failed(outcome))
    assert len(failed(outcome)) <= len(names) + 1, outcome.out


def test_a_platform_that_is_gone_is_code_6(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = "http://127.0.0.1:9"
    write_endpoints(Endpoints(gateway=gone, admin=gone, prometheus=gone, simulator=gone))
    monkeypatch.setenv("TERRACE_ADMIN_URL", gone)
    monkeypatch.setenv("TERRACE_ADMIN_KEY", ADMIN_KEY)
    assert invoke("smoke").code == 6
