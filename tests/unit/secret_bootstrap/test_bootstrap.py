"""Secret bootstrap against a small API server that keeps its own store of Secrets."""

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from terrace_secret_bootstrap.bootstrap import KeyMissingError
from terrace_secret_bootstrap.bootstrap import bootstrap as create_secrets
from terrace_secret_bootstrap.kubernetes import ApiError, Kubernetes
from terrace_secret_bootstrap.spec import SpecError, parse

POSTGRES = "terrace-foundation/postgres-credentials"
SPEC = [
    {
        "namespace": "terrace-foundation",
        "name": "postgres-credentials",
        "data": {
            "superuser-password": {"random_hex": 32},
            "gateway-password": {"random_hex": 24},
        },
    },
    {
        "namespace": "terrace-gateway",
        "name": "gateway-secrets",
        "data": {
            "database-url": {
                "template": f"postgresql://gateway:{{{POSTGRES}/gateway-password}}@postgres:5432/t"
            },
            "admin-key": {"random_token": {"prefix": "tadm-", "bytes": 32}},
            "same-password": {"copy": f"{POSTGRES}/gateway-password"},
        },
    },
]


class NoExternal:
    """These specs name nothing outside the cluster."""

    def value(self, arn: str, json_key: str | None = None) -> str:
        raise AssertionError(f"{arn} was asked for")


def bootstrap(specs: Any, store: Any, *, say: Any) -> None:
    create_secrets(specs, store, external=NoExternal(), say=say)


class Api:
    """What a cluster would hold, and every request it got."""

    def __init__(self) -> None:
        self.secrets: dict[tuple[str, str], dict[str, Any]] = {}
        self.requests: list[str] = []
        self.tokens: set[str] = set()
        self.failures: list[int] = []
        self.before_create: Any = lambda _namespace, _name: None
        self._lock = threading.Lock()

    def handle(self, method: str, path: str, body: bytes, token: str) -> tuple[int, Any]:
        with self._lock:
            self.requests.append(f"{method} {path}")
            self.tokens.add(token)
            if self.failures:
                return self.failures.pop(0), {"reason": "Faked"}
            parts = path.strip("/").split("/")
            if parts[:3] != ["api", "v1", "namespaces"] or parts[4] != "secrets":
                return 404, {"reason": "NotFound"}
            if method == "GET" and len(parts) == 6:
                found = self.secrets.get((parts[3], parts[5]))
                return (200, found) if found else (404, {"reason": "NotFound"})
            if method == "POST" and len(parts) == 5:
                secret = json.loads(body)
                key = (secret["metadata"]["namespace"], secret["metadata"]["name"])
                assert key[0] == parts[3]
                self.before_create(*key)
                if key in self.secrets:
                    return 409, {"reason": "AlreadyExists"}
                self.secrets[key] = secret
                return 201, secret
            return 405, {"reason": "MethodNotAllowed"}

    def value(self, namespace: str, name: str, key: str) -> str:
        return base64.b64decode(self.secrets[namespace, name]["data"][key]).decode()


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def server(api: Api) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            token = self.headers.get("authorization", "")
            status, answer = api.handle(self.command, self.path, body, token)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None: ...

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{listening.server_address[1]}"
    listening.shutdown()
    thread.join()
    listening.server_close()


@pytest.fixture
def client(server: str, tmp_path: Path) -> Kubernetes:
    (tmp_path / "token").write_text("pod-token\n")
    return Kubernetes(server, account=tmp_path, pause=lambda _seconds: None)


def test_creates_what_the_spec_says(api: Api, client: Kubernetes) -> None:
    said: list[str] = []
    bootstrap(parse(json.dumps(SPEC)), client, say=said.append)

    password = api.value("terrace-foundation", "postgres-credentials", "gateway-password")
    superuser = api.value("terrace-foundation", "postgres-credentials", "superuser-password")
    assert len(bytes.fromhex(password)) == 24
    assert len(bytes.fromhex(superuser)) == 32
    url = api.value("terrace-gateway", "gateway-secrets", "database-url")
    assert url == f"postgresql://gateway:{password}@postgres:5432/t"
    assert api.value("terrace-gateway", "gateway-secrets", "same-password") == password
    admin = api.value("terrace-gateway", "gateway-secrets", "admin-key")
    assert admin.startswith("tadm-")
    assert len(bytes.fromhex(admin.removeprefix("tadm-"))) == 32
    assert api.tokens == {"Bearer pod-token"}
    assert not any(value in line for line in said for value in (password, superuser, admin, url))


def test_second_run_changes_nothing(api: Api, client: Kubernetes) -> None:
    bootstrap(parse(json.dumps(SPEC)), client, say=lambda _line: None)
    before = json.dumps(sorted(map(str, api.secrets.items())))
    api.requests.clear()
    bootstrap(parse(json.dumps(SPEC)), client, say=lambda _line: None)
    assert json.dumps(sorted(map(str, api.secrets.items()))) == before
    assert {request.split()[0] for request in api.requests} == {"GET"}


@pytest.mark.parametrize("survivors", [1, 0])
def test_killed_half_way_and_run_again(api: Api, client: Kubernetes, survivors: int) -> None:
    class KilledError(Exception): ...

    class Dying:
        def __init__(self) -> None:
            self.left = survivors

        def read_secret(self, namespace: str, name: str) -> dict[str, str] | None:
            return client.read_secret(namespace, name)

        def create_secret(self, namespace: str, name: str, data: dict[str, str]) -> bool:
            if self.left == 0:
                raise KilledError
            self.left -= 1
            return client.create_secret(namespace, name, data)

    with pytest.raises(KilledError):
        bootstrap(parse(json.dumps(SPEC)), Dying(), say=lambda _line: None)
    assert len(api.secrets) == survivors
    bootstrap(parse(json.dumps(SPEC)), client, say=lambda _line: None)
    password = api.value("terrace-foundation", "postgres-credentials", "gateway-password")
    assert password in api.value("terrace-gateway", "gateway-secrets", "database-url")


def test_another_run_was_first(api: Api, client: Kubernetes) -> None:
    """Between our read and our create: its password must be the one in our template."""

    def intrude(namespace: str, name: str) -> None:
        if (namespace, name) not in api.secrets and name == "postgres-credentials":
            data = {
                key: base64.b64encode(b"theirs").decode()
                for key in ("superuser-password", "gateway-password")
            }
            api.secrets[namespace, name] = {"data": data}

    api.before_create = intrude
    bootstrap(parse(json.dumps(SPEC)), client, say=lambda _line: None)
    assert "gateway:theirs@" in api.value("terrace-gateway", "gateway-secrets", "database-url")


def test_existing_secret_without_a_key_is_not_touched(api: Api, client: Kubernetes) -> None:
    api.secrets["terrace-foundation", "postgres-credentials"] = {"data": {"other": "eA=="}}
    with pytest.raises(KeyMissingError, match="superuser-password"):
        bootstrap(parse(json.dumps(SPEC)), client, say=lambda _line: None)
    assert api.secrets["terrace-foundation", "postgres-credentials"] == {"data": {"other": "eA=="}}


def test_tries_again_while_the_server_is_busy(api: Api, client: Kubernetes) -> None:
    api.failures = [503, 429, 500]
    bootstrap(parse(json.dumps(SPEC)), client, say=lambda _line: None)
    assert len(api.secrets) == 2


def test_forbidden_says_which_secret(api: Api, client: Kubernetes) -> None:
    api.failures = [403]
    with pytest.raises(ApiError, match="terrace-foundation/postgres-credentials: HTTP 403 Faked"):
        bootstrap(parse(json.dumps(SPEC)), client, say=lambda _line: None)


def test_gives_up_on_a_server_that_is_away(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    pauses: list[float] = []
    away = Kubernetes("http://127.0.0.1:1", account=tmp_path, pause=pauses.append)
    with pytest.raises(ApiError, match="no answer after 8 tries"):
        away.read_secret("a", "b")
    assert len(pauses) == 7


def test_a_secret_of_the_users_own_is_read_and_never_made(api: Api, client: Kubernetes) -> None:
    spec = [
        {"namespace": "mine", "name": "theirs", "data": {"k": {"existing": True}}},
        {"namespace": "ours", "name": "made", "data": {"copied": {"copy": "mine/theirs/k"}}},
    ]
    with pytest.raises(KeyMissingError, match="mine/theirs must be there already, with the keys k"):
        bootstrap(parse(json.dumps(spec)), client, say=lambda _line: None)
    assert api.secrets == {}
    api.secrets["mine", "theirs"] = {"data": {"k": base64.b64encode(b"value").decode()}}
    bootstrap(parse(json.dumps(spec)), client, say=lambda _line: None)
    assert api.value("ours", "made", "copied") == "value"
    assert "POST /api/v1/namespaces/mine/secrets" not in api.requests


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "not JSON"),
        ("{}", "must be a list"),
        ("[]", "at least one"),
        ('[{"namespace": "a", "name": "b"}]', "exactly the fields"),
        ('[{"namespace": "A/..", "name": "b", "data": {"k": {"random_hex": 32}}}]', "namespace"),
        ('[{"namespace": "a", "name": "b", "data": {}}]', "at least one key"),
        ('[{"namespace": "a", "name": "b", "data": {"k": {"random_hex": 8}}}]', "between 16"),
        ('[{"namespace": "a", "name": "b", "data": {"k": {"random_hex": true}}}]', "whole number"),
        ('[{"namespace": "a", "name": "b", "data": {"k": {"literal": "x"}}}]', "'literal' is not"),
        ('[{"namespace": "a", "name": "b", "data": {"k": {"copy": "x/y"}}}]', "namespace/name/key"),
        ('[{"namespace": "a", "name": "b", "data": {"k": {"copy": "x/y/z"}}}]', "before it"),
        ('[{"namespace": "a", "name": "b", "data": {"k": {"copy": "a/b/k"}}}]', "before it"),
        ('[{"namespace": "a", "name": "b", "data": {"k": {"template": "x{y"}}}]', "brace"),
        ('[{"namespace": "a", "name": "b", "data": {"k": {"existing": false}}}]', "'existing' is"),
        (
            '[{"namespace": "a", "name": "b",'
            ' "data": {"k": {"existing": true}, "l": {"random_hex": 32}}}]',
            "either all keys exist",
        ),
        (
            '[{"namespace": "a", "name": "b", "data": {"k": {"secrets_manager": "arn"}}}]',
            "takes arn",
        ),
        (
            '[{"namespace": "a", "name": "b", "data": {"k": {"secrets_manager": {"arn": "x"}}}}]',
            "arn must be arn:<partition>:secretsmanager",
        ),
        (
            '[{"namespace": "a", "name": "b", "data": {"k": {"secrets_manager": {"arn":'
            ' "arn:aws:secretsmanager:eu-west-1:123456789012:secret:n-1", "json_key": ""}}}}]',
            "json_key must be",
        ),
    ],
)
def test_wrong_specs_are_named(spec: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse(spec)


def test_twice_the_same_secret() -> None:
    with pytest.raises(SpecError, match="there twice"):
        parse(json.dumps([SPEC[0], SPEC[0]]))


def test_exit_codes_as_a_program(tmp_path: Path) -> None:
    package = Path(__file__).parents[3] / "services" / "secret_bootstrap"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(package)}

    def run(**more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "terrace_secret_bootstrap"],
            env=environment | more, capture_output=True, text=True, check=False, cwd=tmp_path,
        )  # fmt: skip

    assert run().returncode == 2
    outside = run(SECRETS_SPEC=json.dumps(SPEC))
    assert outside.returncode == 1
    assert "KUBERNETES_SERVICE_HOST" in outside.stderr
    assert "Traceback" not in outside.stderr
