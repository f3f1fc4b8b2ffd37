"""Proof 4, smuggling: whatever a client adds, the request that goes upstream is the same, and so
are its price and its entry. Raw tricks reach nobody, or are what they say."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from gateway_rig.fake_upstream import FakeUpstream
from gateway_rig.guard import ADMIN_KEY, HELLO, GuardProcess, InProcessGuard

BODY_SECONDS = 2  # then a guard answers what never ends
MakeProcess = Callable[..., Awaitable[GuardProcess]]
USER = {"role": "user", "content": "hi"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "sim-small", "messages": [USER], "max_tokens": 40},
    "/v1/completions": {"model": "sim-small", "prompt": "hi", "max_tokens": 40},
    "/v1/responses": {"model": "sim-small", "input": "hi", "max_output_tokens": 40},
    "/v1/messages": {"model": "sim-small", "messages": [USER], "max_tokens": 40},
    "/model/bedrock-claude/converse": {
        "messages": [{"role": "user", "content": [{"text": "hi"}]}],
        "inferenceConfig": {"maxTokens": 40},
    },
}
EVERY = pytest.mark.parametrize("path", BODIES)
HEADERS = {
    "x-litellm-call-id": "attacker", "x-litellm-num-retries": "5", "x-litellm-tags": "free",
    "x-litellm-timeout": "1", "x-litellm-disable-callbacks": "all", "x-litellm-api-key": "sk-x",
    "x-litellm-end-user-id": "u", "x-litellm-spend-logs-metadata": "{}", "x-litellm-model": "big",
    "x-terrace-attempt-id": "att_attacker", "x-terrace-request-id": "req_attacker",
    "x-amzn-bedrock-request-metadata": '{"a": "b"}', "anthropic-beta": "x", "openai-beta": "x",
    "openai-organization": "org", "cookie": "a=b", "x-http-method-override": "DELETE",
    "x-original-url": "/v1/files", "x-rewrite-url": "/v1/files", "x-forwarded-host": "evil",
    "x-forwarded-prefix": "/admin", "forwarded": "for=1.2.3.4;host=evil", "baggage": "a=b",
    "anthropic-dangerous-direct-browser-access": "true", "x-stainless-retry-count": "3",
    "content-type": "text/plain", "accept-encoding": "br", "x-pass-api-base": "http://evil",
}  # fmt: skip
CONTROLS: dict[str, Any] = {
    "no-log": True, "num_retries": 5, "max_retries": 5, "fallbacks": ["sim-large"],
    "context_window_fallbacks": [{"sim-small": ["sim-large"]}], "api_base": "http://evil",
    "base_url": "http://evil", "api_key": "sk-evil", "metadata": {"tags": ["free"]},
    "litellm_metadata": {"user_api_key": "x"}, "litellm_call_id": "attacker", "tags": ["free"],
    "mock_response": "free", "mock_timeout": True, "mock_tool_calls": [], "mock_delay": 9,
    "extra_headers": {"x-terrace-attempt-id": "att_attacker"}, "extra_body": {"n": 9},
    "router_settings_override": {"num_retries": 3}, "custom_llm_provider": "azure",
    "input_cost_per_token": 0, "cache": {"no-cache": True}, "guardrails": [], "ttl": 9,
    "proxy_server_request": {"url": "http://evil"}, "user_config": {"model_list": []},
    "specific_deployment": True, "model_id": "x", "deployment_id": "x", "drop_params": True,
    "disable_global_guardrails": True, "requestMetadata": {"terrace-attempt-id": "att_attacker"},
    "timeout": 9999, "stream_timeout": 9999, "caching": True, "logger_fn": "x", "id": "resp_x",
    "secret_fields": {"raw_headers": {}}, "shared_session": "x", "litellm_trace_id": "x",
}  # fmt: skip
QUERIES = [
    "?model=sim-large", "?no-log=true", "?api_base=http://evil", "?litellm_call_id=x", "?key=x",
    "?num_retries=5&metadata[tags]=x", "?path=/v1/files", "?%0d%0ax-evil:1", "?stream=true",
]  # fmt: skip


ATTEMPT_ID = re.compile(r"att_n[0-9a-f]{32}")


def normal(upstream: FakeUpstream) -> list[tuple[str, dict[str, str], str]]:
    """The calls so far, without what is minted per attempt."""
    found: list[tuple[str, dict[str, str], str]] = []
    for call in upstream.calls:
        text = ATTEMPT_ID.sub("att", json.dumps(call.body, sort_keys=True))
        text = re.sub(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0\d", "trace", text)
        headers = {k.lower(): ATTEMPT_ID.sub("att", v) for k, v in call.headers.items()}
        headers.pop("content-length")
        found.append((call.path, headers, text))
    upstream.calls.clear()
    return found


async def post(guard: InProcessGuard, path: str, key: str, **more: Any) -> Any:
    headers = {"authorization": f"Bearer {key}", **more.pop("headers", {})}
    content = more.pop("content", None) or json.dumps(more.pop("body"))
    query = more.pop("query", "")
    url = guard.public_url + path + query
    return await guard.http.post(url, content=content, headers=headers)


@EVERY
async def test_nothing_that_is_added_changes_what_goes_upstream(
    guard: InProcessGuard, upstream: FakeUpstream, path: str
) -> None:
    key = await guard.key()
    body = BODIES[path]
    assert (await post(guard, path, key, body=body)).status_code == 200
    (plain,) = normal(upstream)
    minted = await post(guard, path, key, body=body, headers=HEADERS)
    assert minted.status_code == 200
    assert minted.headers["x-terrace-request-id"] != "req_attacker"
    assert normal(upstream) == [plain]
    for query in QUERIES:
        assert (await post(guard, path, key, body=body, query=query)).status_code == 200, query
        assert normal(upstream) == [plain], query
    for field, value in CONTROLS.items():
        answer = await post(guard, path, key, body={**body, field: value})
        assert answer.status_code == 200, (field, answer.text)
        assert normal(upstream) == [plain], field
    together = await post(guard, path, key, body={**CONTROLS, **body}, headers=HEADERS)
    assert together.status_code == 200
    assert normal(upstream) == [plain]


async def test_of_duplicate_fields_one_holds_everywhere(
    guard: InProcessGuard, upstream: FakeUpstream
) -> None:
    """The model that is checked, priced, called and written down is one model."""
    allowed = await guard.key(models=["sim-small"])
    text = json.dumps(HELLO)[1:]
    for first, last in (("sim-large", "sim-small"), ("sim-small", "sim-large")):
        names = f'{{"model": "{first}", ' + text.replace(
            '"model": "sim-small"', f'"model": "{last}"'
        )
        answer = await post(guard, "/v1/chat/completions", allowed, content=names)
        if last == "sim-small":
            assert answer.json()["model"] == "sim-small"
        else:
            assert answer.status_code == 403
    assert [call.body["model"] for call in upstream.calls] == ["sim-small"]
    limits = text.replace('"max_tokens": 100', '"max_tokens": 100000, "max_tokens": 50')
    await post(guard, "/v1/chat/completions", allowed, content="{" + limits)
    assert upstream.calls[-1].body["max_tokens"] == 50


ODD_BODIES: list[bytes] = [
    b"", b"{}", b"[]", b"null", b"1", b'"x"', b"{", b"\xff\xfe{}", b"\xef\xbb\xbf{}", b"{}{}",
    b'{"model": "sim-small"}', b'{"model": ["sim-small"], "messages": []}', b'{"model": NaN}',
    b'{"model": "sim-small", "messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"model": "sim-small\\u0000", "messages": [{"role": "user", "content": "x"}]}',
    b'{"model": "../sim-small", "messages": [{"role": "user", "content": "x"}]}',
    b'{"model": {"$ref": "x"}, "messages": 1}', b'{"a":' * 200 + b"1" + b"}" * 200,
    b'{"stream": "true", "model": "sim-small", "messages": [{"role": "user", "content": "x"}]}',
    b'{"max_tokens": 1e400, "model": "sim-small", "messages": []}',
    b'{"max_tokens": -5, "model": "sim-small", "messages": [{"role": "user", "content": "x"}]}',
]  # fmt: skip


@EVERY
async def test_malformed_bodies_reach_nobody(
    guard: InProcessGuard, upstream: FakeUpstream, path: str
) -> None:
    key = await guard.key()
    for body in ODD_BODIES:
        answer = await post(guard, path, key, content=body or b" ")
        assert 400 <= answer.status_code < 500, body
        assert "error" in answer.json(), body
    assert upstream.calls == []


@pytest.fixture
async def wire(make_process: MakeProcess) -> GuardProcess:
    """A guard with the HTTP server that it has in its pod."""
    return await make_process(body_read_seconds=BODY_SECONDS)


async def raw(guard: GuardProcess, *parts: bytes, url: str = "") -> bytes:
    """The whole answer to bytes on a connection of their own; each part comes by itself."""
    host, port = (url or guard.public_url).removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for part in parts:
        writer.write(part)
        await asyncio.sleep(0.1 if len(parts) > 1 else 0)
    answer = b""
    try:
        async with asyncio.timeout(60):
            while data := await reader.read(65536):
                answer += data
    finally:
        writer.close()
        await writer.wait_closed()
    return answer


def request_bytes(target: str, key: str, *headers: str, body: bytes) -> bytes:
    head = [f"POST {target} HTTP/1.1", f"authorization: Bearer {key}", "connection: close"]
    head += headers
    return ("\r\n".join(head) + "\r\n\r\n").encode() + body


async def test_targets_that_are_not_our_paths_reach_nobody(
    wire: GuardProcess, upstream: FakeUpstream
) -> None:
    key = await wire.key()
    body = json.dumps(HELLO).encode()
    rest = ("host: guard", f"content-length: {len(body)}")
    for target in (
        "//v1/chat/completions", "/v1/chat/completions/", "/v1/chat/completions;x=1",
        "/v1/chat/completions%00", "/v1/chat/completions%2f", "/V1/chat/completions",
        "/v1/./chat/completions", "/v1/x/../chat/completions", "/v1/chat%2Fcompletions/..",
        "/v1/models/../chat/completions", "/model/x/converse/..;/v1/files", "/v1/chat\\completions",
        "/v1/chat/completions%20", "/v1/chat/completions%0a", "*", "/", "/v1/files",
        "/admin/v1/keys", "/../v1/chat/completions", "/v1/chat/completions.json",
        "/v1/responses/resp_1", "/v1/messages/batches", "/openai/v1/chat/completions",
    ):  # fmt: skip
        answer = await raw(wire, request_bytes(target, key, *rest, body=body))
        assert answer.split(b" ", 2)[1] in (b"404", b"400"), (target, answer[:200])
    assert upstream.calls == []


async def test_the_host_decides_nothing(wire: GuardProcess, upstream: FakeUpstream) -> None:
    """LiteLLM once authorised by a URL made of the Host header; the guard reads the path alone."""
    key = await wire.key()
    body = json.dumps(HELLO).encode()
    rest = (f"content-length: {len(body)}",)
    path = "/v1/chat/completions"
    for host in ("evil.example", "guard/v1/models?", "guard:80#/healthz", "a@b", "127.0.0.1:1"):
        answer = await raw(wire, request_bytes(path, key, f"host: {host}", *rest, body=body))
        assert answer.split(b" ", 2)[1] in (b"200", b"400"), host
        wrong = "tk-" + "b" * 43
        answer = await raw(wire, request_bytes(path, wrong, f"host: {host}", *rest, body=body))
        assert answer.split(b" ", 2)[1] in (b"401", b"400"), host
        for target in ("/v1/files", "/health"):
            answer = await raw(wire, request_bytes(target, key, f"host: {host}", *rest, body=body))
            assert answer.split(b" ", 2)[1] in (b"404", b"400"), (host, target)
    assert {call.path for call in upstream.calls} <= {path}


async def test_chunked_oddities_are_refused_or_exact(
    wire: GuardProcess, upstream: FakeUpstream
) -> None:
    key = await wire.key()
    body = json.dumps(HELLO).encode()
    size = f"{len(body):x}".encode()
    exact = size + b"\r\n" + body + b"\r\n0\r\n\r\n"
    second = request_bytes("/v1/files", key, "host: x", "content-length: 0", body=b"")
    cases: dict[str, tuple[tuple[str, ...], bytes]] = {
        "plain": (("transfer-encoding: chunked",), exact),
        "extension": (("transfer-encoding: chunked",), exact.replace(b"\r\n", b";a=b\r\n", 1)),
        "capitals": (("Transfer-Encoding: Chunked",), exact),
        "twice": (("transfer-encoding: chunked", "transfer-encoding: chunked"), exact),
        "identity": (("transfer-encoding: identity",), exact),
        "gzip": (("transfer-encoding: gzip, chunked",), exact),
        "odd name": (("transfer-encoding : chunked",), exact),
        "folded": (("transfer-encoding:\r\n chunked",), exact),
        "both": (("transfer-encoding: chunked", "content-length: 5"), exact),
        "hex": (("transfer-encoding: chunked",), b"0x" + exact),
        "plus": (("transfer-encoding: chunked",), b"+" + exact),
        "minus": (("transfer-encoding: chunked",), b"-" + exact),
        "huge": (("transfer-encoding: chunked",), b"f" * 20 + b"\r\n" + body),
        "short": (("transfer-encoding: chunked",), size + b"\r\n" + body[:-5] + b"\r\n0\r\n\r\n"),
        "no end": (("transfer-encoding: chunked",), exact[:-5]),
        "trailer": (("transfer-encoding: chunked",),
                    exact[:-2] + b"authorization: Bearer x\r\nx-litellm-tags: a\r\n\r\n"),
        "follower": (("transfer-encoding: chunked", "content-length: 5"), exact + second),
        "lengths": ((f"content-length: {len(body)}", "content-length: 3"), body),
        "long": (("content-length: 99999999999999999999",), body),
        "signed": ((f"content-length: +{len(body)}",), body),
    }  # fmt: skip
    for name, (headers, data) in cases.items():
        upstream.calls.clear()
        target = request_bytes("/v1/chat/completions", key, "host: x", *headers, body=data)
        answer = await raw(wire, target)
        statuses = re.findall(rb"HTTP/1\.1 (\d+)", answer)
        assert set(statuses) <= {b"200", b"400", b"404", b"413", b"501"}, (name, answer[:300])
        for call in upstream.calls:  # whole, and once
            assert call.body["messages"] == HELLO["messages"], name
            assert "x-litellm-tags" not in call.headers
        assert len(upstream.calls) == statuses.count(b"200") <= 1, (name, statuses)
        if name == "trailer":
            assert statuses == [b"200"]
        if name in ("both", "follower", "lengths", "hex", "plus", "minus", "huge", "short",
                    "twice", "gzip"):  # fmt: skip
            assert upstream.calls == [], name


@pytest.mark.parametrize("late", [False, True], ids=["one write", "body late"])
@pytest.mark.parametrize("protocol", ["websocket", "h2c"])
async def test_an_upgrade_is_an_ordinary_request(
    wire: GuardProcess, upstream: FakeUpstream, protocol: str, late: bool
) -> None:
    """Java's client offers h2c with its first request to any http:// address; its body was dropped,
    or read as the next request of the connection."""
    new = await wire.new_key()
    body = json.dumps(HELLO).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {new['key']}\r\n"
        f"connection: upgrade\r\nupgrade: {protocol}\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode()
    second = request_bytes("/v1/files", new["key"], "host: x", "content-length: 0", body=b"")
    parts = (head, body, second) if late else (head + body + second,)
    answer = await raw(wire, *parts)
    assert re.findall(rb"HTTP/1\.1 (\d+)", answer) == [b"200", b"404"]
    async with asyncio.timeout(60):  # the answer began before its call was closed
        while not (entries := [e for e in await wire.entries() if e["key_id"] == new["key_id"]]):
            await asyncio.sleep(0.05)
    assert len(upstream.calls) == len(entries) == 1
    assert upstream.calls[0].body["messages"] == HELLO["messages"]
    assert "Unsupported" not in wire.log.read_text()


async def test_an_upgrade_smuggles_nothing_into_the_admin_port(wire: GuardProcess) -> None:
    inner = b"GET /admin/v1/keys HTTP/1.1\r\nhost: x\r\n\r\n"
    head = (
        "POST /admin/v1/keys HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n"
        f"content-length: {len(inner)}\r\n\r\n"
    ).encode()
    last = inner.replace(b"host", b"connection: close\r\nhost")
    answer = await raw(wire, head, inner, last, url=wire.admin_url)
    assert re.findall(rb"HTTP/1\.1 (\d+)", answer) == [b"401", b"401"]


async def test_two_credentials_are_no_credential(
    wire: GuardProcess, upstream: FakeUpstream
) -> None:
    """Whichever a proxy before us looks at, no other one is taken here."""
    key, other = await wire.key(), await wire.key()
    body = json.dumps(HELLO).encode()
    rest = ("host: guard", f"content-length: {len(body)}")
    path = "/v1/chat/completions"
    for pair in (
        (f"authorization: Bearer {other}",), (f"x-api-key: {other}",), (f"api-key: {other}",),
        ("x-api-key: wrong",), ("Authorization: Basic eDp5",), (f"X-Api-Key: {key}x",),
    ):  # fmt: skip
        answer = await raw(wire, request_bytes(path, key, *pair, *rest, body=body))
        assert answer.split(b" ", 2)[1] == b"401", (pair, answer)
        assert b"invalid_api_key" in answer
        assert b"different credentials in " in answer
        assert key.encode() not in answer
    assert upstream.calls == []
    same = (f"authorization: Bearer {key}", f"x-api-key: {key}")
    answer = await raw(wire, request_bytes(path, key, *same, *rest, body=body))
    assert answer.split(b" ", 2)[1] == b"200"
    admin = wire.admin_url.removeprefix("http://")
    for first, second in ((ADMIN_KEY, "x"), ("x", ADMIN_KEY)):
        twice = [("authorization", f"Bearer {first}"), ("authorization", f"Bearer {second}")]
        found = await wire.http.get(f"http://{admin}/admin/v1/keys", headers=twice)
        assert found.status_code == 401


async def test_hosts_and_lengths_that_come_twice(
    wire: GuardProcess, upstream: FakeUpstream
) -> None:
    key = await wire.key()
    body = json.dumps(HELLO).encode()
    length = f"content-length: {len(body)}"
    path = "/v1/chat/completions"
    for headers in (
        ("host: a", "host: b", length), ("host: a", "host: a", length),
        ("host: a", "Host:", length), ("host: a", length, length),
        ("host: a", f"{length}, {len(body)}"), ("host: a", f"{length} {len(body)}"),
        ("host: a", length, "transfer-encoding: identity"),
    ):  # fmt: skip
        answer = await raw(wire, request_bytes(path, key, *headers, body=body))
        assert answer.split(b" ", 2)[1] == b"400", (headers, answer)
    assert upstream.calls == []
