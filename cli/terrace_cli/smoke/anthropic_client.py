"""Calls through the gateway in Anthropic's protocol, by plain HTTP: what its client would send."""

import json
from collections.abc import Iterator
from typing import Any

import httpx

from terrace_cli.connecting import patient_transport
from terrace_cli.smoke.answers import TIMEOUT_SECONDS, Answer


def message(gateway: str, key: str, model: str, prompt: str, *, max_tokens: int) -> Answer:
    """One message."""
    with _client(gateway, key) as client:
        answer = client.post("/v1/messages", json=_request(model, prompt, max_tokens))
    answer.raise_for_status()
    document = answer.json()
    return Answer(
        text="".join(part.get("text", "") for part in document["content"]),
        input_tokens=document["usage"]["input_tokens"],
        output_tokens=document["usage"]["output_tokens"],
    )


def message_stream(gateway: str, key: str, model: str, prompt: str, *, max_tokens: int) -> Answer:
    """One streamed message, read to its end."""
    pieces: list[str] = []
    usage = {"input_tokens": 0, "output_tokens": 0}
    request = {**_request(model, prompt, max_tokens), "stream": True}
    with (
        _client(gateway, key) as client,
        client.stream("POST", "/v1/messages", json=request) as answer,
    ):
        answer.raise_for_status()
        for event in _events(answer):
            told = event.get("message", event).get("usage") or {}
            usage |= {name: told[name] for name in usage if told.get(name)}
            if event["type"] == "content_block_delta":
                pieces.append(event["delta"].get("text", ""))
    return Answer(text="".join(pieces), chunks=len(pieces), **usage)


def count_tokens(gateway: str, key: str, model: str, prompt: str) -> int:
    """How many tokens a message would have."""
    with _client(gateway, key) as client:
        answer = client.post(
            "/v1/messages/count_tokens",
            json={"model": model, "messages": [{"role": "user", "content": prompt}]},
        )
    answer.raise_for_status()
    return int(answer.json()["input_tokens"])


def _client(gateway: str, key: str) -> httpx.Client:
    return httpx.Client(
        base_url=gateway,
        headers={"x-api-key": key, "anthropic-version": "2023-06-01"},
        timeout=TIMEOUT_SECONDS,
        trust_env=False,
        transport=patient_transport(),
    )


def _request(model: str, prompt: str, max_tokens: int) -> dict[str, Any]:
    return {
        "model": model,
        "max_tokens": max_tokens,
        "messages": [{"role": "user", "content": prompt}],
    }


def _events(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in answer.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))
