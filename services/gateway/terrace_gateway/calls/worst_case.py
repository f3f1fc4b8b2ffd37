"""What one upstream call can cost at most: its reservation."""

from terrace_common.prices import UnpricedError
from terrace_gateway.calls.ports import Amounts
from terrace_gateway.edge.errors import UNPRICED, ApiError
from terrace_gateway.matching import Candidate
from terrace_gateway.policy.snapshot import Snapshot
from terrace_gateway.surfaces.upstream_request import UpstreamRequest


def worst_case(candidate: Candidate, upstream: UpstreamRequest, snapshot: Snapshot) -> Amounts:
    """What the call can cost at most. Raises ``ApiError`` if the price book cannot say."""
    if upstream.free:
        return Amounts(0, 0, 0)
    defaults = snapshot.governance.defaults
    tokens = upstream.bound_bytes + defaults.reservation_overhead_tokens
    if upstream.image_count:
        tokens += upstream.image_count * _tokens_per_image(candidate)
    output = max(upstream.max_output_tokens, upstream.least_output_tokens)
    try:
        money = candidate.quote.worst_case(
            input_tokens=tokens,
            output_tokens=output,
            images=upstream.image_count,
            cache_writes=upstream.cache_writes,
        )
    except UnpricedError as error:
        raise ApiError(
            UNPRICED,
            f"{candidate.model.name} has no price for {error.feature}",
            param="model",
        ) from None
    return Amounts(tokens, output, money)


def _tokens_per_image(candidate: Candidate) -> int:
    most = candidate.model.max_tokens_per_image
    if most is None:
        raise ApiError(
            UNPRICED,
            f"{candidate.model.name} does not say what an image costs at most",
            param="model",
        )
    return most
