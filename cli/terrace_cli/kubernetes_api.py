"""The few calls to the API server that `terrace` needs, with the kubeconfig's certificate."""

import base64
import binascii
import os
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import yaml

from terrace_cli.errors import CliError, NotRunningError
from terrace_cli.places import state_directory


@dataclass(frozen=True, kw_only=True)
class WorkloadState:
    """One Deployment or StatefulSet: how many replicas are wanted and how many are ready."""

    kind: str
    namespace: str
    name: str
    wanted: int
    ready: int
    rolling: bool = False
    """Whether replicas of the version before are still to be replaced."""

    @property
    def is_ready(self) -> bool:
        """All wanted replicas are ready, and of the newest version."""
        return self.ready >= self.wanted and not self.rolling

    def words(self) -> str:
        """How it is, for people."""
        return f"{self.ready} of {self.wanted} ready{', rolling' if self.rolling else ''}"


class KubernetesApi:
    """A client of the local API server. Raises NotRunningError when it does not answer."""

    def __init__(self, kubeconfig: Path | None = None) -> None:
        path = kubeconfig or Path(
            os.environ.get("TERRACE_KUBECONFIG") or state_directory() / "kubeconfig"
        )
        try:
            text = path.read_text()
        except FileNotFoundError:
            raise NotRunningError(
                f"There is no local cluster: {path} does not exist. Start it with `terrace up`."
            ) from None
        except PermissionError:
            raise NotRunningError(
                f"{path} is readable by root only. Run this command as root."
            ) from None
        try:
            document = yaml.safe_load(text)
            cluster = document["clusters"][0]["cluster"]
            user = document["users"][0]["user"]
            context = ssl.create_default_context(
                cadata=base64.b64decode(cluster["certificate-authority-data"]).decode()
            )
            _load_client_certificate(
                context, user["client-certificate-data"], user["client-key-data"]
            )
            server = str(cluster["server"])
        except (
            yaml.YAMLError,
            KeyError,
            IndexError,
            TypeError,
            binascii.Error,
            ssl.SSLError,
            UnicodeError,
        ) as error:
            raise NotRunningError(
                f"{path} is not a kubeconfig with embedded certificates ({type(error).__name__}). "
                "`terrace down` and `terrace up` make a new one."
            ) from None
        # The node's address is on this machine: a proxy from the environment must not see it.
        self._client = httpx.Client(base_url=server, verify=context, timeout=10, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client.close()

    def get(self, path: str, **params: str) -> Any:
        """The JSON document at an API path.

        Raises CliError with the server's own sentence, NotRunningError when it does not answer or
        has trouble of its own (429, 5xx), which may pass.
        """
        try:
            answer = self._client.get(path, params=params)
        except httpx.TransportError as error:
            raise NotRunningError(
                f"The API server at {self._client.base_url} does not answer "
                f"({type(error).__name__}). "
                "See `terrace status`."
            ) from error
        if answer.is_server_error or answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
            raise NotRunningError(
                f"The API server has trouble with {path}: {_message(answer)}. See `terrace status`."
            )
        if answer.is_error:
            raise CliError(f"The API server refused {path}: {_message(answer)}")
        return answer.json()

    def secret_value(self, namespace: str, name: str, key: str) -> str:
        """One value of a Secret. The caller must never print it."""
        secret = self.get(f"/api/v1/namespaces/{namespace}/secrets/{name}")
        try:
            return base64.b64decode(secret["data"][key]).decode()
        except (KeyError, TypeError):
            raise CliError(f"Secret {namespace}/{name} has no key {key!r}.") from None

    def workloads(self, namespaces: tuple[str, ...]) -> list[WorkloadState]:
        """Deployments and StatefulSets of the namespaces, in their order."""
        found: list[WorkloadState] = []
        for kind, plural in (("Deployment", "deployments"), ("StatefulSet", "statefulsets")):
            for item in self.get(f"/apis/apps/v1/{plural}")["items"]:
                if item["metadata"]["namespace"] in namespaces:
                    found.append(
                        WorkloadState(
                            kind=kind,
                            namespace=item["metadata"]["namespace"],
                            name=item["metadata"]["name"],
                            wanted=item["spec"].get("replicas", 1),
                            ready=item.get("status", {}).get("readyReplicas", 0),
                            rolling=_is_rolling(item),
                        )
                    )
        return sorted(found, key=lambda state: (namespaces.index(state.namespace), state.name))

    def pod_troubles(self, namespaces: tuple[str, ...]) -> list[str]:
        """One sentence per container or pod that is not well, with the reason Kubernetes gives."""
        troubles: list[str] = []
        for namespace in namespaces:
            for pod in self.get(f"/api/v1/namespaces/{namespace}/pods")["items"]:
                troubles.extend(_pod_troubles(pod))
        return troubles


def _is_rolling(item: dict[str, Any]) -> bool:
    status, wanted = item.get("status", {}), item["spec"].get("replicas", 1)
    # Until the controller has seen the newest generation, its numbers are of the one before.
    unseen = item["metadata"].get("generation", 0) > status.get("observedGeneration", 0)
    return unseen or status.get("updatedReplicas", 0) < wanted


def _pod_troubles(pod: dict[str, Any]) -> list[str]:
    name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    status = pod.get("status", {})
    troubles = [
        f"pod {name} is not scheduled: {condition.get('message', 'no reason given')}"
        for condition in status.get("conditions", [])
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False"
    ]
    if status.get("phase") == "Succeeded":
        return troubles
    containers = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    for container in containers:
        state = container.get("state", {})
        waiting, ended = state.get("waiting"), state.get("terminated")
        if waiting and waiting.get("reason") not in (None, "PodInitializing"):
            reason = " ".join(filter(None, (waiting["reason"], waiting.get("message"))))
            troubles.append(f"container {container['name']} of {name} waits: {reason}")
        elif ended and ended.get("exitCode"):
            troubles.append(
                f"container {container['name']} of {name} ended with code {ended['exitCode']}"
            )
        elif "running" in state and not container.get("ready", True):
            troubles.append(f"container {container['name']} of {name} runs but is not ready")
    return troubles


def _load_client_certificate(context: ssl.SSLContext, certificate: str, key: str) -> None:
    # ssl takes these two from files only; the file is private and gone before anything is sent.
    with tempfile.NamedTemporaryFile(prefix="terrace-client-") as pem:
        pem.write(base64.b64decode(certificate) + b"\n" + base64.b64decode(key))
        pem.flush()
        context.load_cert_chain(pem.name)


def _message(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status_code}"
