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

from terrace_gateway.calls.running import RunningCalls

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
  - {name: mine, guardrails: [mine]}
  - {name: mine-after, guardrails: [mine-after]}
guardrails:
  - {name: words, kind: content, action: mask, words: [plum]}
"""
KINDS = """
  - {name: NAME, kind: bedrock, provider: aws-guard, guardrail_id: abc, guardrail_version: "1",
     timeout_seconds: 60, price: {content: 150, topic: 150, sensitive_information: 100}, MORE}
"""
MINE = """
  - {name: mine, kind: http, url: "URL/check", timeout_seconds: 60}
  - {name: mine-after, kind: http, url: "URL/check", timeout_seconds: 60, phases: [after]}
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
def text(governance_text: str, service: FakeGuardrailService) -> str:
    """The policy that calls are admitted by."""
    text = governance_text.replace("models:\n", PROVIDER.replace("URL", service.url), 1)
    kinds = {"closed": "on_failure: closed", "open": "on_failure: open", "after": "phases: [after]"}
    spec = SPEC + "".join(
        KINDS.replace("NAME", name).replace("MORE", more) for name, more in kinds.items()
    )
    return text + spec + MINE.replace("URL", service.url)


@pytest.fixture
async def guard(make_guard: Make, text: str) -> InProcessGuard:
    return await make_guard(governance=text)


async def apply(guard: InProcessGuard, text: str) -> None:
    await guard.runtime.versions.apply(text, actor="a", reason="r", check_base=False)
    await guard.runtime.policy.refresh()
    assert guard.runtime.policy.current().snapshot.text == text


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

    def before(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def gated(*args: Any, **more: Any) -> Any:
            self.reached.set()
            await self.go.wait()
            return await call(*args, **more)

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


async def test_a_switch_of_what_its_caller_came_under_cuts_an_asking(
    guard: InProcessGuard, upstream: FakeUpstream, service: FakeGuardrailService, text: str
) -> None:
    key = await guard.key(policies=["open"])
    service.hang = True
    task = asyncio.create_task(say(guard, key))
    await until(lambda: service.bill)
    await apply(guard, text.replace("acme", "other"))
    await kill(guard, "org:other")
    said = await task
    assert (said.status, said.code) == (403, "killed")
    assert upstream.calls == []


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


def changed(text: str, kind: str, change: str, name: str) -> str:
    """The same policy, but for one of its guardrails."""
    policy = f"{{name: {name}, guardrails: [{name}]}}"
    section = f"{{name: {name}, kind: {kind},"
    old, new = {
        "out of the policy": (policy, f"{{name: {name}, guardrails: [words]}}"),
        "not declared": (policy, f"{{name: {name}}}"),
        "elsewhere": (f"{section} url: \"http://127.0.0.1", f"{section} url: \"http://localhost")
        if kind == "http"
        else (f"{section} provider: aws-guard, guardrail_id: abc",
              f"{section} provider: aws-guard, guardrail_id: xyz"),
        "in another region": ("region: us-east-1}\nmodels:", "region: us-west-2}\nmodels:"),
    }[change]  # fmt: skip
    assert text.count(old) == 1
    text = text.replace(old, new)
    if change == "not declared":
        start = text.index(f"  - {section}")
        text = text[:start] + text[text.index("}\n", text.index("timeout_seconds", start)) + 2 :]
    return text


CHANGES = [
    ("bedrock", change)
    for change in ("out of the policy", "not declared", "elsewhere", "in another region")
]
CHANGES += [("http", change) for change in ("out of the policy", "not declared", "elsewhere")]
WAITS = [(*one, "post" if one[0] == "http" else "reserve") for one in CHANGES]
WAITS += [("bedrock", "elsewhere", "open"), ("bedrock", "elsewhere", "post")]


@pytest.mark.parametrize("wait", WAITS)
async def test_a_prompt_is_not_sent_to_a_guardrail_that_is_gone_or_elsewhere_now(
    guard: InProcessGuard, upstream: FakeUpstream, service: FakeGuardrailService, text: str,
    wait: tuple[str, str, str],
) -> None:  # fmt: skip
    kind, change, moment = wait
    name = "closed" if kind == "bedrock" else "mine"
    key, gate, runtime = await guard.key(policies=[name]), Gate(), guard.runtime
    if moment == "reserve":
        runtime.slices.reserve = gate.after(runtime.slices.reserve)
    elif moment == "open":
        runtime.journal.open = gate.after(runtime.journal.open)
    else:
        runtime.guardrail_http.post = gate.before(runtime.guardrail_http.post)
    task = asyncio.create_task(say(guard, key))
    await gate.reached.wait()
    await apply(guard, changed(text, kind, change, name))
    gate.go.set()
    said = await task
    assert (said.status, said.code) == (503, "authority_unavailable")
    assert (service.seen, upstream.calls) == ([], [])
    if kind == "bedrock":
        assert await outcomes(guard, 1) == [("aws-guard", "not_sent", 0)]


@pytest.mark.parametrize("one", CHANGES)
async def test_an_answer_is_not_sent_to_a_guardrail_that_is_gone_or_elsewhere_now(
    guard: InProcessGuard, upstream: FakeUpstream, service: FakeGuardrailService, text: str,
    one: tuple[str, str],
) -> None:  # fmt: skip
    kind, change = one
    name = "after" if kind == "bedrock" else "mine-after"
    key, release = await guard.key(policies=[name]), asyncio.Event()
    upstream.behaviour = Behaviour(hold=release)
    task = asyncio.create_task(say(guard, key))
    await until(lambda: upstream.calls)
    await apply(guard, changed(text, kind, change, name))
    release.set()
    said = await task
    assert (said.status, said.code) == (503, "guardrail_unavailable")
    assert service.seen == []
    assert await outcomes(guard, 1) == [("simulator-openai", "ok", upstream.bill_total)]


async def test_a_change_that_is_not_the_guardrails_does_not_stop_its_asking(
    guard: InProcessGuard, upstream: FakeUpstream, service: FakeGuardrailService, text: str
) -> None:
    key, gate, runtime = await guard.key(policies=["closed"]), Gate(), guard.runtime
    runtime.journal.open = gate.after(runtime.journal.open)
    task = asyncio.create_task(say(guard, key))
    await gate.reached.wait()
    await apply(guard, text.replace("words: [plum]", "words: [plum, pear]"))
    gate.go.set()
    assert (await task).status == 200
    assert (len(service.seen), len(upstream.calls)) == (2, 1)


@pytest.mark.parametrize("phase", ["before", "after"])
@pytest.mark.parametrize("target", ["all", "team:team-a", "key"])
async def test_kill_switches_stop_what_is_asked_over_http(
    guard: InProcessGuard, upstream: FakeUpstream, service: FakeGuardrailService,
    target: str, phase: str,
) -> None:  # fmt: skip
    made = await guard.new_key(policies=["mine" if phase == "before" else "mine-after"])
    gate, runtime = Gate(), guard.runtime
    runtime.guardrail_http.post = gate.before(runtime.guardrail_http.post)
    task = asyncio.create_task(say(guard, made["key"]))
    await gate.reached.wait()
    running, runtime.running = runtime.running, RunningCalls()  # the switch is found, not felt
    await kill(guard, f"key:{made['key_id']}" if target == "key" else target)
    runtime.running = running
    gate.go.set()
    said = await task
    assert (said.status, said.code) == (403, "killed")
    assert service.seen == []
    assert len(upstream.calls) == (phase == "after")


async def test_a_kill_switch_cuts_what_is_asked_over_http(
    guard: InProcessGuard, upstream: FakeUpstream, service: FakeGuardrailService
) -> None:
    key = await guard.key(policies=["mine"])
    service.hang = True
    task = asyncio.create_task(say(guard, key))
    await until(lambda: service.seen)
    await kill(guard, "team:team-a")
    said = await task
    assert (said.status, said.code) == (403, "killed")
    assert upstream.calls == []


async def test_what_is_asked_over_http_has_no_provider_to_be_stopped(
    guard: InProcessGuard, upstream: FakeUpstream, service: FakeGuardrailService
) -> None:
    service.answer = b'{"action": "allow"}'
    await kill(guard, "provider:aws-guard")
    assert (await say(guard, await guard.key(policies=["mine"]))).status == 200
    assert (len(service.seen), len(upstream.calls)) == (2, 1)


async def test_a_key_that_is_revoked_while_its_prompt_waits_is_not_asked_about_over_http(
    guard: InProcessGuard, upstream: FakeUpstream, service: FakeGuardrailService
) -> None:
    made, gate, runtime = await guard.new_key(policies=["mine"]), Gate(), guard.runtime
    runtime.guardrail_http.post = gate.before(runtime.guardrail_http.post)
    task = asyncio.create_task(say(guard, made["key"]))
    await gate.reached.wait()
    await guard.admin("POST", f"/keys/{made['key_id']}/revoke", json={"reason": "left"})
    await until(lambda: made["key_id"] not in runtime.policy.current().snapshot.keys)
    gate.go.set()
    said = await task
    assert (said.status, said.code) == (401, "invalid_api_key")
    assert (service.seen, upstream.calls) == ([], [])


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
