"""Kill switches and what else changes while a call is guarded: no prompt and no answer goes to a
guardrail any more that is not to see it, what was not sent costs nothing, and a policy's
``on_failure`` says whether the call goes on without."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from gateway_rig.fake_upstream import Behaviour, FakeUpstream
from gateway_rig.guard import InProcessGuard
from gateway_rig.proofs import say, until

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "gateway"))

from fake_guardrail_service import FakeGuardrailService

pytestmark = pytest.mark.service

Make = Callable[..., Awaitable[InProcessGuard]]
PROVIDER = '  - {name: aws-guard, kind: bedrock, endpoint: "URL", region: us-east-1}\nmodels:\n'
SPEC = """
orgs: [{name: acme}]
teams: [{name: team-a, org: acme}]
policies:
  - {name: closed, guardrails: [closed]}
  - {name: open, guardrails: [open]}
  - {name: after, guardrails: [after]}
  - {name: words, guardrails: [words]}
guardrails:
  - {name: words, kind: content, action: mask, words: [plum]}
"""
KINDS = """
  - {name: NAME, kind: bedrock, provider: aws-guard, guardrail_id: abc, guardrail_version: "1",
     timeout_seconds: 60, price: {content: 150, topic: 150, sensitive_information: 100}, MORE}
"""
COST = 400  # of one text unit


@pytest.fixture
async def service(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeGuardrailService]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    async with FakeGuardrailService().running() as fake:
        yield fake


@pytest.fixture
async def guard(
    make_guard: Make, governance_text: str, service: FakeGuardrailService
) -> InProcessGuard:
    text = governance_text.replace("models:\n", PROVIDER.replace("URL", service.url), 1)
    kinds = {"closed": "on_failure: closed", "open": "on_failure: open", "after": "phases: [after]"}
    spec = SPEC + "".join(
        KINDS.replace("NAME", name).replace("MORE", more) for name, more in kinds.items()
    )
    return await make_guard(governance=text + spec)


async def kill(guard: InProcessGuard, target: str) -> None:
    await guard.admin("POST", "/kill", json={"target": target, "reason": "incident"})
    await until(lambda: guard.runtime.policy.current().snapshot.kills)


async def outcomes(guard: InProcessGuard, count: int) -> list[tuple[str, str, int]]:
    """Provider, outcome and amount of so many attempts, all that there are."""

    async def found() -> list[dict[str, Any]]:
        entries = await guard.entries()
        return entries if len(entries) >= count else []

    entries = await until(found)
    assert len(entries) == count
    return sorted((one["provider"], one["outcome"], one["amount_micro_usd"]) for one in entries)


class Gate:
    """Stops what asks for it until ``go`` is set."""

    def __init__(self) -> None:
        self.reached, self.go = asyncio.Event(), asyncio.Event()

    def after(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def gated(*args: Any, **more: Any) -> Any:
            answer = await call(*args, **more)
            self.reached.set()
            await self.go.wait()
            return answer

        return gated


@pytest.mark.parametrize("policy", ["closed", "open"])
async def test_a_provider_that_is_stopped_is_not_asked(
    guard: InProcessGuard, upstream: FakeUpstream, service: FakeGuardrailService, policy: str
) -> None:
    key = await guard.key(policies=[policy])
    await kill(guard, "provider:aws-guard")
    said = await say(guard, key)
    assert service.seen == []
    if policy == "open":
        assert (said.status, len(upstream.calls)) == (200, 1)
    else:
        assert (said.status, said.code) == (503, "guardrail_unavailable")
        assert upstream.calls == []


@pytest.mark.parametrize("target", ["all", "team:team-a", "key", "provider:aws-guard"])
async def test_a_kill_switch_between_the_record_and_the_asking(
    guard: InProcessGuard, upstream: FakeUpstream, service: FakeGuardrailService, target: str
) -> None:
    made, gate = await guard.new_key(policies=["closed"]), Gate()
    guard.runtime.journal.open = gate.after(guard.runtime.journal.open)
    task = asyncio.create_task(say(guard, made["key"]))
    await gate.reached.wait()
    await kill(guard, f"key:{made['key_id']}" if target == "key" else target)
    gate.go.set()
    said = await task
    provider = target.startswith("provider")
    assert (said.status, said.code) == (
        (503, "guardrail_unavailable") if provider else (403, "killed")
    )
    assert (service.seen, upstream.calls) == ([], [])
    assert await outcomes(guard, 1) == [("aws-guard", "not_sent", 0)]


@pytest.mark.parametrize("target", ["all", "provider:aws-guard"])
@pytest.mark.parametrize("policy", ["closed", "open"])
async def test_a_kill_switch_cuts_an_asking(
    guard: InProcessGuard, upstream: FakeUpstream, service: FakeGuardrailService,
    policy: str, target: str,
) -> None:  # fmt: skip
    key = await guard.key(policies=[policy])
    service.hang = True
    task = asyncio.create_task(say(guard, key))
    await until(lambda: service.bill)
    await kill(guard, target)
    said = await task
    asked = [("aws-guard", "cut", COST)]  # its reservation
    if target == "all":
        assert (said.status, said.code) == (403, "killed")
    elif policy == "closed":
        assert (said.status, said.code) == (503, "guardrail_unavailable")
    else:
        assert said.status == 200
        asked += [("simulator-openai", "ok", upstream.bill_total)]
    assert len(upstream.calls) == len(asked) - 1
    assert len(service.seen) == 1
    assert await outcomes(guard, len(asked)) == asked


async def test_a_key_that_is_revoked_while_its_prompt_waits_to_be_asked(
    guard: InProcessGuard, upstream: FakeUpstream, service: FakeGuardrailService
) -> None:
    made, gate = await guard.new_key(policies=["closed"]), Gate()
    guard.runtime.slices.reserve = gate.after(guard.runtime.slices.reserve)
    task = asyncio.create_task(say(guard, made["key"]))
    await gate.reached.wait()
    await guard.admin("POST", f"/keys/{made['key_id']}/revoke", json={"reason": "left"})
    await until(lambda: made["key_id"] not in guard.runtime.policy.current().snapshot.keys)
    gate.go.set()
    said = await task
    assert (said.status, said.code) == (401, "invalid_api_key")
    assert (service.seen, upstream.calls) == ([], [])
    assert await outcomes(guard, 1) == [("aws-guard", "not_sent", 0)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("end", "seen"), [("kill", 0), ("revoke", 1)])
async def test_an_answer_is_paid_for_and_asked_unless_a_kill_switch_stops_it(
    guard: InProcessGuard, upstream: FakeUpstream, service: FakeGuardrailService,
    end: str, *, seen: int, stream: bool,
) -> None:  # fmt: skip
    made = await guard.new_key(policies=["after"])
    release = asyncio.Event()
    upstream.behaviour = Behaviour(hold=release, hold_after_chunks=1 if stream else None)
    task = asyncio.create_task(say(guard, made["key"], stream=stream))
    await until(lambda: upstream.calls)
    if end == "kill":
        await kill(guard, "provider:aws-guard")
    else:
        await guard.admin("POST", f"/keys/{made['key_id']}/revoke", json={"reason": "left"})
        await until(lambda: made["key_id"] not in guard.runtime.policy.current().snapshot.keys)
    release.set()
    said = await task
    assert len(service.seen) == seen
    assert ("guardrail_unavailable" in said.text) == (seen == 0)
    found = await outcomes(guard, 1 + seen)
    assert found[-1] == ("simulator-openai", "ok", upstream.bill_total)
    assert found[:-1] == [("aws-guard", "ok", COST)] * seen


async def test_what_only_repeats_an_answer_does_not_pass_a_guardrail(
    guard: InProcessGuard, upstream: FakeUpstream
) -> None:
    message = {"role": "assistant", "content": "a pear"}
    choice = {"index": 0, "message": message, "finish_reason": "stop",
              "logprobs": {"content": [{"token": "plum", "logprob": -1}]}}  # fmt: skip
    usage = {"prompt_tokens": 7, "completion_tokens": 11, "total_tokens": 18}
    upstream.behaviour = Behaviour(
        body=json.dumps({"created": 5, "choices": [choice], "usage": usage}).encode()
    )
    said = await say(guard, await guard.key(policies=["words"]))
    assert "a pear" in said.text
    assert "plum" not in said.text
    assert "plum" in (await say(guard, await guard.key())).text
