"""Whether an admitted call may still go on, by the policy that is in force now.

Its body, its guardrails, candidates before this one, its reservation and the queue of its provider
may each have taken a long time.
"""

from dataclasses import replace
from datetime import datetime

from terrace_common.governance.compile import UnknownSubjectError
from terrace_gateway.authentication.bearer import bearer_of
from terrace_gateway.calls.ports import MatchRequest, Principal
from terrace_gateway.calls.serving import Call, CandidateFailedError
from terrace_gateway.clock import Clock
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

    def __init__(self, policy: PolicyFeed, matcher: Matcher, clock: Clock) -> None:
        self._policy = policy
        self._matcher = matcher
        self._clock = clock

    async def renewed(self, call: Call, candidate: Candidate) -> tuple[Call, Candidate]:
        """The call with the caps, limits and prices in force now; the same objects while the policy
        is the one that it was admitted under.

        Raises ``ApiError`` if its caller may call no more (or nobody can say that now) and
        ``CandidateFailedError`` if it may not call this candidate.
        """
        in_force = await self._policy.confirm()
        snapshot = in_force.snapshot
        changed = snapshot is not call.snapshot
        principal = call.principal
        if changed:
            principal = _principal(principal, snapshot, self._clock.database_now())
        if self._has_expired(principal):
            raise ApiError(INVALID_API_KEY, "the API key or token has expired")
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
        changed = in_force.snapshot is not call.snapshot
        if changed or not in_force.fresh or self._has_expired(call.principal):
            await self.renewed(call, candidate)

    def _has_expired(self, principal: Principal) -> bool:
        until = principal.expires_at
        return until is not None and until <= self._clock.database_now()


def _principal(admitted: Principal, snapshot: Snapshot, now: datetime) -> Principal:
    """The caller as ``snapshot`` has it: by its key, or by what its token says. Raises ``ApiError``
    if it would be refused by it."""
    if admitted.token is not None:
        return bearer_of(admitted.token, snapshot, now=now)
    key = snapshot.keys.get(admitted.caller.key_id)
    if key is None:
        raise ApiError(INVALID_API_KEY, "the API key is not valid")
    try:
        return snapshot.principal(key)
    except UnknownSubjectError:
        raise ApiError(
            INVALID_API_KEY, "the owner of this API key is not declared any more"
        ) from None
