"""The bill as a reconciler reads it; metrics, health and logs beside it."""

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from .conftest import API_KEY, AWS_SECRET


def test_pages_join_to_the_whole(simulator: Any) -> None:
    for _ in range(7):
        simulator.chat("x")
    whole = simulator.bill()
    paged: list[dict[str, Any]] = []
    after: int | None = 0
    while after is not None:
        page = simulator.http.get("/bill", params={"after": after, "limit": 3}).json()
        assert len(page["entries"]) <= 3
        assert page["total_micro_usd"] == whole["total_micro_usd"]
        paged += page["entries"]
        after = page["next"]
    assert paged == whole["entries"]
    assert [e["seq"] for e in paged] == sorted({e["seq"] for e in paged})
    total = simulator.http.get("/bill/total").json()
    assert total["total_micro_usd"] == sum(e["cost_micro_usd"] for e in paged)
    assert total["calls"] == len(paged)
    assert total["input_tokens"] == sum(e["input_tokens"] for e in paged)
    assert total["output_tokens"] == sum(e["output_tokens"] for e in paged)


def test_an_attempt_used_twice_is_two_entries(simulator: Any, attempt: str) -> None:
    for _ in range(2):
        simulator.chat("x", attempt=attempt)
    bill = simulator.bill(attempt)
    assert len(bill["entries"]) == 2
    assert bill["total_micro_usd"] == sum(e["cost_micro_usd"] for e in bill["entries"])
    after_first = simulator.http.get(
        "/bill", params={"attempt_id": attempt, "after": bill["entries"][0]["seq"]}
    ).json()
    assert after_first["entries"] == bill["entries"][1:]


@pytest.mark.parametrize(
    "query", ["after=-1", "after=x", "limit=99999999", "after=%D9%A1", "limit=1e3"]
)
def test_a_wrong_query_is_refused(simulator: Any, query: str) -> None:
    answer = simulator.http.get(f"/bill?{query}")
    assert answer.status_code == 400
    assert query.partition("=")[0] in answer.json()["error"]


def test_a_running_call_is_in_flight_and_its_cost_known_so_far(
    simulator: Any, attempt: str
) -> None:
    simulator.faults({"kind": "chunk_latency", "seconds": 0.5, "remaining": 1})
    body = {
        "model": "sim-small",
        "stream": True,
        "messages": [{"role": "user", "content": "[[tokens=40]]"}],
    }
    with simulator.http.stream(
        "POST", "/v1/chat/completions", json=body, headers={"x-terrace-attempt-id": attempt}
    ) as answer:
        lines = answer.iter_lines()
        next(lines)
        running = simulator.bill(attempt)
        assert running["in_flight"] == 1
        assert running["total_micro_usd"] == 0
        (entry,) = running["entries"]
        assert (entry["status"], entry["outcome"], entry["ended_at"]) == ("in_flight", None, None)
        assert list(lines)[-2] == "data: [DONE]"
    (entry,) = simulator.bill(attempt)["entries"]
    assert (entry["status"], entry["outcome"], entry["output_tokens"]) == ("final", "ok", 40)


async def test_fifty_callers_at_once_are_billed_one_by_one(simulator: Any, attempt: str) -> None:
    async def one(client: openai.AsyncOpenAI, number: int) -> tuple[str, int, int]:
        name = f"{attempt}-{number}"
        options: Any = {
            "model": "sim-small" if number % 2 else "sim-large",
            "messages": [{"role": "user", "content": f"question {number}"}],
            "extra_headers": {"x-terrace-attempt-id": name},
        }
        if number % 3 == 0:
            stream = await client.chat.completions.create(
                stream=True, stream_options={"include_usage": True}, **options
            )
            usage = [chunk.usage async for chunk in stream][-1]
        else:
            usage = (await client.chat.completions.create(**options)).usage
        assert usage is not None
        return name, usage.prompt_tokens, usage.completion_tokens

    async with openai.AsyncOpenAI(
        api_key=API_KEY,
        base_url=f"{simulator.url}/v1",
        max_retries=0,
        http_client=httpx.AsyncClient(limits=httpx.Limits(max_connections=50)),
    ) as client:
        answers = [
            answer
            for _ in range(4)
            for answer in await asyncio.gather(*(one(client, number) for number in range(50)))
        ]
    mine = [e for e in simulator.bill()["entries"] if (e["attempt_id"] or "").startswith(attempt)]
    assert len(mine) == 200
    assert Counter((e["attempt_id"], e["input_tokens"], e["output_tokens"]) for e in mine) == (
        Counter(answers)
    )
    assert all(e["status"] == "final" for e in mine)
    prices = {"sim-small": (150, 600), "sim-large": (2500, 10_000)}
    for entry in mine:
        into, out = prices[entry["model"]]
        thousandths = entry["input_tokens"] * into + entry["output_tokens"] * out
        assert entry["cost_micro_usd"] == -(-thousandths // 1000)


def metric(simulator: Any, name: str, **labels: str) -> float:
    wanted = {f'{key}="{value}"' for key, value in labels.items()}
    for line in simulator.http.get("/metrics").text.splitlines():
        head, _, value = line.rpartition(" ")
        if head.partition("{")[0] == name and wanted <= set(
            head.partition("{")[2].rstrip("}").split(",")
        ):
            return float(value)
    return 0.0


def test_metrics_follow_the_bill(simulator: Any, attempt: str) -> None:
    def read() -> tuple[float, float, float]:
        return (
            metric(simulator, "terrace_simulator_requests_total", model="sim-small",
                   surface="chat_completions", outcome="ok"),
            metric(simulator, "terrace_simulator_billed_micro_usd_total", model="sim-small"),
            metric(simulator, "terrace_simulator_tokens_total", model="sim-small",
                   direction="output"),
        )  # fmt: skip

    before = read()
    simulator.chat("count me", attempt=attempt)
    after = read()
    (entry,) = simulator.bill(attempt)["entries"]
    assert [new - old for new, old in zip(after, before, strict=True)] == [
        1,
        entry["cost_micro_usd"],
        entry["output_tokens"],
    ]
    assert metric(simulator, "terrace_simulator_in_flight") == 0


def test_unknown_models_share_one_label(simulator: Any) -> None:
    for number in range(5):
        simulator.chat("x", model=f"made-up-{number}")
    assert "made-up" not in simulator.http.get("/metrics").text


def test_health(simulator: Any) -> None:
    assert simulator.http.get("/healthz").json() == {"status": "ok"}


def test_logs_are_json_without_prompts_answers_or_secrets(
    start_simulator: Callable[..., Any], attempt: str
) -> None:
    own = start_simulator()
    answer = own.chat("a very private question", attempt=attempt).json()
    own.chat("another private question", max_tokens=0)
    own.http.post("/v1/chat/completions", headers={"authorization": "Bearer tk-leaked"})
    own.end()
    calls = [json.loads(line) for line in own.log_lines]
    assert [call["attempt_id"] for call in calls if call["event"] == "call"] == [attempt]
    text = "".join(own.log_lines) + own.bill_path.read_text()
    spoken = answer["choices"][0]["message"]["content"][:20]
    for secret in ("private", spoken, API_KEY, AWS_SECRET, "tk-leaked"):
        assert secret not in text


def test_a_trace_is_joined(simulator: Any) -> None:
    """The exporter is off here; what counts is that a strange header breaks nothing."""
    for value in ("00-" + os.urandom(16).hex() + "-" + os.urandom(8).hex() + "-01", "nonsense"):
        answer = simulator.http.post(
            "/v1/chat/completions",
            json={"model": "sim-small", "messages": [{"role": "user", "content": "x"}]},
            headers={"traceparent": value},
        )
        assert answer.status_code == 200
