"""One call as the parts of the pipeline hand it to each other."""

from collections.abc import Mapping

from terrace_gateway.calls.attempt import Exchange
from terrace_gateway.calls.conversation import Conversation
from terrace_gateway.calls.ports import Principal
from terrace_gateway.edge.client import Client, Headers
from terrace_gateway.edge.errors import ApiError
from terrace_gateway.frozen import frozen
from terrace_gateway.guardrails.chain import GuardrailRun
from terrace_gateway.policy.snapshot import Snapshot
from terrace_gateway.surfaces.request import SurfaceRequest


class CandidateFailedError(Exception):
    """The candidate did not serve the call; ``error`` is for the client if there is no other."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.code)
        self.error = error


@frozen
class Call:
    """An admitted request."""

    request_id: str
    principal: Principal
    snapshot: Snapshot
    request: SurfaceRequest
    hints: Mapping[str, str]
    bedrock_only: bool
    address: str
    """Of its client, as policies see it."""
    headers: Headers
    """What the edge adds to the answer."""


@frozen
class Serving:
    """A call that is being served."""

    call: Call
    exchange: Exchange
    run: GuardrailRun
    conversation: Conversation
    client: Client
