"""Calls that are tried again: what waiting may heal, and nothing else."""

import http
import http.client
import urllib.error
from collections.abc import Callable
from typing import TypeVar

ATTEMPTS = 8
LONGEST_PAUSE_SECONDS = 10

_Answer = TypeVar("_Answer")


class Refused(Exception):  # noqa: N818  it is an answer, and callers name their own errors
    """No answer that counts. The message names what was asked and a status, and no content.

    ``status`` is that of an answer that another try would not change; 0 without one. ``body`` is
    that answer, for callers that look for its error code; never show it.
    """

    def __init__(self, message: str, *, status: int = 0, body: bytes = b"") -> None:
        super().__init__(message)
        self.status = status
        self.body = body


def persistently(
    once: Callable[[], _Answer],
    what: str,
    *,
    pause: Callable[[float], None],
    passing: Callable[[int, bytes], bool] = lambda _status, _body: False,
) -> _Answer:
    """The answer of ``once``, tried up to 8 times with growing pauses while the server is away,
    busy (429), failing (5xx), answers nonsense, or ``passing(status, body)`` says so.

    Raises ``Refused``.
    """
    failure = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            pause(min(2.0**attempt / 4, LONGEST_PAUSE_SECONDS))
        try:
            return once()
        except urllib.error.HTTPError as refused:
            with refused:
                body = refused.read()
            failure = f"HTTP {refused.code}"
            busy = refused.code == http.HTTPStatus.TOO_MANY_REQUESTS or refused.code >= 500
            if not busy and not passing(refused.code, body):
                raise Refused(f"{what}: {failure}", status=refused.code, body=body) from None
        except urllib.error.URLError as away:
            failure = f"{type(away.reason).__name__}: {away.reason}"
        except (OSError, http.client.HTTPException) as away:
            failure = f"{type(away).__name__}: {away}"
        except ValueError as nonsense:
            # Its text may quote what was read.
            failure = f"an answer that cannot be read ({type(nonsense).__name__})"
    raise Refused(f"{what}: no answer after {ATTEMPTS} tries ({failure})")
