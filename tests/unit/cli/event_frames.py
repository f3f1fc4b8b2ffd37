"""AWS event-stream frames: prelude, headers, payload, each part with its CRC-32."""

import json
import struct
import zlib
from typing import Any


def frame(event: str, payload: dict[str, Any]) -> bytes:
    """One `event` message with a JSON payload."""
    headers = b"".join(
        struct.pack("!B", len(name)) + name + b"\x07" + struct.pack("!H", len(value)) + value
        for name, value in (
            (b":event-type", event.encode()),
            (b":content-type", b"application/json"),
            (b":message-type", b"event"),
        )
    )
    body = json.dumps(payload).encode()
    prelude = struct.pack("!II", 16 + len(headers) + len(body), len(headers))
    head = prelude + struct.pack("!I", zlib.crc32(prelude)) + headers + body
    return head + struct.pack("!I", zlib.crc32(head))
