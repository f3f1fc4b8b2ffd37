"""Where a request ends. It must be where every proxy before this guard says, or what one client
sends is read as another's request.
"""

import asyncio
from collections.abc import Sequence

import httptools

_LENGTHS = (b"content-length", b"transfer-encoding")


class FramingError(Exception):
    """A request whose end readers may disagree on. httptools makes a 400 of it."""


def check_framing(
    headers: Sequence[tuple[bytes, bytes]], parser: httptools.HttpRequestParser
) -> None:
    """What llhttp leaves to us: ``chunked`` once and alone, of HTTP/1.1 (RFC 9112, 6.1 and 6.3).

    Names in lower case. Raises ``FramingError``.
    """
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    if not codings:
        return
    if len(codings) > 1 or codings[0].strip().lower() != b"chunked":
        raise FramingError
    if parser.get_http_version() != "1.1":
        raise FramingError


def behind_head(
    protocol: asyncio.Protocol, headers: Sequence[tuple[bytes, bytes]]
) -> tuple[httptools.HttpRequestParser, bytes]:
    """A parser that goes on behind the head of a request which offers an upgrade, and what to feed
    it first: a head of the same length and nothing else.

    RFC 9110, 7.8: a server may ignore an upgrade. httptools cannot: it takes the message as
    complete, and its body for the next request.
    """
    parser = httptools.HttpRequestParser(protocol)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
    lengths = b"".join(
        name + b": " + value + b"\r\n" for name, value in headers if name in _LENGTHS
    )
    return parser, b"POST / HTTP/1.1\r\n" + lengths + b"\r\n"
