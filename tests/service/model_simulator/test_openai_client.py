"""The OpenAI face through the public client."""

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
        },
    }
]


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


def test_a_plain_answer_is_billed_as_it_says(
    openai_sdk: openai.OpenAI, simulator: Any, attempt: str
) -> None:
    answer = openai_sdk.chat.completions.create(
        model="sim-small",
        messages=user("hello [[tokens=100]]"),
        extra_headers={"x-terrace-attempt-id": attempt},
    )
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == "sim-small"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 100
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 100

    bill = simulator.bill(attempt)
    (entry,) = bill["entries"]
    assert entry["input_tokens"] == answer.usage.prompt_tokens
    assert entry["output_tokens"] == 100
    assert (entry["status"], entry["outcome"]) == ("final", "ok")
    assert (entry["model"], entry["surface"]) == ("sim-small", "chat_completions")
    thousandths = answer.usage.prompt_tokens * 150 + 100 * 600
    assert entry["cost_micro_usd"] == -(-thousandths // 1000)
    assert bill["total_micro_usd"] == entry["cost_micro_usd"]
    assert bill["in_flight"] == 0


def test_a_stream_says_the_same_as_the_plain_answer(openai_sdk: openai.OpenAI) -> None:
    plain = openai_sdk.chat.completions.create(model="sim-large", messages=user("same?"))
    with openai_sdk.chat.completions.create(
        model="sim-large",
        messages=user("same?"),
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:-1])
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == plain.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [
        *[None] * (len(chunks) - 2),
        plain.choices[0].finish_reason,
    ]
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage == plain.usage
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1


def test_the_bytes_of_a_stream(simulator: Any) -> None:
    answer = simulator.chat("x [[tokens=8]]", stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, end = answer.text.split("\n\n")
    assert end == ""
    assert events[-1] == "data: [DONE]"
    objects = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    assert {item["object"] for item in objects} == {"chat.completion.chunk"}
    assert not any("usage" in item for item in objects)
    assert all(len(item["choices"]) == 1 for item in objects)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("stream", [False, True])
def test_the_limit_is_kept_and_billed(
    simulator: Any, attempt: str, name: str, stream: bool
) -> None:
    options = {name: 7, "stream": stream}
    answer = simulator.chat("long [[tokens=500]]", attempt=attempt, **options)
    assert '"finish_reason":"length"' in answer.text
    (entry,) = simulator.bill(attempt)["entries"]
    assert entry["output_tokens"] == 7


def test_stop_sequences(openai_sdk: openai.OpenAI) -> None:
    answer = openai_sdk.chat.completions.create(
        model="sim-small", messages=user("[[say=one two three four]]"), stop=["three", "four"]
    )
    assert answer.choices[0].message.content == "one two "
    assert answer.choices[0].finish_reason == "stop"


def test_a_tool_call_and_what_follows_it(openai_sdk: openai.OpenAI) -> None:
    answer = openai_sdk.chat.completions.create(
        model="sim-small", messages=user("[[tool=get_weather]]"), tools=TOOLS
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert set(json.loads(call.function.arguments)) == {"place"}

    follow: Any = [
        *user("[[tool=get_weather]]"),
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"},
    ]
    second = openai_sdk.chat.completions.create(model="sim-small", messages=follow, tools=TOOLS)
    assert second.choices[0].finish_reason == "stop"
    assert second.choices[0].message.content


def test_a_streamed_tool_call(openai_sdk: openai.OpenAI) -> None:
    messages = user("[[tool]]")
    plain = openai_sdk.chat.completions.create(model="sim-small", messages=messages, tools=TOOLS)
    with openai_sdk.chat.completions.create(
        model="sim-small", messages=messages, tools=TOOLS, stream=True
    ) as stream:
        chunks = list(stream)
    calls = [c.choices[0].delta.tool_calls for c in chunks if c.choices[0].delta.tool_calls]
    first = calls[0][0]
    assert first.id
    assert first.function is not None
    assert first.function.name == "get_weather"
    arguments = "".join(call[0].function.arguments or "" for call in calls if call[0].function)
    assert plain.choices[0].message.tool_calls is not None
    assert arguments == plain.choices[0].message.tool_calls[0].function.arguments  # type: ignore[union-attr]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_models(openai_sdk: openai.OpenAI) -> None:
    listed = [model.id for model in openai_sdk.models.list()]
    assert listed == ["sim-small", "sim-large", "sim-embed"]
    assert openai_sdk.models.retrieve("sim-small").id == "sim-small"
    with pytest.raises(openai.NotFoundError):
        openai_sdk.models.retrieve("gpt-9")


def test_a_wrong_key_is_refused_and_not_repeated(
    simulator: Any, make_openai: Callable[..., openai.OpenAI]
) -> None:
    with make_openai(simulator.url, "sk-not-the-key") as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            client.chat.completions.create(model="sim-small", messages=user("x"))
        with pytest.raises(openai.AuthenticationError):
            client.models.list()
    assert caught.value.code == "invalid_api_key"
    assert "sk-not-the-key" not in str(caught.value)
    without = simulator.http.post(
        "/v1/chat/completions", content=b"{", headers={"authorization": ""}
    )
    assert without.status_code == 401
    assert without.json()["error"]["type"] == "invalid_request_error"


def test_an_unknown_model(openai_sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        openai_sdk.chat.completions.create(model="gpt-9", messages=user("x"))
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("options", "param", "code"),
    [
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": "x"}, "messages", "invalid_type"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": 5000}, "max_tokens", "invalid_value"),
        ({"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens",
         "invalid_parameter_combination"),
        ({"n": 2}, "n", "invalid_value"),
        ({"api_base": "x"}, "api_base", "unknown_parameter"),
        ({"stream_options": {"include_usage": True}}, "stream_options", None),
        ({"tool_choice": "required"}, "tool_choice", None),
        ({"stop": ["a"] * 5}, "stop", "invalid_value"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
         "messages[0].content", None),
        ({"metadata": {"a": 1}}, "metadata.a", "invalid_type"),
    ],
)  # fmt: skip
def test_a_bad_body_names_the_field_and_is_not_billed(
    simulator: Any, attempt: str, options: dict[str, Any], param: str, code: str | None
) -> None:
    answer = simulator.chat("x", attempt=attempt, **options)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"].startswith(param)
    if code is not None:
        assert error["code"] == code
    assert simulator.bill(attempt)["entries"] == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"model":"\\ud800"}', b"\xff" * 9])
def test_a_body_that_is_no_request(simulator: Any, body: bytes) -> None:
    answer = simulator.http.post("/v1/chat/completions", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


def test_a_deeply_nested_body_is_refused(simulator: Any) -> None:
    body = b'{"model":"sim-small","messages":' + b"[" * 100_000
    assert simulator.http.post("/v1/chat/completions", content=body).status_code == 400


def test_context_length(openai_sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        openai_sdk.chat.completions.create(model="sim-small", messages=user("word " * 33_000))
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "messages"
    fits = openai_sdk.chat.completions.create(
        model="sim-small", messages=user("word " * 30_000 + "[[tokens=4000]]")
    )
    assert fits.usage is not None
    assert fits.usage.total_tokens <= 32_768
    assert fits.choices[0].finish_reason == "length"


def test_a_body_too_large(start_simulator: Callable[..., Any]) -> None:
    small = start_simulator(max_body_bytes=1000)
    assert small.chat("x" * 1000).status_code == 413
    assert (
        small.http.post("/v1/chat/completions", content=iter([b"x" * 600] * 3)).status_code == 413
    )
    assert small.chat("x").status_code == 200


@pytest.mark.parametrize("place", ["header", "metadata", "metadata-dashes", "user"])
def test_where_an_attempt_id_may_stand(simulator: Any, attempt: str, place: str) -> None:
    options: dict[str, Any] = {
        "header": {"attempt": attempt},
        "metadata": {"metadata": {"terrace_attempt_id": attempt, "team": "blue"}},
        "metadata-dashes": {"metadata": {"terrace-attempt-id": attempt}},
        "user": {"user": f"attempt:{attempt}"},
    }[place]
    assert simulator.chat("x", **options).status_code == 200
    (entry,) = simulator.bill(attempt)["entries"]
    if place == "metadata":
        assert entry["request_metadata"]["team"] == "blue"


def test_unknown_routes_answer_in_openais_shape(simulator: Any) -> None:
    for method, path, status in (
        ("POST", "/v1/files", 404),
        ("GET", "/v1/chat/completions", 405),
    ):
        answer = simulator.http.request(method, path)
        assert answer.status_code == status
        assert answer.json()["error"]["code"] == "unknown_url"
