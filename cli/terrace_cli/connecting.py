"""Connecting to what runs in a cluster: a refused connection is tried again.

A cluster's packet filter is written anew with every change of a pod, and refuses new connections
for some hundredths of a second meanwhile (kube-router does, on this machine). What was refused was
never sent, so trying again repeats no call. Nothing else is tried again: a connection that takes
too long has had its time.
"""

import time
from collections.abc import Callable
from typing import TypeVar

import httpx

PAUSES_SECONDS = (0.1, 0.4, 1.0)
"""Before the second, third and last try."""

T = TypeVar("T")


def again_while_refused(call: Callable[[], T]) -> T:
    """What ``call`` returns, or what it raises last. For a call of one connection, of any client
    that names the refusal as the cause of its own error."""
    for pause in PAUSES_SECONDS:
        try:
            return call()
        except Exception as error:
            if not _is_refusal(error):
                raise
        time.sleep(pause)
    return call()


def patient_transport() -> httpx.BaseTransport:
    """For an ``httpx.Client``. It knows no proxy of the environment."""
    return _PatientTransport()


class _PatientTransport(httpx.HTTPTransport):
    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """See ``httpx.BaseTransport``."""
        send = super().handle_request
        return again_while_refused(lambda: send(request))


def _is_refusal(error: BaseException | None) -> bool:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, ConnectionRefusedError):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False
