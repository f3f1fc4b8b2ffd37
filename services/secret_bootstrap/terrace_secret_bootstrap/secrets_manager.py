"""Reads values from AWS Secrets Manager with the pod's own identity. Standard library only."""

import json
import os
import re
import time
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast
from urllib.parse import urlsplit

from terrace_secret_bootstrap.sigv4 import Credentials, signed_headers
from terrace_secret_bootstrap.tries import Refused, persistently

ARN = re.compile(
    r"arn:(?P<partition>aws[a-z-]*):secretsmanager:(?P<region>[a-z0-9-]+):\d{12}:secret:[\w/+=.@!-]+"
)
ENDPOINT_VARIABLE = "TERRACE_SECRETSMANAGER_ENDPOINT"
_TARGET = "secretsmanager.GetSecretValue"
_TYPE = "application/x-amz-json-1.1"
_TIMEOUT_SECONDS = 10
_DNS_SUFFIXES = {
    "aws-cn": "amazonaws.com.cn",
    "aws-iso": "c2s.ic.gov",
    "aws-iso-b": "sc2s.sgov.gov",
}
# Also what a new role or a new grant of a key answers until all of AWS knows it.
_PASSING = frozenset({"ThrottlingException", "InternalServiceError", "RequestExpired"})
_REASONS = {
    "AccessDeniedException": "the pod's role may not read it: allow secretsmanager:GetSecretValue"
    " on this ARN, and kms:Decrypt on its key if that is not AWS's own",
    "ResourceNotFoundException": "there is no such secret, or it has no value yet",
    "DecryptionFailure": "its key could not decrypt it: allow kms:Decrypt on its key",
    "UnrecognizedClientException": "the pod's credentials are not valid there",
    "InvalidSignatureException": "the signature was refused: is the clock of the node right?",
    "InvalidRequestException": "it can not be read now: it is probably marked for deletion",
}


class SecretsManagerError(Exception):
    """A value could not be had. The message names the secret and the reason, never a value."""


class SecretsManager:
    """A reader that asks for each secret once, however many of its keys are wanted."""

    def __init__(
        self,
        credentials: Callable[[], Credentials],
        *,
        endpoint: str | None = None,
        pause: Callable[[float], None] = time.sleep,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """``credentials`` is called when the first secret is asked for. ``endpoint`` (default: the
        variable ``TERRACE_SECRETSMANAGER_ENDPOINT``, else AWS's of the secret's own region)."""
        self._credentials = credentials
        self._endpoint = endpoint or os.environ.get(ENDPOINT_VARIABLE)
        self._pause = pause
        self._now = now
        self._identity: Credentials | None = None
        self._read: dict[str, str] = {}

    def value(self, arn: str, json_key: str | None = None) -> str:
        """The secret's text, or the text under ``json_key`` of its JSON object, without line ends
        at its end (a file that was stored as a secret has one; no password or API key does).

        Raises ``SecretsManagerError``.
        """
        if arn not in self._read:
            self._read[arn] = self._fetch(arn)
        text = self._read[arn]
        return (text if json_key is None else _member(text, arn, json_key)).rstrip("\r\n")

    def _fetch(self, arn: str) -> str:
        found = ARN.fullmatch(arn)
        if found is None:
            raise SecretsManagerError(f"{arn!r} is not the ARN of a secret")
        suffix = _DNS_SUFFIXES.get(found["partition"], "amazonaws.com")
        endpoint = self._endpoint or f"https://secretsmanager.{found['region']}.{suffix}"
        if self._identity is None:
            self._identity = self._credentials()
        identity = self._identity
        try:
            answer = persistently(
                lambda: self._once(endpoint, found["region"], arn, identity),
                f"{arn}",
                pause=self._pause,
                passing=lambda _status, body: _code(body) in _PASSING,
            )
        except Refused as refused:
            code = _code(refused.body)
            reason = _REASONS.get(code, code)
            raise SecretsManagerError(f"{refused}{f' {reason}' if reason else ''}") from None
        text = answer.get("SecretString")
        if not isinstance(text, str):
            raise SecretsManagerError(f"{arn}: its value is binary; only text can be used")
        return text

    def _once(self, endpoint: str, region: str, arn: str, identity: Credentials) -> dict[str, Any]:
        body = json.dumps({"SecretId": arn}).encode()
        headers = signed_headers(
            identity,
            service="secretsmanager",
            region=region,
            host=urlsplit(endpoint).netloc,
            headers={"Content-Type": _TYPE, "X-Amz-Target": _TARGET},
            body=body,
            now=self._now(),
        )
        request = urllib.request.Request(  # noqa: S310  AWS's address, or the one for tests
            f"{endpoint.rstrip('/')}/", method="POST", data=body, headers=headers
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=_TIMEOUT_SECONDS) as response:
            answer: object = json.loads(response.read())
        if not isinstance(answer, dict):
            raise ValueError("not an object")  # noqa: TRY004  a malformed answer, tried again
        return cast("dict[str, Any]", answer)


def _code(body: bytes) -> str:
    """The error's name in an answer of AWS's JSON protocol; empty if it is none."""
    try:
        answer: object = json.loads(body)
    except ValueError:
        return ""
    name: object = cast("dict[str, Any]", answer).get("__type") if isinstance(answer, dict) else ""
    code = name.rpartition("#")[2] if isinstance(name, str) else ""
    return code if code.isalnum() else ""


def _member(text: str, arn: str, json_key: str) -> str:
    try:
        document: object = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise SecretsManagerError(
            f"{arn}: its value is no JSON object, so json_key can not be used"
        )
    members = cast("dict[str, Any]", document)
    if json_key not in members:
        # The names of the others are not shown either: a misplaced value may be one.
        raise SecretsManagerError(
            f"{arn}: its JSON object has no key {json_key!r} ({len(members)} others)"
        )
    value = members[json_key]
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise SecretsManagerError(f"{arn}: the value of {json_key!r} is no text")
    return str(value)
