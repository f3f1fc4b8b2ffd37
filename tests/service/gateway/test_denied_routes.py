"""Proof 4, routes: of everything that the pinned translator serves, only what we list exists.

The routes are read from the running translator's app, so an upgrade that brings one is seen here.
"""

import asyncio
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from gateway_rig.fake_upstream import FakeUpstream
from gateway_rig.guard import HELLO, InProcessGuard

from terrace_gateway.edge.routes import ROUTES, match_route

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = Path(__file__).parent / "rig" / "list_translator_routes.py"
# What LiteLLM serves under a path of ours. Each is answered by the guard, not by that route.
SHARED = {
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/responses"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{model_id}"),
}
LISTED = {
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/responses"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{modelId}"),
    ("POST", "/model/{modelId}/converse"),
    ("POST", "/model/{modelId}/converse-stream"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
}
STRANGER = "tk-" + "a" * 43


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """(method, template) of every route."""
    folder = tmp_path_factory.mktemp("routes")
    subprocess.run(
        [ROOT / ".venv-translator" / "bin" / "python", SCRIPT, folder / "config", folder / "found"],
        check=True,
        capture_output=True,
        timeout=180,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "services" / "translator")},
    )
    return [(method, path) for method, path in json.loads((folder / "found").read_text())]


def concrete(template: str) -> str:
    """A path of the template."""
    return re.sub(r"\{[^}]*\}", "x", template)


def test_the_list_is_what_the_documents_say() -> None:
    assert {(route.method, route.template) for route in ROUTES} == LISTED


def test_an_upgrade_opens_no_route(routes: list[tuple[str, str]]) -> None:
    assert len(routes) > 800  # or it was not the whole app
    # A path of ours that LiteLLM has as well is answered by the guard, not by that route.
    assert {(m, p) for m, p in routes if match_route(m, concrete(p)) is not None} == SHARED


async def test_every_other_route_is_denied_to_everyone(
    routes: list[tuple[str, str]], guard: InProcessGuard, upstream: FakeUpstream
) -> None:
    key = await guard.key()
    callers = ({}, {"authorization": f"Bearer {STRANGER}"}, {"authorization": f"Bearer {key}"})
    room = asyncio.Semaphore(16)
    denied = sorted({(m, concrete(p)) for m, p in routes if match_route(m, concrete(p)) is None})
    assert len(denied) > 700

    async def ask(method: str, path: str) -> None:
        async with room:
            for headers in callers:
                response = await guard.http.request(
                    method, guard.public_url + path, headers=headers, json=HELLO
                )
                assert response.status_code == 404, (method, path, headers)
                if method != "HEAD":
                    assert response.json()["error"]["code"] == "route_not_found", (method, path)

    await asyncio.gather(*(ask(method, path) for method, path in denied))
    assert upstream.calls == []


async def test_the_listed_routes_are_no_ones_without_a_key(
    guard: InProcessGuard, upstream: FakeUpstream
) -> None:
    for method, template in LISTED - {("GET", "/healthz"), ("GET", "/readyz")}:
        path = template.replace("{modelId}", "sim-small")
        for token in (None, "nonsense", STRANGER):
            for header in ("authorization", "x-api-key", "api-key"):
                value = f"Bearer {token}" if header == "authorization" else token
                headers = {} if token is None else {header: str(value)}
                response = await guard.http.request(
                    method, guard.public_url + path, headers=headers, json=HELLO
                )
                assert response.status_code == 401, (method, path, headers)
                assert response.json()["error"]["code"] == "invalid_api_key"
    assert upstream.calls == []
