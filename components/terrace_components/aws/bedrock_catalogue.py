"""What a region of Bedrock offers, the way to a model there, guardrails. No Pulumi here."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

MOST_SHOWN = 5


@dataclass(frozen=True)
class Route:
    """How a model is reached: by itself, or by a profile that spreads calls over regions."""

    profile: str | None
    """ARN of the inference profile; ``None``: the foundation model is called itself."""
    models: frozenset[str]
    """ARNs of the foundation models, one per region that a call may go to."""

    @property
    def arns(self) -> frozenset[str]:
        """Everything that a call touches."""
        return self.models if self.profile is None else self.models | {self.profile}


@dataclass(frozen=True)
class Offer:
    """Foundation models and AWS's own inference profiles of one region."""

    region: str
    models: dict[str, tuple[str, bool]]
    """Model id -> ARN, and whether it can be called by itself (on demand)."""
    profiles: dict[str, Route]
    """Profile id -> its way."""


def route_of(name: str, upstream: str, offer: Offer) -> Route:
    """The way to ``upstream`` (an id or an ARN) for the spec's model ``name``.

    Raises ``ValueError`` that names model, region and what would be right.
    """
    identifier = upstream.rpartition("/")[2]
    where = f"model {name}: {upstream} is not offered in {offer.region}"
    if identifier in offer.profiles:
        route = offer.profiles[identifier]
        if upstream not in {identifier, route.profile}:
            raise ValueError(f"{where} to this account; there it is {route.profile}")
        return route
    if identifier not in offer.models:
        raise ValueError(f"{where}; {_instead(identifier, offer)}")
    arn, on_demand = offer.models[identifier]
    if upstream not in {identifier, arn}:
        raise ValueError(f"{where}; there it is {arn}")
    if on_demand:
        return Route(profile=None, models=frozenset({arn}))
    through = sorted(
        profile
        for profile, route in offer.profiles.items()
        if any(model.endswith(f"/{identifier}") for model in route.models)
    )
    raise ValueError(
        f"{where} on demand, only through an inference profile; set upstream_model to "
        + (" or ".join(through) if through else "a profile of your own (there is none of AWS's)")
    )


def through_profile(name: str, region: str, profile: Route) -> Route:
    """An application inference profile as AWS described it.

    Raises ``ValueError`` if it can not be called.
    """
    if profile.profile is None or not profile.models:
        raise ValueError(
            f"model {name}: its application inference profile in {region} is not active, or leads"
            " to no model"
        )
    return profile


def guardrail_arn(name: str, identifier: str, region: str, partition: str, account: str) -> str:
    """ARN of the spec's guardrail ``name``, whose ``identifier`` is an id of ``account`` or an ARN.

    Raises ``ValueError`` for an ARN of another partition than the account's.
    """
    if not identifier.startswith("arn:"):
        return f"arn:{partition}:bedrock:{region}:{account}:guardrail/{identifier}"
    given = identifier.split(":")[1]
    if given != partition:
        raise ValueError(
            f"guardrail {name}: {identifier} is of partition {given}, and this account of"
            f" {partition}"
        )
    return identifier


def _instead(identifier: str, offer: Offer) -> str:
    base = identifier.rpartition(".")[2]
    offered = sorted(
        [*offer.profiles, *(m for m, (_, on_demand) in offer.models.items() if on_demand)]
    )
    same = [other for other in offered if base in other]
    near = same or difflib.get_close_matches(identifier, offered, n=MOST_SHOWN, cutoff=0.5)
    if near:
        return f"there it is {_few(near)}"
    vendor = [other for other in offered if identifier.partition(".")[0] in other.split(".")]
    return f"offered there: {_few(vendor or offered) or 'nothing'}"


def _few(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - MOST_SHOWN} more" if len(listed) > MOST_SHOWN else ""
    return ", ".join(listed[:MOST_SHOWN]) + more
