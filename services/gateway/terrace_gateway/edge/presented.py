"""What a request shows about its caller, in the header that each SDK sends it in."""

from collections.abc import Sequence

from terrace_gateway.authentication.keys import bearer_token
from terrace_gateway.edge.errors import INVALID_API_KEY, INVALID_REQUEST, ApiError

_AUTHORIZATION = "authorization"
CREDENTIAL_HEADERS = (_AUTHORIZATION, "x-api-key", "api-key")


def presented_token(pairs: Sequence[tuple[str, str]]) -> str | None:
    """The key or token: ``Authorization: Bearer`` (OpenAI, Bedrock), ``x-api-key`` (Anthropic) or
    ``api-key`` (Azure OpenAI). ``pairs`` are all headers, names in lower case.

    Raises ``ApiError`` (401) for more than one credential: which one counts would be an accident
    of who reads it, this guard or the proxy before it.
    """
    tokens: dict[str, str] = {}
    for name in CREDENTIAL_HEADERS:
        values = {value for one, value in pairs if one == name}
        if len(values) > 1:
            raise _conflict(f"{name}, which came more than once")
        if (token := _token(name, "".join(values))) is not None:
            tokens[name] = token
    if len(set(tokens.values())) > 1:
        raise _conflict(" and ".join(tokens))
    return next(iter(tokens.values()), None)


def check_host(pairs: Sequence[tuple[str, str]]) -> None:
    """Nothing here depends on ``Host``; a proxy's decision may. Raises ``ApiError`` (400) for more
    than one, as RFC 9112 section 3.2 asks."""
    if sum(name == "host" for name, _ in pairs) > 1:
        raise ApiError(INVALID_REQUEST, "this request has more than one Host header")


def _conflict(where: str) -> ApiError:
    return ApiError(
        INVALID_API_KEY, f"this request shows different credentials in {where}; send one"
    )


def _token(name: str, value: str) -> str | None:
    if name != _AUTHORIZATION:
        return value.strip() or None
    # A signature of AWS's is no credential of ours; its client shows a key in another header.
    return bearer_token({_AUTHORIZATION: value})
