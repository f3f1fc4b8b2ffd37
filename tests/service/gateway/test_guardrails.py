"""Guardrails, capture and tokens through the whole guard, with books that are compared."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
from gateway_rig.fake_idp import FakeIdp
from gateway_rig.fake_upstream import Behaviour, FakeUpstream
from gateway_rig.guard import InProcessGuard

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "gateway"))

from fake_guardrail_service import FakeGuardrailService

pytestmark = pytest.mark.service

Make = Callable[..., Awaitable[InProcessGuard]]
SPEC = """
orgs: [{name: acme}]
teams: [{name: team-a, org: acme}]
users:
  - {name: jo, team: team-a, subject: jo-subject,
     quotas: [{dimension: requests, amount: 2, per: lifetime}]}
policies:
  - {name: guarded, guardrails: [mask, words]}
  - {name: watched, mode: audit, guardrails: [words]}
  - {name: bedrock, guardrails: [aws]}
  - {name: kept, capture: {retention_days: 1}}
guardrails:
  - {name: mask, kind: personal_data, action: mask}
  - {name: words, kind: content, action: block, words: [forbidden fruit]}
  - {name: aws, kind: bedrock, provider: aws-guard, guardrail_id: abc, guardrail_version: "1",
     price: {content: 150, topic: 150, sensitive_information: 100}}
authentication:
  issuers:
    - {name: corp, kind: oidc, issuer: "ISSUER", audiences: [terrace], role_claim: roles,
       admins: [{value: audit, role: auditor}, {value: look, role: viewer}]}
"""
PROVIDER = '  - {name: aws-guard, kind: bedrock, endpoint: "URL", region: us-east-1}\nmodels:\n'


@pytest.fixture
async def service(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeGuardrailService]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    async with FakeGuardrailService().running() as fake:
        yield fake


@pytest.fixture
async def guarded(
    make_guard: Make, governance_text: str, service: FakeGuardrailService, idp: FakeIdp,
    tmp_path: Path,
) -> InProcessGuard:  # fmt: skip
    (tmp_path / "kek").write_text("c4" * 32)
    text = governance_text.replace("models:\n", PROVIDER.replace("URL", service.url), 1)
    return await make_guard(
        governance=text + SPEC.replace("ISSUER", idp.issuer), capture_key_file=tmp_path / "kek"
    )


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def sent(upstream: FakeUpstream) -> str:
    return json.dumps(upstream.calls[-1].body)


async def shipped(guard: InProcessGuard, count: int) -> list[dict[str, Any]]:
    """Entries, once there are so many."""
    async with asyncio.timeout(60):
        while len(entries := await guard.entries()) < count:
            await asyncio.sleep(0.05)
    return entries


async def test_a_mask_is_what_the_provider_sees_and_a_block_sends_nothing(
    guarded: InProcessGuard, upstream: FakeUpstream
) -> None:
    key = await guarded.key(policies=["guarded"])
    assert (await guarded.chat(key, messages=said("mail jo@acme.example"))).status_code == 200
    assert "mail [masked:email]" in sent(upstream)
    refused = await guarded.chat(key, messages=said("a forbidden  FRUIT"))
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "content_blocked"
    assert len(upstream.calls) == 1


async def test_an_audit_policy_changes_nothing(
    guarded: InProcessGuard, upstream: FakeUpstream
) -> None:
    key = await guarded.key(policies=["watched"])
    assert (await guarded.chat(key, messages=said("forbidden fruit"))).status_code == 200
    assert "forbidden fruit" in sent(upstream)


async def test_a_stream_is_masked_and_cut_where_it_must_be(
    guarded: InProcessGuard, upstream: FakeUpstream
) -> None:
    key = await guarded.key(policies=["guarded"])
    upstream.behaviour = Behaviour(chunks=5)
    answer = await guarded.chat(key, stream=True)
    assert "word4" in answer.text
    assert answer.text.rstrip().endswith("[DONE]")


async def test_bedrock_s_bill_and_the_ledger_agree(
    guarded: InProcessGuard, upstream: FakeUpstream, service: FakeGuardrailService
) -> None:
    key = await guarded.key(policies=["bedrock"])
    assert (await guarded.chat(key, messages=said("x" * 2500))).status_code == 200
    assert (await guarded.chat(key, stream=True)).status_code == 200
    assert (await guarded.chat(key, messages=said("a BOMB"))).status_code == 400
    entries = await shipped(guarded, 7)
    booked = [entry for entry in entries if entry["provider"] == "aws-guard"]
    assert len(booked) == len(service.bill) == 5
    assert sum(entry["amount_micro_usd"] for entry in booked) == sum(
        line["micro_usd"] for line in service.bill
    )
    assert {entry["model"] for entry in booked} == {"guardrail/aws"}
    calls = [entry for entry in entries if entry["provider"] != "aws-guard"]
    assert sum(entry["amount_micro_usd"] for entry in calls) == upstream.bill_total


async def test_a_budget_that_a_guardrail_would_pass_sends_neither(
    guarded: InProcessGuard, upstream: FakeUpstream, service: FakeGuardrailService
) -> None:
    key = await guarded.key(policies=["bedrock"], budget_micro_usd=399)
    assert (await guarded.chat(key)).status_code == 429
    assert (service.bill, upstream.calls) == ([], [])


async def test_a_streamed_answer_is_held_until_bedrock_has_seen_it(
    guarded: InProcessGuard, upstream: FakeUpstream, service: FakeGuardrailService
) -> None:
    key = await guarded.key(policies=["bedrock"])
    answer = await guarded.chat(key, stream=True)
    assert "word0" in answer.text
    outputs = [one["body"] for one in service.seen if one["body"]["source"] == "OUTPUT"]
    assert outputs[0]["content"][0]["text"]["text"] == "word0 word1 word2 "
    service.status = 500
    refused = await guarded.chat(key, stream=True)
    assert "word0" not in refused.text


async def test_an_employee_calls_with_a_token_under_a_cap_of_its_own(
    guarded: InProcessGuard, idp: FakeIdp
) -> None:
    jo = idp.sign("k", sub="jo-subject", iat=None, exp=2**32)
    zoe = idp.sign("k", sub="zoe", iat=None, exp=2**32)
    statuses = [(await guarded.chat(jo)).status_code for _ in range(3)]
    assert statuses == [200, 200, 429]
    assert (await guarded.chat(zoe)).status_code == 403
    assert (await guarded.chat(f"{jo[:-4]}AAAA")).status_code == 401
    entries = await shipped(guarded, 2)
    assert {entry["key_id"][:5] for entry in entries} == {"oidc:"}
    assert "jo-subject" not in json.dumps(entries)


async def test_captures_are_read_by_auditors_and_each_reading_is_recorded(
    guarded: InProcessGuard, idp: FakeIdp
) -> None:
    key = await guarded.key(policies=["kept"])
    request_id = (await guarded.chat(key, messages=said("a plum, jo@acme.example"))).headers[
        "x-terrace-request-id"
    ]
    async with asyncio.timeout(60):
        while not guarded.runtime.capture.results["stored"]:
            await asyncio.sleep(0.02)

    async def read(token: str) -> Any:
        return await guarded.http.get(
            f"{guarded.admin_url}/admin/v1/captures/{request_id}?reason=incident%207",
            headers={"authorization": f"Bearer {token}"},
        )

    def role(*roles: str) -> str:
        return idp.sign("k", sub="kim", iat=None, exp=2**32, roles=list(roles))

    assert (await read(key)).status_code == 401
    assert (await read(role("look"))).status_code == 403
    assert (await read(role())).status_code == 403
    found = await read(role("audit"))
    assert found.status_code == 200
    assert found.headers["cache-control"] == "no-store"
    assert found.json()["prompt"] == ["a plum, [masked:email]"]
    assert found.json()["answer"] == ["hello"]
    async with guarded.runtime.database.connection() as connection:
        cursor = await connection.execute(
            "SELECT actor, subject, reason FROM audit WHERE action = 'capture.read'"
        )
        assert await cursor.fetchall() == [("corp:kim", request_id, "incident 7")]


async def test_guardrails_are_tried_on_a_text_that_nobody_keeps(
    guarded: InProcessGuard, service: FakeGuardrailService, idp: FakeIdp
) -> None:
    def role(*roles: str) -> str:
        return idp.sign("k", sub="kim", iat=None, exp=2**32, roles=list(roles))

    async def tried(policy: str, text: str, token: str = role("audit")) -> Any:
        return await guarded.http.post(
            f"{guarded.admin_url}/admin/v1/guardrails/test",
            json={"policy": policy, "text": text},
            headers={"authorization": f"Bearer {token}"},
        )

    assert (await tried("guarded", "x", role("look"))).status_code == 403
    assert (await tried("none", "x")).status_code == 404
    with structlog.testing.capture_logs() as logs:
        masked = (await tried("guarded", "canary-text jo@acme.example")).json()
        blocked = (await tried("guarded", "canary-text forbidden fruit")).json()
        watched = (await tried("watched", "canary-text forbidden fruit")).json()
        unasked = (await tried("bedrock", "canary-text a BOMB")).json()
    assert "canary-text" not in repr(logs)
    mask = {"guardrail": "mask", "did": "mask", "rules": ["email"]}
    for phase in ("before", "after"):
        assert masked[phase] == {
            "blocked": False, "text": "canary-text [masked:email]", "findings": [mask]
        }  # fmt: skip
        assert (blocked[phase]["blocked"], blocked[phase]["text"]) == (True, None)
        assert [one["did"] for one in blocked[phase]["findings"]] == ["block"]
        assert watched[phase]["text"] == "canary-text forbidden fruit"
        assert [one["did"] for one in watched[phase]["findings"]] == ["would_block"]
    assert unasked["not_asked"] == ["aws"]
    assert (unasked["before"]["findings"], service.bill) == ([], [])
    assert await guarded.entries() == []
