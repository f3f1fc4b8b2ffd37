"""Bedrock with the pod's own identity, and models named by inference profiles.

LiteLLM gets no key at all: boto3 asks the agent on the node (EKS Pod Identity), played here by a
server that keeps a book of who asked.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio
from aiohttp import web
from botocore.eventstream import EventStreamBuffer

from terrace_common.governance import load_governance
from terrace_common.translator_config import translator_config

from . import fake_provider
from .conftest import Translator, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

REGION = "eu-west-1"
TOKEN = "canary-pod-token"
KEY_ID = "ASIAPODIDENTITY0001"
SESSION = "canary-session-token"
FOUNDATION = "anthropic.claude-sonnet-4-5-20250929-v1:0"
PROFILE = f"eu.{FOUNDATION}"
APPLICATION = f"arn:aws:bedrock:{REGION}:123456789012:application-inference-profile/abc123def456"
MODELS = {"foundation": FOUNDATION, "profile": PROFILE, "application": APPLICATION}
# What the spec says is what Bedrock is asked for: one segment of the path, its slash encoded.
# LiteLLM's chat encodes colons too, its pass-through does not; both are the same path.
ASKED_FOR = [pytest.param(name, quote(MODELS[name], safe=":"), id=name) for name in MODELS]


class Agent:
    """The Pod Identity agent: credentials for whoever shows the token of the pod."""

    def __init__(self) -> None:
        self.asked: list[str | None] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.headers.get("Authorization"))
        if self.asked[-1] != TOKEN:
            return web.json_response({"message": "who are you"}, status=401)
        expires = datetime.now(UTC) + timedelta(hours=6)
        return web.json_response(
            {
                "AccessKeyId": KEY_ID,
                "SecretAccessKey": "canary-secret-key",
                "Token": SESSION,
                "AccountId": "123456789012",
                "Expiration": expires.strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
        )


def spec(address: str) -> str:
    models = [
        {
            "name": name,
            "provider": "bedrock",
            "upstream_model": upstream,
            "context_tokens": 1000,
            "max_output_tokens": 100,
            "price": {"input_micro_usd_per_mtok": 1, "output_micro_usd_per_mtok": 1},
            **({"base_model": FOUNDATION} if name == "application" else {}),
        }
        for name, upstream in MODELS.items()
    ]
    provider = {
        "name": "bedrock", "kind": "bedrock", "region": REGION, "endpoint": address,
        "credentials": "ambient",
    }  # fmt: skip
    return json.dumps(
        {"version": 1, "price_version": "1", "providers": [provider], "models": models}
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent() -> AsyncIterator[tuple[Agent, str]]:
    found = Agent()
    app = web.Application()
    app.router.add_get("/v1/credentials", found.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    yield found, f"http://127.0.0.1:{port}/v1/credentials"
    await runner.cleanup()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started(
    tmp_path_factory: pytest.TempPathFactory, agent: tuple[Agent, str]
) -> AsyncIterator[Translator]:
    folder: Path = tmp_path_factory.mktemp("ambient")
    token = folder / "token"
    await asyncio.to_thread(token.write_text, TOKEN)
    variables = {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": agent[1],
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token),
    }
    async with fake_provider.serving() as provider:
        configuration: dict[str, Any] = dict(
            translator_config(load_governance(spec(provider.address), "spec"))
        )
        async with running(
            folder, provider, configuration=configuration, variables=variables
        ) as translator:
            yield translator


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize(("model", "path"), ASKED_FOR)
async def test_chat(translator: Translator, model: str, path: str, stream: bool) -> None:
    answer = await translator.client.post(
        "/v1/chat/completions",
        json={
            "model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20,
            "stream": stream, "extra_headers": {"x-terrace-attempt-id": "att_1"},
        },
    )  # fmt: skip
    assert answer.status_code == 200, answer.text
    (call,) = translator.provider.calls
    assert call.path.replace("%3A", ":") == f"/model/{path}/converse{'-stream' if stream else ''}"
    assert call.headers["x-terrace-attempt-id"] == "att_1"
    assert_signed_by_the_pod(call)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize(("model", "path"), ASKED_FOR)
async def test_converse(translator: Translator, model: str, path: str, stream: bool) -> None:
    ending = "converse-stream" if stream else "converse"
    answer = await translator.client.post(
        f"/bedrock/model/{model}/{ending}",
        json={
            "messages": [{"role": "user", "content": [{"text": "hi"}]}],
            "inferenceConfig": {"maxTokens": 20},
            "requestMetadata": {"terrace-attempt-id": "att_1"},
        },
    )
    assert answer.status_code == 200, answer.text
    if stream:
        buffer = EventStreamBuffer()
        buffer.add_data(answer.content)
        assert list(buffer)
    (call,) = translator.provider.calls
    assert call.path.replace("%3A", ":") == f"/model/{path}/{ending}"
    assert_signed_by_the_pod(call)


async def test_the_agent_was_asked_with_the_pods_token(
    translator: Translator, agent: tuple[Agent, str]
) -> None:
    # The first call of the process asks, and this test may be the first.
    body = {"messages": [{"role": "user", "content": [{"text": "hi"}]}]}
    answer = await translator.client.post("/bedrock/model/foundation/converse", json=body)
    assert answer.status_code == 200, answer.text
    assert set(agent[0].asked) == {TOKEN}


def assert_signed_by_the_pod(call: fake_provider.Call) -> None:
    headers = {name.lower(): value for name, value in call.headers.items()}
    assert headers["authorization"].startswith(f"AWS4-HMAC-SHA256 Credential={KEY_ID}/")
    assert f"/{REGION}/bedrock/aws4_request" in headers["authorization"]
    assert headers["x-amz-security-token"] == SESSION
