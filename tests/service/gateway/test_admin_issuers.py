"""The policy in force says who administers, and only while it is confirmed: the file that a replica
starts with, or the last version that it could build, may be old."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
from gateway_rig.changes import apply
from gateway_rig.fake_idp import FakeIdp
from gateway_rig.fake_upstream import FakeUpstream
from gateway_rig.guard import ADMIN_KEY, InProcessGuard
from gateway_rig.proofs import spec, until

from terrace_gateway.authentication.admin_tokens import AdminTokens
from terrace_gateway.calls.ports import AuthorityUnavailableError
from terrace_gateway.guardrails.chain import Guardrails
from terrace_gateway.policy.feed import PolicyFeed

Make = Callable[..., Awaitable[InProcessGuard]]
ADMINS = """
authentication:
  issuers:
    - {name: corp, kind: oidc, issuer: "ISSUER", audiences: [terrace], role_claim: roles,
       admins: [{value: look, role: auditor}, {value: boss, role: admin}]}
"""
PEOPLE = """
orgs: [{name: acme}]
teams: [{name: team-a, org: acme}]
users: [{name: jo, team: team-a, subject: "corp:jo-subject"}]
"""
OF_JO = ("subject:corp:jo-subject", "user:jo", "team:team-a", "org:acme")


def boss(idp: FakeIdp, sub: str = "jo-subject") -> str:
    return idp.sign("k", sub=sub, roles=["boss"], iat=None, exp=2**32)


async def send(
    guard: InProcessGuard, bearer: str, method: str, path: str, **what: Any
) -> httpx.Response:
    headers = {"authorization": f"Bearer {bearer}"}
    url = f"{guard.admin_url}/admin/v1{path}"
    return await guard.http.request(method, url, headers=headers, **what)


async def test_no_issuer_of_the_file_holds_before_a_policy_is_loaded(
    make_guard: Make, upstream: FakeUpstream, idp: FakeIdp, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(_: PolicyFeed) -> None:
        raise AuthorityUnavailableError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(PolicyFeed, "_ask", away)
        more = ADMINS.replace("ISSUER", idp.issuer)
        guard = await make_guard(governance=spec(upstream, more=more), wait=False)
        token = idp.sign("k", sub="ann", roles=["look"], iat=None, exp=2**32)

        async def status(bearer: str) -> int:
            headers = {"authorization": f"Bearer {bearer}"}
            answer = await guard.http.get(f"{guard.admin_url}/admin/v1/ledger", headers=headers)
            return answer.status_code

        async def key_holds() -> bool:
            return await status(ADMIN_KEY) == 200

        await until(key_holds)
        assert await status(token) == 503  # nobody can say that it is none
        assert await status("tadm-wrong") == 401

    async def token_holds() -> bool:
        return await status(token) == 200

    await until(token_holds)


async def test_who_is_stopped_does_not_lift_it_and_everybody_else_can(
    make_guard: Make, upstream: FakeUpstream, idp: FakeIdp
) -> None:
    text = spec(upstream, more=PEOPLE + ADMINS.replace("ISSUER", idp.issuer))
    guard = await make_guard(governance=text)
    jo, zoe = boss(idp), boss(idp, "zoe")  # zoe is no caller of the spec
    for target in OF_JO:
        switch = {"target": target, "reason": "the token is stolen"}
        assert (await send(guard, zoe, "POST", "/kill", json=switch)).status_code == 200
        for method, path, body in (
            ("POST", "/unkill", switch), ("POST", "/keys", {"team": "team-a"}),
            ("GET", "/governance", None),
        ):  # fmt: skip
            answer = await send(guard, jo, method, path, json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "killed")
        lifted = await send(guard, zoe, "POST", "/unkill", json=switch)
        assert lifted.status_code == 200
        assert (await send(guard, jo, "GET", "/governance")).status_code == 200
    for bearer in (jo, zoe, ADMIN_KEY):
        everything = {"target": "all", "reason": "r"}
        assert (await send(guard, jo, "POST", "/kill", json=everything)).status_code == 200
        assert (await send(guard, bearer, "POST", "/unkill", json=everything)).status_code == 200


async def test_who_is_stopped_while_sending_a_body_changes_nothing(
    make_guard: Make, upstream: FakeUpstream, idp: FakeIdp, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = spec(upstream, more=PEOPLE + ADMINS.replace("ISSUER", idp.issuer))
    guard = await make_guard(governance=text)
    stopped, admitted = asyncio.Event(), asyncio.Event()
    authenticate = AdminTokens.authenticate

    async def told(*given: Any) -> Any:
        found = await authenticate(*given)
        admitted.set()
        return found

    monkeypatch.setattr(AdminTokens, "authenticate", told)

    async def slowly() -> AsyncIterator[bytes]:
        yield b'{"target": "user:jo",'
        await stopped.wait()
        yield b' "reason": "r"}'

    lifting = asyncio.create_task(send(guard, boss(idp), "POST", "/unkill", content=slowly()))
    await admitted.wait()
    await guard.admin("POST", "/kill", json={"target": "user:jo", "reason": "r"})
    stopped.set()
    answer = await lifting
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "killed")
    assert len((await guard.admin("GET", "/kill"))["switches"]) == 1


async def test_who_was_removed_changes_nothing_where_that_version_cannot_be_built(
    make_guard: Make, upstream: FakeUpstream, idp: FakeIdp, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = spec(upstream, more=PEOPLE + ADMINS.replace("ISSUER", idp.issuer))
    guard = await make_guard(governance=text)
    jo = boss(idp)
    assert (await send(guard, jo, "GET", "/governance")).status_code == 200

    def broken(*_: Any, **__: Any) -> None:
        raise ValueError

    with monkeypatch.context() as patched:
        patched.setattr(Guardrails, "build", broken)
        without = text.replace(", {value: boss, role: admin}", "")
        change = {"text": without, "reason": "left", "base_version": 1}
        applied = await guard.admin("POST", "/governance/apply", json=change)
        assert "ValueError" in applied["pending_here"]
        await until(lambda: not guard.runtime.policy.current().fresh)
        for method, path, body in (
            ("POST", "/governance/rollback", {"version": 1, "reason": "mine"}),
            ("POST", "/kill", {"target": "all", "reason": "mine"}),
        ):
            answer = await send(guard, jo, method, path, json=body)
            assert answer.status_code == 503
            assert "admin key" in answer.json()["error"]["message"]
        # The admin key goes on.
        switch = {"target": "user:jo", "reason": "r"}
        assert (await guard.admin("POST", "/kill", json=switch))["active"]
        assert not (await guard.admin("POST", "/unkill", json=switch))["active"]
    await until(lambda: guard.runtime.policy.current().fresh)
    assert (await send(guard, jo, "GET", "/governance")).status_code == 403
    await apply(guard, text)
    assert (await send(guard, jo, "GET", "/governance")).status_code == 200
