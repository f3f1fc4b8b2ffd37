"""The client controls nothing but its request: our bodies hold only our fields."""

import json
from importlib.resources import files
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terrace_common.governance import Governance, Model, load_governance
from terrace_gateway.edge.errors import ApiError
from terrace_gateway.surfaces.chat_body import read_chat_body
from terrace_gateway.surfaces.converse_answer import rebuild_converse
from terrace_gateway.surfaces.converse_body import read_converse_body
from terrace_gateway.surfaces.json_body import Json, encode_json, parse_json_object
from terrace_gateway.surfaces.messages_body import MessagesRequest, read_messages_body
from terrace_gateway.surfaces.request import SurfaceRequest
from terrace_gateway.surfaces.surface import Identity
from terrace_gateway.surfaces.upstream_request import UpstreamRequest

TEXT = (files("terrace_common") / "examples" / "governance.local.yaml").read_text("utf-8")
GOVERNANCE: Governance = load_governance(TEXT, "governance.yaml")
MODELS: dict[str, Model] = {model.name: model for model in GOVERNANCE.models}

CHAT_FIELDS = {
    "model", "messages", "max_tokens", "max_completion_tokens", "extra_headers", "stream",
    "stream_options", "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed",
    "logprobs", "top_logprobs", "logit_bias", "stop", "tools", "tool_choice",
    "parallel_tool_calls", "response_format", "reasoning_effort",
}  # fmt: skip
MESSAGE_FIELDS = {"role", "content", "name", "tool_call_id", "refusal", "tool_calls"}
CONVERSE_FIELDS = {"messages", "system", "inferenceConfig", "toolConfig", "requestMetadata"}

CONTROLS = [
    "no-log", "num_retries", "max_retries", "fallbacks", "context_window_fallbacks", "api_base",
    "api_key", "base_url", "api_version", "mock_response", "mock_timeout", "metadata",
    "litellm_metadata", "litellm_params", "litellm_call_id", "router_settings_override",
    "extra_headers", "extra_body", "extra_query", "cache", "caching", "guardrails", "tags", "user",
    "timeout", "stream_timeout", "custom_llm_provider", "deployment_id", "specific_deployment",
    "model_list", "allowed_openai_params", "drop_params", "store", "provider",
    "proxy_server_request",
    "input_cost_per_token", "aws_bedrock_runtime_endpoint", "aws_region_name", "model_id",
    "allowed_model_region", "ttl", "hedge", "prompt_id", "logger_fn", "additional_drop_params",
]  # fmt: skip

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=8) | st.sampled_from(CONTROLS), inner, max_size=3)
    ),
    max_leaves=12,
)
FIELD_NAMES = st.sampled_from(sorted(CHAT_FIELDS | CONVERSE_FIELDS) + CONTROLS) | st.text(
    max_size=9
)
MESSAGE = {"role": "user", "content": "hi"}


def upstream_chat(body: dict[str, Any], model: str = "sim-small") -> dict[str, Any]:
    request = read_chat_body({"model": model, "messages": [MESSAGE], **body})
    return json.loads(upstream(request, model).body)


def upstream(request: SurfaceRequest, model: str = "sim-small") -> UpstreamRequest:
    found = MODELS[model]
    return request.upstream(
        governance=GOVERNANCE,
        model=found,
        attempt_id="att_1",
        traceparent="00-tp",
        max_output_tokens=GOVERNANCE.output_limit(found, request.needs.output_tokens),
    )


def upstream_converse(body: dict[str, Any]) -> dict[str, Any]:
    message = {"role": "user", "content": [{"text": "hi"}]}
    request = read_converse_body({"messages": [message], **body}, "claude", stream=False)
    return json.loads(upstream(request, "bedrock-claude").body)


@given(st.dictionaries(FIELD_NAMES, JSON, max_size=6))
def test_chat_bodies_hold_only_our_fields(extra: dict[str, Any]) -> None:
    try:
        sent = upstream_chat({**extra, "model": "sim-small", "messages": [{**MESSAGE, **extra}]})
    except ApiError:
        return
    assert set(sent) <= CHAT_FIELDS
    assert sent["model"] == "sim-small"
    assert sent["extra_headers"] == {"x-terrace-attempt-id": "att_1", "traceparent": "00-tp"}
    assert all(set(message) <= MESSAGE_FIELDS for message in sent["messages"])
    limits = [sent[f] for f in ("max_tokens", "max_completion_tokens") if f in sent]
    assert len(limits) == 1
    assert 1 <= limits[0] <= 4096
    if sent.get("stream"):
        assert sent["stream_options"] == {"include_usage": True}


@given(st.dictionaries(FIELD_NAMES, JSON, max_size=6))
def test_converse_bodies_hold_only_our_fields(extra: dict[str, Any]) -> None:
    message = {"role": "user", "content": [{"text": "hi"}], **extra}
    try:
        sent = upstream_converse({**extra, "messages": [message]})
    except ApiError:
        return
    assert set(sent) <= CONVERSE_FIELDS
    assert sent["requestMetadata"] == {"terrace-attempt-id": "att_1"}
    assert 1 <= sent["inferenceConfig"]["maxTokens"] <= 8192
    assert all(set(m) == {"role", "content"} for m in sent["messages"])


@pytest.mark.parametrize("control", CONTROLS)
def test_control_fields_are_dropped(control: str) -> None:
    plain = upstream_chat({})
    assert upstream_chat({control: {"x": 1}}) == plain
    assert upstream_converse({control: {"x": 1}}) == upstream_converse({})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2), ("n", True), ("best_of", 3), ("audio", {"voice": "x"}),
        ("modalities", ["text", "audio"]), ("service_tier", "priority"),
        ("web_search_options", {"a": 1}), ("prediction", {"type": "content"}),
        ("functions", [{"name": "f"}]), ("thinking", {"budget_tokens": 9}),
        ("tools", [{"type": "web_search"}]), ("tools", [{"type": "code_interpreter"}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]),
        ("messages", [{"role": "user", "content": [{"type": "input_audio"}]}]),
        ("messages", [{"role": "user", "content": [{"type": "file"}]}]),
    ],
)  # fmt: skip
def test_what_cannot_be_bounded_is_refused(field: str, value: object) -> None:
    with pytest.raises(ApiError) as caught:
        upstream_chat({field: value})
    assert caught.value.code == "unsupported_parameter"
    assert caught.value.param is not None
    assert caught.value.param.startswith(field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("additionalModelRequestFields", {"max_tokens": 10**6}),
        ("guardrailConfig", {"guardrailIdentifier": "g"}),
        ("performanceConfig", {"latency": "optimized"}),
        (
            "messages",
            [
                {
                    "role": "user",
                    "content": [{"image": {"format": "png", "source": {"s3Location": {}}}}],
                }
            ],
        ),
        ("messages", [{"role": "user", "content": [{"text": "a", "image": {}}]}]),
        ("toolConfig", {"tools": [{"systemTool": {"name": "x"}}]}),
    ],
)
def test_what_converse_cannot_bound_is_refused(field: str, value: object) -> None:
    with pytest.raises(ApiError) as caught:
        upstream_converse({field: value})
    assert caught.value.code == "unsupported_parameter"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("messages", []), ("messages", None), ("messages", "hi"), ("messages", [1]),
        ("messages", [{"role": "robot", "content": "x"}]), ("messages", [{"role": "user"}]),
        ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", True), ("max_tokens", 1.5),
        ("max_tokens", "5"), ("stream", "yes"), ("stream_options", 3), ("temperature", "hot"),
        ("model", None), ("stop", [1]), ("response_format", {"type": "xml"}),
        ("tool_choice", 7), ("logit_bias", {"a": "b"}),
    ],
)  # fmt: skip
def test_wrong_types_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ApiError) as caught:
        upstream_chat({field: value})
    assert caught.value.code == "invalid_request"
    assert field in caught.value.message


def test_tools_pass_and_widen_the_bound() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    body = {"model": "sim-small", "messages": [MESSAGE]}
    plain = upstream(read_chat_body(dict(body)))
    tools = upstream(read_chat_body({**body, "tools": [{**tool, "cache_control": 1}]}))
    assert json.loads(tools.body)["tools"] == [tool]
    assert plain.bound_bytes == len(plain.body)
    assert tools.bound_bytes > len(tools.body) + 1024


def test_a_conversation_with_tool_results_passes() -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {}}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]
    sent = upstream_chat({"messages": messages})["messages"]
    assert sent[1]["content"] == [{"type": "text", "text": "hi"}]
    assert sent[2]["tool_calls"] == messages[2]["tool_calls"]
    assert sent[3] == messages[3]


def test_cache_points_are_dropped() -> None:
    point = {"cachePoint": {"type": "default"}}
    message = {"role": "user", "content": [{"text": "a"}, point]}
    sent = upstream_converse({"messages": [message], "system": [{"text": "s"}, point]})
    assert sent["messages"][0]["content"] == [{"text": "a"}]
    assert sent["system"] == [{"text": "s"}]


def test_reasoning_effort_needs_a_provider_that_bounds_it() -> None:
    assert upstream_chat({"reasoning_effort": "low"})["reasoning_effort"] == "low"
    with pytest.raises(ApiError):
        upstream_chat({"reasoning_effort": "low"}, "bedrock-claude")


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"1", b"{", b'{"a": NaN}', b'{"a": Infinity}', b"\xff", b'{"a":' * 99_999,
     b'{"a":' + b"[" * 70 + b"]" * 70 + b"}", b'{"a": 1' + b"0" * 5000 + b"}"],
    ids=range(10),
)  # fmt: skip
def test_garbage_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_json_object(body, max_depth=64, max_values=10**6)
    assert caught.value.status == 400


def test_half_a_surrogate_pair_is_refused() -> None:
    source = parse_json_object(
        b'{"model": "sim-small", "messages": [{"role": "user", "content": "\\ud800"}]}',
        max_depth=9,
        max_values=99,
    )
    with pytest.raises(ApiError, match="surrogate"):
        upstream_chat(source)


@given(st.text(max_size=300))
def test_the_bound_covers_every_byte_that_is_sent(text: str) -> None:
    request = read_chat_body({"model": "sim-small", "messages": [{**MESSAGE, "content": text}]})
    try:
        sent = upstream(request)
    except ApiError:
        return
    assert sent.bound_bytes >= len(sent.body) > len(text.encode())


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 80), 1 << 80) | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON_VALUES)
def test_what_is_sent_is_what_was_parsed(value: object) -> None:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        with pytest.raises(ApiError, match="surrogate"):
            encode_json(value)
    else:
        assert encode_json(value) == text.encode()
        assert json.loads(text) == value


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_stays_the_same_number(value: float) -> None:
    assert json.loads(encode_json([value])) == [value]


THOUGHT = {"reasoningContent": {"reasoningText": {"text": "hm SECRET", "signature": "c2ln"}}}
REDACTED = {"reasoningContent": {"redactedContent": "c2VhbGVk"}}


def test_what_a_reasoning_model_answered_is_taken_back() -> None:
    """As boto3's users append it: the message of the answer, as it came."""
    blocks = [THOUGHT, REDACTED, {"text": "42"}]
    answer = {"output": {"message": {"role": "assistant", "content": blocks}}}
    back = cast("Json", rebuild_converse(answer)["output"])["message"]
    messages = [{"role": "user", "content": [{"text": "q"}]}, back]
    assert upstream_converse({"messages": messages})["messages"][1] == back
    request = read_converse_body({"messages": messages}, "m", stream=False)
    assert request.texts() == ("q", "hm SECRET", "42")
    masked = request.with_texts(["q", "hm ***", "42"])
    assert b"SECRET" not in encode_json(masked.fields)
    bare = read_converse_body({"messages": [messages[0]]}, "m", stream=False)
    grown = request.needs.input_bound_tokens - bare.needs.input_bound_tokens
    assert grown > len("hm SECRET" + "c2ln" + "c2VhbGVk" + "42")


@pytest.mark.parametrize("signature", [None, ""])
def test_not_every_model_signs_what_it_thought(signature: str | None) -> None:
    thought = {"reasoningText": {"text": "hm", "signature": signature}}
    message = {"role": "assistant", "content": [{"reasoningContent": thought}]}
    [sent] = upstream_converse({"messages": [message]})["messages"][0]["content"]
    assert sent == {"reasoningContent": {"reasoningText": {"text": "hm"}}}


@pytest.mark.parametrize(
    "block",
    [
        {"reasoningText": {"text": "hm", "signature": "a plain text: SECRET"}},
        {"redactedContent": "a plain text: SECRET"},
        {"reasoningText": {"signature": "c2ln"}},
        {"other": "SECRET"},
    ],
)
def test_reasoning_has_no_room_for_a_text_that_nobody_reads(block: dict[str, Any]) -> None:
    message = {"role": "assistant", "content": [{"reasoningContent": block}]}
    with pytest.raises(ApiError, match="reasoningContent") as caught:
        upstream_converse({"messages": [message]})
    assert "SECRET" not in caught.value.message


def test_reasoning_is_the_models_own() -> None:
    message = {"role": "user", "content": [THOUGHT]}
    with pytest.raises(ApiError, match="reasoningContent cannot be bounded"):
        upstream_converse({"messages": [message]})


MARK = "litellm_encrypted_reasoning:"


@pytest.mark.parametrize("field", ["signature", "data"])
def test_what_openai_encrypted_of_a_message_is_no_text_and_taken_back(field: str) -> None:
    """As LiteLLM (1.108) answers it: base64 behind a mark."""

    def request(sealed: str) -> MessagesRequest:
        kind = {"type": "thinking", "thinking": "hm"}
        kind = kind if field == "signature" else {"type": "redacted_thinking"}
        message = {"role": "assistant", "content": [{**kind, field: sealed}]}
        return read_messages_body({"model": "m", "messages": [message]})

    taken = request(f"{MARK}gAAAAAB_-x==")
    [answer] = cast("list[Json]", taken.fields["messages"])
    assert cast("list[Json]", answer["content"])[0][field] == f"{MARK}gAAAAAB_-x=="
    texts = taken.answers(Identity("r", "m")).texts(answer)
    assert not any(MARK in text for text in texts)
    for wrong in (f"{MARK}SECRET text", f"x{MARK}c2ln", f"{MARK}:c2ln"):
        with pytest.raises(ApiError, match="base64"):
            request(wrong)


def test_a_thought_of_a_message_that_nobody_signed_is_taken_back() -> None:
    block = {"type": "thinking", "thinking": "hm", "signature": None}
    messages = [{"role": "assistant", "content": [block]}]
    request = read_messages_body({"model": "m", "messages": messages})
    assert cast("list[Any]", request.fields["messages"])[0]["content"] == [
        {**block, "signature": ""}
    ]
