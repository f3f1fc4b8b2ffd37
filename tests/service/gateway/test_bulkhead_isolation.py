"""One provider hangs; what another provider's calls wait for stays the same."""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from gateway_rig.relay_upstream import RawUpstream, Wire, plain, relay_request

from terrace_gateway.upstream.bulkhead import BulkheadLimits, Bulkheads
from terrace_gateway.upstream.credentials import Credentials
from terrace_gateway.upstream.dispatch import Dispatch
from terrace_gateway.upstream.port import BulkheadFullError, NotSentError
from terrace_gateway.upstream.relay import Relay, RelayProvider, RelaySettings
from terrace_gateway.upstream.translator import Translator


@dataclass(frozen=True)
class To:
    provider: str


async def test_hanging_provider_slows_no_other_one() -> None:
    never = asyncio.Event()

    async def hangs(_: Wire) -> None:
        await never.wait()

    async def works(wire: Wire) -> None:
        await wire.send(plain(b"{}"))

    async with RawUpstream(hangs).running() as slow, RawUpstream(works).running() as quick:
        relay = Relay(Credentials(Path("/nowhere"), {"KEY": "k"}), RelaySettings())
        relay.apply(
            [
                RelayProvider("slow", f"http://localhost:{slow.port}/v1", "KEY"),
                RelayProvider("quick", f"http://localhost:{quick.port}/v1", "KEY"),
            ]
        )
        nowhere = Path("/nowhere")
        bulkheads = Bulkheads(BulkheadLimits(places=4, queue=4, wait_seconds=0.05))
        dispatch = Dispatch(Translator(nowhere, nowhere), relay, bulkheads)

        async def call(provider: str) -> int:
            async with dispatch.call(relay_request(), To(provider)) as response:
                return len([data async for data in response.chunks()])

        hanging = [asyncio.create_task(call("slow")) for _ in range(40)]
        while len(slow.book) < 4:
            await asyncio.sleep(0.01)
        # No call to the other one ever queues: its distribution cannot move with the slow one's.
        for _ in range(100):
            assert bulkheads.of("quick").has_room
            await call("quick")
            assert bulkheads.of("quick").waiting == 0
        assert bulkheads.of("quick").refused == 0
        assert len(quick.book) == 100
        done, still = await asyncio.wait(hanging, timeout=2)
        assert len(still) == 4
        assert all(isinstance(task.exception(), BulkheadFullError) for task in done)
        assert len(slow.book) == 4  # the others were provably not sent
        for task in still:
            task.cancel()
        await asyncio.gather(*still, return_exceptions=True)
        never.set()
        assert bulkheads.of("slow").running == 0
        await dispatch.close()


async def test_the_way_of_a_call_is_the_one_that_its_body_was_made_for() -> None:
    async def works(wire: Wire) -> None:
        await wire.send(plain(b"{}"))

    async with RawUpstream(works).running() as provider:
        relay = Relay(Credentials(Path("/nowhere"), {"KEY": "k"}), RelaySettings())
        served = RelayProvider("one", f"http://localhost:{provider.port}/v1", "KEY")
        nowhere = Path("/nowhere")
        bulkheads = Bulkheads(BulkheadLimits())
        dispatch = Dispatch(Translator(nowhere, nowhere), relay, bulkheads)
        for routes, request, why in (
            ([served], replace(relay_request(), relayed=False), "the client is not open"),
            ([], relay_request(), "the provider is not relayed"),
        ):
            relay.apply(routes)
            with pytest.raises(NotSentError, match=why):
                async with dispatch.call(request, To("one")):
                    pass
        assert not provider.book
