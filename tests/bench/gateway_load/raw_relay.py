"""The yardstick: a relay of Starlette and aiohttp that decides and records nothing."""

import contextlib
import sys
from collections.abc import AsyncIterator

import aiohttp
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

upstream = sys.argv[2]


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    async with aiohttp.ClientSession() as session:
        app.state.session = session
        yield


async def relay(request: Request) -> Response:
    body = await request.body()
    headers = {"authorization": "Bearer k", "content-type": "application/json"}
    answer = await request.app.state.session.post(upstream, data=body, headers=headers)
    kind = answer.headers["content-type"]

    async def chunks() -> AsyncIterator[bytes]:
        async with answer:
            async for data in answer.content.iter_any():
                yield data

    return StreamingResponse(chunks(), answer.status, media_type=kind)


app = Starlette(routes=[Route("/v1/chat/completions", relay, methods=["POST"])], lifespan=lifespan)

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), access_log=False, log_level="error")
