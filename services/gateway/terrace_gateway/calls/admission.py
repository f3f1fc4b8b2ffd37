"""What a caller's policies say to one request, before a model is chosen. Pure.

Of ``Principal.policy`` every violation refuses; of ``Principal.audit`` it is only told.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from terrace_gateway.calls.ports import EffectivePolicy, Needs, Principal
from terrace_gateway.edge.errors import INVALID_REQUEST, POLICY_DENIED, ApiError


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a request breaks. ``param`` is the field of the body that it is about."""

    rule: str
    message: str
    param: str | None = None


@dataclass(frozen=True, slots=True)
class OutputLimit:
    """``max_tokens`` of the upstream call, and how it differs from what the client asked."""

    tokens: int
    clamped: str | None


def violations(
    policy: EffectivePolicy, needs: Needs, *, address: str, now: datetime
) -> Iterator[Violation]:
    """Rules of ``policy`` that a request from ``address`` breaks at ``now``."""
    yield from _of_place_and_time(policy, address=address, now=now)
    for feature in sorted(needs.features & policy.denied_features):
        yield Violation("features", f"the policy of this key does not allow {feature}", feature)
    limit = policy.max_context_tokens
    if limit is not None and needs.input_bound_tokens > limit:
        yield Violation(
            "max_context_tokens",
            f"the request may have up to {needs.input_bound_tokens} input tokens;"
            f" the policy of this key allows {limit}",
        )
    allowed = policy.max_output_tokens
    if (
        policy.over_output == "refuse"
        and allowed is not None
        and needs.output_tokens is not None
        and needs.output_tokens > allowed
    ):
        yield Violation(
            "max_output_tokens",
            f"the policy of this key allows {allowed} output tokens, not {needs.output_tokens}",
            "max_tokens",
        )


def admit(principal: Principal, needs: Needs, *, address: str, now: datetime) -> list[Violation]:
    """Let a request pass or raise ``ApiError`` (403).

    Returns what the caller's audit policies would have refused.
    """
    if principal.surfaces is not None and needs.surface not in principal.surfaces:
        raise ApiError(POLICY_DENIED, f"this key is not for {needs.surface}")
    for violation in violations(principal.policy, needs, address=address, now=now):
        raise ApiError(POLICY_DENIED, violation.message, param=violation.param)
    if principal.audit is None:
        return []
    return list(violations(principal.audit, needs, address=address, now=now))


def admit_to_list(principal: Principal, *, address: str, now: datetime) -> list[Violation]:
    """As ``admit``, of a caller that asks what there is: none of its calls would pass."""
    for violation in _of_place_and_time(principal.policy, address=address, now=now):
        raise ApiError(POLICY_DENIED, violation.message)
    if principal.audit is None:
        return []
    return list(_of_place_and_time(principal.audit, address=address, now=now))


def _of_place_and_time(
    policy: EffectivePolicy, *, address: str, now: datetime
) -> Iterator[Violation]:
    if not policy.open_at(now):
        yield Violation("hours", "the policy of this key does not allow calls at this time")
    if not policy.admits(address):
        yield Violation("networks", "the policy of this key does not allow calls from this address")


def output_limit(
    policy: EffectivePolicy, *, asked: int | None, default: int, model_limit: int
) -> OutputLimit:
    """What the upstream call may produce at most. Raises ``ApiError`` (400) for less than one."""
    if asked is not None and asked < 1:
        raise ApiError(INVALID_REQUEST, "max_tokens must be at least 1", param="max_tokens")
    limits = [(model_limit, "model")]
    if policy.max_output_tokens is not None:
        limits.append((policy.max_output_tokens, "policy"))
    limit, whose = min(limits)
    wanted = default if asked is None else asked
    if wanted <= limit:
        return OutputLimit(wanted, None if asked is not None else f"max_tokens={wanted}; default")
    return OutputLimit(limit, f"max_tokens={limit}; {whose}")
