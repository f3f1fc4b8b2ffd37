"""What a call can be sent to, as the pipeline sees it: one request out, one answer in, no retry."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from terrace_gateway.surfaces.upstream_request import UpstreamRequest

BeforeSend = Callable[[], Awaitable[None]]
"""Awaited once, with a place and a connection at hand, right before the first byte is handed to the
network. What it raises ends the call unsent; once it has returned the call counts as sent, if no
``NotSentError`` says otherwise."""


async def send_at_once() -> None:
    """A ``BeforeSend`` that has nothing to say."""


class NotSentError(Exception):
    """Provably, not one byte of the request reached the upstream: it costs nothing."""


class UpstreamLostError(Exception):
    """The connection broke after the request may have been sent: its cost is unknown."""


class BulkheadFullError(NotSentError):
    """The provider's share of calls is taken, and no place came free in time."""

    def __init__(self, provider: str, *, retry_after_seconds: int) -> None:
        super().__init__(f"provider {provider} has no free place")
        self.provider = provider
        self.retry_after_seconds = retry_after_seconds


class WayChangedError(NotSentError):
    """The provider is called elsewhere by the policy in force than where this call was to go."""


class Target(Protocol):
    """Where a request goes."""

    @property
    def provider(self) -> str:
        """Name of the provider in the governance spec."""
        ...


class UpstreamResponse(Protocol):
    """The head of an answer, and its body to be read once, inside of the call's ``async with``."""

    status: int
    headers: Mapping[str, str]
    """Those that a client may see; names in lower case."""
    retry_after: str | None
    request_id: str | None
    """The provider's own name for the call, for reconciliation."""
    provider_answered: bool
    """Of an error status: whether it is the provider's own refusal, which costs nothing. If not,
    it may hide a call that was lost on the way, and the cost is unknown."""

    input_tokens: int | None
    """As the provider counted them beside the answer; ``None``: it said nothing there."""

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives, without transfer coding. Raises ``UpstreamLostError``."""
        ...

    async def error_body(self) -> bytes:
        """The body of an error; empty if it is large, late or broken."""
        ...


class Upstream(Protocol):
    """A way to make upstream calls."""

    def call(
        self, request: UpstreamRequest, target: Target, before_send: BeforeSend
    ) -> AbstractAsyncContextManager[UpstreamResponse]:
        """Make exactly one upstream call.

        Raises ``NotSentError`` or ``UpstreamLostError``, also while the body is read.
        """
        ...
