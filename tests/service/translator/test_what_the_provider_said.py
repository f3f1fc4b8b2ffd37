"""A call that cost something is never taken for a refusal, and no redirect is followed.

LiteLLM's own status proves nothing: it says 400 and 422 of a 200 that it cannot read. Here the real
one answers the guard's own client, and the guard's surfaces read what it says.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from terrace_gateway.calls.ports import Usage
from terrace_gateway.edge.routes import match_route
from terrace_gateway.surfaces.request import read_request
from terrace_gateway.surfaces.surface import BrokenAnswerError, Identity
from terrace_gateway.upstream.port import UpstreamLostError
from terrace_gateway.upstream.translator import Translator as Client

from .conftest import Translator
from .fake_provider import Said, aws_event
from .test_surfaces import BODIES, GOVERNANCE, USER

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONVERSE = "/model/bedrock-claude/converse"
SURFACES: dict[str, dict[str, Any]] = {
    **{path: body for path, body in BODIES.items() if not path.startswith(CONVERSE)},
    "/v1/chat/completions": {"messages": USER, "max_tokens": 20},
    CONVERSE: {
        "messages": [{"role": "user", "content": [{"text": "hi"}]}],
        "inferenceConfig": {"maxTokens": 20},
    },
}
ONE_MODEL = {CONVERSE: "bedrock-claude", "/v1/embeddings": "sim-small"}
NO_STREAM = ("/v1/embeddings", "/v1/messages/count_tokens")
Call = tuple[str, str, bool]
CALLS: list[Call] = [
    (path, model, stream)
    for path in SURFACES
    for model in ("sim-small", "bedrock-claude")
    if ONE_MODEL.get(path, model) == model
    for stream in ((False,) if path in NO_STREAM else (False, True))
]
BILLED = [call for call in CALLS if call[0] != "/v1/messages/count_tokens"]
FREE = "free"
UNKNOWN = "unknown"
SECRET = "SECRET-OF-ANOTHER-HOST"


def ids(call: object) -> str | None:
    if isinstance(call, tuple):
        path, model, stream = call
        return f"{path}-{model}{'-stream' if stream else ''}"
    return None


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guard(started: Translator) -> AsyncIterator[Client]:
    client = Client(started.directory / "engine.sock", started.directory / "master-key")
    await client.open()
    yield client
    await client.close()


async def settled(guard: Client, call: Call) -> tuple[object, int, bytes]:
    """(FREE, UNKNOWN or the Usage, as the guard takes it; LiteLLM's status; its body)."""
    path, model, stream = call
    route = path + ("-stream" if path == CONVERSE and stream else "")
    match = match_route("POST", route)
    assert match is not None
    named = {} if path == CONVERSE else {"model": model, **({"stream": True} if stream else {})}
    request = read_request(match, {**named, **SURFACES[path]})
    found = GOVERNANCE.find_model(model)
    assert found is not None
    upstream = request.upstream(
        governance=GOVERNANCE, model=found, attempt_id="att_1",
        traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        max_output_tokens=20,
    )  # fmt: skip
    answers = request.answers(Identity("req_1", "asked"))
    body = b""
    status = 0
    try:
        async with guard.call(upstream) as response:
            status = response.status
            if status != 200:
                body = await response.error_body()
                return (FREE if response.provider_answered else UNKNOWN), status, body
            async for data in response.chunks():
                body += data
        if not stream:
            return answers.usage(json.loads(body)) or UNKNOWN, status, body
        reader = answers.open_stream()
        reader.feed(body)
    except (UpstreamLostError, BrokenAnswerError, ValueError):
        return UNKNOWN, status, body
    return reader.usage or UNKNOWN, status, body


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 429])
@pytest.mark.parametrize("call", BILLED, ids=ids)
async def test_a_refusal_is_free(
    translator: Translator, guard: Client, call: Call, status: int
) -> None:
    translator.provider.says.append(refusal(call, status))
    how, answered, body = await settled(guard, call)
    assert len(translator.provider.calls) == 1
    if answered == 200:  # told in the stream: LiteLLM had begun its own answer
        assert (call[2], how) == (True, UNKNOWN), body
    else:
        assert (how, answered) == (FREE, status), body


@pytest.mark.parametrize("status", [408, 424, 499, 502, 504, 520])
@pytest.mark.parametrize("call", BILLED, ids=ids)
async def test_what_may_hide_a_lost_call_is_unknown(
    translator: Translator, guard: Client, call: Call, status: int
) -> None:
    translator.provider.says.append(refusal(call, status))
    how, _, body = await settled(guard, call)
    assert len(translator.provider.calls) == 1
    assert how == UNKNOWN, body


@pytest.mark.parametrize("call", BILLED, ids=ids)
@pytest.mark.parametrize("more", [{}, {"x-request-id": "p1", "x-amzn-RequestId": "p1"}])
@pytest.mark.parametrize("status", [500, 503])
async def test_a_proxys_word_is_unknown_under_whatever_id(
    translator: Translator, guard: Client, call: Call, status: int, more: dict[str, str]
) -> None:
    html = {"content-type": "text/html", **more}
    translator.provider.says.append(Said(status, b"<html>overloaded</html>", html))
    how, _, body = await settled(guard, call)
    assert len(translator.provider.calls) == 1
    assert how == UNKNOWN, body


@pytest.mark.parametrize("status", [500, 503, 529])
@pytest.mark.parametrize("call", BILLED, ids=ids)
async def test_the_providers_own_failure_is_free(
    translator: Translator, guard: Client, call: Call, status: int
) -> None:
    translator.provider.says.append(refusal(call, status))
    how, answered, body = await settled(guard, call)
    assert len(translator.provider.calls) == 1
    assert how == (UNKNOWN if answered == 200 else FREE), body


def refusal(call: Call, status: int) -> Said:
    if call[1] == "bedrock-claude":
        return Said(status, b'{"message": "the fake says no"}')
    error = {"message": "the fake says no", "type": "fake", "code": str(status)}
    return Said(status, json.dumps({"error": error}).encode())


JSON = {"content-type": "application/json", "x-request-id": "r1", "x-amzn-RequestId": "r1"}
FRAMES = {"content-type": "application/vnd.amazon.eventstream", "x-amzn-RequestId": "r1"}
EVENTS = {"content-type": "text/event-stream", "x-request-id": "r1"}
BEGUN = aws_event("messageStart", {"role": "assistant"})
TOOL = {"role": "assistant", "content": [{"toolUse": {"name": "x"}}]}
BROKEN: dict[str, Said] = {
    "cut JSON": Said(200, b'{"output": {"message"', JSON),
    "nothing": Said(200, b"", JSON),
    "a list": Said(200, b"[]", JSON),
    "no object": Said(200, b"null", JSON),
    "an empty object": Said(200, b"{}", JSON),
    "HTML": Said(200, b"<html>captive</html>", {"content-type": "text/html"}),
    "an error in a 200": Said(
        200, b'{"error": {"message": "no", "code": 400, "type": "invalid_request_error"}}', JSON
    ),
    "a strange block": Said(200, json.dumps({"output": {"message": TOOL}}).encode(), JSON),
    "no usage": Said(
        200,
        b'{"output": {"message": {"role": "assistant", "content": [{"text": "hi"}]}},'
        b' "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}}],'
        b' "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}]}',
        JSON,
    ),
    "an error event": Said(
        200, b'data: {"error": {"message": "no", "code": "400", "type": "x"}}\n\n', EVENTS
    ),
    **{
        name: Said(200, BEGUN + aws_event(name, {"message": "no"}, "exception"), FRAMES)
        for name in ("validationException", "throttlingException", "modelStreamErrorException")
    },
    "bytes after the head": Said(200, b"\x00\x00\x00\x10garbage", FRAMES),
}


@pytest.mark.parametrize("said", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("call", BILLED, ids=ids)
async def test_an_answer_that_litellm_cannot_read_is_unknown(
    translator: Translator, guard: Client, call: Call, said: Said
) -> None:
    translator.provider.says.append(said)
    how, status, body = await settled(guard, call)
    assert len(translator.provider.calls) == 1
    assert how == UNKNOWN, (status, body)


@pytest.mark.parametrize("call", BILLED, ids=ids)
async def test_a_provider_cannot_say_it_itself(
    translator: Translator, guard: Client, call: Call
) -> None:
    forged = {**JSON, "X-Terrace-Upstream-Status": "400", "llm_provider-x-request-id": "r"}
    for said in (Said(200, b"[]", forged), Said(500, b"{}", forged), Said(302, b"{}", forged)):
        translator.provider.says.append(said)
        how, status, body = await settled(guard, call)
        assert how == UNKNOWN or said.status == 500, (status, body)
    for said in (Said(200, b"[]", forged), Said(500, b"{}", forged)):
        translator.provider.says.append(said)
        answer = await translator.client.post(
            "/bedrock/model/bedrock-claude/converse", json=SURFACES[CONVERSE]
        )
        seen = "500 json" if said.status == 500 else "200"
        assert answer.headers.get_list("x-terrace-upstream-status") == [seen]


async def test_what_litellm_refuses_by_itself_is_free(
    translator: Translator, guard: Client
) -> None:
    body = {"model": "nobody", "messages": USER}
    answer = await translator.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.headers["x-terrace-upstream-status"] == "none"
    assert translator.provider.calls == []


async def test_calls_at_once_are_told_apart(translator: Translator, guard: Client) -> None:
    """Refusals for OpenAI's face and usual answers for Bedrock's, in the same moments."""
    path = "/v1/chat/completions"
    translator.provider.refuse = "/v1/"
    both = [(path, "sim-small", False), (path, "bedrock-claude", False)] * 20
    try:
        answers = await asyncio.gather(*(settled(guard, call) for call in both))
    finally:
        translator.provider.refuse = None
    assert [how for how, _, _ in answers[::2]] == [FREE] * 20
    assert all(isinstance(how, Usage) for how, _, _ in answers[1::2])


class Stranger:
    """Another host, which would answer whatever it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.address = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(f"{request.method} {request.path}")
        message = {"role": "assistant", "content": SECRET}
        return web.json_response({"choices": [{"index": 0, "message": message}], "error": SECRET})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stranger() -> AsyncIterator[Stranger]:
    found = Stranger()
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", found.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    found.address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield found
    await runner.cleanup()


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("call", CALLS, ids=ids)
async def test_no_redirect_is_followed(
    translator: Translator, guard: Client, stranger: Stranger, call: Call, code: int
) -> None:
    places = ["/elsewhere", f"{stranger.address}/latest/meta-data"]
    for place in places:
        translator.provider.calls.clear()
        translator.provider.other_paths.clear()
        translator.provider.says.append(Said(code, b"{}", {**JSON, "location": place}))
        how, status, body = await settled(guard, call)
        assert len(translator.provider.calls) == 1, "it was followed"
        assert translator.provider.other_paths == []
        assert how == UNKNOWN, (status, body)
        assert SECRET.encode() not in body
    assert stranger.asked == []
