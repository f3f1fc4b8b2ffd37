"""The policy in force says who administers: the file that a replica starts with may be old."""

from collections.abc import Awaitable, Callable

import pytest
from gateway_rig.fake_idp import FakeIdp
from gateway_rig.fake_upstream import FakeUpstream
from gateway_rig.guard import ADMIN_KEY, InProcessGuard
from gateway_rig.proofs import spec, until

from terrace_gateway.calls.ports import AuthorityUnavailableError
from terrace_gateway.policy.feed import PolicyFeed

Make = Callable[..., Awaitable[InProcessGuard]]
ADMINS = """
authentication:
  issuers:
    - {name: corp, kind: oidc, issuer: "ISSUER", audiences: [terrace], role_claim: roles,
       admins: [{value: look, role: auditor}]}
"""


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
        assert await status(token) == 401

    async def token_holds() -> bool:
        return await status(token) == 200

    await until(token_holds)
