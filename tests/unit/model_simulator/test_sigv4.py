"""Signatures made by botocore are accepted; anything changed afterwards is not."""

from datetime import UTC, datetime, timedelta

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from terrace_model_simulator.sigv4 import SignatureError, verify_signature

TARGET = "/model/anthropic.claude-sonnet-4-5-20250929-v1%3A0/converse"
BODY = b'{"messages":[]}'


def sign(
    *,
    target: str = TARGET,
    body: bytes = BODY,
    key: str = "AKIASIM",
    secret: str = "right",
    service: str = "bedrock",
    extra: dict[str, str] | None = None,
) -> dict[str, str]:
    headers = {"host": "model:8080", "content-type": "application/json", **(extra or {})}
    request = AWSRequest("POST", f"http://model:8080{target}", headers, body)
    SigV4Auth(Credentials(key, secret), service, "us-east-1").add_auth(request)
    return {name.lower(): value for name, value in request.headers.items()}


def verify(headers: dict[str, str], **changes: object) -> None:
    options: dict[str, object] = {
        "method": "POST",
        "raw_target": TARGET,
        "headers": headers,
        "body": BODY,
        "access_key_id": "AKIASIM",
        "secret_access_key": "right",
    }
    verify_signature(**{**options, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "target",
    [TARGET, "/model/a:0/converse", "/model/arn%3Aaws%3Ab%2Fc/invoke", "/model/m/converse?b=2&a=1"],
)
def test_a_botocore_signature_is_accepted(target: str) -> None:
    verify(sign(target=target), raw_target=target)


def test_an_unsigned_header_may_be_added_on_the_way() -> None:
    verify({**sign(), "x-terrace-attempt-id": "a", "user-agent": "u"})


@pytest.mark.parametrize(
    "changes",
    [
        {"body": BODY + b" "},
        {"method": "PUT"},
        {"raw_target": TARGET + "-stream"},
        {"raw_target": TARGET + "?x=1"},
        {"secret_access_key": "wrong"},
    ],
)
def test_a_changed_request_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(SignatureError) as caught:
        verify(sign(), **changes)
    assert caught.value.code == "InvalidSignatureException"
    assert "right" not in str(caught.value)


def test_a_changed_signed_header_is_refused() -> None:
    with pytest.raises(SignatureError):
        verify({**sign(extra={"x-amz-meta": "a"}), "x-amz-meta": "b"})


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"authorization": ""}, "IncompleteSignatureException"),
        ({"authorization": "AWS4-HMAC-SHA256 Credential=x"}, "IncompleteSignatureException"),
        ({"x-amz-date": "yesterday"}, "IncompleteSignatureException"),
        ({"x-amz-date": "20200101T000000Z"}, "InvalidSignatureException"),
        ({"x-amz-content-sha256": "UNSIGNED-PAYLOAD"}, "InvalidSignatureException"),
    ],
)
def test_broken_headers(headers: dict[str, str], code: str) -> None:
    with pytest.raises(SignatureError) as caught:
        verify({**sign(), **headers})
    assert caught.value.code == code


def test_unknown_key_wrong_service() -> None:
    with pytest.raises(SignatureError) as caught:
        verify(sign(key="AKIAOTHER"))
    assert caught.value.code == "UnrecognizedClientException"
    with pytest.raises(SignatureError) as caught:
        verify(sign(service="s3"))
    assert caught.value.code == "InvalidSignatureException"


@pytest.mark.parametrize("minutes", [-6, 6])
def test_an_old_or_future_signature_is_refused(minutes: int) -> None:
    with pytest.raises(SignatureError, match="expired"):
        verify(sign(), now=lambda: datetime.now(UTC) + timedelta(minutes=minutes))


def test_a_signed_payload_hash_must_be_of_the_payload() -> None:
    headers = sign(extra={"x-amz-content-sha256": "0" * 64})
    with pytest.raises(SignatureError):
        verify(headers)
