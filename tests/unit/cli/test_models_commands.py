"""models and prices: against a fake admin API that keeps what it was sent."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from terrace_cli.commands.models import question
from terrace_cli.errors import UsageError
from terrace_common.prices import load_price_book

from .conftest import Invoke
from .fake_admin import ADMIN_KEY, FakeAdmin

RECORDED = Path(__file__).parents[1] / "common" / "recorded" / "litellm_prices.json"
PRICE = {"input_micro_usd_per_mtok": 150_000, "output_micro_usd_per_mtok": 600_000}
EXPLAINED: dict[str, Any] = {
    "asked": "auto",
    "chosen": "small",
    "refusal": None,
    "policies": [],
    "models": [
        {"model": "small", "provider": "p", "rank": 1, "via": "auto", "reason": None,
         "detail": "it may serve the request", "estimated_micro_usd": 652, "price_version": "v"},
        {"model": "large", "provider": "p", "rank": None, "via": None, "reason": "features",
         "detail": "it has no images", "estimated_micro_usd": 9, "price_version": "v"},
    ],
}  # fmt: skip


@pytest.fixture
def admin(clone: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAdmin]:
    del clone
    with FakeAdmin() as running:
        monkeypatch.setenv("TERRACE_ADMIN_URL", running.url)
        monkeypatch.setenv("TERRACE_ADMIN_KEY", ADMIN_KEY)
        yield running


@pytest.fixture
def request_file(tmp_path: Path) -> Path:
    file = tmp_path / "request.json"
    body = {"model": "auto?vision", "messages": [{"role": "user", "content": "hi"}], "tools": [{}]}
    file.write_text(json.dumps({**body, "max_tokens": 7}))
    return file


def test_models_are_listed(invoke: Invoke, admin: FakeAdmin) -> None:
    model = {"name": "a", "provider": "p", "context_tokens": 9, "price": PRICE, "hidden": True,
             "fallbacks": ["b"], "canary": {"model": "c", "percent": 5}}  # fmt: skip
    answer = {"price_version": "v7", "not_deployed": ["a"], "models": [model]}
    admin.answers["/admin/v1/models"] = (200, answer)
    said = invoke("models", "list").out
    for word in ("$0.150000", "not deployed", "hidden", "falls back to b", "5 % to c", "v7"):
        assert word in said
    assert json.loads(invoke("models", "list", "--json").out) == answer


def test_explain_asks_about_the_body_and_shows_every_model(
    invoke: Invoke, admin: FakeAdmin, request_file: Path
) -> None:
    admin.answers["/admin/v1/models/explain"] = (200, EXPLAINED)
    arguments = ("models", "explain", "--request", str(request_file), "--key-id", "key_1")
    outcome = invoke(*arguments, "--hints", "latency=batch")
    assert outcome.code == 0
    assert "auto goes to small" in outcome.out
    assert "out: it has no images" in outcome.out
    _, path, asked = admin.calls[-1]
    assert path == "/admin/v1/models/explain"
    assert asked == {
        "model": "auto?vision",
        "surface": "chat",
        "input_bytes": request_file.stat().st_size,
        "features": ["tools"],
        "max_output_tokens": 7,
        "key_id": "key_1",
        "hints": "latency=batch",
    }


def test_explain_fails_when_nothing_can_serve(
    invoke: Invoke, admin: FakeAdmin, request_file: Path
) -> None:
    refusal = {"code": "not_servable", "message": "no model", "retry_after_seconds": None}
    answer = {**EXPLAINED, "chosen": None, "refusal": refusal}
    admin.answers["/admin/v1/models/explain"] = (200, answer)
    outcome = invoke("models", "explain", "--request", str(request_file))
    assert outcome.code == 1
    assert "refused with not_servable" in outcome.out


def test_what_a_body_needs() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": [image]}],
        "stream": True,
        "response_format": {"type": "json_schema"},
        "reasoning_effort": "low",
    }
    asked = question(body, size=10)
    assert asked["features"] == ["streaming", "json_schema", "reasoning", "images"]
    assert question({"model": "m", "input": "x"}, size=1)["surface"] == "responses"
    already = {"model": "m", "surface": "embeddings", "input_bytes": 4}
    assert question(already, size=1) == already
    with pytest.raises(UsageError):
        question({"messages": []}, size=1)


@pytest.mark.parametrize("text", ["", "[]", "{", "\x00", '{"a": 1}'])
def test_a_request_that_is_none_is_refused_before_anything_is_sent(
    invoke: Invoke, admin: FakeAdmin, tmp_path: Path, text: str
) -> None:
    file = tmp_path / "r.json"
    file.write_text(text)
    outcome = invoke("models", "explain", "--request", str(file))
    assert outcome.code == 2
    assert "Traceback" not in outcome.err
    assert admin.calls == []


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """Two models that the recorded map knows and one that it does not."""
    file = tmp_path / "governance.yaml"
    provider = {"name": "openai", "kind": "openai", "api_base": "http://o"}
    prices = {
        "mini": {**PRICE, "output_micro_usd_per_mtok": 700_000,
                 "cache_read_micro_usd_per_mtok": 75_000},
        "vectors": {"input_micro_usd_per_mtok": 20_000, "output_micro_usd_per_mtok": 0},
        "own": {"input_micro_usd_per_mtok": 1, "output_micro_usd_per_mtok": 1},
    }  # fmt: skip
    models = [
        {"name": name, "provider": "openai", "upstream_model": name, "context_tokens": 8000,
         "max_output_tokens": 100, "price": price}
        for name, price in prices.items()
    ]  # fmt: skip
    document = {"version": 1, "price_version": "v", "providers": [provider], "models": models}
    file.write_text(yaml.safe_dump(document))
    return file


def test_drift_is_told_with_an_exit_code(invoke: Invoke, spec: Path) -> None:
    arguments = ("models", "drift", "--spec", str(spec), "--map", str(RECORDED))
    outcome = invoke(*arguments)
    assert outcome.code == 1
    assert "3 models compared with LiteLLM 1.108.7: 2 differences." in outcome.out
    assert "+16.67" in outcome.out
    found = json.loads(invoke(*arguments, "--json").out)["drift"]
    assert {(one["model"], one["kind"]) for one in found} == {
        ("mini", "differs"), ("own", "not_in_map"),
    }  # fmt: skip
    assert invoke(*arguments, "--tolerance", "17").code == 0
    assert invoke(*arguments, "--tolerance", "x").code == 2
    assert invoke(*arguments, "--tolerance", "NaN").code == 2


def test_drift_without_a_map_needs_the_translators_environment(invoke: Invoke, spec: Path) -> None:
    outcome = invoke("models", "drift", "--spec", str(spec))
    assert outcome.code == 3
    assert "make env-translator" in outcome.err


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"models": []}'])
def test_a_map_that_is_none(invoke: Invoke, spec: Path, tmp_path: Path, text: str) -> None:
    wrong = tmp_path / "map.json"
    wrong.write_text(text)
    outcome = invoke("models", "drift", "--spec", str(spec), "--map", str(wrong))
    assert outcome.code == 2
    assert "price_map" in outcome.err


def test_a_seeded_book_is_a_book(invoke: Invoke, spec: Path, tmp_path: Path) -> None:
    outcome = invoke(
        "prices", "seed", "--spec", str(spec), "--map", str(RECORDED), "--version", "2026-12"
    )
    assert outcome.code == 0
    assert "own is not in the map" in outcome.err
    book = load_price_book(outcome.out, "seeded")
    assert [entry.model for entry in book.entries] == ["mini", "vectors"]
    file = tmp_path / "book.yaml"
    file.write_text(outcome.out)
    assert "2026-12, 2 prices" in invoke("prices", "check", str(file)).out


BOOK = """version: "b1"
entries:
  - provider: p
    model: m
    effective_from: 2026-01-01T00:00:00Z
    price: {input_micro_usd_per_mtok: 1, output_micro_usd_per_mtok: 1}
"""


def test_books_are_applied_and_gone_back_to(
    invoke: Invoke, admin: FakeAdmin, tmp_path: Path
) -> None:
    file = tmp_path / "book.yaml"
    file.write_text(BOOK)
    admin.answers["/admin/v1/prices"] = (200, {"in_force": "b1", "state": "applied"})
    assert "b1: now in force" in invoke("prices", "apply", str(file), "--reason", "why").out
    _, _, sent = admin.calls[-1]
    assert sent["reason"] == "why"
    assert sent["book"]["entries"][0]["effective_from"].startswith("2026-01-01T00:00:00")
    admin.answers["/admin/v1/prices/use"] = (200, {"in_force": None, "state": "unchanged"})
    outcome = invoke("prices", "use", "spec", "--reason", "back")
    assert "the governance spec's own prices: was in force" in outcome.out
    assert admin.calls[-1][2] == {"version": None, "reason": "back"}
    file.write_text(BOOK.replace("micro_usd_per_mtok: 1,", "micro_usd_per_mtok: 0.5,"))
    count = len(admin.calls)
    wrong = invoke("prices", "apply", str(file), "--reason", "why")
    assert wrong.code == 2
    assert f"{file}:6:" in wrong.err
    assert len(admin.calls) == count
    assert invoke("prices", "apply", str(file)).code == 2


def test_books_are_listed(invoke: Invoke, admin: FakeAdmin) -> None:
    book = {"version": "b1", "entries": 3, "actor": "jo", "created_at": "then", "in_force": True}
    answer = {"in_force": "b1", "spec_price_version": "v", "books": [book]}
    admin.answers["/admin/v1/prices"] = (200, answer)
    said = invoke("prices", "list").out
    assert "in force: book b1, and where it has none" in said
    admin.answers["/admin/v1/prices"] = (200, {**answer, "in_force": None, "books": []})
    assert "in force: the governance spec's own prices, version v" in invoke("prices", "list").out


def test_rerating_adds_up_all_pages(
    invoke: Invoke, admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {"opened_at": "2026-11-02T00:00:00Z", "attempt_id": "att_1"}
    page = {"attempts": 500, "not_priced": 1, "changed": 2, "written": 2, "delta_micro_usd": -3,
            "by_model": {"m": -3}, "version": "b1"}  # fmt: skip
    pages = [{**page, "next": place}, {**page, "attempts": 1, "next": None}]
    monkeypatch.setattr(
        FakeAdmin, "handle",
        lambda self, method, target, body: (self.calls.append((method, target, dict(body))),
                                            (200, pages[len(self.calls) - 1]))[1],
    )  # fmt: skip
    arguments = ("prices", "rerate", "--version", "b1", "--since", "2026-11-01T00:00:00Z",
                 "--until", "2026-12-01T00:00:00+01:00")  # fmt: skip
    outcome = invoke(*arguments, "--write", "--reason", "new list")
    assert outcome.code == 0
    assert "501 attempts: 4 would cost other than they did, -$0.000006 in all" in outcome.out
    assert "entries written: 4" in outcome.out
    assert [call[2].get("after") for call in admin.calls] == [None, place]
    assert admin.calls[0][2]["until"] == "2026-11-30T23:00:00+00:00"
    assert invoke(*arguments, "--write").code == 2
    assert invoke(*arguments[:-1], "soon").code == 2
