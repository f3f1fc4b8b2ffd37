"""Proof 11: zero hidden retries. The provider's count of calls is the guard's count of attempts,
whatever fails and whatever a client asks for."""

import asyncio
import re
from collections import Counter
from typing import Any

import httpx
import openai
import pytest
from gateway_rig.fake_upstream import Behaviour, Call, FakeUpstream
from gateway_rig.guard import InProcessGuard
from gateway_rig.postgres import Postgres
from gateway_rig.proofs import QUICK, Books, Said, spec, until
from gateway_rig.real_upstream import RealUpstream
from structlog.testing import capture_logs

STATUSES = (400, 401, 403, 404, 408, 409, 413, 422, 424, 429, 500, 502, 503, 504)
USED: dict[str, Any] = {"input_tokens": 60, "output_tokens": 90, "chunks": 4}
FAULTS: dict[str, Behaviour] = {
    **{str(status): Behaviour(status=status, headers={"retry-after": "1"}) for status in STATUSES},
    "dies-before-headers": Behaviour(**USED, die_before_answer=True),
    "dies-after-headers": Behaviour(**USED, die_after_chunks=0),
    "dies-in-the-stream": Behaviour(**USED, die_after_chunks=2),
    "error-in-the-stream": Behaviour(**USED, error_event_after=2),
    "no-json": Behaviour(**USED, body=b'{"choices": ['),
    "too-deep": Behaviour(**USED, body=b'{"choices":' + b"[" * 5000 + b"]" * 5000 + b"}"),
    "dies-behind-the-end": Behaviour(**USED, die_behind_the_end=True, delay=0.05),
    "nothing": Behaviour(**USED),
}
SURFACES = ("chat", "messages", "converse")
ASKS_FOR_RETRIES: dict[str, Any] = {
    "headers": {
        "x-stainless-retry-count": "2", "x-litellm-num-retries": "5", "x-litellm-max-retries": "5",
        "x-should-retry": "true", "x-litellm-timeout": "1", "idempotency-key": "one",
    },
    "body": (
        {}, {"num_retries": 5}, {"max_retries": 5}, {"fallbacks": ["sim-small"]},
        {"context_window_fallbacks": [{"sim-large": ["sim-small"]}]}, {"router_settings": {}},
        {"retry_policy": {"RateLimitErrorRetries": 3}},
    ),
}  # fmt: skip


def planned(call: Call) -> Behaviour:
    found = re.search(r"fault=([\w-]+)", str(call.body))
    return FAULTS[found[1]] if found else FAULTS["nothing"]


@pytest.fixture
def books(postgres: Postgres, database: str, upstream: FakeUpstream) -> Books:
    return Books(postgres, database, upstream)


@pytest.fixture
async def before_fake(make_guard: Any, upstream: FakeUpstream) -> InProcessGuard:
    upstream.plan_for = planned
    return await make_guard(**QUICK, governance=spec(upstream))


async def ask(
    guard: InProcessGuard, key: str, surface: str, fault: str, *, stream: bool, **more: Any
) -> Said:
    """One HTTP request."""
    text = f"fault={fault}"
    body: dict[str, Any] = {
        "model": "sim-large", "max_tokens": 100, "messages": [{"role": "user", "content": text}],
    }  # fmt: skip
    if surface == "converse":
        path = "/model/bedrock-claude/converse" + ("-stream" if stream else "")
        body = {
            "messages": [{"role": "user", "content": [{"text": text}]}],
            "inferenceConfig": {"maxTokens": 100},
        }
    else:
        path = "/v1/messages" if surface == "messages" else "/v1/chat/completions"
        body["stream"] = stream
    headers = {"authorization": f"Bearer {key}", **more.pop("headers", {})}
    answer = await guard.http.post(guard.public_url + path, json={**body, **more}, headers=headers)
    return Said(answer.status_code, answer.content.decode("latin-1"), answer.headers)


async def test_each_request_is_one_call_under_every_error_on_every_surface(
    before_fake: InProcessGuard, upstream: FakeUpstream, books: Books
) -> None:
    key = await before_fake.key()

    async def once(surface: str, fault: str, *, stream: bool) -> None:
        """A throttled model refuses by itself for a second: then nothing is sent."""
        async with asyncio.timeout(60):
            while True:
                said = await ask(
                    before_fake, key, surface, fault, stream=stream,
                    headers=ASKS_FOR_RETRIES["headers"],
                )  # fmt: skip
                if count(surface, fault, stream=stream):
                    return
                assert said.status in (429, 503), said
                await asyncio.sleep(0.1)

    def count(surface: str, fault: str, *, stream: bool) -> int:
        wanted = {"chat": "/v1/chat", "messages": "/v1/messages", "converse": "/bedrock"}[surface]
        return sum(
            call.path.startswith(wanted)
            and f"fault={fault}'" in str(call.body)
            and stream == (call.path.endswith("-stream") or bool(call.body.get("stream")))
            for call in upstream.calls
        )

    async def each(surfaces: tuple[str, ...]) -> None:
        for fault in FAULTS:
            for surface in surfaces:
                for stream in (False, True):
                    await once(surface, fault, stream=stream)

    await asyncio.gather(each(("chat", "messages")), each(("converse",)))
    for fault in FAULTS:
        for surface in SURFACES:
            for stream in (False, True):
                assert count(surface, fault, stream=stream) == 1, (surface, fault, stream)
    assert len(upstream.calls) == len(FAULTS) * len(SURFACES) * 2
    ledger = await books.balance(before_fake)
    assert ledger.keys() == {call.attempt_id for call in upstream.calls}


async def test_what_a_client_asks_for_makes_no_second_call(
    before_fake: InProcessGuard, upstream: FakeUpstream, books: Books
) -> None:
    key = await before_fake.key()
    for fault in ("503", "dies-before-headers", "dies-in-the-stream", "nothing"):
        for stream in (False, True):
            for fields in ASKS_FOR_RETRIES["body"]:
                before = len(upstream.calls)
                said = await ask(
                    before_fake, key, "chat", fault, stream=stream,
                    headers=ASKS_FOR_RETRIES["headers"], **fields,
                )  # fmt: skip
                made = len(upstream.calls) - before
                assert made == 0 if said.status == 400 else made == 1, (fault, fields, said)
    ledger = await books.balance(before_fake)
    assert len(ledger) == len(upstream.calls) > 0


@pytest.mark.parametrize("max_retries", [0, 2])
async def test_each_retry_of_openais_client_is_a_request_of_its_own(
    before_fake: InProcessGuard, upstream: FakeUpstream, books: Books, max_retries: int
) -> None:
    sent: Counter[str] = Counter()

    async def told(request: httpx.Request) -> None:
        sent[request.headers["x-stainless-retry-count"]] += 1

    http = httpx.AsyncClient(event_hooks={"request": [told]})
    client = openai.AsyncOpenAI(
        api_key=await before_fake.key(), base_url=f"{before_fake.public_url}/v1",
        max_retries=max_retries, http_client=http,
    )  # fmt: skip
    async with http:
        for model, fault in (("sim-large", "500"), ("sim-small", "dies-before-headers")):
            with pytest.raises(openai.APIStatusError):
                await client.chat.completions.create(
                    model=model, max_tokens=100,
                    messages=[{"role": "user", "content": f"fault={fault}"}],
                )  # fmt: skip
    assert sent == {str(number): 2 for number in range(max_retries + 1)}
    # sim-small falls back, openly: an attempt of its own, with a reservation of its own.
    models = Counter(call.model for call in upstream.calls)
    requests = max_retries + 1
    assert models == {"sim-large": requests, "sim-small": requests, "sim-spare": requests}
    ledger = await books.balance(before_fake)
    assert len(ledger) == 3 * requests


async def test_a_call_that_reaches_nobody_is_an_attempt_that_was_not_sent(
    before_fake: InProcessGuard, upstream: FakeUpstream, books: Books
) -> None:
    key = await before_fake.key()
    await upstream.stop_engine()
    for surface in SURFACES:
        for stream in (False, True):
            assert (await ask(before_fake, key, surface, "nothing", stream=stream)).status == 502
    await upstream.restart_engine()
    assert upstream.calls == []
    await until(lambda: len(books.ledger()) == 6)
    assert set(books.ledger().values()) == {(0, "not_sent")}


async def test_an_answer_that_cannot_be_read_is_the_models_failure(
    before_fake: InProcessGuard, upstream: FakeUpstream, books: Books
) -> None:
    """Nested deeper than Python reads, it was a defect of ours: 500, and no other model tried."""
    upstream.plan_for = lambda call: FAULTS["nothing" if call.model == "sim-spare" else "too-deep"]
    key = await before_fake.key()
    with capture_logs() as logs:
        said = await ask(before_fake, key, "chat", "", stream=False, model="sim-small")
    assert said.status == 200
    assert [call.model for call in upstream.calls] == ["sim-small", "sim-spare"]
    assert not [line for line in logs if line["event"] == "defect"]
    await books.balance(before_fake)


async def test_a_connection_that_breaks_behind_a_whole_answer_is_no_failure(
    before_fake: InProcessGuard, upstream: FakeUpstream, books: Books
) -> None:
    key = await before_fake.key()
    with capture_logs() as logs:
        said = await ask(before_fake, key, "chat", "dies-behind-the-end", stream=True)
        await until(lambda: [line for line in logs if line["event"] == "request"])
    assert said.status == 200
    assert "[DONE]" in said.text
    assert [line["code"] for line in logs if line["event"] == "request"] == [None]
    await books.balance(before_fake)


REAL_FAULTS: list[dict[str, Any]] = [
    *({"kind": "status", "status": status} for status in (400, 404, 408, 429, 500, 503, 504)),
    {"kind": "disconnect", "after_chunks": 0},
    {"kind": "disconnect", "after_chunks": 1},
]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_real_translator_calls_once(
    real_guard: InProcessGuard, real: RealUpstream, stream: bool
) -> None:
    key = await real_guard.key()
    sent: Counter[str] = Counter()

    async def calls() -> int:
        """As the provider counts them, unbilled ones too."""
        text = (await real_guard.http.get(f"{real.url}/metrics")).text
        name = r"^terrace_simulator_requests_total\{.*\} (.*)$"
        return sum(int(float(value)) for value in re.findall(name, text, re.MULTILINE))

    async def each(surface: str, more: dict[str, Any]) -> None:
        for fault in REAL_FAULTS:
            before = await calls()
            body = [{"model": "*", "remaining": 9, **fault}]
            answer = await real_guard.http.put(f"{real.url}/control/faults", json=body)
            assert answer.status_code < 300
            async with asyncio.timeout(60):
                while (made := await calls() - before) == 0:  # a throttled model waits
                    await ask(
                        real_guard, key, surface, "x", stream=stream,
                        headers=ASKS_FOR_RETRIES["headers"], **more,
                    )  # fmt: skip
                    await asyncio.sleep(0.05)
            assert made == 1, (surface, fault, made)
            sent[surface] += made

    await each("chat", {"model": "sim-small"})
    await each("converse", {})
    real.no_faults()

    async def shipped() -> bool:
        entries = await real_guard.entries()
        return len({entry["attempt_id"] for entry in entries if entry["attempt_id"]}) == sum(
            sent.values()
        )

    await until(shipped)
