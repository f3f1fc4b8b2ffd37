"""Which way an upstream call goes: to the relay or to the translator, past its bulkhead."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from terrace_common.governance import Governance, OpenAIProvider
from terrace_gateway.surfaces.upstream_request import UpstreamRequest
from terrace_gateway.upstream.bulkhead import Bulkheads
from terrace_gateway.upstream.port import BeforeSend, Target, UpstreamResponse, send_at_once
from terrace_gateway.upstream.relay import Relay, RelayProvider
from terrace_gateway.upstream.translator import Translator

RELAYED = frozenset({"chat", "completions", "embeddings"})
"""Surfaces that every OpenAI-compatible upstream has. Anything else is translated."""


class Dispatch:
    """The one ``Upstream`` of the guard."""

    def __init__(self, translator: Translator, relay: Relay, bulkheads: Bulkheads) -> None:
        self._translator = translator
        self._relay = relay
        self._bulkheads = bulkheads

    def prepare(self, governance: Governance) -> Callable[[], None]:
        """Ways to the providers of ``governance``; what is returned puts them in force. Raises
        ``ValueError`` for a URL that cannot be called."""
        providers = [p for p in governance.providers if isinstance(p, OpenAIProvider)]
        routes = self._relay.prepare(
            [RelayProvider(p.name, p.api_base, p.api_key_env) for p in providers if p.relay]
        )
        places = {p.name: p.max_concurrent for p in governance.providers if p.max_concurrent}

        def switch() -> None:
            routes()
            self._bulkheads.set_places(places)

        return switch

    def is_relay(self, provider: str, surface: str) -> bool:
        """Whether calls of the surface to the provider pass untouched, without the translator. To
        be asked once for a call: its ``UpstreamRequest.relayed`` says what its body was made for.
        """
        return surface in RELAYED and self._relay.serves(provider)

    def has_room(self, provider: str) -> bool:
        """Whether the provider's bulkhead would let a call in now."""
        return self._bulkheads.of(provider).has_room

    @asynccontextmanager
    async def call(
        self, request: UpstreamRequest, target: Target, before_send: BeforeSend = send_at_once
    ) -> AsyncGenerator[UpstreamResponse]:
        """Make the one call, the way that the request was made for. Raises ``NotSentError``
        (``BulkheadFullError`` is one) or ``UpstreamLostError``."""
        bulkhead = self._bulkheads.of(target.provider)
        await bulkhead.enter()
        try:
            if request.relayed:
                async with self._relay.call(request, target, before_send) as relayed:
                    yield relayed
            else:
                async with self._translator.call(request, before_send) as response:
                    yield response
        finally:
            bulkhead.leave()

    async def close(self) -> None:
        """Close what the relay holds; the translator is closed by who opened it."""
        await self._relay.close()
