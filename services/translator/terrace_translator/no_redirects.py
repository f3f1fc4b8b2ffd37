"""No client in this process follows a redirect.

A redirect that is followed is a call that the guard has neither reserved nor recorded, and it takes
a prompt to a host that nobody named. LiteLLM and the SDKs ask for it call by call
(``follow_redirects=True``), so it is taken away where every such wish ends: in what the client
libraries ask an answer, or are asked for. A 3xx then is an answer like any other.
"""

import asyncio
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

PATH = "/redirects"
"""Where ``prove`` wants a 307 to elsewhere."""


def _nowhere(*_: object) -> None:
    """Nowhere, and false."""


# What each library reads to learn whether, and where to, it is redirected: (class, attribute).
_ASKED: dict[str, tuple[tuple[str, str, Any], ...]] = {
    "httpx": (("Response", "has_redirect_location", property(_nowhere)),),
    "httpx2": (("Response", "has_redirect_location", property(_nowhere)),),
    "requests.sessions": (("SessionRedirectMixin", "get_redirect_target", _nowhere),),
    "urllib3.response": (("BaseHTTPResponse", "get_redirect_location", _nowhere),),
}


class RedirectsError(Exception):
    """A client library is not built as it was: it may follow redirects."""


def forbid() -> None:
    """Take it away from every client library that is installed. Raises ``RedirectsError``."""
    for module, attributes in _ASKED.items():
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            continue
        for owner, name, replacement in attributes:
            found = getattr(importlib.import_module(module), owner, None)
            if found is None or name not in vars(found):
                raise RedirectsError(f"{module}.{owner}.{name} is not there any more")
            setattr(found, name, replacement)
    session = importlib.import_module("aiohttp").ClientSession
    if "_request" not in vars(session):
        raise RedirectsError("aiohttp.ClientSession._request is not there any more")
    session._request = _never_redirected(session._request)


def _never_redirected(request: Callable[..., Any]) -> Callable[..., Any]:
    def asked_once(*args: Any, **kwargs: Any) -> Any:
        kwargs["allow_redirects"] = False
        return request(*args, **kwargs)

    return asked_once


async def prove(address: str) -> None:
    """Ask every library for what is at ``address``, which answers ``PATH`` with a 307, with the
    wish to follow. Raises ``RedirectsError``."""
    url = address + PATH
    statuses = {"aiohttp": await _with_aiohttp(url)}
    for module in ("httpx", "httpx2"):
        if importlib.util.find_spec(module) is not None:
            library = importlib.import_module(module)
            wish = {"follow_redirects": True, "verify": False, "trust_env": False}
            async with library.AsyncClient(**wish) as client:
                statuses[f"{module}, async"] = (await client.post(url)).status_code
            statuses[module] = await asyncio.to_thread(_with_httpx, library.Client(**wish), url)
    if importlib.util.find_spec("requests") is not None:
        statuses["requests"] = await asyncio.to_thread(_with_requests, url)
    if importlib.util.find_spec("urllib3") is not None:
        statuses["urllib3"] = await asyncio.to_thread(_with_urllib3, url)
    if followed := sorted(name for name, status in statuses.items() if status != 307):
        raise RedirectsError(f"redirects are followed by {', '.join(followed)}")


async def _with_aiohttp(url: str) -> int:
    async with (
        importlib.import_module("aiohttp").ClientSession() as session,
        session.post(url, allow_redirects=True) as answer,
    ):
        return answer.status


def _with_httpx(client: Any, url: str) -> int:
    with client:
        return client.post(url).status_code


def _with_requests(url: str) -> int:
    with importlib.import_module("requests").Session() as session:
        session.trust_env = False
        return session.post(url, timeout=30).status_code


def _with_urllib3(url: str) -> int:
    with importlib.import_module("urllib3").PoolManager() as pool:
        return pool.request("POST", url, retries=1, timeout=30).status
