"""Keys, routes, errors, settings and log redaction."""

import json
import logging
from io import StringIO
from pathlib import Path
from typing import get_args

import botocore.session
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from terrace_gateway.authentication import keys
from terrace_gateway.calls.ports import Cap, CapRefusal, Dimension, Scope, Window
from terrace_gateway.edge import errors
from terrace_gateway.edge.refusals import cap_refusal_error, upstream_error
from terrace_gateway.edge.routes import ROUTES, match_route, meant_route
from terrace_gateway.logs import configure_logs
from terrace_gateway.settings import Secrets, Settings, SettingsError, read_secrets


def test_keys_are_random_shaped_and_hashed_with_the_pepper() -> None:
    first, second = keys.mint_key(), keys.mint_key()
    assert first != second
    assert keys.looks_like_key(first)
    assert keys.hash_key(b"p", first) != keys.hash_key(b"q", first)
    assert len(keys.hash_key(b"p", first)) == 32
    assert not keys.looks_like_key(first + "a")
    assert not keys.looks_like_key("sk-" + first[3:])


@pytest.mark.parametrize(
    ("header", "token"),
    [("Bearer abc", "abc"), ("bearer  abc ", "abc"), ("Basic abc", None), ("Bearer", None),
     ("", None)],
)  # fmt: skip
def test_bearer(header: str, token: str | None) -> None:
    assert keys.bearer_token({"authorization": header}) == token


@given(st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"]), st.text(max_size=40))
def test_no_other_route_matches(method: str, path: str) -> None:
    match = match_route(method, path)
    if match is not None:
        assert match.route.pattern.fullmatch(path)
        assert (method, match.route.template) in {(r.method, r.template) for r in ROUTES}


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions/", "//v1/chat/completions", "/V1/chat/completions",
        "/v1/chat/completions\n", "/chat/completions", "/v1/completions/", "/v1/responses/x",
        "/v1/messages/batches", "/v1/embeddings/x", "/model//converse", "/model/a/converse/",
        "/model/a/invoke", "/health", "/metrics", "/admin/v1/keys",
        "/model/a b/converse",
    ],
)  # fmt: skip
def test_near_misses_do_not_match(path: str) -> None:
    assert match_route("POST", path) is None
    assert match_route("GET", path) is None


@pytest.mark.parametrize(
    ("method", "path", "meant"),
    [
        ("POST", "/chat/completions", "/v1/chat/completions"),
        ("GET", "/models", "/v1/models"),
        ("GET", "/models/secret-name", "/v1/models/{modelId}"),
        ("POST", "/v1/v1/messages", "/v1/messages"),
        ("GET", "/chat/completions", None),
        ("POST", "/health", None),
        ("POST", "/v1/v2/messages", None),
    ],
)
def test_a_base_url_with_v1_left_out_or_doubled_is_asked_about(
    method: str, path: str, meant: str | None
) -> None:
    assert match_route(method, path) is None
    assert meant_route(method, path) == (f"; did you mean {meant}?" if meant else "")


def test_model_ids_may_hold_colons_and_slashes() -> None:
    arn = "arn:aws:bedrock:us-east-1:1:application-inference-profile/abc"
    match = match_route("POST", f"/model/{arn}/converse")
    assert match is not None
    assert (match.model_id, match.route.endpoint) == (arn, "converse")


LIFETIME = Window("lifetime")


def refused(
    dimension: Dimension = "micro_usd", *, scope: Scope = "key", window: Window = LIFETIME,
    needed: int = 7, remaining: int = 5, retry: int | None = None,
) -> CapRefusal:  # fmt: skip
    return CapRefusal(Cap(1, scope, "x", dimension, window, 10), needed, remaining, retry)


@pytest.mark.parametrize(
    ("refusal", "status", "code", "retry"),
    [
        (refused(), 429, "budget_exhausted", None),
        (refused("requests"), 429, "budget_exhausted", None),
        (refused("requests", window=Window("fixed", 60), retry=17), 429, "rate_limited", 17),
        (refused(window=Window("fixed", 60), retry=0), 429, "rate_limited", 1),
        (refused("concurrency"), 429, "rate_limited", 1),
    ],
)
def test_refusals(refusal: CapRefusal, status: int, code: str, retry: int | None) -> None:
    error = cap_refusal_error(refusal)
    assert (error.status, error.code, error.retry_after_seconds) == (status, code, retry)
    assert set(json.loads(error.body())["error"]) == {"message", "type", "param", "code"}
    assert dict(error.headers()).get(b"retry-after") == (str(retry).encode() if retry else None)


@pytest.mark.parametrize("dimension", get_args(Dimension))
@pytest.mark.parametrize(
    ("window", "per"),
    [
        (LIFETIME, ""), (Window("fixed", 60), " per 60 s"),
        (Window("calendar", 0, "month", "UTC"), " per month"),
    ],
)  # fmt: skip
def test_every_cap_says_whose_it_is_and_of_which_window(
    dimension: Dimension, window: Window, per: str
) -> None:
    message = cap_refusal_error(refused(dimension, scope="org", window=window)).message
    assert "the org's" in message
    assert per in message or dimension == "concurrency"


@pytest.mark.parametrize(
    ("status", "expected"),
    [(400, 400), (401, 502), (404, 502), (429, 429), (408, 504), (504, 504), (500, 502),
     (302, 502)],
)  # fmt: skip
def test_upstream_errors(status: int, expected: int) -> None:
    assert upstream_error(status, None).status == expected
    assert upstream_error(429, "Wed, 21 Oct").retry_after_seconds == 1


@pytest.mark.parametrize(
    ("told", "seconds"),
    [(None, 1), ("", 1), ("7", 7), ("007", 7), ("0" * 5000 + "7", 7), ("9" * 5000, 86_400),
     ("9" * 18, 86_400), ("86401", 86_400), ("-5", 1), ("1.5", 1), ("²", 1), ("٣", 1), (" 5", 1)],
)  # fmt: skip
def test_what_a_provider_says_of_waiting_is_bounded(told: str | None, seconds: int) -> None:
    assert upstream_error(429, told).retry_after_seconds == seconds


def test_a_refused_budget_says_what_is_needed_and_left() -> None:
    refusal = refused(scope="team", remaining=100)
    error = cap_refusal_error(refusal, worst_case_micro_usd=2_000_812, max_output_tokens=64)
    assert error.message == (
        "this call may cost up to 2.000812 USD (input bound + max_tokens 64);"
        " 0.000100 USD of the team's budget is left beside running calls;"
        " lower max_tokens or ask for a larger budget"
    )


@pytest.mark.parametrize(
    ("param", "field"),
    [
        ("temperature", "temperature"), ("messages[3].content", "messages[3]"),
        ("messages.12.role", "messages[12]"), ("tools[0]", "tools[0]"), ("None", None),
        ("extra_headers", None), ("temperature_secret", None), ("secret text", None),
        ("messages: secret", "messages"), ("messages.1234567", "messages"), (None, None), (5, None),
        ({"a": 1}, None), ("", None), ("\nmessages", None),
    ],
)  # fmt: skip
def test_of_a_providers_error_only_a_field_of_ours_passes(param: object, field: str | None) -> None:
    body = json.dumps({"error": {"message": "secret", "param": param}}).encode()
    error = upstream_error(400, None, body)
    assert error.param == field
    assert "secret" not in error.message
    assert upstream_error(500, None, body).param is None


@pytest.mark.parametrize(
    "body", [b"", b"secret", b"[]", b'{"error": "secret"}', b"[" * 100_000, b"\xff", b"null"]
)
def test_any_error_body_of_a_provider_will_do(body: bytes) -> None:
    assert upstream_error(400, None, body).param is None


@pytest.mark.parametrize("code", sorted(errors._STATUS))
def test_bedrocks_clients_get_an_exception_that_they_know(code: str) -> None:
    error = errors.ApiError(code, "what is wrong")
    model = botocore.session.get_session().get_service_model("bedrock-runtime")
    known = {shape.name for shape in model.operation_model("Converse").error_shapes}
    assert dict(error.headers("bedrock"))[b"x-amzn-errortype"].decode() in known
    both = json.loads(error.body("bedrock"))
    assert both == {"message": "what is wrong", **json.loads(error.body())}
    assert b"x-amzn-errortype" not in dict(error.headers())


def secret_files(folder: Path, **texts: str) -> Settings:
    values = {"database_url": "postgresql://x", "key_pepper": "ab" * 32, "admin_key": "tadm-" * 6}
    paths: dict[str, Path] = {}
    for name, text in {**values, **texts}.items():
        paths[f"{name}_file"] = folder / name
        paths[f"{name}_file"].write_text(text + "\n")
    return Settings.model_validate(paths)


def test_secrets_are_read_and_not_shown(tmp_path: Path) -> None:
    secrets = read_secrets(secret_files(tmp_path))
    assert len(secrets.key_pepper) == 32
    assert "tadm" not in repr(secrets)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("key_pepper", "zz"),
        ("key_pepper", "ab" * 16),
        ("admin_key", "tadm-tiny"),
        ("database_url", ""),
    ],
)
def test_wrong_secrets_are_named_by_file_only(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_secrets(secret_files(tmp_path, **{name: text}))
    assert str(tmp_path / name) in str(caught.value)
    assert not text or text not in str(caught.value).replace(str(tmp_path), "")


def test_a_missing_secret_names_its_file(tmp_path: Path) -> None:
    settings = secret_files(tmp_path)
    settings.admin_key_file.unlink()
    with pytest.raises(SettingsError, match="admin_key: cannot read"):
        read_secrets(settings)


def test_logs_hold_no_secret_even_in_tracebacks() -> None:
    stream = StringIO()
    configure_logs(replica="r", stream=stream)
    log = structlog.get_logger()
    key = keys.mint_key()
    try:
        try:
            {}[f"bad {key}"]
        except KeyError:
            log.exception("x", url="postgresql://gateway:secret-pw@h/d", header=f"Bearer {key}",
                          nested={"a": [key]})  # fmt: skip
        logging.getLogger("other").warning("with %s", key)
    finally:
        structlog.reset_defaults()
        logging.getLogger().handlers.clear()
    text = stream.getvalue()
    assert key not in text
    assert "secret-pw" not in text
    assert [json.loads(line)["replica"] for line in text.splitlines()] == ["r", "r"]
    assert "KeyError" in text


def test_secrets_object_hides() -> None:
    secrets = Secrets(database_url=SecretStr("u"), key_pepper=b"p", admin_key=SecretStr("k"))
    assert repr(secrets) == "Secrets(...)"
