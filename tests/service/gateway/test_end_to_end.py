"""The real LiteLLM and the real model simulator: the ledger equals the provider's own bill."""

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import boto3
import httpx
import openai
import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError, EventStreamError
from gateway_rig.guard import GuardProcess, InProcessGuard, write_files
from gateway_rig.postgres import Postgres
from gateway_rig.real_upstream import RealUpstream

CLAUDE = "anthropic.claude-sonnet-4-5-20250929-v1:0"
CONVERSATION: list[dict[str, Any]] = [{"role": "user", "content": [{"text": "hello there"}]}]


@pytest.fixture
def guard(real_guard: InProcessGuard) -> InProcessGuard:
    return real_guard


async def assert_books_equal(guard: InProcessGuard, real: RealUpstream, before: int) -> None:
    """Every attempt, and the total: what was not ours would show in the total."""
    sums: dict[str, int] = {}
    for entry in await guard.entries():
        sums.setdefault(entry["attempt_id"], 0)
        sums[entry["attempt_id"]] += entry["amount_micro_usd"]
    billed = {attempt: real.bill(attempt)["total_micro_usd"] for attempt in sums}
    assert sums == billed
    assert real.bill()["total_micro_usd"] - before == sum(sums.values())


def openai_client(guard: InProcessGuard, key: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{guard.public_url}/v1", api_key=key, max_retries=0)


@contextmanager
def bedrock_client(guard: InProcessGuard, key: str, **config: Any) -> Iterator[Any]:
    """boto3 as it is, but for the header: botocore sends bearer tokens over HTTPS only."""
    client = boto3.client(
        "bedrock-runtime", region_name="us-east-1", endpoint_url=guard.public_url,
        config=Config(retries={"total_max_attempts": 1}, signature_version=UNSIGNED, **config),
    )  # fmt: skip

    def add_key(request: Any, **_: Any) -> None:
        request.headers["Authorization"] = f"Bearer {key}"

    client.meta.events.register("before-send.bedrock-runtime", add_key)
    with closing(client):
        yield client


def all_events(client: Any, model_id: str) -> list[dict[str, Any]]:
    with closing(
        client.converse_stream(modelId=model_id, messages=CONVERSATION)["stream"]
    ) as stream:
        return list(stream)


@pytest.mark.parametrize("model", ["sim-small", "sim-large", "bedrock-claude", CLAUDE])
async def test_openai_client(guard: InProcessGuard, real: RealUpstream, model: str) -> None:
    before = real.bill()["total_micro_usd"]
    key = await guard.key(budget_micro_usd=1_000_000)
    async with openai_client(guard, key) as client:
        answer = await client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "hello there"}], max_tokens=40
        )
        assert answer.model == model
        assert answer.choices[0].message.content
        assert answer.usage is not None
        stream = await client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "hello again"}], stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        chunks = [chunk async for chunk in stream]
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert chunks[-1].usage is not None
        assert {chunk.model for chunk in chunks} == {model}
    entries = await guard.entries()
    assert [entry["kind"] for entry in entries] == ["attempt", "attempt"]
    assert all(e["amount_micro_usd"] <= e["reserved_micro_usd"] for e in entries)
    await assert_books_equal(guard, real, before)


@pytest.mark.parametrize("model_id", ["bedrock-claude", CLAUDE])
async def test_boto3(guard: InProcessGuard, real: RealUpstream, model_id: str) -> None:
    before = real.bill()["total_micro_usd"]
    with bedrock_client(guard, await guard.key()) as client:
        answer = await asyncio.to_thread(
            client.converse, modelId=model_id, messages=CONVERSATION,
            inferenceConfig={"maxTokens": 30},
        )  # fmt: skip
        assert answer["output"]["message"]["content"][0]["text"]
        assert answer["usage"]["outputTokens"] <= 30
        events = await asyncio.to_thread(all_events, client, model_id)
    assert [event for event in events if "metadata" in event] == events[-1:]
    entries = await guard.entries()
    assert [(e["kind"], e["surface"]) for e in entries] == [("attempt", "converse")] * 2
    await assert_books_equal(guard, real, before)


async def test_boto3_sees_refusals(guard: InProcessGuard, real: RealUpstream) -> None:
    no_claude = {"models": ["sim-small"]}
    for fields, model, config, status, code, message in (
        ({}, CLAUDE, {"topP": 1.0, "maxTokens": 0}, 400, "ValidationException", "maxTokens"),
        (no_claude, CLAUDE, {}, 403, "AccessDeniedException", "may not use this model"),
        ({}, "sim-small", {}, 404, "ResourceNotFoundException", "'sim-small'"),
        ({"budget_micro_usd": 1}, CLAUDE, {}, 429, "ThrottlingException", "0.000001 USD of"),
    ):
        key = await guard.key(**fields)
        with bedrock_client(guard, key, parameter_validation=False) as client:
            for call in (client.converse, client.converse_stream):
                with pytest.raises(ClientError) as caught:
                    await asyncio.to_thread(
                        call, modelId=model, messages=CONVERSATION, inferenceConfig=config
                    )
                response = caught.value.response
                assert response["ResponseMetadata"]["HTTPStatusCode"] == status
                assert response["Error"]["Code"] == code
                assert message in response["Error"]["Message"]
                assert isinstance(caught.value, getattr(client.exceptions, code))
    with (
        bedrock_client(guard, "tk-" + "a" * 43) as stranger,
        pytest.raises(ClientError, match=r"\(AccessDeniedException\).*the API key is unknown"),
    ):
        await asyncio.to_thread(stranger.converse, modelId=CLAUDE, messages=CONVERSATION)
    with (
        bedrock_client(guard, await guard.key()) as client,
        pytest.raises(ClientError, match=r"\(ResourceNotFoundException\).*no such route"),
    ):
        await asyncio.to_thread(client.invoke_model, modelId=CLAUDE, body=b"{}")
    assert real.bill()["in_flight"] == 0


FAULTS: list[dict[str, Any]] = [
    {"kind": "status", "status": 400},
    {"kind": "status", "status": 429},
    {"kind": "status", "status": 500},
    {"kind": "status", "status": 503},
    {"kind": "disconnect", "after_chunks": 0},
    {"kind": "disconnect", "after_chunks": 2},
    {"kind": "no_usage"},
]


@pytest.mark.parametrize(
    ("model", "call"),
    [
        ("sim-small", "chat"),
        ("sim-small", "chat-stream"),
        ("bedrock-claude", "chat"),
        ("bedrock-claude", "chat-stream"),
        ("bedrock-claude", "converse"),
        ("bedrock-claude", "converse-stream"),
    ],
)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: "-".join(str(v) for v in f.values()))
async def test_faults_then_reconcile(
    guard: InProcessGuard, real: RealUpstream, fault: dict[str, Any], model: str, call: str
) -> None:
    before = real.bill()["total_micro_usd"]
    key = await guard.key(budget_micro_usd=1_000_000)
    real.fault(**fault)
    if call.startswith("chat"):
        body: dict[str, Any] = {
            "model": model, "messages": [{"role": "user", "content": "hello there"}],
            "stream": call == "chat-stream",
        }  # fmt: skip
        url = "/v1/chat/completions"
    else:
        body = {"messages": CONVERSATION}
        url = f"/model/{model}/{call}"
    response = await guard.http.post(
        guard.public_url + url, json=body, headers={"authorization": f"Bearer {key}"}
    )
    assert response.status_code < 500 or response.json()["error"]["code"] == "upstream_error"
    entries = await guard.entries()
    assert len(entries) == 1
    refused = fault["kind"] == "status"
    assert entries[0]["outcome"] == ("upstream_error" if refused else "unknown")
    assert entries[0]["amount_micro_usd"] >= real.bill()["total_micro_usd"] - before
    result = await guard.admin("POST", "/reconcile", json={})
    assert result["still_open"] == 0
    assert result["unreachable"] == []
    await assert_books_equal(guard, real, before)
    again = await guard.admin("POST", "/reconcile", json={})
    assert (again["trued_up"], again["not_billed"]) == (0, 0)


async def test_boto3_stream_that_breaks(guard: InProcessGuard, real: RealUpstream) -> None:
    real.fault(kind="disconnect", after_chunks=2)
    # Broken before its first event: an HTTP error; later: an exception frame, the subclass.
    with (
        bedrock_client(guard, await guard.key()) as client,
        pytest.raises(ClientError) as caught,
    ):
        await asyncio.to_thread(all_events, client, CLAUDE)
    metadata = caught.value.response.get("ResponseMetadata", {})
    assert isinstance(caught.value, EventStreamError) or metadata["HTTPStatusCode"] == 502
    assert [entry["kind"] for entry in await guard.entries()] == ["unknown"]


async def test_kill_9_of_a_guard_in_a_stream(
    real: RealUpstream, tmp_path: Path, guard: InProcessGuard, postgres: Postgres, database: str
) -> None:
    """The provider bills what it produced; the ledger never says less, and the same in the end."""
    files = write_files(
        tmp_path, database_url=postgres.url(database), governance=real.governance_text
    )
    settings = {
        **files, "translator_socket": real.socket, "translator_key_file": real.key_file,
        "host": "127.0.0.1", "replica": "victim", "spool_directory": tmp_path / "volume",
    }  # fmt: skip
    before = real.bill()["total_micro_usd"]
    victim = await GuardProcess.start(settings, tmp_path / "victim.log")
    key = await guard.key(budget_micro_usd=1_000_000)
    real.fault(kind="chunk_latency", seconds=0.3)
    body = {"model": "sim-large", "messages": [{"role": "user", "content": "hello"}]}
    async with victim.http.stream(
        "POST", f"{victim.public_url}/v1/chat/completions", json={**body, "stream": True},
        headers={"authorization": f"Bearer {key}"},
    ) as response:  # fmt: skip
        parts = response.aiter_bytes()
        await anext(parts)
        await victim.kill()
        with pytest.raises(httpx.RemoteProtocolError):
            async for _ in parts:
                pass
    await victim.http.aclose()
    heir = await GuardProcess.start(settings, tmp_path / "heir.log")  # on the same volume
    async with asyncio.timeout(60):
        while not await guard.entries():
            await asyncio.sleep(0.2)
        while (await guard.admin("POST", "/reconcile", json={}))["still_open"]:
            billed = real.bill()["total_micro_usd"] - before
            assert (await guard.admin("GET", "/spend"))["total_micro_usd"] >= billed
            await asyncio.sleep(0.2)
    assert [entry["kind"] for entry in await guard.entries()] == ["unknown", "correction"]
    assert real.bill()["total_micro_usd"] > before
    await assert_books_equal(guard, real, before)
    assert await heir.stop() == 0
