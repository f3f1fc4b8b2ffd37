"""The gateway's admin API, as the commands use it."""

import os
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import click
import httpx

from terrace_cli.connecting import patient_transport
from terrace_cli.endpoints import read_endpoints
from terrace_cli.errors import CliError, NotRunningError, UsageError
from terrace_cli.kubernetes_api import KubernetesApi
from terrace_common.names import NAMESPACE_GATEWAY, SECRET_GATEWAY
from terrace_common.one_line import one_line

_KILL, _UNKILL = "/admin/v1/kill", "/admin/v1/unkill"

Document = dict[str, Any]


class RefusedError(UsageError):
    """The gateway refused what was asked. ``code`` is its error code, ``document`` its answer."""

    def __init__(self, message: str, *, code: str, document: Document) -> None:
        super().__init__(message)
        self.code = code
        self.document = document


class GatewayAdmin:
    """A client of the admin API.

    Errors are CliErrors with the gateway's own sentence: UsageError for what the caller asked
    wrongly (4xx), NotRunningError when nothing answers or it cannot answer now (502, 503, 504).
    A change that is made, and that the replica that answered could not confirm, is told on stderr.
    """

    def __init__(
        self, url: str, admin_key: str, *, transport: httpx.BaseTransport | None = None
    ) -> None:
        self._client = httpx.Client(
            base_url=url,
            headers={"authorization": f"Bearer {admin_key}"},
            timeout=30,
            transport=transport,
            # Calls to the local node must not go through a proxy; a gateway elsewhere may need one.
            trust_env="TERRACE_ADMIN_URL" in os.environ,
        )

    @classmethod
    def connect(cls) -> Self:
        """The gateway of this clone, or the one that TERRACE_ADMIN_URL and TERRACE_ADMIN_KEY name.

        The local key is read from the cluster's Secret and lives in this process's memory only.
        """
        url, key = os.environ.get("TERRACE_ADMIN_URL"), os.environ.get("TERRACE_ADMIN_KEY")
        if url and not key:
            raise UsageError("TERRACE_ADMIN_URL is set but TERRACE_ADMIN_KEY is not; set both.")
        if not url:
            return cls.of_this_machine(key)
        return cls(url.rstrip("/"), str(key))

    @classmethod
    def of_this_machine(cls, key: str | None = None) -> Self:
        """The gateway of this clone, whatever the environment names."""
        url = read_endpoints().admin
        if not key:
            with KubernetesApi() as kubernetes:
                key = kubernetes.secret_value(NAMESPACE_GATEWAY, SECRET_GATEWAY, "admin-key")
        return cls(url.rstrip("/"), key, transport=patient_transport())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client.close()

    def create_key(self, **wanted: Any) -> Document:
        """`POST /admin/v1/keys` without values that are None. The answer holds the key, once."""
        body = {name: value for name, value in wanted.items() if value is not None}
        return self._call("POST", "/admin/v1/keys", json=body)

    def keys(self, team: str | None = None) -> Document:
        """`GET /admin/v1/keys`, all pages."""
        params = {"team": team} if team else {}
        keys: list[Document] = []
        while True:
            page = self._call("GET", "/admin/v1/keys", params=params)
            keys += page["keys"]
            if page.get("next") is None:
                return {"keys": keys}
            params["after"] = str(page["next"])

    def key(self, key_id: str) -> Document:
        """`GET /admin/v1/keys/{key_id}`."""
        return self._call("GET", f"/admin/v1/keys/{key_id}")

    def rotate_key(
        self, key_id: str, *, overlap_seconds: int, reason: str | None = None
    ) -> Document:
        """`POST /admin/v1/keys/{key_id}/rotate`. The answer holds the new secret, once."""
        body: Document = {"overlap_seconds": overlap_seconds}
        if reason:
            body["reason"] = reason
        return self._call("POST", f"/admin/v1/keys/{key_id}/rotate", json=body)

    def revoke_key(self, key_id: str, reason: str | None = None) -> Document:
        """`POST /admin/v1/keys/{key_id}/revoke`; doing it twice is the same as once."""
        body = {"reason": reason} if reason else {}
        return self._call("POST", f"/admin/v1/keys/{key_id}/revoke", json=body)

    def spend(self, by: str) -> Document:
        """`GET /admin/v1/spend`."""
        return self._call("GET", "/admin/v1/spend", params={"by": by})

    def reconcile(self, recheck_hours: int = 0) -> Document:
        """`POST /admin/v1/reconcile`: reads the providers' own logs; may take a while."""
        body = {"recheck_hours": recheck_hours} if recheck_hours else {}
        return self._call("POST", "/admin/v1/reconcile", json=body, timeout=300)

    def verify_ledger(self, writer: str | None = None) -> Document:
        """`POST /admin/v1/audit/verify`: reads the whole ledger; may take long."""
        body = {} if writer is None else {"writer": writer}
        return self._call("POST", "/admin/v1/audit/verify", json=body, timeout=3600)

    def upstream_quotas(self) -> list[Document]:
        """`GET /admin/v1/upstream-quotas`: pools of upstream quota with shares and ages."""
        return self._call("GET", "/admin/v1/upstream-quotas")["pools"]

    def chains(self) -> Iterator[Document]:
        """`GET /admin/v1/audit/chains`, page by page."""
        return self._pages("/admin/v1/audit/chains", "chains")

    def audit(self) -> Iterator[Document]:
        """`GET /admin/v1/audit`, oldest first, page by page."""
        return self._pages("/admin/v1/audit", "changes")

    def caps(self, scope: str | None = None, scope_id: str | None = None) -> Iterator[Document]:
        """`GET /admin/v1/caps`, page by page."""
        wanted = {"scope": scope, "scope_id": scope_id}
        given = {name: value for name, value in wanted.items() if value is not None}
        return self._pages("/admin/v1/caps", "caps", given)

    def alerts(self, after: int = 0) -> Iterator[Document]:
        """`GET /admin/v1/alerts`, oldest first, page by page."""
        return self._pages("/admin/v1/alerts", "alerts", {"after": str(after)})

    def _pages(
        self, path: str, name: str, given: dict[str, str] | None = None
    ) -> Iterator[Document]:
        params = {"limit": "500", **(given or {})}
        while True:
            page = self._call("GET", path, params=params)
            yield from page[name]
            if page.get("next") is None:
                return
            params["after"] = str(page["next"])

    def test_guardrails(self, policy: str, text: str) -> Document:
        """`POST /admin/v1/guardrails/test`: what a policy's guardrails would do with `text`."""
        body = {"policy": policy, "text": text}
        return self._call("POST", "/admin/v1/guardrails/test", json=body, timeout=60)

    def switch(self, target: str, *, reason: str, kill: bool) -> Document:
        """`POST /admin/v1/kill` or `/unkill`; doing it twice is the same as once."""
        return self._call(
            "POST", _KILL if kill else _UNKILL, json={"target": target, "reason": reason}
        )

    def switches(self) -> Document:
        """`GET /admin/v1/kill`: the kill switches that are pulled."""
        return self._call("GET", "/admin/v1/kill")

    def plan_governance(self, text: str) -> Document:
        """`POST /admin/v1/governance/plan`: what applying `text` would do. Changes nothing."""
        return self._call("POST", "/admin/v1/governance/plan", json={"text": text}, timeout=120)

    def apply_governance(
        self, text: str, *, base_version: int | None, reason: str, allow: Sequence[str]
    ) -> Document:
        """`POST /admin/v1/governance/apply`: refused if the version in force is another."""
        return self._call(
            "POST",
            "/admin/v1/governance/apply",
            json={
                "text": text,
                "base_version": base_version,
                "reason": reason,
                "allow": list(allow),
            },
            timeout=120,
        )

    def governance(self, version: int | None = None) -> Document:
        """`GET /admin/v1/governance`: the version in force, or that one, with its text."""
        params = None if version is None else {"version": str(version)}
        return self._call("GET", "/admin/v1/governance", params=params)

    def governance_versions(self, limit: int) -> list[Document]:
        """`GET /admin/v1/governance/versions`, newest first, at most `limit`."""
        found: list[Document] = []
        params = {"limit": str(min(limit, 100))}
        while len(found) < limit:
            page = self._call("GET", "/admin/v1/governance/versions", params=params)
            found += page["versions"]
            if page.get("next") is None:
                break
            params["before"] = str(page["next"])
        return found[:limit]

    def rollback_governance(
        self, version: int, *, base_version: int, reason: str, allow: Sequence[str]
    ) -> Document:
        """`POST /admin/v1/governance/rollback`: an older text becomes a new version. Refused if
        the version in force is another than `base_version`."""
        body: Document = {"version": version, "base_version": base_version}
        body |= {"reason": reason, "allow": list(allow)}
        return self._call("POST", "/admin/v1/governance/rollback", json=body, timeout=120)

    def models(self) -> Document:
        """`GET /admin/v1/models`."""
        return self._call("GET", "/admin/v1/models")

    def explain(self, asked: Document) -> Document:
        """`POST /admin/v1/models/explain`: which models could serve a request, and why."""
        return self._call("POST", "/admin/v1/models/explain", json=asked)

    def price_books(self) -> Document:
        """`GET /admin/v1/prices`."""
        return self._call("GET", "/admin/v1/prices")

    def apply_prices(self, book: Document, *, reason: str) -> Document:
        """`POST /admin/v1/prices`; doing it twice is the same as once."""
        body = {"book": book, "reason": reason}
        return self._call("POST", "/admin/v1/prices", json=body, timeout=120)

    def use_prices(self, version: str | None, *, reason: str) -> Document:
        """`POST /admin/v1/prices/use`: a book that is there, or None for the spec's own prices."""
        body: Document = {"version": version, "reason": reason}
        return self._call("POST", "/admin/v1/prices/use", json=body)

    def rerate(self, question: Document) -> Document:
        """`POST /admin/v1/prices/rerate`: one page."""
        return self._call("POST", "/admin/v1/prices/rerate", json=question, timeout=120)

    def ledger(self, key_id: str | None = None) -> Iterator[Document]:
        """All ledger entries (of one key), oldest first, page by page."""
        params: dict[str, str] = {"limit": "500"}
        if key_id:
            params["key_id"] = key_id
        while True:
            page = self._call("GET", "/admin/v1/ledger", params=params)
            yield from page["entries"]
            if page.get("next") is None:
                return
            params["after"] = str(page["next"])

    def _call(
        self,
        method: str,
        path: str,
        *,
        params: dict[str, str] | None = None,
        json: Document | None = None,
        timeout: float = 30,
    ) -> Document:
        try:
            answer = self._client.request(method, path, params=params, json=json, timeout=timeout)
        except httpx.ReadTimeout as error:
            raise NotRunningError(_late(method, path, timeout)) from error
        except httpx.TransportError as error:
            raise NotRunningError(
                f"The gateway's admin API at {self._client.base_url} does not answer "
                f"({type(error).__name__}). See `terrace status`."
            ) from error
        if answer.is_error:
            raise _refusal(answer)
        try:
            document = answer.json()
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise CliError(
                f"{self._client.base_url} did not answer {path} with a JSON object; "
                "is this the gateway's admin address?"
            )
        if (pending := document.get("pending_here")) is not None:
            click.echo(
                one_line(
                    "The change is made; do not repeat it. The replica that answered does not"
                    f" confirm it yet: {pending}"
                ),
                err=True,
            )
        return document


def _late(method: str, path: str, seconds: float) -> str:
    said = f"The gateway's admin API has not answered within {seconds:g} s"
    if method == "GET":
        return f"{said}. See `terrace status`."
    said += ", and whether the change was made is not known: "
    if path in (_KILL, _UNKILL):
        return said + "run the same command again, which is the same as once."
    return said + "look before you run it again."


def _refusal(answer: httpx.Response) -> CliError:
    try:
        document = answer.json()
        said = str(document["error"]["message"])
    except (ValueError, KeyError, TypeError):
        document, said = {}, f"status {answer.status_code}"
    if answer.status_code == 401:
        return UsageError(
            f"The gateway does not accept this admin key ({said}). "
            "Check TERRACE_ADMIN_KEY, or unset it and TERRACE_ADMIN_URL to use the local gateway's."
        )
    if answer.status_code == 403:
        return UsageError(f"The gateway does not allow you that: {said}")
    if answer.status_code in (502, 503, 504):
        return NotRunningError(f"The gateway cannot answer now: {said}")
    if answer.is_client_error:
        code = str(document["error"].get("code")) if document else ""
        return RefusedError(f"The gateway refused: {said}", code=code, document=document)
    return CliError(f"The gateway failed: {said}")
