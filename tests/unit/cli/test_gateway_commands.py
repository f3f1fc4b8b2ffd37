"""key, spend, reconcile: against a fake admin API that checks what it is sent."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from terrace_cli.commands.gateway import parse_expiry
from terrace_cli.errors import NotRunningError, UsageError
from terrace_cli.gateway_admin import GatewayAdmin

from .conftest import Invoke
from .fake_admin import ADMIN_KEY, FakeAdmin


@pytest.fixture
def admin(clone: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAdmin]:
    del clone
    with FakeAdmin() as running:
        monkeypatch.setenv("TERRACE_ADMIN_URL", running.url)
        monkeypatch.setenv("TERRACE_ADMIN_KEY", ADMIN_KEY)
        yield running


def test_a_key_is_created_with_exactly_what_was_asked(invoke: Invoke, admin: FakeAdmin) -> None:
    outcome = invoke(
        "key", "create", "--team", "a", "--models", "sim-small, sim-large", "--budget-usd", "1.5",
        "--max-requests", "20", "--rpm", "3", "--name", "n", "--json",
    )  # fmt: skip
    assert outcome.code == 0
    made = json.loads(outcome.out)
    assert made["key"] == "tk-shown-once"
    assert made["key_id"] == "key_0"
    assert admin.calls == [
        (
            "POST",
            "/admin/v1/keys",
            {
                "team": "a",
                "models": ["sim-small", "sim-large"],
                "budget_micro_usd": 1_500_000,
                "max_requests": 20,
                "requests_per_minute": 3,
                "name": "n",
            },
        )
    ]


def test_limits_that_were_not_asked_for_are_not_sent(invoke: Invoke, admin: FakeAdmin) -> None:
    outcome = invoke("key", "create", "--team", "a")
    assert outcome.code == 0
    assert "tk-shown-once" in outcome.out
    assert "no limits" in outcome.out
    assert admin.calls[0][2] == {"team": "a"}


@pytest.mark.parametrize("as_json", [True, False])
def test_a_change_that_one_replica_has_not_confirmed_is_done_and_said(
    invoke: Invoke, admin: FakeAdmin, *, as_json: bool
) -> None:
    waits = "the newest version\ncannot be used"
    made = {"key": "tk-shown-once", "key_id": "key_0", "team": "a", "pending_here": waits}
    admin.answers["/admin/v1/keys"] = (201, made)
    outcome = invoke("key", "create", "--team", "a", *(["--json"] if as_json else []))
    assert outcome.code == 0
    assert "tk-shown-once" in (json.loads(outcome.out)["key"] if as_json else outcome.out)
    [told] = [line for line in outcome.err.splitlines() if "do not repeat it" in line]
    assert "cannot be used" in told


@pytest.mark.parametrize(
    "arguments",
    [
        ("--budget-usd", "1,5"),
        ("--budget-usd", "-1"),
        ("--models", "a,,b"),
        ("--rpm", "0"),
        ("--max-requests", "-1"),
        ("--max-requests", "0"),
        ("--expires", "yesterday"),
        ("--expires", "2001-01-01T00:00:00Z"),
        ("--expires", "2999-01-01T00:00:00"),
    ],
)
def test_a_wrong_limit_is_refused_before_anything_is_sent(
    invoke: Invoke, admin: FakeAdmin, arguments: tuple[str, ...]
) -> None:
    outcome = invoke("key", "create", "--team", "a", *arguments)
    assert outcome.code == 2
    assert "Traceback" not in outcome.err
    assert admin.calls == []


def test_keys_are_listed_for_people_and_for_scripts(invoke: Invoke, admin: FakeAdmin) -> None:
    invoke("key", "create", "--team", "a", "--budget-usd", "0.25")
    invoke("key", "create", "--team", "b")
    table = invoke("key", "list").out
    assert "key_0" in table
    assert "$0.250000" in table
    assert "tk-" not in table
    assert [
        key["team"]
        for key in json.loads(invoke("key", "list", "--team", "b", "--json").out)["keys"]
    ] == ["b"]


def test_a_key_is_revoked_twice_and_once_all_the_same(invoke: Invoke, admin: FakeAdmin) -> None:
    invoke("key", "create", "--team", "a")
    for _ in range(2):
        outcome = invoke("key", "revoke", "key_0", "--reason", "left")
        assert outcome.code == 0
    assert admin.calls[-1][2] == {"reason": "left"}
    assert "revoked" in invoke("key", "list", "--all").out


def test_the_list_shows_live_keys_and_all_of_them_when_asked(
    invoke: Invoke, admin: FakeAdmin
) -> None:
    for _ in range(3):
        invoke("key", "create", "--team", "a")
    invoke("key", "revoke", "key_1")
    admin.keys["key_2"]["expires_at"] = "2001-01-01T00:00:00Z"

    def first_words(text: str) -> list[str]:
        return [line.split()[0] for line in text.splitlines()[1:]]

    outcome = invoke("key", "list")
    assert first_words(outcome.out) == ["key_0"]
    assert "--all shows 2 more" in outcome.err
    everything = invoke("key", "list", "--all").out
    assert first_words(everything) == ["key_0", "key_1", "key_2"]
    for state in ("active", "revoked", "expired"):
        assert state in everything
    for arguments in ((), ("--all",)):
        listed = json.loads(invoke("key", "list", "--json", *arguments).out)["keys"]
        assert [key["key_id"] for key in listed] == ["key_0", "key_1", "key_2"]
    invoke("key", "revoke", "key_0")
    assert invoke("key", "list").out == "no keys; --all shows 3 revoked or expired\n"


def test_where_there_is_no_key_it_says_so(invoke: Invoke, admin: FakeAdmin) -> None:
    assert invoke("key", "list").out == "no keys\n"
    assert invoke("key", "list", "--team", "b", "--all").out == "no keys of team b\n"
    assert json.loads(invoke("key", "list", "--json").out) == {"keys": []}
    assert admin.keys == {}


@pytest.mark.parametrize(("calls", "said"), [("1", "1 call\n"), ("2", "2 calls\n")])
def test_one_call_is_one_call(invoke: Invoke, admin: FakeAdmin, calls: str, said: str) -> None:
    assert said in invoke("key", "create", "--team", "a", "--max-requests", calls).out
    assert admin.keys["key_0"]["max_requests"] == int(calls)


def test_an_unknown_key_id_is_wrong_usage_in_the_gateways_words(
    invoke: Invoke, admin: FakeAdmin
) -> None:
    outcome = invoke("key", "revoke", "key_nobody")
    assert (outcome.code, outcome.err.strip()) == (
        2,
        "Error: The gateway refused: there is no such key",
    )


def test_a_key_given_for_its_id_is_neither_sent_nor_repeated(
    invoke: Invoke, admin: FakeAdmin
) -> None:
    outcome = invoke("key", "revoke", "tk-secret-value")
    assert outcome.code == 2
    assert "tk-secret-value" not in outcome.err + outcome.out
    assert admin.calls == []


def test_spend_by_model(invoke: Invoke, admin: FakeAdmin) -> None:
    answer = {
        "by": "model",
        "rows": [
            {
                "model": "sim-small",
                "requests": 2,
                "input_tokens": 30,
                "output_tokens": 40,
                "settled_micro_usd": 29,
                "outstanding_micro_usd": 1,
            }
        ],
        "total_micro_usd": 29,
        "outstanding_micro_usd": 1,
    }
    admin.answers["/admin/v1/spend"] = (200, answer)
    assert json.loads(invoke("spend", "--by", "model", "--json").out) == answer
    assert admin.calls[-1][1] == "/admin/v1/spend?by=model"
    table = invoke("spend", "--by", "model").out
    assert "$0.000029" in table
    assert "sim-small" in table
    assert invoke("spend", "--by", "day").code == 2


@pytest.mark.parametrize(
    ("still_open", "unreachable", "code"), [(0, [], 0), (1, [], 1), (0, ["simulator-openai"], 1)]
)
def test_reconcile_fails_when_something_is_left_open(
    invoke: Invoke, admin: FakeAdmin, still_open: int, unreachable: list[str], code: int
) -> None:
    answer = {
        "checked": 3,
        "trued_up": 2,
        "not_billed": 1 - still_open,
        "still_open": still_open,
        "unreachable": unreachable,
    }
    admin.answers["/admin/v1/reconcile"] = (200, answer)
    assert invoke("reconcile").code == code
    outcome = invoke("reconcile", "--json")
    assert outcome.code == code
    assert json.loads(outcome.out) == answer


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (503, {"error": {"message": "authority unavailable"}}, 6),
        (500, {"error": {"message": "internal"}}, 1),
        (500, b"<html>", 1),
        (200, b"<html>", 1),
        (200, [1], 1),
        (400, {"error": {"message": "team is too long"}}, 2),
    ],
)
def test_whatever_the_gateway_answers_there_is_a_sentence(
    invoke: Invoke, admin: FakeAdmin, status: int, body: object, code: int
) -> None:
    admin.answers["/admin/v1/keys"] = (status, body)
    outcome = invoke("key", "list")
    assert outcome.code == code
    assert outcome.err.startswith("Error: ")
    assert "unexpected" not in outcome.err


def test_a_wrong_admin_key_is_said_and_never_shown(
    invoke: Invoke, admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERRACE_ADMIN_KEY", "tadm-wrong-one")
    outcome = invoke("key", "list")
    assert outcome.code == 2
    assert "TERRACE_ADMIN_KEY" in outcome.err
    assert "tadm-wrong-one" not in outcome.err


def test_a_gateway_that_is_gone_is_code_6(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERRACE_ADMIN_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("TERRACE_ADMIN_KEY", ADMIN_KEY)
    outcome = invoke("spend")
    assert outcome.code == 6
    assert "terrace status" in outcome.err


def test_a_kill_without_an_answer_in_time_may_be_made_and_may_be_repeated() -> None:
    def late(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("late", request=request)

    with GatewayAdmin("http://gateway", "key", transport=httpx.MockTransport(late)) as admin:
        for kill in (True, False):
            with pytest.raises(NotRunningError, match="not known: run the same command again"):
                admin.switch("all", reason="r", kill=kill)
        with pytest.raises(NotRunningError, match="not known: look before you run it again"):
            admin.use_prices(None, reason="r")
        with pytest.raises(NotRunningError, match=r"30 s\. See `terrace status`"):
            admin.switches()


def test_an_admin_address_without_a_key_is_wrong_usage(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERRACE_ADMIN_URL", "http://127.0.0.1:9")
    outcome = invoke("spend")
    assert outcome.code == 2
    assert "TERRACE_ADMIN_KEY" in outcome.err


def test_without_a_platform_it_says_how_to_start_one(invoke: Invoke) -> None:
    outcome = invoke("key", "list")
    assert outcome.code == 6
    assert "terrace up" in outcome.err


def test_an_expiry_is_a_time_to_come() -> None:
    now = datetime(2026, 11, 30, tzinfo=UTC)
    assert parse_expiry("12h", now=now) == (now + timedelta(hours=12)).isoformat()
    assert parse_expiry("2026-12-01T01:00:00+01:00", now=now) == "2026-12-01T00:00:00+00:00"
    with pytest.raises(UsageError):
        parse_expiry("12 h", now=now)
