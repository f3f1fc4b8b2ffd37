"""Switches and leaving callers: what is sent, and what is billed for it."""

import asyncio
import json
import socket
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import httpx
import openai
import pytest
from urllib3.exceptions import ProtocolError

CLAUDE = "anthropic.claude-sonnet-4-5-20250929-v1:0"
TOKENS = 24  # six chunks of four


def streamed(text: str) -> dict[str, Any]:
    return {
        "model": "sim-small",
        "stream": True,
        "messages": [{"role": "user", "content": text}],
    }


def settled(simulator: Any, attempt: str, count: int = 1) -> list[dict[str, Any]]:
    """The attempt's entries once they are final."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        bill = simulator.bill(attempt)
        if len(bill["entries"]) == count and bill["in_flight"] == 0:
            return bill["entries"]
        time.sleep(0.01)
    pytest.fail(f"not settled: {bill}")


def test_switches_are_set_read_and_deleted(simulator: Any) -> None:
    switches = [
        {"model": "sim-small", "kind": "status", "status": 429, "remaining": 2},
        {"model": "*", "kind": "latency", "seconds": 0.5},
    ]
    assert simulator.http.put("/control/faults", json=switches).json() == switches
    simulator.chat("x")
    assert simulator.http.get("/control/faults").json()[0]["remaining"] == 1
    assert simulator.http.delete("/control/faults").status_code == 204
    assert simulator.http.get("/control/faults").json() == []


@pytest.mark.parametrize(
    "body", ["{", "{}", "[1]", '[{"kind":"status"}]', '[{"kind":"hang","x":1}]', "[" + "{}," * 200]
)
def test_wrong_switches_change_nothing(simulator: Any, body: str) -> None:
    simulator.faults({"kind": "latency", "seconds": 0.0})
    answer = simulator.http.put("/control/faults", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]
    assert len(simulator.http.get("/control/faults").json()) == 1


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
        (503, openai.InternalServerError),
        (401, openai.AuthenticationError),
        (403, openai.PermissionDeniedError),
    ],
)
def test_a_refusal_is_the_clients_own_exception_and_unbilled(
    simulator: Any, openai_sdk: openai.OpenAI, attempt: str, status: int, error: type[Exception]
) -> None:
    simulator.faults({"model": "sim-small", "kind": "status", "status": status, "remaining": 1})
    options: Any = {
        "model": "sim-small",
        "messages": [{"role": "user", "content": "x"}],
        "extra_headers": {"x-terrace-attempt-id": attempt},
    }
    with pytest.raises(error):
        openai_sdk.chat.completions.create(**options)
    assert simulator.bill(attempt)["entries"] == []
    openai_sdk.chat.completions.create(**options)
    assert len(simulator.bill(attempt)["entries"]) == 1


@pytest.mark.parametrize("chunks", [1, 2, 3, 4, 5, 6, 7])
def test_a_stream_cut_after_each_chunk_is_billed_for_what_was_produced(
    simulator: Any, attempt: str, chunks: int
) -> None:
    simulator.faults({"kind": "disconnect", "after_chunks": chunks, "remaining": 1})
    received = b""
    with simulator.http.stream(
        "POST",
        "/v1/chat/completions",
        json=streamed(f"[[tokens={TOKENS}]]"),
        headers={"x-terrace-attempt-id": attempt},
    ) as answer:
        assert answer.status_code == 200
        with pytest.raises(httpx.RemoteProtocolError):  # noqa: PT012  it is the reading that fails
            for part in answer.iter_raw():
                received += part
    produced = min(4 * chunks, TOKENS)
    assert received.count(b'"content":') == 1 + produced // 4  # the first has the role
    assert b"[DONE]" not in received
    assert b'"finish_reason":"stop"' not in received
    (entry,) = settled(simulator, attempt)
    assert (entry["outcome"], entry["output_tokens"]) == ("failed_after_start", produced)


@pytest.mark.parametrize("chunks", [0, 1, 3])
def test_a_plain_answer_cut_has_no_first_byte(simulator: Any, attempt: str, chunks: int) -> None:
    simulator.faults({"kind": "disconnect", "after_chunks": chunks, "remaining": 1})
    with pytest.raises(httpx.RemoteProtocolError, match="without sending a response"):
        simulator.chat("[[tokens=24]]", attempt=attempt)
    if chunks == 0:
        assert simulator.bill(attempt)["entries"] == []
    else:
        (entry,) = settled(simulator, attempt)
        assert (entry["outcome"], entry["output_tokens"]) == ("failed_after_start", 4 * chunks)


def test_an_event_stream_cut_ends_without_its_metadata(
    simulator: Any, bedrock_sdk: Any, attempt: str
) -> None:
    simulator.faults({"model": CLAUDE, "kind": "disconnect", "after_chunks": 2, "remaining": 1})
    answer = bedrock_sdk.converse_stream(
        modelId=CLAUDE,
        messages=[{"role": "user", "content": [{"text": "[[tokens=24]]"}]}],
        requestMetadata={"terrace-attempt-id": attempt},
    )
    kinds: list[str] = []
    with closing(answer["stream"]) as stream, pytest.raises(ProtocolError):
        kinds.extend(kind for event in stream for kind in event)
    assert kinds == ["messageStart", "contentBlockDelta", "contentBlockDelta"]
    (entry,) = settled(simulator, attempt)
    assert (entry["outcome"], entry["output_tokens"]) == ("failed_after_start", 8)


def leave_while_it_waits(simulator: Any, attempt: str, body: dict[str, Any]) -> None:
    """A call whose caller goes away once it is in flight, before it got a byte."""
    host, port = simulator.url.removeprefix("http://").split(":")
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: "
        f"{simulator.http.headers['authorization']}\r\nx-terrace-attempt-id: {attempt}\r\n"
        f"content-length: {len(data)}\r\n\r\n"
    ).encode()
    deadline = time.monotonic() + 60
    with socket.create_connection((host, int(port))) as caller:
        caller.sendall(head + data)
        while not simulator.bill(attempt)["in_flight"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        caller.setblocking(False)
        with pytest.raises(BlockingIOError):  # nothing was answered
            caller.recv(1)


def test_hanging_never_answers_and_is_unbilled(simulator: Any, attempt: str) -> None:
    simulator.faults({"kind": "hang", "remaining": 1})
    with pytest.raises(httpx.ReadTimeout):
        simulator.http.post(
            "/v1/chat/completions",
            json=streamed("x"),
            headers={"x-terrace-attempt-id": attempt},
            timeout=0.5,
        )
    assert simulator.bill(attempt)["entries"] == []


@pytest.mark.parametrize("stream", [True, False])
def test_no_usage_is_billed_all_the_same(simulator: Any, attempt: str, stream: bool) -> None:
    simulator.faults({"kind": "no_usage", "remaining": 1})
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if stream else {}
    answer = simulator.chat("[[tokens=24]]", attempt=attempt, stream=stream, **options)
    assert "completion_tokens" not in answer.text
    (entry,) = settled(simulator, attempt)
    assert (entry["outcome"], entry["output_tokens"]) == ("ok", TOKENS)


def test_no_usage_on_converse(simulator: Any, bedrock_sdk: Any) -> None:
    simulator.faults({"kind": "no_usage", "remaining": 1})
    messages = [{"role": "user", "content": [{"text": "x"}]}]
    assert "usage" not in bedrock_sdk.converse(modelId=CLAUDE, messages=messages)


@pytest.mark.parametrize("chunks", [0, 1, 3, 5])
def test_a_caller_who_leaves_is_billed_for_what_was_produced(
    simulator: Any, attempt: str, chunks: int
) -> None:
    """The answer would take 100 s; the entry is final as soon as the caller has left."""
    simulator.faults({"kind": "chunk_latency", "seconds": 0.1, "remaining": 1})
    with simulator.http.stream(
        "POST",
        "/v1/chat/completions",
        json=streamed("[[tokens=4000]]"),
        headers={"x-terrace-attempt-id": attempt},
    ) as answer:
        lines = (line for line in answer.iter_lines() if line)
        for _ in range(1 + chunks):
            next(lines)
    (entry,) = settled(simulator, attempt)
    assert entry["outcome"] == "client_gone"
    assert 4 * chunks <= entry["output_tokens"] < 1000
    assert entry["output_tokens"] % 4 == 0


def test_a_caller_who_leaves_before_the_first_byte(simulator: Any, attempt: str) -> None:
    simulator.faults({"kind": "latency", "seconds": 600, "remaining": 1})
    leave_while_it_waits(simulator, attempt, streamed("x"))
    (entry,) = settled(simulator, attempt)
    assert (entry["outcome"], entry["output_tokens"]) == ("client_gone", 0)
    assert entry["cost_micro_usd"] > 0


def test_a_plain_call_is_stopped_when_its_caller_leaves(simulator: Any, attempt: str) -> None:
    simulator.faults({"kind": "chunk_latency", "seconds": 0.1, "remaining": 1})
    body = {**streamed("[[tokens=4000]]"), "stream": False}
    leave_while_it_waits(simulator, attempt, body)
    (entry,) = settled(simulator, attempt)
    assert entry["outcome"] == "client_gone"
    assert entry["output_tokens"] < 1000


def test_a_caller_who_never_reads_stops_the_model(
    start_simulator: Callable[..., Any], attempt: str
) -> None:
    """Output waits for the reader: what nobody takes is not produced for ever, nor billed."""
    own = start_simulator(tokens_per_chunk=1)
    body = json.dumps({**streamed("[[tokens=16000]]"), "model": "sim-large"}).encode()
    host, port = own.url.removeprefix("http://").split(":")
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: "
        f"{own.http.headers['authorization']}\r\nx-terrace-attempt-id: {attempt}\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode()
    with socket.socket() as caller:
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        caller.connect((host, int(port)))
        caller.sendall(head + body)
        caller.recv(10)
        time.sleep(1)
        assert own.bill(attempt)["in_flight"] == 1
    (entry,) = settled(own, attempt)
    assert entry["outcome"] == "client_gone"
    assert entry["output_tokens"] < 16_000


def test_a_caller_who_leaves_while_sending_its_body(simulator: Any) -> None:
    before = simulator.bill()["entries"]
    host, port = simulator.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as caller:
        caller.sendall(
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: "
            f"{simulator.http.headers['authorization']}\r\ncontent-length: 500\r\n\r\n{{".encode()
        )
    assert simulator.http.get("/healthz").status_code == 200
    assert simulator.bill()["entries"] == before
    assert not any("Traceback" in line for line in simulator.log_lines)


async def test_one_slow_call_holds_up_no_other(simulator: Any, attempt: str) -> None:
    simulator.faults({"model": "sim-large", "kind": "latency", "seconds": 600, "remaining": 1})
    async with httpx.AsyncClient(
        base_url=simulator.url, headers=simulator.http.headers, timeout=30
    ) as client:
        slow = asyncio.create_task(
            client.post(
                "/v1/chat/completions",
                json={**streamed("x"), "model": "sim-large"},
                headers={"x-terrace-attempt-id": attempt},
            )
        )
        while not simulator.bill(attempt)["in_flight"]:
            await asyncio.sleep(0.01)
        quick = await client.post("/v1/chat/completions", json=streamed("x"))
        assert quick.status_code == 200
        assert not slow.done()
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
    (entry,) = settled(simulator, attempt)
    assert entry["outcome"] == "client_gone"


@pytest.mark.parametrize(
    "pace", [{"time_to_first_token_seconds": 600}, {"tokens_per_second": 0.001}]
)
def test_the_pace_is_a_setting(
    start_simulator: Callable[..., Any], attempt: str, pace: dict[str, float]
) -> None:
    slow = start_simulator(**pace)
    leave_while_it_waits(slow, attempt, {**streamed("x"), "stream": False})
    (entry,) = settled(slow, attempt)
    assert (entry["outcome"], entry["output_tokens"]) == ("client_gone", 0)


@pytest.mark.parametrize("per_chunk", [1, 10])
def test_the_size_of_a_chunk_is_a_setting(
    start_simulator: Callable[..., Any], per_chunk: int
) -> None:
    own = start_simulator(tokens_per_chunk=per_chunk)
    answer = own.chat("[[tokens=20]]", stream=True)
    assert answer.text.count('"content":') == 1 + 20 // per_chunk
