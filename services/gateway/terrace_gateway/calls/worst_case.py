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
    images, tokens_per_image = upstream.image_count, candidate.model.max_tokens_per_image
    tokens = upstream.bound_bytes + defaults.reservation_overhead_tokens
    tokens += images * (tokens_per_image or 0)
    output = max(upstream.max_output_tokens, upstream.least_output_tokens)
    try:
        money = candidate.quote.worst_case(
            input_tokens=tokens,
            output_tokens=output,
            images=images,
            tokens_per_image=tokens_per_image,
            cache_writes=upstream.cache_writes,
        )
    except UnpricedError as error:
        raise ApiError(
            UNPRICED,
            f"{candidate.model.name} has no price for {error.feature}",
            param="model",
        ) from None
    return Amounts(tokens, output, money)
