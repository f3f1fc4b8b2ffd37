"""The Bedrock Runtime face through boto3."""

import json
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from botocore.exceptions import ClientError

CLAUDE = "anthropic.claude-sonnet-4-5-20250929-v1:0"
TOOLS = {
    "tools": [
        {
            "toolSpec": {
                "name": "get_weather",
                "description": "Weather",
                "inputSchema": {
                    "json": {"type": "object", "properties": {"place": {"type": "string"}}}
                },
            }
        }
    ]
}


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"text": text}]}]


def invoke_body(text: str, **options: Any) -> str:
    return json.dumps(
        {
            "anthropic_version": "bedrock-2023-05-31",
            "max_tokens": 50,
            "messages": [{"role": "user", "content": text}],
            **options,
        }
    )


def test_converse_is_billed_as_it_says(bedrock_sdk: Any, simulator: Any, attempt: str) -> None:
    answer = bedrock_sdk.converse(
        modelId=CLAUDE,
        messages=user("hello [[tokens=40]]"),
        system=[{"text": "be brief"}],
        inferenceConfig={"maxTokens": 30, "temperature": 0.5},
        requestMetadata={"terrace-attempt-id": attempt, "team": "blue"},
    )
    assert answer["output"]["message"]["role"] == "assistant"
    assert answer["output"]["message"]["content"][0]["text"]
    assert answer["stopReason"] == "max_tokens"
    usage = answer["usage"]
    assert usage["outputTokens"] == 30
    assert usage["totalTokens"] == usage["inputTokens"] + 30
    (entry,) = simulator.bill(attempt)["entries"]
    assert (entry["input_tokens"], entry["output_tokens"]) == (usage["inputTokens"], 30)
    assert entry["cost_micro_usd"] == usage["inputTokens"] * 3 + 30 * 15
    assert (entry["model"], entry["surface"]) == (CLAUDE, "converse")
    assert entry["request_metadata"]["team"] == "blue"


def test_converse_stream_says_the_same(bedrock_sdk: Any, simulator: Any, attempt: str) -> None:
    plain = bedrock_sdk.converse(modelId=CLAUDE, messages=user("same?"))
    answer = bedrock_sdk.converse_stream(
        modelId=CLAUDE, messages=user("same?"), requestMetadata={"terrace_attempt_id": attempt}
    )
    with closing(answer["stream"]) as stream:
        events = [next(iter(event.items())) for event in stream]
    kinds = [kind for kind, _ in events]
    assert kinds[0] == "messageStart"
    assert set(kinds[1:-3]) == {"contentBlockDelta"}
    assert kinds[-3:] == ["contentBlockStop", "messageStop", "metadata"]
    text = "".join(e["delta"]["text"] for kind, e in events if kind == "contentBlockDelta")
    assert text == plain["output"]["message"]["content"][0]["text"]
    assert events[-2][1]["stopReason"] == plain["stopReason"] == "end_turn"
    assert events[-1][1]["usage"] == plain["usage"]
    assert "latencyMs" in events[-1][1]["metrics"]
    (entry,) = simulator.bill(attempt)["entries"]
    assert entry["output_tokens"] == plain["usage"]["outputTokens"]
    assert entry["surface"] == "converse_stream"


def test_tools(bedrock_sdk: Any) -> None:
    plain = bedrock_sdk.converse(modelId=CLAUDE, messages=user("[[tool]]"), toolConfig=TOOLS)
    assert plain["stopReason"] == "tool_use"
    call = plain["output"]["message"]["content"][0]["toolUse"]
    assert call["name"] == "get_weather"
    assert set(call["input"]) == {"place"}

    answer = bedrock_sdk.converse_stream(
        modelId=CLAUDE, messages=user("[[tool]]"), toolConfig=TOOLS
    )
    with closing(answer["stream"]) as stream:
        events = list(stream)
    start = next(e["contentBlockStart"] for e in events if "contentBlockStart" in e)
    assert start["start"]["toolUse"]["name"] == "get_weather"
    pieces = [e["contentBlockDelta"]["delta"] for e in events if "contentBlockDelta" in e]
    assert json.loads("".join(piece["toolUse"]["input"] for piece in pieces)) == call["input"]

    result = {"toolUseId": call["toolUseId"], "content": [{"json": {"t": 1}}]}
    follow = bedrock_sdk.converse(
        modelId=CLAUDE,
        toolConfig=TOOLS,
        messages=[
            *user("[[tool]]"),
            plain["output"]["message"],
            {"role": "user", "content": [{"toolResult": result}]},
        ],
    )
    assert follow["stopReason"] == "end_turn"


def test_stop_sequences(bedrock_sdk: Any) -> None:
    answer = bedrock_sdk.converse(
        modelId=CLAUDE,
        messages=user("[[say=one two three]]"),
        inferenceConfig={"stopSequences": ["two"]},
    )
    assert answer["stopReason"] == "stop_sequence"
    assert answer["output"]["message"]["content"][0]["text"] == "one "


def test_invoke_model(bedrock_sdk: Any, simulator: Any, attempt: str) -> None:
    answer = bedrock_sdk.invoke_model(
        modelId=CLAUDE, body=invoke_body("hi", metadata={"user_id": f"attempt:{attempt}"})
    )
    message = json.loads(answer["body"].read())
    headers = answer["ResponseMetadata"]["HTTPHeaders"]
    assert message["content"][0]["type"] == "text"
    assert message["stop_reason"] in {"end_turn", "max_tokens"}
    (entry,) = simulator.bill(attempt)["entries"]
    assert entry["surface"] == "invoke"
    assert entry["input_tokens"] == message["usage"]["input_tokens"]
    assert entry["output_tokens"] == message["usage"]["output_tokens"]
    assert headers["x-amzn-bedrock-output-token-count"] == str(entry["output_tokens"])


def test_invoke_model_stream_says_the_same(bedrock_sdk: Any) -> None:
    plain = json.loads(
        bedrock_sdk.invoke_model(modelId=CLAUDE, body=invoke_body("hi"))["body"].read()
    )
    answer = bedrock_sdk.invoke_model_with_response_stream(modelId=CLAUDE, body=invoke_body("hi"))
    with closing(answer["body"]) as stream:
        events = [json.loads(event["chunk"]["bytes"]) for event in stream]
    assert [event["type"] for event in events[:2]] == ["message_start", "content_block_start"]
    assert [event["type"] for event in events[-3:]] == [
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    text = "".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta")
    assert text == plain["content"][0]["text"]
    assert events[-2]["usage"]["output_tokens"] == plain["usage"]["output_tokens"]
    metrics = events[-1]["amazon-bedrock-invocationMetrics"]
    assert metrics["inputTokenCount"] == plain["usage"]["input_tokens"]


@pytest.mark.parametrize(
    ("key_id", "secret", "code"),
    [
        ("AKIASIMULATOR0000", "not-the-secret", "InvalidSignatureException"),
        ("AKIASOMEBODYELSE0", "aws-secret-0123456789abcdef", "UnrecognizedClientException"),
    ],
)
def test_wrong_credentials(
    simulator: Any, make_bedrock: Callable[..., Any], key_id: str, secret: str, code: str
) -> None:
    before = simulator.bill()["entries"]
    client = make_bedrock(simulator.url, key_id, secret)
    for call in (client.converse, client.converse_stream):
        with pytest.raises(ClientError) as caught:
            call(modelId=CLAUDE, messages=user("x"))
        assert caught.value.response["Error"]["Code"] == code
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    client.close()
    assert simulator.bill()["entries"] == before


def test_a_bearer_token_instead_of_a_signature(simulator: Any) -> None:
    path = f"/model/{CLAUDE}/converse"
    body = {"messages": user("x")}
    assert simulator.http.post(path, json=body).status_code == 200
    for authorization, code in (
        ("Bearer wrong", "AccessDeniedException"),
        ("", "MissingAuthenticationTokenException"),
        ("Basic eDp5", "IncompleteSignatureException"),
    ):
        answer = simulator.http.post(path, json=body, headers={"authorization": authorization})
        assert answer.status_code == 403
        assert answer.headers["x-amzn-errortype"] == code


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"modelId": "amazon.unheard-of-v1:0"}, "model identifier is invalid"),
        ({"modelId": "sim-small"}, "model identifier is invalid"),
        ({"messages": [{"role": "assistant", "content": [{"text": "x"}]}]}, "start with a user"),
        ({"messages": user("x") + user("y")}, "alternate"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"inferenceConfig": {"maxTokens": 64_001}}, "exceeds the model limit"),
        ({"inferenceConfig": {"temperature": 2.0}}, "inferenceConfig.temperature"),
        ({"messages": user("word " * 200_000)}, "too long"),
    ],
)
def test_validation_errors(bedrock_sdk: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ClientError) as caught:
        bedrock_sdk.converse(**{"modelId": CLAUDE, "messages": user("x"), **options})
    assert caught.value.response["Error"]["Code"] == "ValidationException"
    assert words in caught.value.response["Error"]["Message"]


@pytest.mark.parametrize("body", [b"{", b'{"messages":[{"role":"user","content":[{"image":{}}]}]}'])
def test_bad_bodies(simulator: Any, body: bytes) -> None:
    answer = simulator.http.post(f"/model/{CLAUDE}/converse-stream", content=body)
    assert answer.status_code == 400
    assert answer.headers["x-amzn-errortype"] in {"SerializationException", "ValidationException"}


@pytest.mark.parametrize(
    ("status", "error_type", "expected"),
    [
        (429, None, "ThrottlingException"),
        (429, "ModelNotReadyException", "ModelNotReadyException"),
        (408, None, "ModelTimeoutException"),
        (424, None, "ModelErrorException"),
        (403, None, "AccessDeniedException"),
        (500, None, "InternalServerException"),
        (503, None, "ServiceUnavailableException"),
    ],
)
def test_failures_are_boto3s_own_exceptions(
    bedrock_sdk: Any, simulator: Any, status: int, error_type: str | None, expected: str
) -> None:
    fault = {"model": CLAUDE, "kind": "status", "status": status, "remaining": 1}
    if error_type is not None:
        fault["error_type"] = error_type
    simulator.faults(fault)
    before = simulator.bill()["entries"]
    with pytest.raises(getattr(bedrock_sdk.exceptions, expected)) as caught:
        bedrock_sdk.converse(modelId=CLAUDE, messages=user("x"))
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
    assert simulator.bill()["entries"] == before
    assert bedrock_sdk.converse(modelId=CLAUDE, messages=user("x"))["usage"]


def test_a_metadata_header_on_invoke(simulator: Any, attempt: str) -> None:
    header = {"x-amzn-bedrock-request-metadata": json.dumps({"terrace_attempt_id": attempt})}
    path = f"/model/{CLAUDE}/invoke"
    answer = simulator.http.post(path, content=invoke_body("x"), headers=header)
    assert answer.status_code == 200
    assert len(simulator.bill(attempt)["entries"]) == 1
    broken = {"x-amzn-bedrock-request-metadata": "["}
    answer = simulator.http.post(path, content=invoke_body("x"), headers=broken)
    assert answer.status_code == 400


def test_an_encoded_and_a_plain_model_id_are_one(simulator: Any) -> None:
    for path in (CLAUDE, CLAUDE.replace(":", "%3A")):
        answer = simulator.http.post(f"/model/{path}/converse", json={"messages": user("x")})
        assert answer.status_code == 200
