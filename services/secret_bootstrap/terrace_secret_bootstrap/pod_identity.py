"""The AWS identity of the pod: the agent of EKS Pod Identity on the node gives its credentials.

The association of the service account puts the agent's address and a token file into the pod's
environment when the pod is created; a pod that is older than its association has neither.
"""

import ipaddress
import json
import os
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from terrace_secret_bootstrap.sigv4 import Credentials
from terrace_secret_bootstrap.tries import Refused, persistently

_ADDRESS = "AWS_CONTAINER_CREDENTIALS_FULL_URI"
_TOKEN_FILE = "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"  # noqa: S105  name of a variable
_AGENTS = {"169.254.170.23", "fd00:ec2::23"}
_TIMEOUT_SECONDS = 5


class IdentityError(Exception):
    """The pod has no AWS identity, or its agent gives none. The message holds no credential."""


def credentials_of_pod(
    environ: Mapping[str, str] = os.environ, *, pause: Callable[[float], None] = time.sleep
) -> Credentials:
    """Credentials from the agent, or the three variables ``AWS_ACCESS_KEY_ID``,
    ``AWS_SECRET_ACCESS_KEY`` and ``AWS_SESSION_TOKEN`` where they are set (a run by hand).

    Raises ``IdentityError``.
    """
    if environ.get("AWS_ACCESS_KEY_ID") and environ.get("AWS_SECRET_ACCESS_KEY"):
        return Credentials(
            environ["AWS_ACCESS_KEY_ID"],
            environ["AWS_SECRET_ACCESS_KEY"],
            environ.get("AWS_SESSION_TOKEN") or None,
        )
    address, token_file = environ.get(_ADDRESS), environ.get(_TOKEN_FILE)
    if not address or not token_file:
        raise IdentityError(
            f"the pod has no AWS identity ({_ADDRESS} and {_TOKEN_FILE} are not set): associate its"
            " service account with a role (EKS Pod Identity), then make the pod anew"
        )
    _refuse_a_stranger(address)
    try:
        return persistently(
            lambda: _ask(address, Path(token_file)), "the Pod Identity agent", pause=pause
        )
    except Refused as refused:
        raise IdentityError(str(refused)) from None


def _refuse_a_stranger(address: str) -> None:
    """The token goes to the agent (link-local) or, in tests, to this machine; nowhere else."""
    host = urlsplit(address).hostname or ""
    try:
        known = host in _AGENTS or ipaddress.ip_address(host).is_loopback
    except ValueError:
        known = False
    if not known:
        raise IdentityError(f"{_ADDRESS} is not the Pod Identity agent's address: {host!r}")


def _ask(address: str, token_file: Path) -> Credentials:
    # Read each time: the kubelet renews the token.
    token = token_file.read_text(encoding="utf-8").strip()
    request = urllib.request.Request(  # noqa: S310  the address was checked
        address, headers={"Authorization": token, "Accept": "application/json"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=_TIMEOUT_SECONDS) as response:
        answer: object = json.loads(response.read())
    if not isinstance(answer, dict):
        raise ValueError("not an object")  # noqa: TRY004  a malformed answer, tried again
    fields = cast("dict[str, Any]", answer)
    try:
        return Credentials(fields["AccessKeyId"], fields["SecretAccessKey"], fields["Token"])
    except KeyError as missing:
        raise ValueError(f"no {missing.args[0]} in the answer") from None
