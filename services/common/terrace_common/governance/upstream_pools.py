"""Pools of upstream quota: which models of a catalogue draw on one quota of Amazon Bedrock.

Bedrock counts per account, region and model as it is called (a model, or an inference profile). Two
names of the catalogue that lead to the same draw on one pool, so its caps are the pool's and not a
model's. A pool's name has a ``/``, which no name of the catalogue has:
``us-east-1/us.vendor.model``; ``us-east-1/*`` is what all models of the region share.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from terrace_common.bedrock import parse_model
from terrace_common.governance.catalogue import BedrockProvider, Model
from terrace_common.governance.spec import Governance

PoolKind = Literal["direct", "cross-region", "global", "region"]
WHOLE_REGION = "*"


@dataclass(frozen=True, slots=True)
class UpstreamPool:
    """One pool. Where its models differ, what is more careful holds."""

    name: str
    region: str
    kind: PoolKind
    model_id: str
    """As Bedrock is asked for it, without the rest of an ARN; ``*`` for the whole region."""
    base_model: str
    """Id of the foundation model; ``*`` for the whole region."""
    models: tuple[str, ...]
    """Names of the catalogue that draw on it."""
    headroom_percent: int
    """Left to others who call with the same account."""
    output_burndown: int
    """An output token counts so many times against quotas on tokens."""
    profile_arns: tuple[str, ...] = ()
    """Application inference profiles among its models, whose way only AWS knows."""


def upstream_pools(governance: Governance, *, simulated: bool = False) -> tuple[UpstreamPool, ...]:
    """The pools of the catalogue's Bedrock providers by name. ``simulated``: of providers with an
    ``endpoint`` of their own as well, which AWS knows nothing of."""
    found: dict[str, UpstreamPool] = {}
    for model in governance.models:
        provider = governance.provider_of(model)
        if isinstance(provider, BedrockProvider) and (simulated or provider.endpoint is None):
            for pool in _pools(model, provider):
                known = found.get(pool.name)
                found[pool.name] = pool if known is None else _together(known, pool)
    return tuple(found[name] for name in sorted(found))


def pool_names(governance: Governance) -> Mapping[str, tuple[str, ...]]:
    """Name of a model -> names of the pools that it draws on; Bedrock's models only."""
    names: dict[str, tuple[str, ...]] = {}
    for model in governance.models:
        provider = governance.provider_of(model)
        if isinstance(provider, BedrockProvider):
            names[model.name] = tuple(pool.name for pool in _pools(model, provider))
    return names


def _pools(model: Model, provider: BedrockProvider) -> tuple[UpstreamPool, UpstreamPool]:
    asked = parse_model(model.upstream_model)
    arns: tuple[str, ...] = ()
    if asked.base_model is None:  # an application inference profile draws on what it was made of
        arns = (model.upstream_model,)
        asked = parse_model(model.base_model or model.upstream_model)
    kind: PoolKind = "direct"
    if asked.geography is not None:
        kind = "global" if asked.geography == "global" else "cross-region"
    headroom = model.upstream_headroom_percent
    if headroom is None:
        headroom = provider.upstream_headroom_percent

    def pool(kind: PoolKind, model_id: str, base: str, arns: tuple[str, ...]) -> UpstreamPool:
        return UpstreamPool(
            name=f"{provider.region}/{model_id}",
            region=provider.region,
            kind=kind,
            model_id=model_id,
            base_model=base,
            models=(model.name,),
            headroom_percent=headroom,
            output_burndown=model.output_burndown,
            profile_arns=arns,
        )

    return (
        pool(kind, asked.name, asked.base_model or asked.name, arns),
        pool("region", WHOLE_REGION, WHOLE_REGION, ()),
    )


def _together(first: UpstreamPool, second: UpstreamPool) -> UpstreamPool:
    return UpstreamPool(
        name=first.name,
        region=first.region,
        kind=first.kind,
        model_id=first.model_id,
        base_model=first.base_model,
        models=(*first.models, *second.models),
        headroom_percent=max(first.headroom_percent, second.headroom_percent),
        output_burndown=max(first.output_burndown, second.output_burndown),
        profile_arns=(*first.profile_arns, *second.profile_arns),
    )
