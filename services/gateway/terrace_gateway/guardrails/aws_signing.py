"""AWS's signature of a request, and where its keys come from, by botocore."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, cast

import botocore.session  # pyright: ignore[reportMissingTypeStubs]
from botocore.auth import SigV4Auth  # pyright: ignore[reportMissingTypeStubs]
from botocore.awsrequest import AWSRequest  # pyright: ignore[reportMissingTypeStubs]
from botocore.credentials import ReadOnlyCredentials  # pyright: ignore[reportMissingTypeStubs]

from terrace_common.governance import AWS_KEY_VARIABLES
from terrace_gateway.guardrails.port import GuardrailFailedError


class AwsCredentials(Protocol):
    """Where the keys to sign with come from."""

    async def get(self) -> Any:
        """Botocore's frozen credentials. Raises ``GuardrailFailedError``."""
        ...


class AmbientCredentials:
    """Botocore's own chain: keys in the guard's environment, else the identity of the pod."""

    def __init__(self) -> None:
        self._found: Any = None
        self._lock = asyncio.Lock()

    async def get(self) -> Any:
        """The keys in force, fetched and renewed off the event loop."""
        async with self._lock:
            try:
                frozen = await asyncio.to_thread(self._read)
            except Exception as error:  # botocore's providers raise much
                raise GuardrailFailedError(f"AWS credentials: {type(error).__name__}") from None
        if frozen is None:
            raise GuardrailFailedError("the guard has no AWS credentials")
        return frozen

    def _read(self) -> Any:
        if self._found is None:
            self._found = cast("Any", botocore.session.Session()).get_credentials()
        return None if self._found is None else self._found.get_frozen_credentials()


class KeyCredentials:
    """The access keys of ``credentials: keys``: ``AWS_KEY_VARIABLES``, as ``find`` gives them."""

    def __init__(self, find: Callable[[str], str | None]) -> None:
        self._find = find

    async def get(self) -> Any:
        """The keys in force; the translator has no session token for them either."""
        found = [self._find(variable) for variable in AWS_KEY_VARIABLES]
        absent = [name for name, value in zip(AWS_KEY_VARIABLES, found, strict=True) if not value]
        if absent:
            raise GuardrailFailedError(f"the guard has no {' and no '.join(absent)}")
        return cast("Any", ReadOnlyCredentials)(*found, None)


def signed_headers(credentials: Any, url: str, body: bytes, *, region: str) -> dict[str, str]:
    """Headers of a ``POST`` of JSON to Bedrock, signed (Signature Version 4)."""
    request = cast("Any", AWSRequest)(
        method="POST",
        url=url,
        data=body,
        headers={"content-type": "application/json", "accept": "application/json"},
    )
    cast("Any", SigV4Auth)(credentials, "bedrock", region).add_auth(request)
    return {str(name): str(value) for name, value in request.headers.items()}
