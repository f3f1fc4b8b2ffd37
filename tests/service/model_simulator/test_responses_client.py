"""The other routes of the OpenAI face through the public client: each is billed as it says."""

import json
from typing import Any

import httpx
import openai
import pytest

TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    "strict": False,
}


def billed(simulator: Any, attempt: str) -> dict[str, Any]:
    (entry,) = simulator.bill(attempt)["entries"]
    assert (entry["status"], entry["outcome"]) == ("final", "ok")
    return entry


def test_responses(openai_sdk: openai.OpenAI, simulator: Any, attempt: str) -> None:
    headers = {"x-terrace-attempt-id": attempt}
    text = "same? [[tokens=40]]"
    plain = openai_sdk.responses.create(model="sim-small", input=text, extra_headers=headers)
    with openai_sdk.responses.stream(model="sim-small", input=text) as stream:
        said = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert said == plain.output_text == final.output_text
    assert plain.usage is not None
    assert plain.usage == final.usage
    entry = billed(simulator, attempt)
    tokens = (entry["input_tokens"], entry["output_tokens"])
    assert tokens == (plain.usage.input_tokens, plain.usage.output_tokens) == (tokens[0], 40)
    assert (entry["surface"], entry["model"]) == ("responses", "sim-small")
    chat = openai_sdk.chat.completions.create(
        model="sim-small", messages=[{"role": "user", "content": text}]
    )
    assert chat.choices[0].message.content == plain.output_text  # one model behind every face
    counted = openai_sdk.responses.input_tokens.count(model="sim-small", input=text)
    assert counted.input_tokens == tokens[0]


def test_responses_call_tools_and_are_cut(openai_sdk: openai.OpenAI) -> None:
    with openai_sdk.responses.stream(model="sim-small", input="[[tool]]", tools=[TOOL]) as stream:
        made = stream.get_final_response()
    (call,) = made.output
    assert call.type == "function_call"
    assert set(json.loads(call.arguments)) == {"place"}
    cut = openai_sdk.responses.create(model="sim-small", input="x", max_output_tokens=3)
    assert cut.status == "incomplete"
    assert cut.usage is not None
    assert cut.usage.output_tokens == 3


def test_completions(openai_sdk: openai.OpenAI, simulator: Any, attempt: str) -> None:
    plain = openai_sdk.completions.create(
        model="sim-small", prompt="once [[tokens=20]]",
        extra_headers={"x-terrace-attempt-id": attempt},
    )  # fmt: skip
    chunks = list(
        openai_sdk.completions.create(
            model="sim-small", prompt="once [[tokens=20]]", stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    assert "".join(c.choices[0].text for c in chunks if c.choices) == plain.choices[0].text
    assert chunks[-1].usage == plain.usage
    assert billed(simulator, attempt)["output_tokens"] == 20


def test_embeddings(openai_sdk: openai.OpenAI, simulator: Any, attempt: str) -> None:
    found = openai_sdk.embeddings.create(
        model="sim-embed", input=["a b", "c"], dimensions=4,
        extra_headers={"x-terrace-attempt-id": attempt},
    )  # fmt: skip
    assert [len(item.embedding) for item in found.data] == [4, 4]
    again = openai_sdk.embeddings.create(model="sim-embed", input="c", dimensions=4)
    assert again.data[0].embedding == found.data[1].embedding
    entry = billed(simulator, attempt)
    assert (entry["input_tokens"], entry["output_tokens"]) == (found.usage.prompt_tokens, 0)
    assert entry["cost_micro_usd"] == 1  # 3 tokens at 0.02 USD per million, rounded up


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/responses", {"model": "sim-small", "input": "x", "previous_response_id": "r"}, 400),
        ("/v1/responses", {"model": "sim-small", "input": []}, 400),
        ("/v1/responses", {"model": "nope", "input": "x"}, 404),
        ("/v1/completions", {"model": "sim-small", "prompt": "x", "max_tokens": 99999}, 400),
        ("/v1/completions", {"model": "sim-small", "prompt": ["a", "b"]}, 400),
        ("/v1/embeddings", {"model": "sim-embed", "input": "x " * 9000}, 400),
        ("/v1/embeddings", {"model": "sim-embed", "input": [[1]]}, 400),
    ],
)
def test_what_is_refused_is_not_billed(
    simulator: Any, attempt: str, path: str, body: dict[str, Any], status: int
) -> None:
    headers = {"x-terrace-attempt-id": attempt}
    answer = simulator.http.post(path, json=body, headers=headers)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]
    assert simulator.bill(attempt)["entries"] == []
    stranger = httpx.post(simulator.url + path, json=body)
    assert stranger.status_code == 401


def test_faults_reach_every_face(simulator: Any, attempt: str) -> None:
    headers = {"x-terrace-attempt-id": attempt}
    bodies = {
        "/v1/responses": {"model": "sim-small", "input": "x"},
        "/v1/completions": {"model": "sim-small", "prompt": "x"},
        "/v1/embeddings": {"model": "sim-embed", "input": "x"},
    }
    for path, body in bodies.items():
        simulator.faults({"kind": "status", "status": 503, "remaining": 1})
        assert simulator.http.post(path, json=body, headers=headers).status_code == 503
        simulator.faults({"kind": "no_usage", "remaining": 1})
        assert simulator.http.post(path, json=body, headers=headers).json().get("usage") is None
    assert len(simulator.bill(attempt)["entries"]) == 3


def test_bedrock_counts_tokens_for_free(bedrock_sdk: Any, simulator: Any) -> None:
    before = simulator.bill()["total_micro_usd"]
    messages = [{"role": "user", "content": [{"text": "hello there"}]}]
    model = "anthropic.claude-sonnet-4-5-20250929-v1:0"
    counted = bedrock_sdk.count_tokens(modelId=model, input={"converse": {"messages": messages}})
    assert simulator.bill()["total_micro_usd"] == before
    answer = bedrock_sdk.converse(modelId=model, messages=messages)
    assert counted["inputTokens"] == answer["usage"]["inputTokens"]
