"""Images, thinking and cache points through the real LiteLLM: what is reserved is never below the
bill, and the ledger is the bill."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from gateway_rig.fake_upstream import FakeUpstream
from gateway_rig.guard import InProcessGuard, write_files
from gateway_rig.postgres import Postgres
from gateway_rig.real_upstream import RealUpstream

from terrace_gateway.settings import Settings

PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
    "rkJggg=="
)
TOKENS_PER_IMAGE = 258  # of the simulator, typed anew on purpose
BOUND = 300
FEATURES = ["tools", "json_schema", "streaming", "reasoning", "images"]
SAY = "hello [[tokens=12]]"


def governance(text: str) -> str:
    """The local spec; its chat models take images and have cache rates."""
    spec = yaml.safe_load(text)
    for model in spec["models"]:
        if model.get("kind") == "embeddings":
            continue
        model |= {"features": FEATURES, "max_tokens_per_image": BOUND}
        rate = model["price"]["input_micro_usd_per_mtok"]
        model["price"] |= {"cache_write_micro_usd_per_mtok": rate * 5 // 4,
                           "cache_write_1h_micro_usd_per_mtok": rate * 2,
                           "cache_read_micro_usd_per_mtok": rate // 10}  # fmt: skip
    return yaml.safe_dump(spec)


@pytest.fixture
async def gate(
    real: RealUpstream, tmp_path: Path, postgres: Postgres, database: str
) -> AsyncIterator[InProcessGuard]:
    files = write_files(
        tmp_path, database_url=postgres.url(database),
        governance=governance(real.governance_text),
    )  # fmt: skip
    real.no_faults()
    guard = await InProcessGuard.start(
        Settings(
            **files, translator_socket=real.socket, translator_key_file=real.key_file,
            spool_directory=tmp_path / "spool",
        )
    )  # fmt: skip
    yield guard
    await guard.stop()


def chat(*images: str, stream: bool = False) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
             for data in images]  # fmt: skip
    content = [{"type": "text", "text": SAY}, *parts]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 40, "stream": stream}


def responses(*images: str) -> dict[str, Any]:
    parts = [{"type": "input_image", "image_url": f"data:image/png;base64,{d}"} for d in images]
    content = [{"type": "input_text", "text": SAY}, *parts]
    return {"input": [{"role": "user", "content": content}], "max_output_tokens": 40}


def messages(*images: str, stream: bool = False, **more: Any) -> dict[str, Any]:
    parts = [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": d}}
             for d in images]  # fmt: skip
    content = [{"type": "text", "text": SAY}, *parts]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 40,
            "stream": stream, **more}  # fmt: skip


def converse(*images: str, **more: Any) -> dict[str, Any]:
    parts = [{"image": {"format": "png", "source": {"bytes": data}}} for data in images]
    content = [{"text": SAY}, *parts]
    return {"messages": [{"role": "user", "content": content}],
            "inferenceConfig": {"maxTokens": 40}, **more}  # fmt: skip


async def post(guard: InProcessGuard, path: str, model: str, body: dict[str, Any]) -> Any:
    key = await guard.key()
    named = body if path.startswith("/model/") else {"model": model, **body}
    return await guard.http.post(
        guard.public_url + path, json=named, headers={"authorization": f"Bearer {key}"}
    )


async def assert_bill_is_the_ledger(
    guard: InProcessGuard, real: RealUpstream, count: int
) -> list[dict[str, Any]]:
    """Each entry is one call of the bill. Returns the lines of the bill."""
    async with asyncio.timeout(60):
        while len(entries := await guard.entries()) < count:
            await asyncio.sleep(0.05)
    assert len(entries) == count
    lines: list[dict[str, Any]] = []
    for entry in sorted(entries, key=lambda one: one["entry_id"]):
        bill = real.bill(entry["attempt_id"])
        (line,) = bill["entries"]
        assert (entry["kind"], entry["usage_source"]) in {
            ("attempt", "response"), ("attempt", "stream")
        }  # fmt: skip
        assert entry["amount_micro_usd"] == bill["total_micro_usd"] > 0
        assert entry["amount_micro_usd"] <= entry["reserved_micro_usd"]
        assert entry["input_tokens"] == line["input_tokens"]
        lines.append(line)
    return lines


@pytest.mark.parametrize(
    ("path", "model", "make"),
    [
        ("/v1/chat/completions", "sim-small", chat),
        ("/v1/chat/completions", "bedrock-claude", chat),
        ("/v1/responses", "sim-small", responses),
        ("/v1/messages", "sim-small", messages),
        ("/v1/messages", "bedrock-claude", messages),
        ("/model/bedrock-claude/converse", "bedrock-claude", converse),
        ("/model/bedrock-claude/converse-stream", "bedrock-claude", converse),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_images_are_bounded_by_the_price_book(
    gate: InProcessGuard, real: RealUpstream, path: str, model: str, make: Any
) -> None:
    for images in ((), (PNG,), (PNG, PNG)):
        answer = await post(gate, path, model, make(*images))
        assert answer.status_code == 200, answer.text
    none, one, two = await assert_bill_is_the_ledger(gate, real, 3)
    assert one["input_tokens"] - none["input_tokens"] == TOKENS_PER_IMAGE
    assert two["input_tokens"] - one["input_tokens"] == TOKENS_PER_IMAGE
    entries = sorted(await gate.entries(), key=lambda entry: entry["entry_id"])
    price = 150_000 if model == "sim-small" else 3_000_000
    more = entries[2]["reserved_micro_usd"] - entries[0]["reserved_micro_usd"]
    assert more >= 2 * BOUND * price // 1_000_000  # whatever slack the texts have


async def test_a_streamed_answer_about_an_image(gate: InProcessGuard, real: RealUpstream) -> None:
    for path, body in (
        ("/v1/chat/completions", chat(PNG, stream=True)),
        ("/v1/messages", messages(PNG, stream=True)),
    ):
        answer = await post(gate, path, "bedrock-claude", body)
        assert answer.status_code == 200, answer.text
    assert len(await assert_bill_is_the_ledger(gate, real, 2)) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_thinking_within_the_output_limit(
    gate: InProcessGuard, real: RealUpstream, stream: bool
) -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    enough = messages(stream=stream, max_tokens=2048, thinking=thinking)
    answer = await post(gate, "/v1/messages", "bedrock-claude", enough)
    assert answer.status_code == 200, answer.text
    for limit in (1024, 1000):  # the answer would have no room
        short = {**enough, "max_tokens": limit}
        refused = await post(gate, "/v1/messages", "bedrock-claude", short)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "thinking")
    (line,) = await assert_bill_is_the_ledger(gate, real, 1)
    (entry,) = await gate.entries()
    # The whole limit is reserved, thoughts are part of it.
    assert entry["reserved_micro_usd"] * 1_000_000 >= 2048 * 15_000_000
    assert line["output_tokens"] == 12


@pytest.mark.parametrize("ttl", [None, "1h"])
async def test_cache_points_reserve_the_price_of_a_write(
    gate: InProcessGuard, real: RealUpstream, ttl: str | None
) -> None:
    point = {"cachePoint": {"type": "default"} | ({"ttl": ttl} if ttl else {})}
    path = "/model/bedrock-claude/converse"
    plain = converse(system=[{"text": "s" * 2000}])
    marked = converse(system=[{"text": "s" * 2000}, point])
    for body in (plain, marked):
        answer = await post(gate, path, "bedrock-claude", body)
        assert answer.status_code == 200, answer.text
    await assert_bill_is_the_ledger(gate, real, 2)
    bare, written = sorted(await gate.entries(), key=lambda one: one["entry_id"])
    # 2,000 characters at 1.25 or 2 times the rate of input.
    extra = 2000 * 3_000_000 * (2 if ttl else 1.25) - 2000 * 3_000_000
    assert written["reserved_micro_usd"] - bare["reserved_micro_usd"] >= extra / 1_000_000


async def test_a_price_per_image_is_reserved_and_charged(
    make_guard: Any, upstream: FakeUpstream, governance_text: str
) -> None:
    spec = yaml.safe_load(governance(governance_text))
    for model in spec["models"]:
        model["price"]["micro_usd_per_image"] = 1000
    guard: InProcessGuard = await make_guard(governance=yaml.safe_dump(spec))
    for images in ((), (PNG,), (PNG, PNG)):
        answer = await post(guard, "/v1/chat/completions", "sim-small", chat(*images))
        assert answer.status_code == 200, answer.text
    async with asyncio.timeout(60):
        while len(entries := await guard.entries()) < 3:
            await asyncio.sleep(0.05)
    found = {entry["attempt_id"]: entry for entry in entries}
    for images, call in enumerate(upstream.calls):
        entry = found[call.attempt_id]
        assert entry["amount_micro_usd"] == call.cost + 1000 * images
        assert entry["reserved_micro_usd"] >= entry["amount_micro_usd"]
