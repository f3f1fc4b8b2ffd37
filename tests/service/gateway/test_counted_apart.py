"""What LiteLLM makes up is no usage: embeddings of Bedrock go by Bedrock's own count. What has no
price is told."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from gateway_rig.fake_upstream import Behaviour, FakeUpstream
from gateway_rig.guard import InProcessGuard
from gateway_rig.proofs import say, spec, until

Make = Callable[..., Awaitable[InProcessGuard]]
PRICE = "price: {input_micro_usd_per_mtok: 1000000, output_micro_usd_per_mtok: 0}"
MODEL = """models:
  - {name: vectors, provider: bedrock, upstream_model: "UPSTREAM", kind: embeddings,
     context_tokens: 8192, max_output_tokens: 1, PRICE}
"""
TEXT = "x" * 500


@pytest.mark.parametrize(
    ("model", "beside", "settled"),
    [
        ("amazon.titan-embed-text-v2:0", None, ("ok", 7)),
        ("amazon.titan-embed-text-v2:0", "4000", ("ok", 7)),
        ("cohere.embed-english-v3", "400", ("ok", 400)),
        ("cohere.embed-english-v3", None, ("unknown", None)),
        ("cohere.embed-english-v3", "4e2", ("unknown", None)),
        ("amazon.nova-2-multimodal-embeddings-v1:0", "400", ("ok", 400)),
        ("amazon.nova-2-multimodal-embeddings-v1:0", None, ("unknown", None)),
    ],
)
async def test_embeddings_of_bedrock_go_by_its_own_count(
    make_guard: Make,
    upstream: FakeUpstream,
    model: str,
    beside: str | None,
    settled: tuple[str, int | None],
) -> None:
    vectors = MODEL.replace("UPSTREAM", model).replace("PRICE", PRICE)
    guard = await make_guard(governance=spec(upstream).replace("models:\n", vectors, 1))
    headers = {} if beside is None else {"x-terrace-upstream-input-tokens": beside}
    upstream.behaviour = Behaviour(input_tokens=7, headers=headers)
    key = await guard.key()
    said = await say(guard, key, "/v1/embeddings", model="vectors", input=TEXT)
    assert said.status == 200, said.text
    [entry] = await until(guard.entries)
    outcome, amount = settled
    assert entry["outcome"] == outcome
    # The client is told what it is charged for, and no number that nobody has counted.
    counted = None if amount is None else {"prompt_tokens": amount, "total_tokens": amount}
    assert json.loads(said.text)["usage"] == counted
    if amount is not None:
        assert entry["amount_micro_usd"] == amount
    else:  # it counts its reservation until Bedrock's log is read
        assert entry["kind"] == "unknown"
        assert entry["reserved_micro_usd"] > len(TEXT)


async def test_cache_writes_without_a_price_are_told_once(
    make_guard: Make, upstream: FakeUpstream
) -> None:
    """The client asked for none, and the provider reports some all the same."""
    guard = await make_guard(governance=spec(upstream))
    key = await guard.key()
    upstream.behaviour = Behaviour(cache_write_tokens=5)
    for _ in range(2):
        assert (await say(guard, key)).status == 200

    async def alerts() -> list[dict[str, Any]]:
        page = await guard.admin("GET", "/ledger?kind=decision&limit=100")
        return [one for one in page["entries"] if one["reason"] == "unpriced"]

    [alert] = await until(alerts)
    assert alert["detail"]["features"] == ["cache_write"]
    await guard.shipped()
    assert len(await alerts()) == 1
    other = await guard.key()
    assert (await say(guard, other)).status == 200  # and stops nobody
