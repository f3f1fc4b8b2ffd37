"""How policies that meet at one caller become one: every one must allow, the strictest wins.

``merge`` is associative, commutative and idempotent, and ``Restriction()`` is its neutral element,
so neither the order of policies nor where they are attached changes what holds. Merging can only
take away.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TypeVar

from terrace_common.governance.compiled import (
    DEFAULT_OUTAGE_GRACE_SECONDS,
    DEFAULT_STREAM_GRACE_SECONDS,
    CapMode,
    CapturePolicy,
    EffectivePolicy,
    Hours,
)
from terrace_common.governance.policies import Policy

NEVER = 0
"""Retention of a policy that forbids capture; the least of all."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Restriction:
    """What a policy takes away. ``None``, the empty set and ``False`` take nothing."""

    models: frozenset[str] | None = None
    providers: frozenset[str] | None = None
    residency: frozenset[tuple[str, ...]] = frozenset()
    denied_features: frozenset[str] = frozenset()
    max_context_tokens: int | None = None
    max_output_tokens: int | None = None
    refuse_over_output: bool = False
    hours: frozenset[tuple[Hours, ...]] = frozenset()
    networks: frozenset[tuple[str, ...]] = frozenset()
    cut_on_disconnect: bool = False
    closed_in_outage: bool = False
    outage_grace_seconds: int | None = None
    stream_grace_seconds: int | None = None
    guardrails: frozenset[str] = frozenset()
    capture_days: int | None = None
    priority: int | None = None
    names: frozenset[str] = frozenset()


def merge(one: Restriction, other: Restriction) -> Restriction:
    """What both together take away."""
    return Restriction(
        models=_both(one.models, other.models, _common),
        providers=_both(one.providers, other.providers, _common),
        residency=one.residency | other.residency,
        denied_features=one.denied_features | other.denied_features,
        max_context_tokens=_both(one.max_context_tokens, other.max_context_tokens, min),
        max_output_tokens=_both(one.max_output_tokens, other.max_output_tokens, min),
        refuse_over_output=one.refuse_over_output or other.refuse_over_output,
        hours=one.hours | other.hours,
        networks=one.networks | other.networks,
        cut_on_disconnect=one.cut_on_disconnect or other.cut_on_disconnect,
        closed_in_outage=one.closed_in_outage or other.closed_in_outage,
        outage_grace_seconds=_both(one.outage_grace_seconds, other.outage_grace_seconds, min),
        stream_grace_seconds=_both(one.stream_grace_seconds, other.stream_grace_seconds, min),
        guardrails=one.guardrails | other.guardrails,
        capture_days=_both(one.capture_days, other.capture_days, min),
        priority=_both(one.priority, other.priority, min),
        names=one.names | other.names,
    )


def restriction_of(
    policy: Policy,
    *,
    model_names: Callable[[Iterable[str]], frozenset[str]],
    all_models: frozenset[str],
    all_providers: frozenset[str],
) -> Restriction:
    """What one policy, with what it extends filled in, takes away.

    ``model_names`` turns names and aliases into the catalogue's names.
    """
    models = None if policy.models is None else model_names(policy.models)
    if policy.deny_models:
        models = (all_models if models is None else models) - model_names(policy.deny_models)
    providers = None if policy.providers is None else frozenset(policy.providers)
    if policy.deny_providers:
        providers = (all_providers if providers is None else providers) - set(policy.deny_providers)
    spans = tuple(sorted({hours.span() for hours in policy.hours}, key=lambda span: span.order))
    capture = policy.capture
    days = None if capture is None else NEVER if capture == "never" else capture.retention_days
    return Restriction(
        models=models,
        providers=providers,
        residency=_one_set(policy.residency),
        denied_features=frozenset(policy.deny_features),
        max_context_tokens=policy.max_context_tokens,
        max_output_tokens=policy.max_output_tokens,
        refuse_over_output=policy.over_output == "refuse",
        hours=frozenset((spans,)) if spans else frozenset(),
        networks=_one_set(policy.networks),
        cut_on_disconnect=policy.on_disconnect == "cut",
        closed_in_outage=policy.outage == "closed",
        outage_grace_seconds=policy.outage_grace_seconds,
        stream_grace_seconds=policy.stream_grace_seconds,
        guardrails=frozenset(policy.guardrails),
        capture_days=days,
        priority=policy.priority,
        names=frozenset((policy.name,)),
    )


def effective(
    restrictions: Iterable[Restriction], *, mode: CapMode, guardrail_order: Sequence[str]
) -> EffectivePolicy:
    """All merged, with defaults where none says anything. ``guardrail_order``: as declared."""
    merged = reduce(merge, restrictions, Restriction())
    return EffectivePolicy(
        models=merged.models,
        providers=merged.providers,
        residency=tuple(sorted(merged.residency)),
        denied_features=merged.denied_features,
        max_context_tokens=merged.max_context_tokens,
        max_output_tokens=merged.max_output_tokens,
        over_output="refuse" if merged.refuse_over_output else "clamp",
        hours=tuple(sorted(merged.hours, key=lambda spans: [span.order for span in spans])),
        networks=tuple(sorted(merged.networks)),
        mode=mode,
        on_disconnect="cut" if merged.cut_on_disconnect else "drain",
        outage="closed" if merged.closed_in_outage else "limited",
        outage_grace_seconds=_or(merged.outage_grace_seconds, DEFAULT_OUTAGE_GRACE_SECONDS),
        stream_grace_seconds=_or(merged.stream_grace_seconds, DEFAULT_STREAM_GRACE_SECONDS),
        guardrails=tuple(name for name in guardrail_order if name in merged.guardrails),
        capture=CapturePolicy(merged.capture_days) if merged.capture_days else None,
        priority=_or(merged.priority, 0),
        names=tuple(sorted(merged.names)),
    )


def _one_set(patterns: Iterable[str]) -> frozenset[tuple[str, ...]]:
    found = tuple(sorted(set(patterns)))
    return frozenset((found,)) if found else frozenset()


def _common(one: frozenset[str], other: frozenset[str]) -> frozenset[str]:
    return one & other


def _both(one: T | None, other: T | None, combine: Callable[[T, T], T]) -> T | None:
    if one is None:
        return other
    return one if other is None else combine(one, other)


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
