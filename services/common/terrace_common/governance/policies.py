"""Policies: who may call what, when, from where, with which features, and what happens if not.

A policy says only what it restricts. Policies that meet at one caller are merged: every one must
allow (``merging``). ``extends`` is another thing: a policy that takes over what another says and
replaces the fields that it names itself.
"""

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from ipaddress import ip_network
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator
from pydantic_core import PydanticCustomError

from terrace_common.governance.compiled import CapMode, Feature, Hours
from terrace_common.governance.quotas import known_zone
from terrace_common.governance.sections import (
    NAME_PATTERN,
    RESIDENCY_PATTERN,
    Problem,
    Section,
    duplicates,
    missing,
    undeclared,
)

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MAX_GRACE_SECONDS = 86_400
MAX_RETENTION_DAYS = 3_650
_CLOCK = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])|24:00")


def _clock(text: str) -> str:
    if not _CLOCK.fullmatch(text):
        raise PydanticCustomError("governance", "must be a time of the day from 00:00 to 24:00")
    return text


def _minute(text: str) -> int:
    hour, minute = text.split(":")
    return int(hour) * 60 + int(minute)


def _network(text: str) -> str:
    try:
        return str(ip_network(text))
    except ValueError:
        pass
    try:
        right = f"; right would be {ip_network(text, strict=False)}"
    except ValueError:
        right = " such as 10.0.0.0/8 or 2001:db8::/32"
    raise PydanticCustomError(
        "governance", "{text} is no network{right}", {"text": repr(text), "right": right}
    )


class OpenHours(Section):
    """A span of the week. ``to`` before ``from`` ends on the next day; ``days`` are those on which
    the span begins."""

    days: tuple[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"], ...] = Field(
        default=DAYS, min_length=1, strict=False
    )
    begin: Annotated[str, AfterValidator(_clock)] = Field(default="00:00", alias="from")
    end: Annotated[str, AfterValidator(_clock)] = Field(default="24:00", alias="to")
    zone: str = "UTC"
    """IANA name."""

    @field_validator("zone")
    @classmethod
    def _zone_exists(cls, zone: str) -> str:
        return known_zone(zone)

    def span(self) -> Hours:
        """As it is checked."""
        days = frozenset(DAYS.index(day) for day in self.days)
        return Hours(self.zone, days, _minute(self.begin), _minute(self.end))


class Capture(Section):
    """Keep prompts and answers: redacted, encrypted, for so many days."""

    retention_days: int = Field(ge=1, le=MAX_RETENTION_DAYS)


class Policy(Section):
    """What is said here restricts; what is not said does not."""

    name: str = Field(pattern=NAME_PATTERN)
    description: str | None = Field(default=None, max_length=512)
    extends: str | None = None
    """Another policy, whose fields hold unless this one names them."""
    mode: CapMode = "block"
    """``audit``: nothing is refused; what would have been is recorded."""
    models: tuple[str, ...] | None = Field(default=None, strict=False)
    """Only these, by name or alias."""
    deny_models: tuple[str, ...] = Field(default=(), strict=False)
    providers: tuple[str, ...] | None = Field(default=None, strict=False)
    deny_providers: tuple[str, ...] = Field(default=(), strict=False)
    residency: tuple[Annotated[str, Field(pattern=RESIDENCY_PATTERN)], ...] = Field(
        default=(), strict=False
    )
    """Regions, or beginnings such as ``eu-*``, where prompts may be processed. A provider whose
    region is not known is refused."""
    deny_features: tuple[Feature, ...] = Field(default=(), strict=False)
    max_context_tokens: int | None = Field(default=None, ge=1, le=100_000_000)
    max_output_tokens: int | None = Field(default=None, ge=1, le=10_000_000)
    over_output: Literal["clamp", "refuse"] = "clamp"
    hours: tuple[OpenHours, ...] = Field(default=(), strict=False)
    """One of them must contain the present."""
    networks: tuple[Annotated[str, AfterValidator(_network)], ...] = Field(default=(), strict=False)
    """CIDRs; one of them must contain the caller's address."""
    outage: Literal["closed", "limited"] = "limited"
    """With the database gone: refuse when the policy lease ends, or go on with what was granted."""
    outage_grace_seconds: int | None = Field(default=None, ge=0, le=MAX_GRACE_SECONDS)
    """How long ``limited`` lasts. Unset: 60."""
    stream_grace_seconds: int | None = Field(default=None, ge=0, le=MAX_GRACE_SECONDS)
    """How long running streams go on once calls are refused. Unset: 60."""
    on_disconnect: Literal["drain", "cut"] = "drain"
    guardrails: tuple[str, ...] = Field(default=(), strict=False)
    capture: Capture | Literal["never"] | None = None
    """``never`` wins over any other policy's capture."""
    priority: int | None = Field(default=None, ge=-100, le=100)
    """The lowest of a caller's policies counts. Unset: 0."""


def resolve_extends(policies: Sequence[Policy]) -> dict[str, Policy]:
    """Each policy with what it extends filled in. The list has no cycle and no unknown name."""
    declared = {policy.name: policy for policy in policies}
    resolved: dict[str, Policy] = {}

    def resolve(name: str) -> Policy:
        if name not in resolved:
            policy = declared[name]
            if policy.extends is not None:
                said = {field: getattr(policy, field) for field in policy.model_fields_set}
                policy = resolve(policy.extends).model_copy(update={"description": None, **said})
            resolved[name] = policy
        return resolved[name]

    for name in declared:
        resolve(name)
    return resolved


def policy_problems(
    policies: Sequence[Policy],
    *,
    models: Set[str],
    providers: Set[str],
    guardrails: Set[str],
) -> Iterator[Problem]:
    """Duplicates, references that lead nowhere, cycles of ``extends``. ``models`` has aliases."""
    yield from duplicates("policies", "policy", (policy.name for policy in policies))
    extends = {policy.name: policy.extends for policy in policies}
    for index, policy in enumerate(policies):
        path = ("policies", index)
        for field, noun, names, known in (
            ("models", "model", policy.models or (), models),
            ("deny_models", "model", policy.deny_models, models),
            ("providers", "provider", policy.providers or (), providers),
            ("deny_providers", "provider", policy.deny_providers, providers),
            ("guardrails", "guardrail", policy.guardrails, guardrails),
        ):
            yield from undeclared((*path, field), noun, names, known)
        for position, span in enumerate(policy.hours):
            if span.begin in (span.end, "24:00"):
                yield (
                    (*path, "hours", position),
                    f"from {span.begin} to {span.end} is no time at all; a whole day is from 00:00"
                    " to 24:00",
                )
        if policy.extends is None:
            continue
        if policy.extends not in extends:
            yield (*path, "extends"), missing("policy", policy.extends, extends)
        elif cycle := _cycle(policy.name, extends):
            yield (
                (*path, "extends"),
                f"policies extend each other in a circle: {' -> '.join(cycle)}",
            )


def _cycle(start: str, extends: Mapping[str, str | None]) -> list[str]:
    """The circle that ``start`` is part of, or nothing."""
    walked = [start]
    here = extends.get(start)
    while here is not None and here not in walked:
        walked.append(here)
        here = extends.get(here)
    return [*walked, start] if here == start else []
