"""Proof 10: what the guard's surfaces rely on from LiteLLM, read by the surfaces themselves.

Translation, usage, how errors are mapped, and one call upstream for one call, on every surface that
is not chat or converse (those are in test_calls.py).
"""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from importlib.resources import files
from typing import Any

import httpx
import pytest
import pytest_asyncio

from terrace_common.governance import load_governance
from terrace_gateway.calls.ports import Usage
from terrace_gateway.edge.routes import match_route
from terrace_gateway.surfaces.request import SurfaceRequest, read_request
from terrace_gateway.surfaces.surface import Identity, Surface
from terrace_gateway.surfaces.upstream_request import UpstreamRequest
from terrace_gateway.upstream.translator import Translator as Client

from . import fake_provider
from .conftest import Translator, config, running
from .fake_faces import CACHE_READ, CACHE_WRITE, INPUT_TOKENS, OUTPUT_TOKENS, THOUGHT
from .fake_provider import COUNTED_BESIDE, FakeProvider

pytestmark = pytest.mark.asyncio(loop_scope="module")

GOVERNANCE = load_governance(
    (files("terrace_common") / "examples" / "governance.local.yaml").read_text("utf-8"), "g"
)
USER = [{"role": "user", "content": "hi"}]
CONVERSE = {"messages": [{"role": "user", "content": [{"text": "hi"}]}]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER, "max_tokens": 20},
    "/model/bedrock-claude/converse": CONVERSE,
    "/model/bedrock-claude/converse-stream": CONVERSE,
    "/v1/completions": {"prompt": "hi", "max_tokens": 20},
    "/v1/responses": {"input": "hi", "max_output_tokens": 20},
    "/v1/messages": {"messages": USER, "max_tokens": 20},
    "/v1/embeddings": {"input": ["hi"]},
    "/v1/messages/count_tokens": {"messages": USER},
}
# (surface, model) -> the provider's route, and the usage as the guard must read it
CALLS: dict[tuple[str, str], tuple[str, Usage]] = {
    ("/v1/completions", "sim-small"): (
        "/v1/completions", Usage(INPUT_TOKENS, OUTPUT_TOKENS, CACHE_READ)),
    ("/v1/completions", "bedrock-claude"): ("converse", Usage(INPUT_TOKENS, OUTPUT_TOKENS)),
    ("/v1/responses", "sim-small"): (
        "/v1/responses", Usage(INPUT_TOKENS, OUTPUT_TOKENS, CACHE_READ)),
    ("/v1/responses", "bedrock-claude"): ("converse", Usage(INPUT_TOKENS, OUTPUT_TOKENS)),
    ("/v1/messages", "sim-small"): (
        "/v1/responses", Usage(INPUT_TOKENS, OUTPUT_TOKENS, CACHE_READ)),
    ("/v1/messages", "bedrock-claude"): (
        "invoke", Usage(INPUT_TOKENS, OUTPUT_TOKENS, CACHE_READ, CACHE_WRITE)),
    ("/v1/embeddings", "sim-small"): ("/v1/embeddings", Usage(INPUT_TOKENS, 0)),
}  # fmt: skip
PLAIN = [pytest.param(path, model, id=f"{path}-{model}") for path, model in CALLS]
STREAMS = [
    pytest.param(path, model, id=f"{path}-{model}")
    for path, model in CALLS
    if path != "/v1/embeddings"
]


def made(
    path: str, model: str, *, limit: int = 20, **more: Any
) -> tuple[SurfaceRequest, UpstreamRequest, Surface]:
    match = match_route("POST", path)
    assert match is not None
    named = {"model": model} if path.startswith("/v1/") else {}
    request = read_request(match, {**named, **BODIES[path], **more})
    claude = GOVERNANCE.find_model("bedrock-claude")
    assert claude is not None
    found = GOVERNANCE.find_model(model) or claude.model_copy(update={"name": model})
    upstream = request.upstream(
        governance=GOVERNANCE, model=found, attempt_id="att_1",
        traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        max_output_tokens=limit,
    )  # fmt: skip
    return request, upstream, request.answers(Identity("req_1", "asked"))


async def post(translator: Translator, upstream: UpstreamRequest) -> httpx.Response:
    return await translator.client.post(
        upstream.path, content=upstream.body, headers={"content-type": "application/json"}
    )


@pytest.mark.parametrize(("path", "model"), PLAIN)
async def test_plain(translator: Translator, path: str, model: str) -> None:
    _, upstream, surface = made(path, model)
    answer = await post(translator, upstream)
    assert answer.status_code == 200, answer.text
    route, usage = CALLS[path, model]
    assert surface.usage(answer.json()) == usage
    shown = json.loads(surface.rebuild(answer.json()))
    assert shown["model"] == "asked"
    assert "fake" not in json.dumps(shown)
    (call,) = translator.provider.calls
    assert call.path.endswith(route)
    assert call.headers["x-terrace-attempt-id"] == "att_1"
    assert "4bf92f3577b34da6a3ce929d0e0e4736" in call.headers["traceparent"]
    limit = call.body.get("max_tokens") or call.body.get("max_output_tokens")
    if "inferenceConfig" in call.body:
        limit = call.body["inferenceConfig"]["maxTokens"]
    assert limit == (None if path == "/v1/embeddings" else 20)
    if route == "/v1/responses":
        assert call.body["store"] is False


@pytest.mark.parametrize(("path", "model"), STREAMS)
async def test_stream(translator: Translator, path: str, model: str) -> None:
    _, upstream, surface = made(path, model, stream=True)
    answer = await post(translator, upstream)
    assert answer.status_code == 200, answer.text
    stream = surface.open_stream()
    shown = stream.feed(answer.content) + stream.ending()
    assert (stream.usage, stream.done, stream.failed) == (CALLS[path, model][1], True, False)
    assert b"there" in shown
    assert b"fake" not in shown
    (call,) = translator.provider.calls
    assert call.headers["x-terrace-attempt-id"] == "att_1"


NAMED = {"terrace-attempt-id": "att_1"}
# Of a model that LiteLLM does not know, chat goes through InvokeModel, too.
UNKNOWN_CLAUDE = "anthropic.claude-none-such-v1:0"
LOGGED = [
    ("/v1/chat/completions", "bedrock-claude", "converse"),
    ("/v1/chat/completions", "bedrock-unknown", "invoke"),
    ("/v1/completions", "bedrock-claude", "converse"),
    ("/v1/responses", "bedrock-claude", "converse"),
    ("/v1/messages", "bedrock-claude", "invoke"),
    ("/v1/messages", "bedrock-nova", "converse"),
    ("/v1/embeddings", "bedrock-embed", "invoke"),
    ("/model/bedrock-claude/converse", "bedrock-claude", "converse"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guards_client(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[Client, FakeProvider]]:
    """The guard's own client, and Bedrock models of every route."""
    folder = tmp_path_factory.mktemp("named")
    async with fake_provider.serving() as provider:
        models = {
            "bedrock-unknown": UNKNOWN_CLAUDE, "bedrock-nova": "amazon.nova-lite-v1:0",
            "bedrock-embed": "cohere.embed-english-v3",
        }  # fmt: skip
        configuration = config(provider.address)
        known = configuration["model_list"][1]
        for name, model in models.items():
            entry = {**known["litellm_params"], "model": f"bedrock/{model}"}
            configuration["model_list"].append({"model_name": name, "litellm_params": entry})
        async with running(folder, provider, configuration=configuration) as translator:
            socket, key = translator.directory / "engine.sock", translator.directory / "master-key"
            client = Client(socket, key)
            await client.open()
            yield client, provider
            await client.close()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "model", "route"), LOGGED)
async def test_bedrock_is_told_what_names_the_attempt_in_its_log(
    guards_client: tuple[Client, FakeProvider], path: str, model: str, route: str, stream: bool
) -> None:
    client, provider = guards_client
    more = {"stream": True} if stream and path.startswith("/v1") and "embed" not in path else {}
    _, upstream, _ = made(path + "-stream" * (stream and "converse" in path), model, **more)
    provider.calls.clear()
    async with client.call(upstream) as answer:
        assert b"".join([part async for part in answer.chunks()])
        # Bedrock tells it beside the answer of InvokeModel; nobody else does.
        counted = (route == "invoke" and not stream) or path == "/v1/embeddings"
        assert answer.input_tokens == (COUNTED_BESIDE if counted else None)
    (call,) = provider.calls
    assert route in call.path.rsplit("/", 1)[1]
    # Converse has a field for it, InvokeModel a header: a field there would be an unknown one.
    header = {name.lower(): value for name, value in call.headers.items()}.get(
        "x-amzn-bedrock-request-metadata"
    )
    told = call.body.get("requestMetadata")
    assert (told, header and json.loads(header)) == (
        (NAMED, None) if route == "converse" else (None, NAMED)
    )


@pytest.mark.parametrize(
    ("path", "model"),
    [
        *((path, "sim-small") for path in BODIES if path.startswith("/v1/")),
        ("/v1/messages/count_tokens", "bedrock-claude"),
    ],
)
async def test_openai_and_the_free_counters_are_told_nothing_more(
    guards_client: tuple[Client, FakeProvider], path: str, model: str
) -> None:
    client, provider = guards_client
    _, upstream, _ = made(path, model)
    provider.calls.clear()
    async with client.call(upstream) as answer:
        assert answer.status == 200
    (call,) = provider.calls
    assert "terrace-attempt-id" not in json.dumps(call.body)
    assert not [name for name in call.headers if "metadata" in name.lower()]


@pytest.mark.parametrize("limit", [1, 20])
@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/chat/completions", "max_tokens"),
        ("/v1/responses", "max_output_tokens"),
        ("/v1/messages", "max_output_tokens"),
    ],
)
async def test_the_provider_is_sent_no_larger_limit_than_is_reserved_and_the_tier(
    translator: Translator, path: str, field: str, limit: int
) -> None:
    """LiteLLM raises a low limit where it asks for a response."""
    _, upstream, _ = made(path, "sim-small", limit=limit)
    body = {**json.loads(upstream.body), "service_tier": "default"}  # as OpenAI itself is sent it
    translator.provider.calls.clear()
    await post(translator, replace(upstream, body=json.dumps(body).encode()))
    (call,) = translator.provider.calls
    assert 0 < call.body[field] <= max(limit, upstream.least_output_tokens)
    assert call.body["service_tier"] == "default"


@pytest.mark.parametrize("fault", [400, 401, 403, 429, 500, 503, "close"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "model"), PLAIN)
async def test_a_failed_call_is_one_call_and_blocks_nobody(
    translator: Translator, path: str, model: str, stream: bool, fault: int | str
) -> None:
    more = {"stream": True} if stream and path != "/v1/embeddings" else {}
    _, upstream, surface = made(path, model, **more)
    translator.provider.faults.append(fault)
    answer = await post(translator, upstream)
    assert len(translator.provider.calls) == 1, "it was tried again"
    assert not translator.provider.faults
    if answer.status_code == 200:  # told in the stream
        reader = surface.open_stream()
        reader.feed(answer.content)
        assert (reader.failed, reader.usage) == (True, None)
    elif isinstance(fault, int) and fault < 500:
        assert answer.status_code == fault
    after = await post(translator, upstream)
    assert after.status_code == 200, after.text
    assert len(translator.provider.calls) == 2


@pytest.mark.parametrize(("path", "model"), STREAMS)
async def test_a_cut_stream_is_one_call_and_has_no_usage(
    translator: Translator, path: str, model: str
) -> None:
    _, upstream, surface = made(path, model, stream=True)
    translator.provider.faults.append("cut")
    reader = surface.open_stream()
    try:
        async with translator.client.stream(
            "POST", upstream.path, content=upstream.body,
            headers={"content-type": "application/json"},
        ) as answer:  # fmt: skip
            async for part in answer.aiter_raw():
                reader.feed(part)
    except httpx.HTTPError:
        pass
    assert len(translator.provider.calls) == 1
    assert reader.usage is None


@pytest.mark.parametrize("model", ["sim-small", "bedrock-claude"])
async def test_tokens_are_counted_by_the_providers_free_counter(
    translator: Translator, model: str
) -> None:
    _, upstream, surface = made("/v1/messages/count_tokens", model)
    answer = await post(translator, upstream)
    assert json.loads(surface.rebuild(answer.json())) == {"input_tokens": INPUT_TOKENS}
    (call,) = translator.provider.calls
    assert call.path.endswith(("/v1/responses/input_tokens", "/count-tokens"))


@pytest.mark.parametrize("stream", [False, True])
async def test_thinking_arrives_with_its_budget_and_comes_back_signed(
    translator: Translator, stream: bool
) -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    _, upstream, surface = made(
        "/v1/messages", "bedrock-claude", limit=2048, thinking=thinking, stream=stream
    )
    answer = await post(translator, upstream)
    assert answer.status_code == 200, answer.text
    (call,) = translator.provider.calls
    assert (call.body["thinking"], call.body["max_tokens"]) == (thinking, 2048)
    if stream:
        reader = surface.open_stream()
        shown = (reader.feed(answer.content) + reader.ending()).decode()
        usage = reader.usage
    else:
        shown, usage = surface.rebuild(answer.json()).decode(), surface.usage(answer.json())
    assert THOUGHT in shown
    assert '"sig"' in shown
    assert usage == CALLS["/v1/messages", "bedrock-claude"][1]
