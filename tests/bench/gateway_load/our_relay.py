"""Our relay without the guard's decisions: dispatch, bulkhead, relay and usage, on raw ASGI."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send

from terrace_gateway.edge.client import LEAVING, Client
from terrace_gateway.edge.http_limits import bounded_protocol
from terrace_gateway.surfaces.upstream_request import UpstreamRequest
from terrace_gateway.upstream.bulkhead import BulkheadLimits, Bulkheads
from terrace_gateway.upstream.credentials import Credentials
from terrace_gateway.upstream.dispatch import Dispatch
from terrace_gateway.upstream.relay import Relay, RelayProvider, RelaySettings
from terrace_gateway.upstream.relay_stream import RelayChatStream, relay_usage
from terrace_gateway.upstream.translator import Translator


@dataclass(frozen=True)
class Towards:
    provider: str = "bench"


class App:
    def __init__(self, api_base: str) -> None:
        relay = Relay(Credentials(Path("/nowhere"), {"KEY": "k"}), RelaySettings())
        relay.apply([RelayProvider("bench", api_base, "KEY")])
        nowhere = Path("/nowhere")
        self.dispatch = Dispatch(Translator(nowhere, nowhere), relay, Bulkheads(BulkheadLimits()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving = scope["extensions"][LEAVING]
        client = Client(receive, send, request_id="req_bench", leaving=leaving)

        body = await client.read_body(limit=4_000_000, seconds=30, free=65_536, grow=lambda _: None)
        client.watch()
        request = UpstreamRequest("/v1/chat/completions", body, len(body), 100, relayed=True)
        stream = json.loads(body).get("stream")
        async with self.dispatch.call(request, Towards()) as response:
            kind = [(b"content-type", response.headers["content-type"].encode())]
            if not stream:
                whole = b"".join([data async for data in response.chunks()])
                relay_usage(whole)
                await client.respond(200, kind, whole)
                client.unwatch()
                return
            await client.start(200, kind)
            scan = RelayChatStream(include_usage=False)
            async for data in response.chunks():
                if passed := scan.feed(data):
                    await client.write(passed)
            assert scan.usage is not None
            await client.finish(scan.ending())
            client.unwatch()


async def main(port: int, api_base: str) -> None:
    protocol = bounded_protocol(max_connections=1000, head_seconds=20, stalled_seconds=120)
    config = uvicorn.Config(
        App(api_base), host="127.0.0.1", port=port, http=protocol, loop="none", lifespan="off",
        ws="none", access_log=False, server_header=False, log_level="error",
    )  # fmt: skip
    await uvicorn.Server(config).serve()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), sys.argv[2]))
