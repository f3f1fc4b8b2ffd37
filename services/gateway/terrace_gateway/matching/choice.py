"""The cheapest models of a pool that fit: the loop over a catalogue that every ``auto`` pays; and
who is sent to a canary."""

import hashlib
from bisect import insort
from collections.abc import Callable, Iterable, Sequence

from terrace_gateway.matching.deployments import Deployment
from terrace_gateway.matching.judgement import Ask, input_size, least_output

Ranked = tuple[int, int, Deployment]
"""Exact cost (``Deployment.weigh``), place in the catalogue, model."""


def by_input_rate(deployments: Iterable[Deployment]) -> list[Deployment]:
    """A pool in the order that ``cheapest_that_fit`` needs."""
    return sorted(deployments, key=lambda one: (one.steps[0][1], one.index))


def cheapest_that_fit(
    pool: Sequence[Deployment],
    ask: Ask,
    *,
    strict: bool,
    most: int,
    passes: Callable[[Deployment], bool] | None,
) -> tuple[list[Ranked], dict[str, str]]:
    """At most ``most`` models for which ``size_reason`` has nothing to say and ``passes`` is true,
    the cheapest first; and why the others that were looked at are out, as far as it is their size.

    Ends as soon as the input alone costs more at every model that is left: rates only rise along
    the pool, and from tier to tier.
    """
    size, least = input_size(ask, strict=strict), least_output(ask, strict=strict)
    estimated, limit = ask.estimated_input, ask.output_limit
    wanted = min(ask.wanted_output, limit)
    capped = limit < least
    best: list[Ranked] = []
    dearest: int | None = None  # of the best, once there are enough
    out: dict[str, str] = {}
    for one in pool:
        steps = one.steps
        if dearest is not None and estimated * steps[0][1] > dearest:
            break
        most_output = one.most_output
        if most_output and (capped or most_output < least):
            out[one.name] = "output"
            continue
        output = most_output if most_output < wanted else wanted
        if size + output > one.context:
            out[one.name] = "context"
            continue
        cost = one.weigh(estimated, output)
        if dearest is not None and cost > dearest:
            continue
        if passes is not None and not passes(one):
            continue
        insort(best, (cost, one.index, one))
        if len(best) >= most:
            del best[most:]
            dearest = best[-1][0]
    return best, out


def falls_to_canary(share: str, model: str, percent: int) -> bool:
    """Whether this session or request is of the share that the canary of ``model`` takes: the same
    answer for the same text, in every replica."""
    digest = hashlib.blake2b(f"{model}\0{share}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") * 100 < percent << 64
