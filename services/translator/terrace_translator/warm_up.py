"""The first call of each kind, made before anybody waits for it.

LiteLLM imports a provider's code when it is first called (about 0.9 s). The warm-up goes the whole
way, socket to provider, but to deployments of its own whose provider is in this process.
"""

from pathlib import Path
from typing import Any

import httpx

from terrace_translator.upstream_status import HEADER

_PREFIX = "terrace-warm-up-"
_EMBED = "-embed"
_BEDROCK_MODELS = {
    "bedrock": "bedrock/anthropic.claude-3-haiku-20240307-v1:0",
    f"bedrock{_EMBED}": "bedrock/cohere.embed-english-v3",
}
_MESSAGES = [{"role": "user", "content": "ok"}]
_CONVERSE = {
    "messages": [{"role": "user", "content": [{"text": "ok"}]}],
    "inferenceConfig": {"maxTokens": 1},
}


class WarmUpError(Exception):
    """LiteLLM did not answer a rehearsal as it would have to answer a real call."""


def rehearsal_entries(provider: str, address: str) -> list[dict[str, Any]]:
    """Deployments like the real ones of `provider`, at `address`. They hold no credential."""
    return [_entry(provider, provider, address), _entry(provider, f"{provider}{_EMBED}", address)]


def _entry(provider: str, kind: str, address: str) -> dict[str, Any]:
    name = _PREFIX + kind
    entry: dict[str, Any] = {"model_name": name, "model_info": {"id": name}}
    if provider == "openai":
        parameters = {"model": "openai/warm-up", "api_base": f"{address}/v1", "api_key": "none"}
    else:
        parameters = {
            "model": _BEDROCK_MODELS[kind],
            "aws_bedrock_runtime_endpoint": address,
            "aws_region_name": "us-east-1",
            "aws_access_key_id": "none",
            "aws_secret_access_key": "none",
        }
    return {**entry, "litellm_params": {**parameters, "timeout": 30, "max_retries": 0}}


async def rehearse(socket: Path, master_key: str, providers: list[str]) -> None:
    """One call per kind of deployment and surface. Raises WarmUpError with LiteLLM's answer."""
    transport = httpx.AsyncHTTPTransport(uds=str(socket))
    headers = {"authorization": f"Bearer {master_key}"}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://engine", headers=headers, timeout=60
    ) as client:
        for provider in providers:
            name = _PREFIX + provider
            chat: dict[str, Any] = {"model": name, "messages": _MESSAGES, "max_tokens": 1}
            await _both(client, "/v1/chat/completions", chat, usage_is_asked_for=True)
            prompt = {"model": name, "prompt": "ok", "max_tokens": 1}
            await _both(client, "/v1/completions", prompt, usage_is_asked_for=True)
            response = {"model": name, "input": "ok", "max_output_tokens": 16, "store": False}
            await _both(client, "/v1/responses", response)
            await _both(client, "/v1/messages", chat)
            count = {"model": name, "messages": _MESSAGES}
            await _call(client, "/v1/messages/count_tokens", count)
            await _call(client, "/v1/embeddings", {"model": name + _EMBED, "input": ["ok"]})
            if provider == "bedrock":
                await _call(client, f"/bedrock/model/{name}/converse", _CONVERSE)
                await _call(client, f"/bedrock/model/{name}/converse-stream", _CONVERSE)


async def _both(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], *, usage_is_asked_for: bool = False
) -> None:
    """Plain, and streamed."""
    await _call(client, path, body)
    options = {"stream_options": {"include_usage": True}} if usage_is_asked_for else {}
    await _call(client, path, {**body, "stream": True, **options})


async def _call(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
    answer = await client.post(path, json=body)
    # An error after the head of a stream is in its body.
    if not answer.is_success or (body.get("stream") and '"error": {' in answer.text):
        raise WarmUpError(f"{path} answered {answer.status_code}: {answer.text[:500]}")
    # Of a call that is not seen the guard could not tell a refusal from a lost answer.
    if (seen := answer.headers.get(HEADER.decode())) != "200":
        raise WarmUpError(f"{path} was answered with 200, and what was seen is {seen}")
