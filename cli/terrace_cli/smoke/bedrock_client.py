"""Calls through the gateway with boto3's bedrock-runtime client; imported late: it is heavy."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from terrace_cli.connecting import again_while_refused
from terrace_cli.smoke.answers import TIMEOUT_SECONDS, Answer


@contextmanager
def bedrock_client(gateway: str, key: str) -> Iterator[Any]:
    """boto3's bedrock-runtime client on the gateway with the key as its bearer token.

    On HTTPS this is AWS_BEARER_TOKEN_BEDROCK and nothing else. On plain HTTP, as on this machine's
    node address, botocore refuses to send bearer tokens, so the same header is set by hand.
    """
    import boto3  # noqa: PLC0415
    from botocore import UNSIGNED  # noqa: PLC0415
    from botocore.config import Config  # noqa: PLC0415

    plain = gateway.startswith("http://")
    config = Config(
        signature_version=UNSIGNED if plain else None,
        retries={"total_max_attempts": 1},
        read_timeout=TIMEOUT_SECONDS,
        proxies={},
    )
    # botocore reads the token when it signs, so the variable is set as long as the client is used.
    with _bearer_token(key):
        client = boto3.Session().client(
            "bedrock-runtime", region_name="us-east-1", endpoint_url=gateway, config=config
        )
        if plain:
            client.meta.events.register(
                "before-send.bedrock-runtime",
                lambda request, **_: request.headers.update({"Authorization": f"Bearer {key}"}),
            )
        try:
            yield client
        finally:
            client.close()


def converse(gateway: str, key: str, model: str, prompt: str, *, max_tokens: int) -> Answer:
    """One Converse call."""
    with bedrock_client(gateway, key) as client:
        request = _converse_request(model, prompt, max_tokens)
        answer = again_while_refused(lambda: client.converse(**request))
    return Answer(
        text="".join(part.get("text", "") for part in answer["output"]["message"]["content"]),
        input_tokens=answer["usage"]["inputTokens"],
        output_tokens=answer["usage"]["outputTokens"],
    )


def converse_stream(gateway: str, key: str, model: str, prompt: str, *, max_tokens: int) -> Answer:
    """One ConverseStream call, read to its end."""
    pieces: list[str] = []
    usage = {"inputTokens": 0, "outputTokens": 0}
    with bedrock_client(gateway, key) as client:
        request = _converse_request(model, prompt, max_tokens)
        answer = again_while_refused(lambda: client.converse_stream(**request))
        for event in answer["stream"]:
            if "contentBlockDelta" in event:
                pieces.append(event["contentBlockDelta"]["delta"].get("text", ""))
            if "metadata" in event:
                usage = event["metadata"]["usage"]
    return Answer(
        text="".join(pieces),
        input_tokens=usage["inputTokens"],
        output_tokens=usage["outputTokens"],
        chunks=len(pieces),
    )


def _converse_request(model: str, prompt: str, max_tokens: int) -> dict[str, Any]:
    return {
        "modelId": model,
        "messages": [{"role": "user", "content": [{"text": prompt}]}],
        "inferenceConfig": {"maxTokens": max_tokens},
    }


@contextmanager
def _bearer_token(key: str) -> Iterator[None]:
    name = "AWS_BEARER_TOKEN_BEDROCK"
    before = os.environ.get(name)
    os.environ[name] = key
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
