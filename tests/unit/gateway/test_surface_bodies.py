"""Every surface: our body holds only our fields, whatever the client's holds; what cannot be
bounded is refused by name."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terrace_gateway.edge.errors import ApiError
from terrace_gateway.surfaces import (
    chat_body,
    completions_body,
    messages_body,
    responses_body,
)

from .surface_calls import GOVERNANCE, HEADERS, MODELS, PNG, read, sent, upstream

CONTROLS = [
    "no-log", "num_retries", "max_retries", "fallbacks", "api_base", "api_key", "base_url",
    "mock_response", "mock_timeout", "metadata", "litellm_metadata", "litellm_call_id", "tags",
    "router_settings_override", "extra_headers", "extra_body", "extra_query", "cache", "guardrails",
    "timeout", "custom_llm_provider", "deployment_id", "specific_deployment", "model_list",
    "allowed_openai_params", "drop_params", "store", "proxy_server_request", "ttl", "betas",
    "anthropic_beta", "anthropic_version", "aws_region_name", "input_cost_per_token", "logger_fn",
    "safety_identifier", "prompt_cache_retention", "max_tool_calls", "stream_options",
]  # fmt: skip
USER = {"role": "user", "content": "hi"}
PATHS: dict[str, tuple[dict[str, Any], set[str]]] = {
    # a body that is taken, and every field that may go upstream
    "/v1/chat/completions": (
        {"model": "sim-small", "messages": [USER]},
        (set(chat_body.FIELD_NAMES) | {"extra_headers"}) - {"user"},
    ),
    "/v1/completions": (
        {"model": "sim-small", "prompt": "hi"},
        (set(completions_body.FIELD_NAMES) | {"extra_headers"}) - {"user"},
    ),
    "/v1/responses": (
        {"model": "sim-small", "input": "hi"},
        (set(responses_body.FIELD_NAMES) | {"extra_headers", "store"})
        - {"user", "prompt_cache_key"},
    ),
    "/v1/embeddings": (
        {"model": "sim-small", "input": "hi"},
        {"model", "input", "dimensions", "extra_headers"},
    ),
    "/v1/messages": (
        {"model": "sim-small", "max_tokens": 5000, "messages": [USER]},
        (set(messages_body.FIELD_NAMES) | {"extra_headers", "store"}) - {"metadata"},
    ),
    "/v1/messages/count_tokens": (
        {"model": "sim-small", "messages": [USER]},
        {"model", "messages", "system", "tools", "tool_choice"},
    ),
    "/model/bedrock-claude/converse": (
        {"messages": [{"role": "user", "content": [{"text": "hi"}]}]},
        {"messages", "system", "inferenceConfig", "toolConfig", "requestMetadata"},
    ),
}
EVERY = pytest.mark.parametrize("path", PATHS)
FIELDS = sorted({name for body, allowed in PATHS.values() for name in {*body, *allowed}})
NAMES = st.sampled_from(FIELDS + CONTROLS) | st.text(max_size=9)
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
    | st.sampled_from(["user", "assistant", "text", "tool_use", "function", "input_text", "auto",
                       "tool_result", "message", "function_call_output", "reasoning", "enabled",
                       "ephemeral", "image", "input_image", "json_schema", "custom", PNG])
)  # fmt: skip
INNER = st.sampled_from(
    ["type", "role", "content", "text", "input", "id", "name", "source", "data", "media_type",
     "cache_control", "ttl", "tools", "function", "parameters", "output", "call_id", "summary",
     "thinking", "signature", "budget_tokens", "format", "effort", "image_url", "toolUse", "json"]
) | NAMES  # fmt: skip
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(INNER, inner, max_size=4),
    max_leaves=16,
)


def model_of(path: str) -> str:
    return "bedrock-claude" if path.startswith("/model/") else "sim-small"


@EVERY
@given(extra=st.dictionaries(NAMES, JSON, max_size=6), swap=st.booleans())
def test_any_json_gives_our_fields_or_a_refusal(
    path: str, extra: dict[str, Any], swap: bool
) -> None:
    """Never a crash, never a field of the client's that is not listed."""
    body, allowed = PATHS[path]
    try:
        request = read(path, {**extra, **body} if swap else {**body, **extra})
        made = upstream(request, model_of(path))
        again = request.with_texts(request.texts())
    except ApiError:
        return
    assert again == request
    assert set(json.loads(made.body)) <= allowed
    assert made.headers == HEADERS
    assert request.session() == again.session()
    assert made.max_output_tokens <= MODELS[model_of(path)].max_output_tokens
    if not made.free and made.image_count == 0:
        assert made.bound_bytes >= len(made.body)


@EVERY
@pytest.mark.parametrize("control", CONTROLS)
def test_controls_never_reach_the_translator(path: str, control: str) -> None:
    body, _ = PATHS[path]
    plain = sent(path, body, model_of(path))
    if (path, control) == ("/v1/responses", "store"):
        with pytest.raises(ApiError, match="store"):
            sent(path, {**body, control: {"x": 1}})
        return
    value: object = {"user_id": 1} if control == "metadata" else {"x": 1}
    assert sent(path, {**body, control: value}, model_of(path)) == plain


@EVERY
def test_a_relay_gets_the_providers_own_name_and_no_field_of_litellms(path: str) -> None:
    body, _ = PATHS[path]
    if path.startswith(("/v1/messages", "/model/")):
        with pytest.raises(ApiError):
            upstream(read(path, body), relay=True)
        return
    made = upstream(read(path, body), relay=True)
    relayed = json.loads(made.body)
    assert relayed["model"] == MODELS["sim-small"].upstream_model
    assert "extra_headers" not in relayed
    assert made.headers == HEADERS


FILE = [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]
IMAGE_FILE = [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]
IMAGE_URL = {"type": "image_url", "image_url": {"url": "http://x/y.png"}}
REFUSALS = [
    ("/v1/completions", "n", 2), ("/v1/completions", "best_of", 3),
    ("/v1/completions", "echo", True),
    ("/v1/completions", "prompt", ["a", "b"]), ("/v1/completions", "prompt", [1, 2]),
    ("/v1/completions", "prompt", [[1, 2]]),
    ("/v1/embeddings", "input", [1, 2]), ("/v1/embeddings", "input", [[1]]),
    ("/v1/responses", "previous_response_id", "resp_1"), ("/v1/responses", "store", True),
    ("/v1/responses", "conversation", "conv_1"), ("/v1/responses", "background", True),
    ("/v1/responses", "prompt", {"id": "p"}),
    ("/v1/responses", "include", ["file_search_call.results"]),
    ("/v1/responses", "context_management", [{"type": "compaction"}]),
    ("/v1/responses", "service_tier", "priority"),
    ("/v1/responses", "tools", [{"type": "web_search"}]),
    ("/v1/responses", "tools", [{"type": "mcp", "server_url": "http://x"}]),
    ("/v1/responses", "tool_choice", {"type": "web_search"}),
    ("/v1/responses", "input", [{"type": "item_reference", "id": "msg_1"}]),
    ("/v1/responses", "input", [{"type": "file_search_call", "id": "fs"}]),
    ("/v1/responses", "input", FILE), ("/v1/responses", "input", IMAGE_FILE),
    ("/v1/responses", "input", [{"role": "user", "content": [
        {"type": "input_image", "image_url": "http://x/y.png"}]}]),
    ("/v1/messages", "mcp_servers", [{"url": "http://x"}]), ("/v1/messages", "container", "c"),
    ("/v1/messages", "context_management", {"edits": []}),
    ("/v1/messages", "service_tier", "priority"),
    ("/v1/messages", "output_format", {"type": "json_schema"}),
    ("/v1/messages", "thinking", {"type": "adaptive"}),
    ("/v1/messages", "tools", [{"type": "web_search_20250305", "name": "web_search"}]),
    ("/v1/messages", "tools", [{"type": "bash_20250124", "name": "bash"}]),
    ("/v1/messages", "messages", [{"role": "user", "content": [
        {"type": "image", "source": {"type": "url", "url": "http://x"}}]}]),
    ("/v1/messages", "messages", [{"role": "user", "content": [
        {"type": "document", "source": {"type": "file", "file_id": "f"}}]}]),
    ("/v1/messages", "messages", [{"role": "assistant", "content": [{"type": "server_tool_use"}]}]),
    ("/v1/chat/completions", "messages", [{"role": "user", "content": [IMAGE_URL]}]),
    ("/model/m/converse", "messages", [{"role": "user", "content": [
        {"image": {"format": "png", "source": {"s3Location": {"uri": "s3://x"}}}}]}]),
    ("/model/m/converse", "outputConfig", {"textFormat": {}}),
    ("/model/m/converse", "serviceTier", {"type": "priority"}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "field", "value"), REFUSALS)
def test_what_cannot_be_bounded_is_refused_by_name(path: str, field: str, value: object) -> None:
    body, _ = PATHS[path if path in PATHS else "/model/bedrock-claude/converse"]
    with pytest.raises(ApiError) as caught:
        read(path, {**body, field: value})
    assert caught.value.code == "unsupported_parameter"
    assert (caught.value.param or "").startswith(field)


def chat_image(data: str = PNG) -> dict[str, Any]:
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    return {"model": "m", "messages": [{"role": "user", "content": [part]}]}


def test_images_are_counted_apart_from_the_text() -> None:
    large = "iVBO" * 2000
    source = {"type": "base64", "media_type": "image/png", "data": large}
    content: dict[str, Any] = {"type": "image", "source": source}
    bodies: list[tuple[str, dict[str, Any], str]] = [
        ("/v1/chat/completions", chat_image(large), "sim-small"),
        ("/v1/responses", {"model": "m", "input": [{"role": "user", "content": [
            {"type": "input_image", "image_url": f"data:image/png;base64,{large}"}]}]},
         "sim-small"),
        ("/v1/messages", {"model": "m", "messages": [{"role": "user", "content": [content]}]},
         "bedrock-claude"),
        ("/v1/messages", {"model": "m", "messages": [{"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t", "content": [content]}]}]},
         "bedrock-claude"),
        ("/model/m/converse", {"messages": [{"role": "user", "content": [
            {"image": {"format": "png", "source": {"bytes": large}}}]}]}, "bedrock-claude"),
    ]  # fmt: skip
    for path, body, model in bodies:
        request = read(path, body)
        made = upstream(request, model)
        assert "images" in request.needs.features, path
        assert made.image_count == 1
        assert made.bound_bytes < len(made.body) - len(large) + 1
        assert large.encode() in made.body
        assert request.needs.input_bound_tokens < 1000


@pytest.mark.parametrize("data", ["", "not base64!", "aGk"])
def test_an_image_is_base64(data: str) -> None:
    with pytest.raises(ApiError, match="base64"):
        read("/v1/chat/completions", chat_image(data))


CACHED = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
LONG = {**CACHED, "cache_control": {"type": "ephemeral", "ttl": "1h"}}


@pytest.mark.parametrize(
    ("blocks", "price", "writes"),
    [
        ([CACHED], {}, "none"),
        ([CACHED], {"cache_write_micro_usd_per_mtok": 4_000_000}, "5m"),
        ([CACHED, LONG], {"cache_write_micro_usd_per_mtok": 4_000_000}, "none"),
        ([CACHED, LONG], {"cache_write_micro_usd_per_mtok": 4_000_000,
                          "cache_write_1h_micro_usd_per_mtok": 6_000_000}, "1h"),
    ],
)  # fmt: skip
def test_marks_for_the_cache_stay_where_they_have_a_price(
    blocks: list[dict[str, Any]], price: dict[str, int], writes: str
) -> None:
    tool = {"name": "t", "input_schema": {}, "cache_control": {"type": "ephemeral"}}
    body = {"model": "m", "system": blocks, "tools": [tool],
            "messages": [{"role": "user", "content": [*blocks, {
                "type": "tool_result", "tool_use_id": "t", "content": blocks}]}]}  # fmt: skip
    made = upstream(read("/v1/messages", body), "bedrock-claude", **price)
    assert made.cache_writes == writes
    assert (b"cache_control" in made.body) == (writes != "none")


def test_a_session_does_not_depend_on_marks_or_on_what_follows() -> None:
    first = {"model": "m", "system": [CACHED], "messages": [USER]}
    later = {"model": "m", "system": [{"type": "text", "text": "a"}],
             "messages": [USER, {"role": "assistant", "content": "x"}, USER]}  # fmt: skip
    other = {**first, "messages": [{"role": "user", "content": "else"}]}
    sessions = [read("/v1/messages", body).session() for body in (first, later, other)]
    assert sessions[0] == sessions[1] != sessions[2]
    named = read("/v1/messages", {**other, "metadata": {"user_id": "u1"}}).session()
    assert named == read("/v1/messages", {**first, "metadata": {"user_id": "u1"}}).session()
    assert named not in sessions


def thinking(budget: int, limit: int, model: str = "bedrock-claude") -> dict[str, Any]:
    wanted = {"type": "enabled", "budget_tokens": budget}
    body = {"model": "m", "max_tokens": limit, "messages": [USER], "thinking": wanted}
    assert "reasoning" in read("/v1/messages", body).needs.features
    return sent("/v1/messages", body, model)


def test_a_thinking_budget_is_bounded_by_the_output_limit() -> None:
    assert thinking(1024, 4000)["thinking"] == {"type": "enabled", "budget_tokens": 1024}
    for budget, limit in ((4000, 4000), (9000, 10**6)):  # the second is clamped to 8192
        with pytest.raises(ApiError, match="below max_tokens"):
            thinking(budget, limit)
    with pytest.raises(ApiError, match="at least 1024"):
        thinking(100, 4000)


def test_nothing_is_stored_at_the_provider() -> None:
    assert sent("/v1/responses", {"model": "m", "input": "hi"})["store"] is False
    body = {"model": "m", "max_tokens": 9, "messages": [USER]}
    assert sent("/v1/messages", body)["store"] is False  # LiteLLM asks OpenAI for a response
    assert "store" not in sent("/v1/messages", body, "bedrock-claude")


def test_several_embeddings_are_one_call_or_none() -> None:
    """LiteLLM makes a call per text for most of Bedrock's models: none of them would be ours."""
    body = {"model": "m", "input": ["a", "b"]}
    assert sent("/v1/embeddings", body)["input"] == ["a", "b"]
    with pytest.raises(ApiError, match="one text"):
        sent("/v1/embeddings", body, "bedrock-claude")
    request = read("/v1/embeddings", body)
    cohere = MODELS["bedrock-claude"].model_copy(update={"upstream_model": "cohere.embed-v4:0"})
    made = request.upstream(
        governance=GOVERNANCE, model=cohere, attempt_id="a", traceparent="t", max_output_tokens=9
    )
    assert made.max_output_tokens == 0


def test_reasoning_needs_a_provider_that_bounds_it() -> None:
    body = {"model": "m", "input": "hi", "reasoning": {"effort": "low", "other": 1}}
    assert sent("/v1/responses", body)["reasoning"] == {"effort": "low"}
    with pytest.raises(ApiError, match="cannot be bounded"):
        sent("/v1/responses", body, "bedrock-claude")


def test_every_text_is_seen_and_can_be_masked() -> None:
    """Nothing of a prompt is hidden from a guardrail: each secret is in some text, and is gone from
    the body once the texts are masked."""
    schema = {"type": "object", "properties": {"SECRET-k": {"enum": ["SECRET-e"]}}}
    tool_use = {"type": "tool_use", "id": "t", "name": "f", "input": {"a": ["SECRET-i"]}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [
        {"type": "text", "text": "SECRET-r"}]}  # fmt: skip
    bodies: list[tuple[str, str, dict[str, Any], int]] = [
        ("/v1/messages", "sim-small", {
            "stop_sequences": ["SECRET-x", "SECRET-y"],
            "system": "SECRET-s", "tools": [{"name": "f", "description": "SECRET-d",
                                             "input_schema": schema}],
            "messages": [{"role": "user", "content": "SECRET-u"},
                         {"role": "assistant", "content": [{"type": "text", "text": "SECRET-a"},
                                                           tool_use]},
                         {"role": "user", "content": [result]}]}, 10),
        ("/v1/responses", "sim-small", {
            "instructions": "SECRET-s",
            "tools": [{"type": "function", "name": "f", "description": "SECRET-d",
                       "parameters": schema}],
            "text": {"format": {"type": "json_schema", "name": "n", "schema": schema}},
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "SECRET-u"}]},
                      {"type": "function_call", "call_id": "c", "name": "f",
                       "arguments": '{"a": "SECRET-i"}'},
                      {"type": "function_call_output", "call_id": "c", "output": "SECRET-r"},
                      {"type": "reasoning", "id": "rs_1",
                       "summary": [{"type": "summary_text", "text": "SECRET-t"}]}]}, 10),
        ("/v1/chat/completions", "sim-small", {
            "stop": ["SECRET-x", "SECRET-y"],
            "tools": [{"type": "function", "function": {"name": "f", "description": "SECRET-d",
                                                        "parameters": schema}}],
            "messages": [{"role": "system", "content": "SECRET-s"},
                         {"role": "user", "content": [{"type": "text", "text": "SECRET-u"}]},
                         {"role": "assistant", "tool_calls": [{
                             "id": "c", "type": "function",
                             "function": {"name": "f", "arguments": '{"a": "SECRET-i"}'}}]},
                         {"role": "tool", "tool_call_id": "c", "content": "SECRET-r"}]}, 9),
        ("/v1/completions", "sim-small", {"prompt": "SECRET-u", "suffix": "SECRET-s",
                                          "stop": "SECRET-x"}, 3),
        ("/v1/embeddings", "sim-small", {"input": ["SECRET-u", "SECRET-s"]}, 2),
        ("/model/m/converse", "bedrock-claude", {
            "inferenceConfig": {"stopSequences": ["SECRET-x"]},
            "system": [{"text": "SECRET-s"}],
            "toolConfig": {"tools": [{"toolSpec": {"name": "f", "description": "SECRET-d",
                                                   "inputSchema": {"json": schema}}}]},
            "messages": [{"role": "user", "content": [{"text": "SECRET-u"}]},
                         {"role": "assistant", "content": [{"toolUse": {
                             "toolUseId": "t", "name": "f", "input": {"a": "SECRET-i"}}}]},
                         {"role": "user", "content": [{"toolResult": {
                             "toolUseId": "t", "content": [{"text": "SECRET-r"},
                                                           {"json": {"b": "SECRET-j"}}]}}]}]}, 9),
    ]  # fmt: skip
    for path, model, body, count in bodies:
        request = read(path, {"model": "m", **body})
        assert upstream(request, model).body.count(b"SECRET-") == count
        assert "".join(request.texts()).count("SECRET-") == count, path
        masked = request.with_texts([t.replace("SECRET", "[MASK]") for t in request.texts()])
        assert b"SECRET" not in upstream(masked, model).body, path
        with pytest.raises(ValueError, match=r"places|argument"):
            request.with_texts([*request.texts(), "one more"])


def test_a_mask_that_breaks_arguments_is_a_refusal() -> None:
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {"a": "x"}}
    body = {"model": "m", "messages": [USER, {"role": "assistant", "content": [use]}]}
    request = read("/v1/messages", body)
    with pytest.raises(ApiError, match="masks"):
        request.with_texts([request.texts()[0], "[gone]"])


HIDDEN = "my card is 4111 1111 1111 1111"


def chat_call(**fields: Any) -> dict[str, Any]:
    function = {"name": fields.pop("name", "f"), "arguments": "{}"}
    call = {"id": "c", "type": "function", "function": function, **fields}
    return {"messages": [USER, {"role": "assistant", "tool_calls": [call]}]}


def blocks(role: str, **block: Any) -> dict[str, Any]:
    return {"messages": [USER, {"role": role, "content": [block]}]}


def converse_blocks(role: str, kind: str, **block: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": [{kind: block}]}]}


UNSEEN: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", chat_call(name=HIDDEN), "messages[1].tool_calls.function.name"),
    ("/v1/chat/completions", chat_call(id=HIDDEN), "messages[1].tool_calls.id"),
    ("/v1/chat/completions",
     {"messages": [{"role": "tool", "tool_call_id": HIDDEN, "content": "r"}]},
     "messages[0].tool_call_id"),
    ("/v1/chat/completions",
     {"messages": [USER], "tool_choice": {"type": "function", "function": {"name": HIDDEN}}},
     "tool_choice"),
    ("/v1/messages", blocks("assistant", type="tool_use", id=HIDDEN, name="f", input={}),
     "messages[1].content[0].id"),
    ("/v1/messages", blocks("assistant", type="tool_use", id="t", name=HIDDEN, input={}),
     "messages[1].content[0].name"),
    ("/v1/messages", blocks("user", type="tool_result", tool_use_id=HIDDEN, content="r"),
     "messages[1].content[0].tool_use_id"),
    ("/v1/messages", {"messages": [USER], "tool_choice": {"type": "tool", "name": HIDDEN}},
     "tool_choice.name"),
    ("/v1/responses",
     {"input": [{"type": "function_call", "call_id": HIDDEN, "name": "f", "arguments": "{}"}]},
     "input[0].call_id"),
    ("/v1/responses",
     {"input": [{"type": "function_call", "call_id": "c", "name": HIDDEN, "arguments": "{}"}]},
     "input[0].name"),
    ("/v1/responses",
     {"input": [{"type": "function_call_output", "call_id": HIDDEN, "output": "r"}]},
     "input[0].call_id"),
    ("/v1/responses", {"input": "hi", "tool_choice": {"type": "function", "name": HIDDEN}},
     "tool_choice.name"),
    ("/model/m/converse",
     converse_blocks("assistant", "toolUse", toolUseId=HIDDEN, name="f", input={}),
     "messages[0].content[0].toolUse.toolUseId"),
    ("/model/m/converse",
     converse_blocks("assistant", "toolUse", toolUseId="t", name=HIDDEN, input={}),
     "messages[0].content[0].toolUse.name"),
    ("/model/m/converse",
     converse_blocks("user", "toolResult", toolUseId="t", content=[], status=HIDDEN),
     "messages[0].content[0].toolResult.status"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "param"), UNSEEN, ids=[f"{u[0]} {u[2]}" for u in UNSEEN])
def test_what_no_guardrail_reads_has_no_room_for_a_text(
    path: str, body: dict[str, Any], param: str
) -> None:
    with pytest.raises(ApiError) as refused:
        read(path, {"model": "m", "max_tokens": 5, **body})
    assert (refused.value.status, refused.value.param) == (400, param)
    assert HIDDEN not in refused.value.message


@pytest.mark.parametrize("name", ["", "a" * 129, "a b", "a\n", "ü"])
def test_names_and_ids_are_what_providers_take(name: str) -> None:
    with pytest.raises(ApiError):
        read("/v1/chat/completions", {"model": "m", **chat_call(id=name)})


@pytest.mark.parametrize("name", ["call_Ab-1", "functions.get_weather:0", "a" * 128])
def test_ids_that_providers_give_are_taken(name: str) -> None:
    assert read("/v1/chat/completions", {"model": "m", **chat_call(id=name)})
