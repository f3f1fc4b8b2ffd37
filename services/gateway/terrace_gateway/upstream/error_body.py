"""The body of an error answer, in bounded time and memory."""

import asyncio

from terrace_gateway.upstream.http_connection import ConnectionBrokenError, HttpConnection

ERROR_BODY_SECONDS = 2
MAX_ERROR_BYTES = 64 * 1024


async def error_body(connection: HttpConnection) -> bytes:
    """The body; empty if it is large, late or broken."""
    body = bytearray()
    try:
        async with asyncio.timeout(ERROR_BODY_SECONDS):
            async for data in connection.body():
                body += data
                if len(body) > MAX_ERROR_BYTES:
                    return b""
    except (TimeoutError, ConnectionBrokenError):
        return b""
    return bytes(body)
