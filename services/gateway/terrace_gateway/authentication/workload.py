"""The workload identity of a pod: the service account that its projected token names."""

from dataclasses import dataclass
from typing import cast

from terrace_common.governance.authentication import KubernetesIssuer
from terrace_gateway.authentication.token import Token
from terrace_gateway.edge.errors import INVALID_API_KEY, ApiError

_CLAIM = "kubernetes.io"


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """A service account of a cluster."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def service_account(token: Token) -> ServiceAccount:
    """Of a token that the API server made. Raises ``ApiError`` (401) if it is no such token."""
    inside = _object(token.claims.get(_CLAIM))
    namespace = inside.get("namespace")
    name = _object(inside.get("serviceaccount")).get("name")
    if (
        not isinstance(namespace, str)
        or not isinstance(name, str)
        or token.subject != f"system:serviceaccount:{namespace}:{name}"
    ):
        raise ApiError(INVALID_API_KEY, "the token is refused: it is of no service account")
    return ServiceAccount(namespace, name)


def app_of(account: ServiceAccount, issuer: KubernetesIssuer) -> str | None:
    """The app that the spec declares for the account."""
    for workload in issuer.workloads:
        if (workload.namespace, workload.service_account) == (account.namespace, account.name):
            return workload.app
    return None


def _object(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}
