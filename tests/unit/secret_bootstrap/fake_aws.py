"""Secrets Manager and the Pod Identity agent on loopback: botocore checks every signature."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

KEY_ID, SECRET_KEY, SESSION = "ASIACANARY", "canary-secret-access-key", "canary-session"
POD_TOKEN = "canary-pod-token"
ACCOUNT = "123456789012"


def arn(name: str, region: str = "eu-west-1") -> str:
    return f"arn:aws:secretsmanager:{region}:{ACCOUNT}:secret:{name}-AbCdEf"


class FakeAws:
    """Its secrets, what to answer instead (``faults``, one per call), and its book of calls."""

    def __init__(self) -> None:
        self.address = ""
        self.secrets: dict[str, dict[str, Any]] = {}
        self.faults: list[tuple[int, str]] = []
        self.calls: list[str] = []
        self.denied: set[str] = set()

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{self.address}/v1/credentials",
            "TERRACE_SECRETSMANAGER_ENDPOINT": self.address,
        }

    def agent(self, authorization: str) -> tuple[int, Any]:
        self.calls.append("agent")
        if self.faults:
            status, code = self.faults.pop(0)
            return status, {"message": code}
        if authorization != POD_TOKEN:
            return 403, {"message": "not that token"}
        return 200, {
            "AccessKeyId": KEY_ID, "SecretAccessKey": SECRET_KEY, "Token": SESSION,
            "AccountId": ACCOUNT, "Expiration": "2030-01-01T00:00:00Z",
        }  # fmt: skip

    def secrets_manager(self, headers: dict[str, str], body: bytes) -> tuple[int, Any]:
        wanted = json.loads(body)["SecretId"]
        self.calls.append(wanted)
        if self.faults:
            status, code = self.faults.pop(0)
            return status, {"__type": code, "message": "canary-message"}
        ours = ("x-amz-date", "x-amz-security-token", "authorization")
        names = headers["authorization"].split("SignedHeaders=")[1].split(",")[0].split(";")
        right = signed_by_botocore(
            f"http://{headers['host']}/",
            {name: headers[name] for name in names if name not in ours},
            body,
            region=wanted.split(":")[3],
            stamp=headers["x-amz-date"],
            credentials=Credentials(KEY_ID, SECRET_KEY, SESSION),
        )
        if headers["authorization"] != right["authorization"]:
            return 400, {"__type": "com.amazon#InvalidSignatureException"}
        assert headers["x-amz-target"] == "secretsmanager.GetSecretValue"
        assert headers["content-type"] == "application/x-amz-json-1.1"
        if wanted in self.denied:
            return 400, {"__type": "AccessDeniedException", "Message": "canary-message"}
        if wanted not in self.secrets:
            return 400, {"__type": "ResourceNotFoundException", "Message": "canary-message"}
        return 200, {"ARN": wanted, "Name": "n", "VersionId": "v", **self.secrets[wanted]}


def signed_by_botocore(
    url: str,
    headers: dict[str, str],
    body: bytes,
    *,
    region: str,
    stamp: str,
    credentials: Credentials,
) -> dict[str, str]:
    """The headers of a POST that botocore signs for Secrets Manager at ``stamp``."""
    request = AWSRequest(method="POST", url=url, data=body, headers=headers)
    request.context["timestamp"] = stamp
    signer = _AtAnyTime(credentials, "secretsmanager", region)
    signer.add_auth(request)
    return {name.lower(): value for name, value in request.headers.items()}


class _AtAnyTime(SigV4Auth):
    """botocore's signer with the time that the request names, not the clock's."""

    def add_auth(self, request: AWSRequest) -> None:
        self._modify_request_before_signing(request)
        to_sign = self.string_to_sign(request, self.canonical_request(request))
        self._inject_signature_to_request(request, self.signature(to_sign, request))


@contextmanager
def serving() -> Iterator[FakeAws]:
    fake = FakeAws()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(*fake.agent(self.headers.get("authorization", "")))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            self._answer(*fake.secrets_manager(headers, body))

        def _answer(self, status: int, answer: Any) -> None:
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None: ...

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    fake.address = f"http://127.0.0.1:{listening.server_address[1]}"
    try:
        yield fake
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()
