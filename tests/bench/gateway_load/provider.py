"""A provider that costs little: canned chat completions, plain and streamed, over HTTP/1.1."""

import asyncio
import json
import sys
from typing import Any

import httptools
import uvloop

USAGE = {"prompt_tokens": 9, "completion_tokens": 20, "total_tokens": 29}


def chunk(index: int, *, last: bool = False) -> bytes:
    delta = {} if last else {"content": f" word{index}"}
    choice = {"index": 0, "delta": delta, "finish_reason": "stop" if last else None}
    body = {
        "id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1,
        "model": "bench", "choices": [choice], "usage": None,
    }  # fmt: skip
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def framed(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


MESSAGE: dict[str, Any] = {"role": "assistant", "content": " word" * 20}
PLAIN = json.dumps(
    {
        "id": "chatcmpl-bench", "object": "chat.completion", "created": 1, "model": "bench",
        "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}], "usage": USAGE,
    }
).encode()  # fmt: skip
ENDING = [
    chunk(0, last=True),
    b"data: " + json.dumps(
        {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1, "model": "bench",
         "choices": [], "usage": USAGE}
    ).encode() + b"\n\n",
    b"data: [DONE]\n\n",
]  # fmt: skip


class Provider(asyncio.Protocol):
    """One connection."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)
        self.body = self.url = b""

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.url = url

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        if self.url.startswith(b"/health"):  # in the translator's place it is asked for its health
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
            return
        asked = json.loads(self.body) if self.body else {}
        self.body = b""
        if not asked.get("stream"):
            head = (
                f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(PLAIN)}"
            )
            self.transport.write(head.encode() + b"\r\n\r\n" + PLAIN)
            return
        count = int(str(asked["messages"][0]["content"]).partition(":")[2] or 20)
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        self.task = asyncio.get_running_loop().create_task(self.stream(count))

    async def stream(self, count: int) -> None:
        for index in range(count):
            self.transport.write(framed(chunk(index)))
            await asyncio.sleep(0.0005)  # each chunk a read of its own, as from a model
        for event in ENDING:
            self.transport.write(framed(event))
        self.transport.write(b"0\r\n\r\n")


async def serve(place: str) -> None:
    """On a TCP port, or on a Unix socket in the translator's place."""
    loop = asyncio.get_running_loop()
    if place.isdigit():
        server = await loop.create_server(Provider, "127.0.0.1", int(place))
    else:
        server = await loop.create_unix_server(Provider, place)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
