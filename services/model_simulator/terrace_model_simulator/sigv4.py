"""Checks an AWS Signature Version 4 by signing the request again, with botocore's own signer."""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
# botocore has no stubs.

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as AwsCredentials

SERVICE = "bedrock"
MAX_CLOCK_SKEW = timedelta(minutes=5)

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 +Credential=(?P<key>[^/,\s]+)/(?P<date>\d{8})/(?P<region>[^/,\s]+)/"
    r"(?P<service>[^/,\s]+)/aws4_request, *SignedHeaders=(?P<headers>[a-z0-9;_-]+), *"
    r"Signature=(?P<signature>[0-9a-f]{64})"
)
_REQUIRED_HEADERS = {"host", "x-amz-date"}


class SignatureError(Exception):
    """The request is not signed by who it says. ``code`` is the AWS error type."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def verify_signature(
    *,
    method: str,
    raw_target: str,
    headers: Mapping[str, str],
    body: bytes,
    access_key_id: str,
    secret_access_key: str,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> None:
    """Return if the signature is right; raise SignatureError if not.

    ``raw_target`` is path and query as they came over the wire (still percent-encoded); header
    names are lower case. Any region is accepted, the service must be ``bedrock``.
    """
    found = _AUTHORIZATION.fullmatch(headers.get("authorization", ""))
    if found is None:
        raise SignatureError(
            "IncompleteSignatureException",
            "Authorization header requires Credential, SignedHeaders and Signature.",
        )
    if not hmac.compare_digest(found["key"].encode(), access_key_id.encode()):
        raise SignatureError(
            "UnrecognizedClientException",
            "The security token included in the request is invalid.",
        )
    timestamp = headers.get("x-amz-date", "")
    _check_time(timestamp, found["date"], now())
    if found["service"] != SERVICE:
        raise SignatureError(
            "InvalidSignatureException",
            f"Credential should be scoped to correct service: '{SERVICE}'.",
        )
    signed_names = found["headers"].split(";")
    if not set(signed_names) >= _REQUIRED_HEADERS or not set(signed_names) <= set(headers):
        raise _mismatch()
    declared = headers.get("x-amz-content-sha256")
    if declared is not None and (
        "x-amz-content-sha256" not in signed_names or declared != hashlib.sha256(body).hexdigest()
    ):
        raise _mismatch()

    request = AWSRequest(
        method=method,
        url=f"http://{headers['host']}{raw_target}",
        data=body,
        headers={name: headers[name] for name in signed_names},
    )
    request.context["timestamp"] = timestamp
    signer = SigV4Auth(AwsCredentials(access_key_id, secret_access_key), SERVICE, found["region"])
    expected = signer.signature(
        signer.string_to_sign(request, signer.canonical_request(request)), request
    )
    if not hmac.compare_digest(expected, found["signature"]):
        raise _mismatch()


def _check_time(timestamp: str, date: str, now: datetime) -> None:
    try:
        signed_at = datetime.strptime(timestamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise SignatureError(
            "IncompleteSignatureException", "X-Amz-Date must be in ISO-8601 'basic format'."
        ) from None
    if timestamp[:8] != date:
        raise SignatureError(
            "InvalidSignatureException", "Date in Credential scope does not match X-Amz-Date."
        )
    if abs(now - signed_at) > MAX_CLOCK_SKEW:
        raise SignatureError(
            "InvalidSignatureException", f"Signature expired or not yet valid: {timestamp}."
        )


def _mismatch() -> SignatureError:
    return SignatureError(
        "InvalidSignatureException",
        "The request signature we calculated does not match the signature you provided. Check "
        "your AWS Secret Access Key and signing method. Consult the service documentation for "
        "details.",
    )
