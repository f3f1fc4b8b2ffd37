"""AWS Signature Version 4 for one POST to the root of a service. Standard library only."""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

_ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True)
class Credentials:
    """Keys of an AWS identity. ``repr`` shows none of them."""

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


def signed_headers(
    credentials: Credentials,
    *,
    service: str,
    region: str,
    host: str,
    headers: Mapping[str, str],
    body: bytes,
    now: datetime,
) -> dict[str, str]:
    """The headers of ``POST https://<host>/`` with ``body``: those given, and the signature's.

    ``now`` is in UTC. All given headers are signed.
    """
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    complete = {**headers, "X-Amz-Date": stamp}
    if credentials.session_token is not None:
        complete["X-Amz-Security-Token"] = credentials.session_token
    signed = {name.lower(): " ".join(value.split()) for name, value in complete.items()}
    signed["host"] = host
    names = ";".join(sorted(signed))
    canonical = "\n".join(
        [
            "POST",
            "/",
            "",
            *(f"{name}:{signed[name]}" for name in sorted(signed)),
            "",
            names,
            hashlib.sha256(body).hexdigest(),
        ]
    )
    scope = f"{stamp[:8]}/{region}/{service}/aws4_request"
    to_sign = "\n".join([_ALGORITHM, stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{credentials.secret_access_key}".encode()
    for part in (stamp[:8], region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.new(key, to_sign.encode(), "sha256").hexdigest()
    complete["Authorization"] = (
        f"{_ALGORITHM} Credential={credentials.access_key_id}/{scope},"
        f" SignedHeaders={names}, Signature={signature}"
    )
    return complete
