"""The two calls to the Kubernetes API that are needed: read a Secret, create a Secret."""

import http.client
import json
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TIMEOUT_SECONDS = 10
_ATTEMPTS = 8


class ApiError(Exception):
    """The API refused, or could not be reached. The message holds no value of a Secret."""


class Kubernetes:
    """A client with the pod's own service account."""

    def __init__(
        self, server: str, *, account: Path = ACCOUNT, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._server = server.rstrip("/")
        self._account = account
        self._pause = pause
        bundle = account / "ca.crt"
        self._tls = ssl.create_default_context(cafile=str(bundle)) if bundle.exists() else None

    @classmethod
    def from_pod(cls) -> "Kubernetes":
        try:
            host, port = (
                os.environ["KUBERNETES_SERVICE_HOST"],
                os.environ["KUBERNETES_SERVICE_PORT"],
            )
        except KeyError as missing:
            raise ApiError(f"{missing.args[0]} is not set: this program runs in a pod") from None
        return cls(f"https://{f'[{host}]' if ':' in host else host}:{port}")

    def read_secret(self, namespace: str, name: str) -> dict[str, str] | None:
        """The Secret's data, still base64, or None if there is none."""
        status, answer = self._call("GET", f"/api/v1/namespaces/{namespace}/secrets/{name}")
        if status == http.HTTPStatus.NOT_FOUND:
            return None
        self._expect(status, answer, http.HTTPStatus.OK, f"reading Secret {namespace}/{name}")
        data: object = answer.get("data") or {}
        if not isinstance(data, dict):
            raise ApiError(f"Secret {namespace}/{name} has no data that can be read")
        return cast("dict[str, str]", data)

    def create_secret(self, namespace: str, name: str, data: Mapping[str, str]) -> bool:
        """Creates it with base64 `data`; False if somebody else was first. Never overwrites."""
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": {
                    "app.kubernetes.io/part-of": "terrace",
                    "app.kubernetes.io/managed-by": "terrace-secret-bootstrap",
                },
            },
            "type": "Opaque",
            "data": dict(data),
        }
        path = f"/api/v1/namespaces/{namespace}/secrets"
        status, answer = self._call("POST", path, body)
        if status == http.HTTPStatus.CONFLICT:
            return False
        self._expect(status, answer, http.HTTPStatus.CREATED, f"creating Secret {namespace}/{name}")
        return True

    def _call(
        self, method: str, path: str, body: Mapping[str, object] | None = None
    ) -> tuple[int, dict[str, object]]:
        failure = ""
        for attempt in range(_ATTEMPTS):
            if attempt:
                self._pause(min(2.0**attempt / 4, 10))
            try:
                status, answer = self._once(method, path, body)
            except (OSError, http.client.HTTPException, ValueError) as unreachable:
                failure = f"{type(unreachable).__name__}: {unreachable}"
                continue
            if status == http.HTTPStatus.TOO_MANY_REQUESTS or status >= 500:
                failure = f"HTTP {status}"
                continue
            return status, answer
        raise ApiError(f"{method} {path}: no answer after {_ATTEMPTS} tries ({failure})")

    def _once(
        self, method: str, path: str, body: Mapping[str, object] | None
    ) -> tuple[int, dict[str, object]]:
        # Read each time: the kubelet renews the token.
        token = (self._account / "token").read_text(encoding="utf-8").strip()
        request = urllib.request.Request(  # noqa: S310 - the address is the cluster's own
            self._server + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {token}",
                "Content-Type": "application/json",
                "Accept": "application/json",
            },
        )
        # No proxy: whatever the environment says, this goes to the API server itself.
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self._tls)
        )
        try:
            with opener.open(request, timeout=_TIMEOUT_SECONDS) as response:
                return response.status, _object(response.read())
        except urllib.error.HTTPError as refused:
            with refused:
                try:
                    return refused.code, _object(refused.read())
                except ValueError:
                    return refused.code, {}

    @staticmethod
    def _expect(status: int, answer: Mapping[str, object], wanted: int, doing: str) -> None:
        if status != wanted:
            # `reason` is a word such as Forbidden. `message` may repeat what was sent.
            raise ApiError(f"{doing}: HTTP {status} {answer.get('reason', '')}".rstrip())


def _object(content: bytes) -> dict[str, object]:
    answer = json.loads(content)
    if not isinstance(answer, dict):
        raise ValueError("not an object")  # noqa: TRY004 - a malformed answer, tried again
    return cast("dict[str, object]", answer)
