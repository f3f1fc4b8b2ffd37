"""Whether an admitted call may still go on, by the policy that is in force now.

Its body, its guardrails, candidates before this one, its reservation and the queue of its provider
may each have taken a long time.
"""

from dataclasses import replace

from terrace_common.governance import BedrockGuardrail
from terrace_gateway.calls.admission import admit
from terrace_gateway.calls.found_anew import found_anew
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


class ReservedOtherwiseError(Exception):
    """The call would be reserved otherwise by the policy in force now; nothing was sent."""


class StillAllowed:
    """Checks calls against ``policy``, and has ``matcher`` judge their candidates again."""

    def __init__(self, policy: PolicyFeed, matcher: Matcher, clock: Clock) -> None:
        self._policy = policy
        self._matcher = matcher
        self._clock = clock

    async def renewed(self, call: Call, candidate: Candidate) -> tuple[Call, Candidate]:
        """The call with the caps, limits and prices in force now; the same objects while the policy
        is the one that it was admitted under.

        Raises ``ApiError`` if its caller may call no more (or nobody can say that now), if its
        request would not be admitted now, or if its texts passed guardrails that are not those of
        now, and ``CandidateFailedError`` if it may not call this candidate.
        """
        principal, snapshot = await self.caller(call.principal, call.snapshot)
        changed = snapshot is not call.snapshot
        if changed or principal.policy.hours:  # which end without a change
            now = self._clock.database_now()
            admit(principal, call.request.needs, address=call.address, now=now)
        if not changed:
            return call, candidate
        name = candidate.model.name
        killed = snapshot.killed(None, model=name, provider=candidate.model.provider)
        if killed is not None:
            raise CandidateFailedError(ApiError(KILLED, killed))
        if _texts(principal, snapshot) != _texts(call.principal, call.snapshot):
            raise policy_changed()
        call = replace(call, principal=principal, snapshot=snapshot)
        again = None
        if name not in snapshot.undeployed:
            again = self._matcher.again(candidate, match_request(call), principal.policy)
        if again is None:
            raise CandidateFailedError(
                ApiError(MODEL_NOT_ALLOWED, f"this key may not use {name} for this request now")
            )
        return call, again

    async def caller(
        self, principal: Principal, known: Snapshot | None
    ) -> tuple[Principal, Snapshot]:
        """The caller by the policy in force, and that policy; the same principal while it is
        ``known``, under which it was admitted (``None``: that is not known).

        Raises ``ApiError`` if it may call no more, or nobody can say that now.
        """
        in_force = await self._policy.confirm()
        snapshot = in_force.snapshot
        changed = snapshot is not known
        if changed:
            principal = found_anew(principal, snapshot, self._clock.database_now())
        if self._has_expired(principal):
            raise ApiError(INVALID_API_KEY, "the API key or token has expired")
        if in_force.standing(principal.policy).state == "ended":
            raise ApiError(AUTHORITY_UNAVAILABLE, "the policy in force cannot be confirmed now")
        killed = snapshot.killed(principal.caller) if changed else None
        if killed is not None:
            raise ApiError(KILLED, killed)
        return principal, snapshot

    async def confirm(self, call: Call, candidate: Candidate) -> None:
        """Right before the call is sent; free of cost while the policy of its reservation is known
        to be in force. Raises as ``renewed``, and ``ReservedOtherwiseError``."""
        in_force = self._policy.current()
        changed = in_force.snapshot is not call.snapshot
        if changed or not in_force.fresh or self._is_over(call.principal):
            now = await self.renewed(call, candidate)
            if now[0] is not call and _reserved_by(*now) != _reserved_by(call, candidate):
                raise ReservedOtherwiseError

    def _is_over(self, principal: Principal) -> bool:
        hours = principal.policy.hours
        if hours and not principal.policy.open_at(self._clock.database_now()):
            return True
        return self._has_expired(principal)

    def _has_expired(self, principal: Principal) -> bool:
        until = principal.expires_at
        return until is not None and until <= self._clock.database_now()


def policy_changed() -> ApiError:
    """The refusal of a call that the policy in force now would have treated otherwise."""
    return ApiError(
        AUTHORITY_UNAVAILABLE,
        "the policy of this call changed while it waited; nothing was sent: send it again",
        retry_after_seconds=1,
    )


def _reserved_by(call: Call, candidate: Candidate) -> tuple[object, ...]:
    """All that the body and the reservation of an attempt are made of."""
    principal, snapshot, model = call.principal, call.snapshot, candidate.model
    return (
        candidate,
        principal.caller,
        principal.policy,
        principal.caps,
        snapshot.caps_of("model", model.name),
        snapshot.caps_of("provider", model.provider),
        snapshot.governance.defaults,
    )


def _texts(principal: Principal, snapshot: Snapshot) -> tuple[object, ...]:
    """What is done with the texts of a call, from its admission to the end of its answer."""
    policy, audit = principal.policy, principal.audit
    watching = () if audit is None else audit.guardrails
    named = {*policy.guardrails, *watching}
    governance = snapshot.governance
    declared = [one for one in governance.guardrails if one.name in named]
    asked = {one.provider for one in declared if isinstance(one, BedrockGuardrail)}
    providers = [one for one in governance.providers if one.name in asked]
    return policy.guardrails, watching, policy.capture, declared, providers
