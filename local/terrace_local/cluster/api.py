"""The few calls this package makes to the API server, as the administrator of the kubeconfig."""

import ssl
from types import TracebackType
from typing import Any

import httpx

from terrace_local.cluster.errors import ClusterError, Unanswered
from terrace_local.cluster.paths import API_URL, Paths

__all__ = ["Api"]

FIELD_MANAGER = "terrace-local"


class Api:
    """A connection to the API server. Use as a context manager.

    Every call may be repeated. Each raises Unanswered when the server cannot be reached, is too
    late, or has trouble of its own (429, 5xx): a server that says it is ready has one connection
    to its store for each kind of object, and they come back one after the other.
    """

    def __init__(self, paths: Paths, *, timeout: float = 5.0) -> None:
        context = ssl.create_default_context(cafile=str(paths.pki / "ca.crt"))
        context.load_cert_chain(paths.pki / "admin.crt", paths.pki / "admin.key")
        # Proxies from the environment have no business between this machine and itself.
        self._http = httpx.Client(
            base_url=API_URL, verify=context, timeout=timeout, trust_env=False
        )

    def __enter__(self) -> "Api":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def not_ready(self) -> str | None:
        """None when the server is ready, else what it or the connection says."""
        try:
            answer = self._http.get("/readyz?verbose")
        except httpx.TransportError as error:
            return f"no answer at {API_URL} ({error})"
        if answer.status_code == httpx.codes.OK:
            return None
        failed = [line for line in answer.text.splitlines() if line.startswith("[-]")]
        return "; ".join(failed) or f"answers {answer.status_code}"

    def get(self, path: str) -> dict[str, Any] | None:
        """The object or list at `path`, or None when there is none."""
        answer = self._send("GET", path)
        return None if answer.status_code == httpx.codes.NOT_FOUND else self._object(answer, path)

    def apply(self, path: str, manifest: dict[str, Any]) -> dict[str, Any]:
        """Server-side apply: make the object at `path` what `manifest` says; owns those fields."""
        answer = self._send(
            "PATCH",
            path,
            params={"fieldManager": FIELD_MANAGER, "force": "true"},
            headers={"Content-Type": "application/apply-patch+yaml"},
            json=manifest,
        )
        return self._object(answer, path)

    def delete(self, path: str) -> None:
        """Delete the object at `path`, or do nothing when there is none."""
        answer = self._send("DELETE", path)
        if answer.status_code != httpx.codes.NOT_FOUND:
            self._object(answer, path)

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            return self._http.request(method, path, **options)
        except httpx.TransportError as error:
            raise Unanswered(f"the API server at {API_URL} cannot be reached: {error}") from error

    def _object(self, answer: httpx.Response, path: str) -> dict[str, Any]:
        if answer.is_success:
            return answer.json()
        said = f"{answer.request.method} {path}: {answer.status_code} {answer.text[:500]}"
        if answer.is_server_error or answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
            raise Unanswered(said)
        raise ClusterError(said)
