"""What the provider itself said, in a header of our own: the guard's proof that a call was free.

LiteLLM answers 400 or 422 of its own, too: to a 200 that it cannot read, to an error in a stream
that had begun. So the statuses are taken where they come off the wire, below LiteLLM.

``x-terrace-upstream-status`` has the statuses of the call's answers in the order of asking
(``lost``: none came), a 5xx with `` json`` behind it if its body says that it is JSON, or ``none``:
provably, nothing was sent. Without it nothing is known.

``x-terrace-upstream-input-tokens`` is what Bedrock counted, if it answered the call's one request:
of embeddings LiteLLM makes up a count where the body has none.
"""

import importlib
import importlib.util
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any

HEADER = b"x-terrace-upstream-status"
INPUT_TOKENS = b"x-terrace-upstream-input-tokens"
_COUNTED = "x-amzn-bedrock-input-token-count"
_OURS = (HEADER, INPUT_TOKENS)
_LOST = "lost"

App = Callable[[Any, Any, Any], Awaitable[None]]
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


class UpstreamStatusError(Exception):
    """A client library is not built as it was: what it is answered would not be seen."""


class _Calls:
    """What one call of the guard has sent, and was answered."""

    __slots__ = ("_elsewhere_before", "answers", "input_tokens")

    def __init__(self) -> None:
        self.answers: list[str] = []
        self.input_tokens: str | None = None
        self._elsewhere_before = _elsewhere.requests

    def headers(self) -> list[tuple[bytes, bytes]]:
        """What is told of it."""
        found: list[tuple[bytes, bytes]] = []
        status, counted = self._status(), self.input_tokens or ""
        if status is not None:
            found.append((HEADER, status))
        if counted.isascii() and counted.isdigit() and len(self.answers) == 1:
            found.append((INPUT_TOKENS, counted.encode()))
        return found

    def _status(self) -> bytes | None:
        if self.answers:
            return ", ".join(self.answers).encode()
        # A request that nobody can be named for might have been this call's.
        return b"none" if _elsewhere.requests == self._elsewhere_before else None


class _Elsewhere:
    """Requests outside of any call, and those that are no model's (botocore's for credentials)."""

    requests = 0


_elsewhere = _Elsewhere()
_calls: ContextVar[_Calls | None] = ContextVar("terrace_upstream_calls", default=None)


def watch() -> None:
    """See every answer from now on. Raises ``UpstreamStatusError``."""
    _replace("aiohttp", "ClientSession", "_request", _awaited("status"))
    for module in ("httpx", "httpx2"):
        if importlib.util.find_spec(module) is not None:
            _replace(module, "AsyncHTTPTransport", "handle_async_request", _awaited("status_code"))
            _replace(module, "HTTPTransport", "handle_request", _plain)
    if importlib.util.find_spec("urllib3") is not None:
        _replace("urllib3.connectionpool", "HTTPConnectionPool", "urlopen", _counted)


def telling(app: App) -> App:
    """``app`` with the headers on each of its answers; what a provider sent by their names is not
    passed on."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        calls = _Calls()
        _calls.set(calls)

        def tell(message: Any) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                headers = [pair for pair in message["headers"] if pair[0].lower() not in _OURS]
                message = {**message, "headers": [*headers, *calls.headers()]}
            return send(message)

        await app(scope, receive, tell)

    return serve


def _replace(module: str, owner: str, name: str, wrap: Wrap) -> None:
    found: Any = getattr(importlib.import_module(module), owner, None)
    if name not in getattr(found, "__dict__", ()):
        raise UpstreamStatusError(f"{module}.{owner}.{name} is not there any more")
    setattr(found, name, wrap(getattr(found, name)))


Answered = Callable[[int, Mapping[str, str]], None]


def _asked() -> Answered:
    """To be called when a request is about to be sent; what it gives, with the answer's status and
    headers."""
    calls = _calls.get()
    if calls is None:
        _elsewhere.requests += 1
        return _nobody
    answers, place = calls.answers, len(calls.answers)
    answers.append(_LOST)

    def answered(status: int, headers: Mapping[str, str]) -> None:
        answers[place] = _told(status, headers)
        calls.input_tokens = headers.get(_COUNTED)

    return answered


def _told(status: int, headers: Mapping[str, str]) -> str:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    return f"{status} json" if status >= 500 and kind == "application/json" else str(status)


def _nobody(_: int, __: Mapping[str, str]) -> None:
    """An answer that is nobody's."""


def _awaited(status: str) -> Wrap:
    def wrap(send: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def sent(*args: Any, **kwargs: Any) -> Any:
            answered = _asked()
            answer = await send(*args, **kwargs)
            answered(getattr(answer, status), answer.headers)
            return answer

        return sent

    return wrap


def _plain(send: Callable[..., Any]) -> Callable[..., Any]:
    def sent(*args: Any, **kwargs: Any) -> Any:
        answered = _asked()
        answer = send(*args, **kwargs)
        answered(answer.status_code, answer.headers)
        return answer

    return sent


def _counted(send: Callable[..., Any]) -> Callable[..., Any]:
    def sent(*args: Any, **kwargs: Any) -> Any:
        _elsewhere.requests += 1
        return send(*args, **kwargs)

    return sent
