"""The public surface: what is not listed does not exist, and who may do what."""

import asyncio
import json
import socket
from typing import Any

import pytest
import yaml
from gateway_rig.fake_upstream import FakeUpstream
from gateway_rig.guard import ADMIN_KEY, CHAT, HELLO, PEPPER, InProcessGuard
from gateway_rig.postgres import PASSWORD

CLAUDE = "anthropic.claude-sonnet-4-5-20250929-v1:0"
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
LISTED = {
    ("POST", "/v1/chat/completions"), ("POST", "/v1/completions"), ("POST", "/v1/responses"),
    ("POST", "/v1/embeddings"), ("POST", "/v1/messages"), ("POST", "/v1/messages/count_tokens"),
    ("GET", "/v1/models"), ("GET", "/v1/models/sim-small"), ("GET", "/healthz"),
    ("GET", "/readyz"), ("POST", "/model/x/converse"), ("POST", "/model/x/converse-stream"),
}  # fmt: skip
# Routes that LiteLLM's proxy has, billable or leaking; none may exist here.
OTHERS = [
    "/", "/v1/responses/x", "/v1/responses/x/cancel", "/v1/responses/input_tokens", "/v1/files",
    "/v1/batches", "/v1/images/generations", "/v1/audio/speech", "/v1/moderations", "/v1/rerank",
    "/v1/messages/batches", "/utils/token_counter", "/health", "/health/readiness",
    "/health/liveliness", "/model/info", "/model_group/info", "/routes", "/key/generate",
    "/key/info", "/user/new", "/team/new", "/config/update", "/mcp", "/mcp/tools/list",
    "/openai/deployments/x/chat/completions", "/openai/v1/chat/completions",
    "/anthropic/v1/messages",
    "/vertex_ai/x", "/bedrock/model/x/converse", "/v1beta/models/x:generateContent", "/metrics",
    "/openapi.json", "/docs", "/ui/", "/public/model_hub", "/chat/completions", "/models",
    "/model/x/invoke", "/model/x/invoke-with-response-stream", "/admin/v1/keys", "/v1/realtime",
    "/v1/chat/completions/", "/v1/models/", "//v1/models", "/v1//models",
]  # fmt: skip


async def test_every_route_that_is_not_listed_is_denied(
    guard: InProcessGuard, upstream: FakeUpstream
) -> None:
    key = await guard.key()
    paths = OTHERS + [path for _, path in LISTED]
    for method in METHODS:
        for path in paths:
            if (method, path) in LISTED:
                continue
            for headers in ({}, {"authorization": f"Bearer {key}"}):
                response = await guard.http.request(
                    method, guard.public_url + path, headers=headers, json=HELLO
                )
                assert response.status_code == 404, (method, path)
                if method != "HEAD":
                    assert response.json()["error"]["code"] == "route_not_found"
                assert response.headers["x-terrace-request-id"]
    assert upstream.calls == []


@pytest.mark.parametrize(
    "path",
    ["/v1/models/../chat/completions", "/%2e%2e/v1/models", "/model/../converse", "/v1%2Fmodels/x"],
)
async def test_odd_paths_never_reach_the_upstream(
    guard: InProcessGuard, upstream: FakeUpstream, path: str
) -> None:
    """Sent raw, because clients normalise."""
    key = await guard.key()
    host, port = guard.public_url.removeprefix("http://").split(":")
    body = json.dumps(HELLO).encode()
    request = (
        f"POST {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {key}\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    ).encode()
    reader, writer = await asyncio.open_connection(host, int(port), family=socket.AF_INET)
    writer.write(request + body)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert answer.split(b" ", 2)[1] in (b"404", b"400")
    assert upstream.calls == []


@pytest.mark.parametrize(
    "header",
    [
        None,
        "Bearer",
        "Bearer nonsense",
        f"Bearer {ADMIN_KEY}",
        "Bearer tk-" + "a" * 43,
        "Basic eA==",
    ],
)
@pytest.mark.parametrize("body", [json.dumps(HELLO), "garbage", '{"model": "no-such"}'])
async def test_strangers_learn_nothing(
    guard: InProcessGuard, upstream: FakeUpstream, header: str | None, body: str
) -> None:
    headers = {} if header is None else {"authorization": header}
    for path in (CHAT, f"/model/{CLAUDE}/converse"):
        response = await guard.http.post(guard.public_url + path, content=body, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
    listing = await guard.http.get(f"{guard.public_url}/v1/models", headers=headers)
    assert listing.status_code == 401
    assert upstream.calls == []


async def test_the_allow_list(guard: InProcessGuard, upstream: FakeUpstream) -> None:
    key = await guard.key(models=[CLAUDE, "sim-small"])
    assert (await guard.chat(key)).status_code == 200
    denied = await guard.chat(key, model="sim-large")
    assert (denied.status_code, denied.json()["error"]["code"]) == (403, "model_not_allowed")
    assert (await guard.chat(key, model=CLAUDE)).json()["model"] == CLAUDE
    unknown = await guard.chat(key, model="gpt-9")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    assert unknown.json()["error"]["message"] == (
        "there is no model 'gpt-9' on this surface;"
        " this key may use here: sim-small, bedrock-claude"
    )
    long = (await guard.chat(key, model="x" * 5000)).json()["error"]["message"]
    assert len(long) < 300
    assert [call.model for call in upstream.calls] == ["sim-small", "bedrock-claude"]
    response = await guard.http.get(
        f"{guard.public_url}/v1/models", headers={"authorization": f"Bearer {key}"}
    )
    assert [m["id"] for m in response.json()["data"]] == ["sim-small", "bedrock-claude"]
    nothing = await guard.key(models=[])
    assert (await guard.chat(nothing)).status_code == 403
    unknown = await guard.chat(nothing, model="gpt-9")
    assert unknown.json()["error"]["message"].endswith("this key may use here: none")


MANY_POLICIES = """
policies:
  - {name: eu, residency: ["eu-*"]}
  - {name: us, residency: ["us-*"]}
  - {name: elsewhere, networks: ["10.99.0.0/16"]}
  - {name: never, hours: [{days: [mon], from: "00:00", to: "00:01", zone: UTC},
                          {days: [thu], from: "00:00", to: "00:01", zone: UTC}]}
  - {name: chats, deny_features: [embeddings]}
"""


@pytest.mark.parametrize(
    ("fields", "listed"),
    [
        ({}, ["sim-small", "sim-large", "bedrock-claude", "sim-embed"]),
        ({"policies": ["eu"]}, []),
        ({"policies": ["us"]}, ["bedrock-claude"]),
        ({"policies": ["chats"]}, ["sim-small", "sim-large", "bedrock-claude"]),
        ({"surfaces": ["embeddings"]}, ["sim-embed"]),
        ({"surfaces": ["converse"]}, ["bedrock-claude"]),
    ],
)
async def test_what_is_listed_is_what_a_call_could_have(
    make_guard: Any, governance_text: str, fields: dict[str, Any], listed: list[str]
) -> None:
    guard: InProcessGuard = await make_guard(governance=governance_text + MANY_POLICIES)
    key = await guard.key(**fields)
    headers = {"authorization": f"Bearer {key}"}
    answer = await guard.http.get(f"{guard.public_url}/v1/models", headers=headers)
    assert [model["id"] for model in answer.json()["data"]] == listed
    for name in ("sim-small", "sim-embed", "bedrock-claude"):
        one = await guard.http.get(f"{guard.public_url}/v1/models/{name}", headers=headers)
        assert one.status_code == (200 if name in listed else 404)
    if "surfaces" not in fields:
        unknown = (await guard.chat(key, model="nope")).json()["error"]["message"]
        chats = ", ".join(name for name in listed if name != "sim-embed") or "none"
        assert unknown.endswith(f"this key may use here: {chats}")


@pytest.mark.parametrize("policy", ["elsewhere", "never"])
async def test_who_may_not_call_from_here_or_now_is_told_so_instead_of_a_list(
    make_guard: Any, governance_text: str, policy: str
) -> None:
    guard: InProcessGuard = await make_guard(governance=governance_text + MANY_POLICIES)
    key = await guard.key(policies=[policy])
    called = await guard.chat(key)
    for path in ("/v1/models", "/v1/models/sim-small"):
        answer = await guard.http.get(
            guard.public_url + path, headers={"authorization": f"Bearer {key}"}
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "policy_denied")
        assert answer.json()["error"]["message"] == called.json()["error"]["message"]


async def test_what_is_switched_off_is_offered_nowhere(guard: InProcessGuard) -> None:
    key = await guard.key()
    await guard.admin("POST", "/kill", json={"target": "model:sim-small", "reason": "r"})
    unknown = (await guard.chat(key, model="nope")).json()["error"]["message"]
    assert unknown.endswith("this key may use here: sim-large, bedrock-claude")


async def test_revoked_and_expired_keys(guard: InProcessGuard, upstream: FakeUpstream) -> None:
    new = await guard.new_key()
    assert (await guard.chat(new["key"])).status_code == 200
    path = f"/keys/{new['key_id']}/revoke"
    first = await guard.admin("POST", path, json={"reason": "test"})
    assert (await guard.chat(new["key"])).status_code == 401
    assert first["revoked_at"]
    assert (await guard.admin("POST", path))["revoked_at"] == first["revoked_at"]
    expired = await guard.key(expires_at="2020-01-01T00:00:00Z")
    assert (await guard.chat(expired)).status_code == 401
    assert len(upstream.calls) == 1
    texts = [
        (await guard.chat(key)).json()["error"]["message"]
        for key in (new["key"], expired, "tk-" + "a" * 43, "nonsense")
    ]
    assert set(texts) == {"the API key is unknown, revoked or expired"}  # which, is not told
    nothing = await guard.http.post(guard.public_url + CHAT, json=HELLO)
    assert nothing.status_code == 401
    assert nothing.json()["error"]["message"].startswith("no API key was shown")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/chat/completions", "there is no such route here; did you mean /v1/chat/completions?"),
        ("/v1/chat", "there is no such route here"),
    ],
)
async def test_a_base_url_without_v1_is_asked_about(
    guard: InProcessGuard, path: str, said: str
) -> None:
    answer = await guard.http.post(guard.public_url + path, json=HELLO)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (404, "route_not_found")
    assert error["message"] == said


@pytest.mark.parametrize("model_id", [CLAUDE, CLAUDE.replace(":", "%3A"), "bedrock-claude"])
@pytest.mark.parametrize("stream", [False, True])
async def test_converse(
    guard: InProcessGuard, upstream: FakeUpstream, model_id: str, stream: bool
) -> None:
    key = await guard.key()
    path = f"/model/{model_id}/converse" + ("-stream" if stream else "")
    body = {"messages": [{"role": "user", "content": [{"text": "hi"}]}]}
    response = await guard.http.post(
        guard.public_url + path, json=body, headers={"authorization": f"Bearer {key}"}
    )
    assert response.status_code == 200
    assert b"internal" not in response.content
    assert upstream.calls[0].path == "/bedrock/model/bedrock-claude/converse" + (
        "-stream" if stream else ""
    )
    assert upstream.calls[0].body["inferenceConfig"] == {"maxTokens": 1024}
    [entry] = await guard.entries()
    assert (entry["surface"], entry["amount_micro_usd"]) == ("converse", upstream.bill_total)


async def test_converse_is_bedrocks_only(guard: InProcessGuard, upstream: FakeUpstream) -> None:
    key = await guard.key()
    for model in ("sim-small", "x", "../../v1/chat/completions"):
        response = await guard.http.post(
            f"{guard.public_url}/model/{model.replace('/', '%2F')}/converse",
            json={"messages": [{"role": "user", "content": [{"text": "hi"}]}]},
            headers={"authorization": f"Bearer {key}"},
        )
        assert response.status_code == 404
        error = response.json()
        assert error["message"] == error["error"]["message"]
        assert repr(model) in error["message"]
        assert error["message"].endswith("this key may use here: bedrock-claude")
    assert upstream.calls == []


async def test_the_list_of_models_in_a_refusal_is_short(
    make_guard: Any, governance_text: str
) -> None:
    spec = yaml.safe_load(governance_text)
    spec["models"] += [
        {**spec["models"][0], "name": f"more-{number}", "aliases": []} for number in range(30)
    ]
    guard: InProcessGuard = await make_guard(governance=yaml.safe_dump(spec))
    message = (await guard.chat(await guard.key(), model="nope")).json()["error"]["message"]
    assert message.endswith("bedrock-claude, more-0, more-1, more-2, more-3, more-4, more-5, "
                            "more-6, ...")  # fmt: skip


@pytest.mark.parametrize(
    ("path", "offered"),
    [
        (CHAT, "sim-small, sim-large, bedrock-claude"),
        ("/v1/embeddings", "sim-embed"),
        ("/model/nope/converse", "bedrock-claude"),
    ],
)
async def test_a_refusal_offers_only_models_of_its_surface(
    guard: InProcessGuard, path: str, offered: str
) -> None:
    body: dict[str, Any] = {**HELLO, "model": "nope"}
    if path == "/v1/embeddings":
        body = {"model": "nope", "input": "text"}
    elif path != CHAT:
        body = {"messages": [{"role": "user", "content": [{"text": "hi"}]}]}
    headers = {"authorization": f"Bearer {await guard.key()}"}
    response = await guard.http.post(guard.public_url + path, json=body, headers=headers)
    assert response.status_code == 404
    message = response.json()["error"]["message"]
    assert message.endswith(f"this key may use here: {offered}")


async def test_a_field_that_the_provider_names_is_passed_and_none_of_its_text(
    guard: InProcessGuard, upstream: FakeUpstream
) -> None:
    upstream.behaviour.status = 400
    upstream.behaviour.param = "messages[0].content.internal"
    error = (await guard.chat(await guard.key())).json()["error"]
    assert error["param"] == "messages[0]"
    assert error["message"].endswith("as invalid: see messages[0]")
    assert "internal" not in json.dumps(error)


async def test_headers_of_clients_do_not_go_up(
    guard: InProcessGuard, upstream: FakeUpstream
) -> None:
    key = await guard.key()
    headers = {
        "authorization": f"Bearer {key}", "x-litellm-num-retries": "2", "x-litellm-call-id": "mine",
        "x-terrace-attempt-id": "mine", "x-request-id": "mine", "cookie": "a=b", "x-api-key": key,
        "x-terrace-request-id": "mine", "x-litellm-spend-logs-metadata": '{"a": "mine"}',
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    }  # fmt: skip
    response = await guard.http.post(guard.public_url + CHAT, json=HELLO, headers=headers)
    assert response.status_code == 200
    assert "mine" not in str(response.headers)
    two = await guard.http.post(
        guard.public_url + CHAT, json=HELLO, headers={**headers, "x-api-key": "k"}
    )
    assert two.status_code == 401  # which of them is meant?
    assert len(upstream.calls) == 1
    sent = {name.lower(): value for name, value in upstream.calls[0].headers.items()}
    own = json.loads(sent.pop("x-litellm-spend-logs-metadata"))  # for Bedrock's log; it is ours
    [entry] = await guard.entries()
    assert set(own.values()) == {entry["attempt_id"]}
    assert set(sent) <= {"host", "authorization", "content-type", "content-length", "accept",
                    "accept-encoding", "user-agent", "connection"}  # fmt: skip
    assert "mine" not in json.dumps([upstream.calls[0].headers, upstream.calls[0].body])
    assert entry["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4736"


async def test_bodies_have_limits(make_guard: Any, upstream: FakeUpstream) -> None:
    guard: InProcessGuard = await make_guard(max_body_bytes=2048)
    hasty: InProcessGuard = await make_guard(body_read_seconds=0.5, replica="hasty")
    key = await guard.key()
    headers = {"authorization": f"Bearer {key}"}
    url = guard.public_url + CHAT
    large = await guard.http.post(url, content=b" " * 5000, headers=headers)
    assert (large.status_code, large.json()["error"]["code"]) == (413, "request_too_large")
    deep = await guard.http.post(url, content='{"a":' + "[" * 99 + "]" * 99 + "}", headers=headers)
    assert deep.status_code == 400

    async def slow() -> Any:
        yield b"{"
        await asyncio.sleep(2)
        yield b"}"

    late = await hasty.http.post(hasty.public_url + CHAT, content=slow(), headers=headers)
    assert late.status_code == 400
    assert upstream.calls == []


async def test_health_needs_no_key_and_readiness_follows_the_translator(
    guard: InProcessGuard, upstream: FakeUpstream
) -> None:
    assert (await guard.http.get(f"{guard.public_url}/healthz")).status_code == 200
    await upstream.stop_engine()
    async with asyncio.timeout(60):
        while (await guard.http.get(f"{guard.public_url}/readyz")).status_code != 503:
            await asyncio.sleep(0.05)
    assert (await guard.http.get(f"{guard.public_url}/healthz")).status_code == 200
    await upstream.restart_engine()
    async with asyncio.timeout(60):
        while (await guard.http.get(f"{guard.public_url}/readyz")).status_code != 200:
            await asyncio.sleep(0.05)


async def test_secrets_and_prompts_appear_nowhere(
    make_process: Any, upstream: FakeUpstream
) -> None:
    """Canaries in every secret and in the prompt; every sink is read."""
    guard = await make_process()
    new = await guard.new_key(name="n")
    key = new["key"]
    texts: list[str] = []
    for kwargs in (
        {},
        {"stream": True},
        {"model": "nope"},
        {"n": 5},
        {"messages": "canary-prompt"},
    ):
        response = await guard.chat(key, **kwargs)
        texts += [response.text, str(response.headers)]
    upstream.behaviour.status = 500
    texts.append((await guard.chat(key)).text)
    await upstream.stop_engine()
    texts.append((await guard.chat(key)).text)
    for path in ("/keys", "/spend?by=key", "/ledger", "/models"):
        texts.append(json.dumps(await guard.admin("GET", path)))
    bad = await guard.http.get(f"{guard.admin_url}/admin/v1/keys")
    texts.append(bad.text)
    assert await guard.stop() == 0
    texts.append(guard.log.read_text())
    everything = "\n".join(texts)
    assert '"event":"attempt_closed"' in everything
    master = upstream.key_file.read_text()
    for canary in (key, key[3:], ADMIN_KEY, PEPPER, PASSWORD, master, "canary-"):
        found = everything.find(canary)
        assert found < 0, everything[max(0, found - 200) : found + 50]


async def test_metrics(guard: InProcessGuard, upstream: FakeUpstream) -> None:
    key = await guard.key()
    await guard.chat(key)
    await guard.chat(key, stream=True)
    await guard.chat("tk-" + "b" * 43)
    text = guard.runtime.metrics.exposition().decode()
    for line in (
        'terrace_requests_total{model="sim-small",outcome="ok",surface="chat"} 2.0',
        'terrace_denied_total{reason="invalid_api_key"} 1.0',
        'terrace_reservations_total{result="granted"} 2.0',
        'terrace_tokens_total{direction="output",model="sim-small"} 22.0',
        f'terrace_cost_micro_usd_total{{model="sim-small"}} {float(upstream.bill_total)}',
        "terrace_open_attempts 0.0",
        "terrace_database_up 1.0",
        "terrace_translator_up 1.0",
    ):
        assert line in text
