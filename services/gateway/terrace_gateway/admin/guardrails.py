"""Trying guardrails on a text before a policy is relied on: nothing is sent, kept or logged."""

from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from terrace_gateway.admin.routing import AdminCall, AdminRoute, json_answer
from terrace_gateway.calls.ports import EffectivePolicy
from terrace_gateway.edge.errors import CONTENT_BLOCKED, MODEL_NOT_FOUND, ApiError
from terrace_gateway.runtime import Runtime

MAX_BODY_BYTES = 2 * 1024 * 1024
_REMOTE = frozenset({"bedrock", "http"})


class GuardrailTest(BaseModel):
    """A text, as a prompt and as an answer, under one policy."""

    model_config = ConfigDict(extra="forbid", strict=True)

    policy: str = Field(min_length=1, max_length=128)
    text: str = Field(max_length=1024 * 1024)


async def _try(
    runtime: Runtime, policy: EffectivePolicy, audit: EffectivePolicy | None, text: str,
    phase: Literal["before", "after"],
) -> dict[str, Any]:  # fmt: skip
    """What the chain would do in one phase, and the text as it would pass (``None``: it would
    not)."""
    run = runtime.guardrails.start(policy, audit)
    passed: str | None = None
    try:
        (passed,) = await (run.before((text,)) if phase == "before" else run.after((text,)))
    except ApiError as error:
        if error.code != CONTENT_BLOCKED:
            raise
    return {
        "blocked": passed is None,
        "text": passed,
        "findings": [
            {"guardrail": one.guardrail, "did": one.did, "rules": list(one.rules)}
            for one in run.findings
        ],
    }


def routes(runtime: Runtime) -> list[AdminRoute]:
    """``POST /admin/v1/guardrails/test``."""

    async def test(call: AdminCall) -> Response:
        body = await call.read(GuardrailTest)
        snapshot = runtime.policy.current().snapshot
        if all(body.policy != policy.name for policy in snapshot.governance.policies):
            raise ApiError(MODEL_NOT_FOUND, "there is no such policy", param="policy")
        policy, audit = snapshot.compiled.merged((body.policy,))
        remote = {one.name for one in snapshot.governance.guardrails if one.kind in _REMOTE}
        named = (*policy.guardrails, *(() if audit is None else audit.guardrails))

        def local(of: EffectivePolicy) -> EffectivePolicy:
            return replace(of, guardrails=tuple(n for n in of.guardrails if n not in remote))

        here, watching = local(policy), None if audit is None else local(audit)
        answer = json_answer(
            {
                "policy": body.policy,
                "before": await _try(runtime, here, watching, body.text, "before"),
                "after": await _try(runtime, here, watching, body.text, "after"),
                "not_asked": [name for name in named if name in remote],
            }
        )
        answer.headers["cache-control"] = "no-store"
        return answer

    return [
        AdminRoute(
            "POST", "/guardrails/test", test,
            "What a policy's guardrails would do with a text as a prompt and as an answer. Those of"
            " kind bedrock and http are not asked; nothing is kept or logged.",
            "auditor", body=GuardrailTest, max_body_bytes=MAX_BODY_BYTES,
            answer="`before` and `after`: `blocked`, the `text` that would pass, `findings`.",
        )
    ]  # fmt: skip
