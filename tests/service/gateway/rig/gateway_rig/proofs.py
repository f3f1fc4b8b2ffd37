"""What the proofs through the whole guard share: a spec, books of both sides, a caller."""

import asyncio
import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from gateway_rig.fake_upstream import FakeUpstream
from gateway_rig.guard import Api
from gateway_rig.postgres import Postgres

QUICK = {
    "heartbeat_seconds": 0.2,
    "lease_seconds": 5,
    "stream_margin_seconds": 0.5,
    "reaper_seconds": 0.5,
    "reconcile_grace_seconds": 0,
}


async def until(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """The first true answer of ``condition``, which may be a coroutine function."""
    async with asyncio.timeout(seconds):
        while True:
            result = condition()
            if inspect.isawaitable(result):
                result = await result
            if result:
                return result
            await asyncio.sleep(0.05)


def spec(upstream: FakeUpstream, *, main_quotas: str = "[]", more: str = "") -> str:
    """Two providers, ``main`` and ``spare``; ``sim-small`` of the one falls back to the other.

    A breaker of ``main`` opens only when nearly everything fails.
    """
    bill = f"http://127.0.0.1:{upstream.bill_port}/bill"
    shy = "{unknowns: 50, error_percent: 95, least_calls: 1000, window_seconds: 5}"
    return f"""
version: 1
price_version: "proof"
defaults: {{max_output_tokens: 100, hard_stream_limit_seconds: 60, reservation_overhead_tokens: 8}}
providers:
  - name: main
    kind: openai
    api_base: "http://main.invalid/v1"
    bill_url: "{bill}"
    breaker: {shy}
    quotas: {main_quotas}
  - {{name: spare, kind: openai, api_base: "http://spare.invalid/v1", bill_url: "{bill}"}}
  - name: bedrock
    kind: bedrock
    region: us-east-1
    endpoint: "http://bedrock.invalid"
    bill_url: "{bill}"
    breaker: {shy}
models:
  - name: sim-small
    provider: main
    upstream_model: sim-small
    fallbacks: [sim-spare]
    context_tokens: 32768
    max_output_tokens: 4096
    price: {{input_micro_usd_per_mtok: 150000, output_micro_usd_per_mtok: 600000}}
  - name: sim-spare
    provider: spare
    upstream_model: sim-spare
    context_tokens: 32768
    max_output_tokens: 4096
    price: {{input_micro_usd_per_mtok: 300000, output_micro_usd_per_mtok: 1200000}}
  - name: sim-large
    provider: main
    upstream_model: sim-large
    context_tokens: 32768
    max_output_tokens: 4096
    price: {{input_micro_usd_per_mtok: 2500000, output_micro_usd_per_mtok: 10000000}}
  - name: bedrock-claude
    provider: bedrock
    upstream_model: anthropic.claude-sonnet-4-5-20250929-v1:0
    context_tokens: 200000
    max_output_tokens: 8192
    price: {{input_micro_usd_per_mtok: 3000000, output_micro_usd_per_mtok: 15000000}}
{more}"""


@dataclass
class Said:
    """What one caller got."""

    status: int
    text: str
    headers: httpx.Headers = field(default_factory=httpx.Headers)

    @property
    def code(self) -> str | None:
        """The error's code, also of one in the middle of a stream."""
        for line in self.text.splitlines():
            try:
                body: Any = json.loads(line.removeprefix("data: "))
            except ValueError:
                continue
            if isinstance(body, dict) and "error" in body:
                return body["error"].get("code")
        return None


async def say(api: Api, key: str, path: str = "/v1/chat/completions", **fields: Any) -> Said:
    """One call; whatever breaks off ends the text with ``[broken]``."""
    body: dict[str, Any] = {
        "model": "sim-small", "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 100, **fields,
    }  # fmt: skip
    headers = {"authorization": f"Bearer {key}"}
    text = ""
    request = api.http.stream("POST", api.public_url + path, json=body, headers=headers)
    async with request as response:
        try:
            async for part in response.aiter_text():
                text += part
        except httpx.RemoteProtocolError:
            text += "[broken]"
    return Said(response.status_code, text, response.headers)


@dataclass(frozen=True)
class Books:
    """Our ledger and the provider's own record."""

    postgres: Postgres
    database: str
    upstream: FakeUpstream

    def ledger(self) -> dict[str, tuple[int, str]]:
        """Per attempt: what it was charged in all, and how it was closed."""
        with self.postgres.superuser(self.database) as connection:
            rows = connection.execute(
                "SELECT attempt_id, sum(amount_micro_usd)::bigint,"
                " (array_agg(outcome ORDER BY entry_id))[1] FROM ledger_all"
                " WHERE kind IN ('attempt', 'unknown', 'correction') GROUP BY 1"
            ).fetchall()
        return {attempt: (amount, outcome) for attempt, amount, outcome in rows}

    def counted(self, scope: str, scope_id: str) -> int:
        """Lifetime money that counts against the caps of a scope now."""
        with self.postgres.superuser(self.database) as connection:
            row = connection.execute(
                "SELECT coalesce(max(settled + outstanding + sliced), 0) FROM counter"
                " WHERE dimension = 'micro_usd' AND scope = %s AND scope_id = %s",
                (scope, scope_id),
            ).fetchone()
        return 0 if row is None else row[0]

    def billed(self) -> dict[str, int]:
        """Per attempt, by the provider."""
        found: dict[str, int] = {}
        for call in self.upstream.calls:
            if call.attempt_id:
                found[call.attempt_id] = found.get(call.attempt_id, 0) + call.cost
        return found

    async def balance(self, api: Api) -> dict[str, tuple[int, str]]:
        """Wait for the ledger; it is never below the bill, and equal after ``reconcile``."""
        calls = self.upstream.calls
        await until(lambda: all(call.status == "final" for call in calls))
        await until(lambda: self.billed().keys() <= self.ledger().keys())
        before = self.ledger()
        for attempt, bill in self.billed().items():
            assert before[attempt][0] >= bill, (attempt, before[attempt], bill)

        async def reconciled() -> bool:
            result = await api.admin("POST", "/reconcile", json={})
            return result["still_open"] == 0 and result["unreachable"] == []

        await until(reconciled)
        after, billed = self.ledger(), self.billed()
        assert {a: amount for a, (amount, _) in after.items() if amount} == {
            a: bill for a, bill in billed.items() if bill
        }
        assert len(billed) == sum(1 for call in calls if call.attempt_id)  # one call per attempt
        return after


async def fill(apis: Sequence[Api], key: str, **fields: Any) -> int:
    """Call one after the other until every replica refuses while nothing runs. How many went.

    A busy machine may be late with a beat: a replica that says so is asked again.
    """
    passed = refused = 0
    async with asyncio.timeout(300):
        while refused < len(apis):
            said = await say(apis[(passed + refused) % len(apis)], key, **fields)
            if said.status == 200:
                passed, refused = passed + 1, 0
            elif said.code == "authority_unavailable":
                await asyncio.sleep(0.1)
            else:
                assert (said.status, said.code) == (429, "budget_exhausted"), said
                refused += 1
    return passed
