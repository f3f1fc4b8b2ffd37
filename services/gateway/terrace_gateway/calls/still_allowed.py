"""Whether an admitted call may still go on, by the policy that is in force now.

Its body, its guardrails, candidates before this one, its reservation and the queue of its provider
may each have taken a long time.
"""

from dataclasses import replace

from terrace_common.governance.compile import UnknownSubjectError
from terrace_gateway.calls.ports import MatchRequest, Principal
from terrace_gateway.calls.serving import Call, CandidateFailedError
from terrace_gateway.edge.errors import (
    AUTHORITY_UNAVAILABLE,
    INVALID_API_KEY,
    KILLED,
    MODEL_NOT_ALLOWED,
    ApiError,
)
from terrace_gateway.matching import Candidate, Matcher
from terrace_gateway.policy.feed import PolicyFeed
from terrace_gateway.policy.snapshot import Snapshot


def match_request(call: Call, session: str | None = None) -> MatchRequest:
    """The call as the matcher sees it."""
    return MatchRequest(
        asked=call.request.asked_model,
        needs=call.request.needs,
        hints=call.hints,
        session=session,
        bedrock_only=call.bedrock_only,
    )


class StillAllowed:
    """Checks calls against ``policy``, and has ``matcher`` judge their candidates again."""

    def __init__(self, policy: PolicyFeed, matcher: Matcher) -> None:
        self._policy = policy
        self._matcher = matcher

    async def renewed(self, call: Call, candidate: Candidate) -> tuple[Call, Candidate]:
        """The call with the caps, limits and prices in force now; the same objects while the policy
        is the one that it was admitted under.

        Raises ``ApiError`` if its caller may call no more (or nobody can say that now) and
        ``CandidateFailedError`` if it may not call this candidate.
        """
        in_force = await self._policy.confirm()
        snapshot = in_force.snapshot
        changed = snapshot is not call.snapshot
        principal = _principal(call.principal, snapshot) if changed else call.principal
        if in_force.standing(principal.policy).state == "ended":
            raise ApiError(AUTHORITY_UNAVAILABLE, "the policy in force cannot be confirmed now")
        if not changed:
            return call, candidate
        killed = snapshot.killed(principal.caller)
        if killed is not None:
            raise ApiError(KILLED, killed)
        name = candidate.model.name
        killed = snapshot.killed(None, model=name, provider=candidate.model.provider)
        if killed is not None:
            raise CandidateFailedError(ApiError(KILLED, killed))
        call = replace(call, principal=principal, snapshot=snapshot)
        again = None
        if name not in snapshot.undeployed:
            again = self._matcher.again(candidate, match_request(call), principal.policy)
        if again is None:
            raise CandidateFailedError(
                ApiError(MODEL_NOT_ALLOWED, f"this key may not use {name} for this request now")
            )
        return call, again

    async def confirm(self, call: Call, candidate: Candidate) -> None:
        """Right before the call is sent; free of cost while the policy of its reservation is known
        to be in force. Raises as ``renewed``."""
        in_force = self._policy.current()
        if in_force.snapshot is not call.snapshot or not in_force.fresh:
            await self.renewed(call, candidate)


def _principal(admitted: Principal, snapshot: Snapshot) -> Principal:
    """The caller as ``snapshot`` has it. Raises ``ApiError`` if it has it no more.

    A caller with a token is known by its subject's place in the spec: whether the token's own
    claims still lead there is asked at its next request.
    """
    caller = admitted.caller
    try:
        if admitted.method == "key":
            key = snapshot.keys.get(caller.key_id)
            if key is None:
                raise ApiError(INVALID_API_KEY, "the API key is not valid")
            return snapshot.principal(key)
        found = snapshot.caller_without_key(
            key_id=caller.key_id, team=caller.team, user=caller.user, app=caller.app
        )
    except UnknownSubjectError:
        raise ApiError(
            INVALID_API_KEY, "the owner of this API key is not declared any more"
        ) from None
    return replace(found, method=admitted.method, expires_at=admitted.expires_at)
