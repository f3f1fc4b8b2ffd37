"""One call in, exactly one call out, whatever the provider does, with the attempt's id on it."""

import json
from typing import Any

import httpx
import pytest
from botocore.eventstream import EventStreamBuffer

from .conftest import BEDROCK_MODEL, Translator
from .fake_provider import INPUT_TOKENS, OUTPUT_TOKENS

pytestmark = pytest.mark.asyncio(loop_scope="module")

ATTEMPT = "att_0123456789abcdef"
MODELS = ("sim-small", "bedrock-claude")


def chat(model: str, *, stream: bool = False) -> tuple[str, dict[str, Any]]:
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 20,
        "extra_headers": {"x-terrace-attempt-id": ATTEMPT},
    }
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return "/v1/chat/completions", body


def converse(*, stream: bool = False) -> tuple[str, dict[str, Any]]:
    ending = "converse-stream" if stream else "converse"
    return f"/bedrock/model/bedrock-claude/{ending}", {
        "messages": [{"role": "user", "content": [{"text": "hi"}]}],
        "inferenceConfig": {"maxTokens": 20},
        "requestMetadata": {"terrace-attempt-id": ATTEMPT},
    }


EVERY_CALL = [
    pytest.param(chat("sim-small"), id="openai"),
    pytest.param(chat("sim-small", stream=True), id="openai-stream"),
    pytest.param(chat("bedrock-claude"), id="bedrock"),
    pytest.param(chat("bedrock-claude", stream=True), id="bedrock-stream"),
    pytest.param(converse(), id="converse"),
    pytest.param(converse(stream=True), id="converse-stream"),
]


@pytest.mark.parametrize("model", MODELS)
async def test_plain_chat(translator: Translator, model: str) -> None:
    path, body = chat(model)
    answer = await translator.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == "hello there"
    usage = answer.json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (INPUT_TOKENS, OUTPUT_TOKENS)
    (call,) = translator.provider.calls
    assert call.headers["x-terrace-attempt-id"] == ATTEMPT
    assert "extra_headers" not in call.body


@pytest.mark.parametrize("model", MODELS)
async def test_streamed_chat(translator: Translator, model: str) -> None:
    path, body = chat(model, stream=True)
    answer = await translator.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    frames = [json.loads(line) for line in lines[:-1]]
    # From 1.110 on the frame with the usage has no choice, as OpenAI's own.
    deltas = [c["delta"].get("content") or "" for frame in frames for c in frame["choices"]]
    assert "".join(deltas) == "hello there"
    # Where the guard looks for it: the last frame, and only there.
    assert [frame for frame in frames if frame.get("usage")] == frames[-1:]
    usage = frames[-1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (INPUT_TOKENS, OUTPUT_TOKENS)
    (call,) = translator.provider.calls
    assert call.headers["x-terrace-attempt-id"] == ATTEMPT


async def test_converse(translator: Translator) -> None:
    path, body = converse()
    answer = await translator.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["inputTokens"] == INPUT_TOKENS
    assert answer.json()["usage"]["outputTokens"] == OUTPUT_TOKENS
    (call,) = translator.provider.calls
    assert call.path.replace("%3A", ":") == f"/model/{BEDROCK_MODEL}/converse"
    assert call.body == body
    assert "Credential=AKIACANARY/" in call.headers["Authorization"]


async def test_converse_stream(translator: Translator) -> None:
    path, body = converse(stream=True)
    answer = await translator.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/vnd.amazon.eventstream"
    buffer = EventStreamBuffer()
    buffer.add_data(answer.content)
    events = [event.to_response_dict() for event in buffer]
    last = events[-1]
    assert last["headers"][":event-type"] == "metadata"
    usage = json.loads(last["body"])["usage"]
    assert (usage["inputTokens"], usage["outputTokens"]) == (INPUT_TOKENS, OUTPUT_TOKENS)
    (call,) = translator.provider.calls
    assert call.body == body


@pytest.mark.parametrize("fault", [400, 401, 403, 429, 500, 503, "close"])
@pytest.mark.parametrize("request_", EVERY_CALL)
async def test_a_failed_call_is_one_call_and_blocks_nobody(
    translator: Translator, request_: tuple[str, dict[str, Any]], fault: int | str
) -> None:
    path, body = request_
    translator.provider.faults.append(fault)
    answer = await translator.client.post(path, json=body)
    assert answer.status_code >= 400
    assert len(translator.provider.calls) == 1, "it was tried again"
    assert not translator.provider.faults
    if isinstance(fault, int) and fault < 500:
        assert answer.status_code == fault
    # No cooldown: the next caller is served at once.
    after = await translator.client.post(path, json=body)
    assert after.status_code == 200, after.text
    assert len(translator.provider.calls) == 2


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(chat("sim-small", stream=True), id="openai-stream"),
        pytest.param(chat("bedrock-claude", stream=True), id="bedrock-stream"),
        pytest.param(converse(stream=True), id="converse-stream"),
    ],
)
async def test_a_cut_stream_is_one_call_and_has_no_proper_end(
    translator: Translator, request_: tuple[str, dict[str, Any]]
) -> None:
    path, body = request_
    translator.provider.faults.append("cut")
    received = b""
    broken = False
    try:
        async with translator.client.stream("POST", path, json=body) as answer:
            async for part in answer.aiter_raw():
                received += part
    except httpx.HTTPError:
        broken = True
    assert len(translator.provider.calls) == 1
    # From 1.110 on an end mark follows the error: what counts is what comes first.
    assert b"[DONE]" not in received.partition(b'"error"')[0]
    assert broken or b'"error"' in received


async def test_no_credential_in_answers(translator: Translator) -> None:
    for path, body in (chat("sim-small"), chat("bedrock-claude"), converse()):
        for fault in (None, 401):
            if fault:
                translator.provider.faults.append(fault)
            answer = await translator.client.post(path, json=body)
            shown = answer.text + str(answer.headers)
            assert "canary" not in shown.lower()
            assert translator.master_key not in shown


WRONG_KEYS = {
    "nothing": lambda _: {"authorization": ""},
    "another": lambda _: {"authorization": "Bearer sk-wrong"},
    "more": lambda key: {"authorization": f"Bearer {key}0"},
    "less": lambda key: {"authorization": f"Bearer {key[:-1]}"},
    "its own case": lambda key: {"authorization": f"Bearer {key.upper()}"},
    "not ASCII": lambda _: {"authorization": "Bearer sk-\u00fc".encode("latin-1")},
    "another header": lambda _: {"authorization": "", "x-api-key": "sk-wrong"},
    "their own header": lambda _: {"authorization": "", "x-litellm-api-key": "Bearer sk-wrong"},
}


@pytest.mark.parametrize("wrong", WRONG_KEYS)
async def test_nothing_without_the_master_key(translator: Translator, wrong: str) -> None:
    headers = WRONG_KEYS[wrong](translator.master_key)
    for path, body in (chat("sim-small"), converse(), ("/v1/embeddings", {"input": "a"})):
        answer = await translator.client.post(path, json=body, headers=headers)
        assert answer.status_code in (400, 401, 403, 500)
    assert (await translator.client.get("/v1/models", headers=headers)).status_code >= 400
    assert translator.provider.calls == []


async def test_warm_up_models_are_gone(translator: Translator) -> None:
    listed = await translator.client.get("/v1/models")
    assert sorted(model["id"] for model in listed.json()["data"]) == ["bedrock-claude", "sim-small"]
    path, body = chat("terrace-warm-up-openai")
    assert (await translator.client.post(path, json=body)).status_code in (400, 404)
    assert translator.provider.calls == []
