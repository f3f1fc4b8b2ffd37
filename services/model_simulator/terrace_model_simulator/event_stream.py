"""Frames of the AWS event stream (``application/vnd.amazon.eventstream``).

Layout: total length, headers length, CRC32 of those eight bytes; headers; payload; CRC32 of all
before it. All numbers big-endian. Source: the AWS "event stream encoding" page of the Smithy
specification. botocore only decodes.
"""

import json
import struct
from zlib import crc32

CONTENT_TYPE = "application/vnd.amazon.eventstream"

_STRING_HEADER = 7


def event_frame(event_type: str, payload: object) -> bytes:
    """A frame that carries one JSON event."""
    return _frame(
        {
            ":event-type": event_type,
            ":content-type": "application/json",
            ":message-type": "event",
        },
        payload,
    )


def exception_frame(exception_type: str, message: str) -> bytes:
    """A frame that ends a stream with a modelled exception."""
    return _frame(
        {
            ":exception-type": exception_type,
            ":content-type": "application/json",
            ":message-type": "exception",
        },
        {"message": message},
    )


def _frame(headers: dict[str, str], payload: object) -> bytes:
    head = b"".join(
        struct.pack(f"!B{len(name)}sBH", len(name), name.encode(), _STRING_HEADER, len(value))
        + value.encode()
        for name, value in headers.items()
    )
    body = json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()
    prelude = struct.pack("!II", 16 + len(head) + len(body), len(head))
    message = prelude + struct.pack("!I", crc32(prelude)) + head + body
    return message + struct.pack("!I", crc32(message))
