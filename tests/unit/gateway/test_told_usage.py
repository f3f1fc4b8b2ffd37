"""What a client is told that it used is what it is charged for: a usage that LiteLLM made up is
nobody's count."""

import json
from typing import Any

import pytest

from terrace_gateway.calls.ports import Usage
from terrace_gateway.surfaces.surface import Surface
from terrace_gateway.surfaces.usage import with_embeddings_usage

from .surface_calls import IDENTITY, HoldBack, events, read

USER = {"role": "user", "content": "hi"}
CHAT = "/v1/chat/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [USER], "stream_options": {"include_usage": True}},
    "/v1/completions": {"prompt": "hi", "stream_options": {"include_usage": True}},
    "/v1/responses": {"input": "hi"},
    "/v1/embeddings": {"input": "hi"},
}
ITEM = {"type": "message", "id": "i", "role": "assistant",
        "content": [{"type": "output_text", "text": "hi"}]}  # fmt: skip
ANSWERS: dict[str, dict[str, Any]] = {
    CHAT: {"choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}]},
    "/v1/completions": {"choices": [{"index": 0, "text": "hi", "finish_reason": "stop"}]},
    "/v1/responses": {"status": "completed", "output": [ITEM]},
    "/v1/embeddings": {"data": [{"embedding": [0.5], "index": 0}]},
}
NOTHING: dict[str, Any] = {"/v1/responses": None, "/v1/embeddings": None}


def usage(path: str, told: int, written: int, **more: Any) -> dict[str, Any]:
    if path == "/v1/responses":
        return {"input_tokens": told, "output_tokens": written, "total_tokens": told + written,
                **{f"output_{name}": detail for name, detail in more.items()}}  # fmt: skip
    output = {} if path == "/v1/embeddings" else {"completion_tokens": written}
    return {"prompt_tokens": told, **output, "total_tokens": told + written,
            **{f"completion_{name}": detail for name, detail in more.items()}}  # fmt: skip


def surface(path: str, *, stream: bool = False) -> Surface:
    more = {"stream": True} if stream else {}
    body = {name: one for name, one in BODIES[path].items() if stream or name != "stream_options"}
    return read(path, {"model": "m", **body, **more}).answers(IDENTITY)


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_what_nobody_has_counted_is_not_told(path: str, filtered: bool) -> None:
    found = surface(path)

    def told(counted: dict[str, Any]) -> Any:
        answer: object = {**ANSWERS[path], "usage": counted}
        if filtered:
            answer = found.replace_texts(answer, found.texts(answer))
        return json.loads(found.rebuild(answer)).get("usage")

    none = NOTHING.get(path)
    assert told(usage(path, 0, 0)) == none
    if path != "/v1/embeddings":  # LiteLLM's estimate
        assert told(usage(path, 9, 5, tokens_details={"text_tokens": 5})) == none
    real = told(usage(path, 9, 0 if path == "/v1/embeddings" else 5))
    assert real["total_tokens"] == (9 if path == "/v1/embeddings" else 14)


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("estimated", [False, True])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_a_stream_tells_no_estimate(path: str, estimated: bool, filtered: bool) -> None:
    stream = surface(path, stream=True).open_stream(HoldBack() if filtered else None)
    details = {"tokens_details": {"text_tokens": 5}} if estimated else {}
    piece = {"delta": {"content": "hi"}} if path == CHAT else {"text": "hi"}
    frames: list[dict[str, Any]] = [
        {"choices": [{"index": 0, **piece}]},
        {"choices": [{"index": 0, "delta": {}, "text": "", "finish_reason": "stop"}]},
        {"choices": [], "usage": usage(path, 9, 5, **details)},
    ]
    sent = b"".join(stream.feed(b"data: " + json.dumps(one).encode() + b"\n\n") for one in frames)
    told = [one["usage"]["total_tokens"] for one in events(sent) if "usage" in one]
    assert (stream.usage, told) == ((None, []) if estimated else (Usage(9, 5), [14]))
    assert all(one["choices"] or "usage" in one for one in events(sent))
    assert b'"stop"' in sent


def test_vectors_that_are_counted_apart_say_that_count() -> None:
    found = surface("/v1/embeddings")
    made_up = {**ANSWERS["/v1/embeddings"], "usage": usage("/v1/embeddings", 7, 0)}
    for counted, told in (
        (Usage(400, 0), {"prompt_tokens": 400, "total_tokens": 400}),
        (None, None),
    ):
        answer = with_embeddings_usage(made_up, counted)
        assert json.loads(found.rebuild(answer))["usage"] == told
        assert found.usage(answer) == counted
    assert with_embeddings_usage(None, None) is None
