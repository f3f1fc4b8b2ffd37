"""From the catalogue and what AWS says of a region to our shares of its quotas. Pure.

A share is the quota less the declared headroom; of tokens also divided by how many times an output
token counts, because our caps count it once. Where several pools draw on one quota, or several
quotas may be meant, what is smaller holds.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from terrace_common.bedrock import parse_model
from terrace_common.governance.upstream_pools import UpstreamPool
from terrace_quota_sync.quota_names import (
    NameKind,
    QuotaDimension,
    QuotaName,
    keys_of,
    parse_quota_name,
)
from terrace_quota_sync.region_facts import Access, Quota, RegionFacts

Place = tuple[QuotaDimension, int]


@dataclass(frozen=True, slots=True)
class Share:
    """Our share of one quota: calls or tokens per window."""

    dimension: QuotaDimension
    window_seconds: int
    quota: Quota
    amount: int


@dataclass(frozen=True, slots=True)
class PoolShares:
    """What is published of one pool. ``findings`` are codes for people and alerts."""

    pool: str
    access: Access
    leads_to: tuple[str, ...]
    findings: tuple[str, ...]
    shares: tuple[Share, ...]

    def to_json(self) -> dict[str, Any]:
        """As the admin API takes it."""
        return {
            "pool": self.pool,
            "access": self.access,
            "leads_to": list(self.leads_to[:100]),
            "findings": list(self.findings),
            "quotas": [
                {
                    "dimension": share.dimension,
                    "window_seconds": share.window_seconds,
                    "quota_code": share.quota.code,
                    "quota_name": share.quota.name,
                    "quota_value": share.quota.value,
                    "source": share.quota.source,
                    "amount": share.amount,
                }
                for share in self.shares
            ],
        }


def shares_of(pools: Iterable[UpstreamPool], facts: RegionFacts) -> tuple[PoolShares, ...]:
    """Shares of the pools of the region that ``facts`` is of."""
    mine = [pool for pool in pools if pool.region == facts.region]
    named = [
        (name, quota)
        for quota in facts.quotas
        if (name := parse_quota_name(quota.name)) is not None
    ]
    chosen: dict[str, dict[Place, Quota]] = {}
    findings: dict[str, list[str]] = {}
    for pool in mine:
        findings[pool.name] = []
        chosen[pool.name] = _choose(pool, facts, named, findings[pool.name])
    sharers = Counter(quota.code for places in chosen.values() for quota in places.values())
    return tuple(
        PoolShares(
            pool=pool.name,
            access=facts.access.get(pool.base_model, "unknown"),
            leads_to=_leads_to(pool, facts),
            findings=tuple(findings[pool.name]),
            shares=tuple(
                Share(place[0], place[1], quota, share(quota, pool, place[0], sharers[quota.code]))
                for place, quota in sorted(chosen[pool.name].items())
            ),
        )
        for pool in mine
    )


def share(quota: Quota, pool: UpstreamPool, dimension: QuotaDimension, sharers: int) -> int:
    """Calls or tokens per window, rounded down."""
    amount = Fraction(quota.value) * (100 - pool.headroom_percent) / 100 / sharers
    if dimension == "total_tokens":
        amount /= pool.output_burndown
    return int(amount)


def _choose(
    pool: UpstreamPool,
    facts: RegionFacts,
    named: Iterable[tuple[QuotaName, Quota]],
    findings: list[str],
) -> dict[Place, Quota]:
    kinds = _kinds(pool, facts, findings)
    keys = keys_of(pool.base_model, facts.model_names.get(pool.base_model, ()))
    found: dict[Place, list[tuple[NameKind, Quota]]] = {}
    for name, quota in named:
        if name.kind in kinds and (name.model is None or name.model in keys):
            place = (name.dimension, name.window_seconds)
            found.setdefault(place, []).append((name.kind, quota))
    for quotas in found.values():
        of_kind = Counter(kind for kind, _ in quotas)
        if any(count > 1 for count in of_kind.values()) and "ambiguous" not in findings:
            findings.append("ambiguous")
    if not found and pool.kind != "region":
        findings.append("unmatched")
    return {
        place: min((quota for _, quota in quotas), key=lambda quota: (quota.value, quota.code))
        for place, quotas in found.items()
    }


def _kinds(pool: UpstreamPool, facts: RegionFacts, findings: list[str]) -> frozenset[NameKind]:
    if pool.kind == "region":
        return frozenset({"region"})
    kinds: set[NameKind] = {"any", pool.kind}
    for arn in pool.profile_arns:
        regions = {parse_model(model).region for model in _models(facts.profiles.get(arn, ()))}
        # What it was made of is declared; AWS knows better. Both quotas hold then.
        if pool.kind == "direct" and len(regions) > 1:
            kinds.add("cross-region")
            findings.append("profile_leads_elsewhere")
    if pool.kind != "direct" and facts.profiles and pool.model_id not in facts.profiles:
        findings.append("no_such_profile")
    return frozenset(kinds)


def _leads_to(pool: UpstreamPool, facts: RegionFacts) -> tuple[str, ...]:
    asked = (pool.model_id, *pool.profile_arns)
    return tuple(sorted({arn for one in asked for arn in facts.profiles.get(one, ())}))


def _models(arns: Iterable[str]) -> Iterable[str]:
    for arn in arns:
        try:
            parse_model(arn)
        except ValueError:
            continue
        yield arn
